"""A project file: hostile until its content was approved, except where it only tightens."""

from __future__ import annotations

import os
import shlex

from tests.settings.test_profiles import config, settings_of
from tests.support.terminals import Terminal

APPROVE = r"Approve exactly this, for this project\? \[y/N\] "
WIDE = 'network = "full"\nextra_env_passthrough = ["WANTED"]\nsecret_variables = "refuse"\n'


def asking(box, terminal, answer, *words):
    """Start without `-y`, and answer the question about the project file."""
    terminal.type(shlex.join((box.program, "--exec", "--", *words)))
    terminal.expect(APPROVE)
    terminal.press(answer)


def test_without_a_terminal_only_what_tightens_applies_and_the_rest_is_told(box):
    # proves EXT-01, E05
    config(box, 'network = "none"\n')
    box.write(".claudebox.toml", WIDE)
    box.environ["WANTED"] = "set"

    result = box.sh('echo "[$WANTED]"; grep -c : /proc/net/dev', start_new_session=True)

    assert result.stdout == "[]\n1\n"
    assert "warning: .claudebox.toml is not approved and what it asks for was left out" in result.stderr
    assert "extra_env_passthrough: + WANTED; network: none -> full" in result.stderr
    found = settings_of(box, start_new_session=True)
    assert found["secret_variables"] == [("refuse", ".claudebox.toml:3")]
    assert found["network"] == [("none", "~/.claudebox/config.toml:1")]


def test_what_only_tightens_needs_nobody(user_box):
    # proves EXT-01
    user_box.write(".claudebox.toml", 'network = "none"\nallow_userns = false\nterminal = "filtered"\n')

    result = user_box.sh("grep -c : /proc/net/dev", start_new_session=True)

    assert result.stdout == "1\n"
    assert "approved" not in result.stderr


def test_a_user_sees_the_difference_approves_once_and_is_asked_again_for_another_content(user_box):
    # proves EXT-01, E05, E06
    config(user_box, 'network = "none"\n')
    path = user_box.write(".claudebox.toml", WIDE)
    user_box.environ["WANTED"] = "set"
    script = ("sh", "-c", 'echo "[$WANTED]" "$(grep -c : /proc/net/dev)"')
    with Terminal(user_box) as terminal:
        terminal.type(shlex.join((user_box.program, "--exec", "--", *script)))
        terminal.expect(r"asks for settings, in `.*/\.claudebox\.toml`")
        terminal.expect("widens +extra_env_passthrough: \\+ WANTED")
        terminal.expect("widens +network: none -> full")
        terminal.expect("tightens +secret_variables: show -> refuse")
        terminal.expect(APPROVE)
        terminal.press("\r")  # the default is no
        terminal.expect("was left out")
        terminal.expect(r"Proceed\?")
        terminal.press("\r")
        terminal.expect(r"\[\] 1\n")
        terminal.prompt()

        asking(user_box, terminal, "y\r", *script)
        terminal.expect(r"Proceed\?")
        terminal.press("\r")
        terminal.expect(r"\[set\] [2-9]")
        terminal.prompt()
    again = user_box.run(*script)
    assert again.stdout.startswith("[set] ")
    assert "approved" not in again.stderr

    with open(path, "a", encoding="utf-8") as file:
        file.write("# one more line\n")
    changed = user_box.run(*script, start_new_session=True)
    assert changed.stdout == "[] 1\n"
    assert "is not approved" in changed.stderr


def test_an_approval_does_not_reach_further_when_the_users_settings_become_tighter(user_box):
    # proves EXT-01
    user_box.write(".claudebox.toml", 'network = "full"\nextra_env_passthrough = ["WANTED"]\n')
    with Terminal(user_box) as terminal:
        asking(user_box, terminal, "y\r", "true")
        terminal.expect(r"Proceed\?")
        terminal.press("\r")
        terminal.prompt()
    assert "approved" not in user_box.sh("true").stderr

    config(user_box, 'network = "none"\n')
    result = user_box.sh("grep -c : /proc/net/dev", start_new_session=True)

    assert result.stdout == "1\n"
    assert "network: none -> full" in result.stderr


def test_approvals_are_listed_and_revoked(user_box):
    # proves EXT-01
    user_box.write(".claudebox.toml", WIDE)
    user_box.environ["WANTED"] = "set"
    path = f"{user_box.project}/.claudebox.toml"
    assert user_box.claudebox("trust").stdout == "no project file has been approved\n"
    assert user_box.claudebox("trust", "approve", start_new_session=True).returncode == 125
    with Terminal(user_box) as terminal:
        terminal.type(f"{user_box.program} trust approve")
        terminal.expect(APPROVE)
        terminal.press("y\r")
        assert terminal.prompt() == 0
        terminal.type(f"{user_box.program} trust approve")
        terminal.expect("already approved")
        terminal.prompt()

    listed = user_box.claudebox("trust").stdout
    assert path in listed
    assert "extra_env_passthrough: + WANTED" in listed
    assert user_box.sh("echo $WANTED").stdout == "set\n"

    assert user_box.claudebox("trust", "revoke", user_box.project).returncode == 0
    assert user_box.sh("echo $WANTED", start_new_session=True).stdout == "\n"
    assert user_box.claudebox("trust", "revoke", user_box.project).returncode == 125
    assert user_box.claudebox("trust", "frobnicate").returncode == 125


def test_a_dry_run_asks_nothing_and_writes_nothing(user_box):
    # proves UX-04, EXT-01
    user_box.write(".claudebox.toml", WIDE)
    with Terminal(user_box, configured=False) as terminal:
        terminal.type(f"{user_box.program} --dry-run --exec -- true 2>&1 | tail -3; echo do''ne")
        terminal.expect("\ndone\n")
        assert "Approve" not in terminal.raw()
    assert not os.path.exists(f"{user_box.home}/.claudebox")


def test_a_project_that_asks_for_what_is_hidden_gets_it_neither_way(box):
    # proves E05, C26
    box.write(f"{box.home}/.ssh/id_ed25519", "CANARY")
    box.write(".claudebox.toml", f'[[mounts]]\nhost = "{box.home}/.ssh"\n')
    probe = f"cat {box.home}/.ssh/id_ed25519"
    assert box.host("sh", "-c", probe).stdout == "CANARY"

    unapproved = box.sh(f"{probe} 2>&1", start_new_session=True)
    assert "No such file or directory" in unapproved.stdout

    config(box, "unsafe_mounts = true\n")
    with Terminal(box) as terminal:
        asking(box, terminal, "y\r", "sh", "-c", probe)
        terminal.expect("would expose")
        assert terminal.prompt() == 125
    # The same from the user themselves is theirs to say.
    own = box.sh(probe, flags=("--mount-ro", f"{box.home}/.ssh"), cwd=box.mkdir(f"{box.base}/other"))
    assert own.stdout == "CANARY"
