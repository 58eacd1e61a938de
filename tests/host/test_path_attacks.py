"""What a directory of PATH would give away keeps it out, named with the reason and the words that bring it in."""

from __future__ import annotations

import os
import threading

import pytest

SYSTEM = "/usr/local/bin:/usr/bin:/bin"
SCRIPT = "#!/bin/sh\necho greeted\n"


def on_path(box, *directories: str) -> dict[str, str]:
    return {"PATH": ":".join((*directories, SYSTEM))}


def greeter(box, directory: str, content: str = SCRIPT) -> None:
    box.write(f"{directory}/greet", content, mode=0o755)


def link(box, path: str, target: str) -> None:
    box.mkdir(os.path.dirname(path))
    os.symlink(target, path)


def plain(box):
    return f"{box.home}/tools"


def leads_into_a_secret_directory(box):
    box.write(f"{box.home}/.ssh/id_ed25519", "CANARY")
    greeter(box, f"{box.home}/.ssh")
    link(box, f"{box.home}/tools", ".ssh")
    return f"{box.home}/tools"


def lies_around_a_secret_directory(box):
    box.write(f"{box.home}/.config/gh/hosts.yml", "CANARY")
    greeter(box, f"{box.home}/.config")
    return f"{box.home}/.config"


def is_the_home(box):
    greeter(box, box.home)
    box.write(f"{box.home}/notes", "CANARY")
    return box.home


def has_credentials_beside_the_programs(box):
    box.write(f"{box.home}/tools/.netrc", "machine x login y password CANARY")
    return plain(box)


def has_a_hard_link_to_a_secret(box):
    box.write(f"{box.home}/.netrc", "CANARY")
    box.mkdir(f"{box.home}/tools")
    os.link(f"{box.home}/.netrc", f"{box.home}/tools/harmless")
    return plain(box)


def every_user_can_write(box):
    box.mkdir(f"{box.home}/tools")
    os.chmod(f"{box.home}/tools", 0o777)
    return plain(box)


def lies_in_the_project(box):
    return f"{box.project}/tools"


def an_environment_in_the_project(box):
    box.write(".venv/pyvenv.cfg", "home = /usr/bin\n")
    box.mkdir(".venv/lib")
    link(box, f"{box.project}/.venv/bin/secret", f"{box.home}/private/bin/secret")
    greeter(box, f"{box.home}/private/bin")
    box.write(f"{box.home}/private/lib/canary", "CANARY")
    return f"{box.project}/.venv/bin"


def agents_of_another_project_write(box):
    box.mkdir(f"{box.base}/other")
    box.run("true", cwd=box.mkdir(f"{box.base}/other/repo")).check_returncode()
    return f"{box.base}/other/repo/bin"


def lies_in_the_caches(box):
    return f"{box.home}/.cache/tools/bin"


def has_a_newline_in_its_name(box):
    return f"{box.home}/too\nls"


ATTACKS = {
    attack.__name__: attack for attack in (
        leads_into_a_secret_directory, lies_around_a_secret_directory, is_the_home, has_credentials_beside_the_programs,
        has_a_hard_link_to_a_secret, every_user_can_write, lies_in_the_project, an_environment_in_the_project,
        agents_of_another_project_write, lies_in_the_caches, has_a_newline_in_its_name,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_a_directory_that_would_give_something_away_stays_out_and_is_named(user_box, name):
    # proves TOOL-04, SAND-09, SAND-10
    directory = ATTACKS[name](user_box)
    if not os.path.lexists(f"{directory}/greet"):
        greeter(user_box, directory)
    harmless = f"{user_box.home}/harmless"
    user_box.write(f"{harmless}/wave", "#!/bin/sh\necho waved\n", mode=0o755)
    probe = f"command -v greet; wave; echo $PATH; grep -rl CANARY {user_box.home} 2>/dev/null; true"
    environ = on_path(user_box, directory, harmless)

    outside = user_box.host("sh", "-c", probe, env=environ).stdout.splitlines()
    inside = user_box.sh(probe, env=environ)

    assert "greet" in "".join(outside)
    assert inside.stdout.splitlines() == ["waved", f"/run/claudebox/bin:{harmless}:{SYSTEM}"], inside.stderr
    assert "greet of" in inside.stderr.replace("claude", "") or "greet," in inside.stderr or "greet " in inside.stderr
    assert "not inside" in inside.stderr


def test_another_user_can_own_no_directory_of_programs(user_box):
    # proves TOOL-04
    if os.getuid() or not user_box.account.uid:
        pytest.skip("needs two accounts")
    greeter(user_box, f"{user_box.base}/others/bin")
    os.chown(f"{user_box.base}/others/bin", 65534, 65534)

    result = user_box.sh("greet", env=on_path(user_box, f"{user_box.base}/others/bin"))

    assert "greeted" not in result.stdout
    assert "it belongs to another user" in result.stderr
    flags = ("--set", f"path={user_box.base}/others/bin")
    assert user_box.sh("greet", flags=flags).stdout == "greeted\n"


@pytest.mark.parametrize("words", ["", ".", "relative", "./node_modules/.bin", "..", "~/tools"])
def test_an_entry_that_is_not_absolute_counts_for_nothing(user_box, words):
    # proves TOOL-04, SAND-10
    greeter(user_box, "relative")
    greeter(user_box, "node_modules/.bin")
    greeter(user_box, ".")

    result = user_box.sh("command -v greet; echo $PATH", env={"PATH": f"{words}:{SYSTEM}:{words}"})

    assert result.stdout == f"/run/claudebox/bin:{SYSTEM}\n"


@pytest.mark.parametrize(("content", "shown"), [
    ("export GITHUB_TOKEN=ghp_0123456789abcdefABCDEF0123456789abcd", False),
    ("curl -H 'Authorization: Bearer 0123456789abcdefABCDEF'", False),
    ("PASSWORD='correct horse'", False),
    ("mysql --password=hunter2hunter", False),
    ("psql postgres://me:hunter2@db/x", False),
    ("api_key: str = 'abcdef0123456789'", False),
    ("-----BEGIN OPENSSH PRIVATE KEY-----", False),
    ("export GITHUB_TOKEN=$(pass show github)", True),
    ("PASSWORD=${PASSWORD:-}; read -r TOKEN", True),
    ("KEY=$1; ssh-keygen -f ~/.ssh/id; echo https://example.com/x", True),
    ('for key in a b; do echo "$key: $value"; done', True),
    ("git commit --author=me; tmux new-session -s work", True),
])  # fmt: skip
def test_scripts_of_the_users_own_are_searched_for_secrets(user_box, content, shown):
    # proves TOOL-04
    greeter(user_box, f"{user_box.home}/bin", f"{SCRIPT}: <<'END'\n{content}\nEND\n")
    user_box.write(f"{user_box.home}/bin/other", "#!/bin/sh\necho other\n", mode=0o755)
    environ = on_path(user_box, f"{user_box.home}/bin")

    result = user_box.sh("greet; other; cat ~/bin/greet", env=environ)

    assert "other" in result.stdout
    assert (content in result.stdout, "greeted" in result.stdout) == (shown, shown)
    assert ("~/bin/greet is not inside: it seems to hold a secret" in result.stderr) != shown
    if not shown:  # the words work
        words = ("--mount-ro", f"{user_box.home}/bin/greet")
        assert content in user_box.sh("cat ~/bin/greet", flags=words, env=environ).stdout


def test_of_what_lies_in_a_directory_only_programs_are_shown(user_box):
    # proves TOOL-04
    greeter(user_box, f"{user_box.home}/bin")
    for name in ("private/notes", ".git/config", "letter.txt"):
        user_box.write(f"{user_box.home}/bin/{name}", "CANARY")
    user_box.write(f"{user_box.home}/bin/lib/common.sh", "harmless\n")
    environ = on_path(user_box, f"{user_box.home}/bin")

    result = user_box.sh("greet; cat ~/bin/lib/common.sh; grep -r CANARY ~/bin; echo x >~/bin/new || true", env=environ)

    assert result.stdout == "greeted\nharmless\n"
    assert not os.path.exists(f"{user_box.home}/bin/new")


def test_a_link_among_programs_brings_no_secret(user_box):
    # proves TOOL-04, SAND-09
    greeter(user_box, f"{user_box.home}/bin")
    secret = user_box.write(f"{user_box.home}/.ssh/id_ed25519", "CANARY", mode=0o755)
    work = user_box.write(f"{user_box.home}/work/bin/deploy", "#!/bin/sh\necho deployed\n", mode=0o755)
    user_box.write(f"{user_box.home}/work/lib/canary", "CANARY")
    user_box.mkdir(f"{user_box.home}/work/.git")
    os.symlink(secret, f"{user_box.home}/bin/key")
    os.symlink(user_box.home, f"{user_box.home}/bin/everything")
    os.symlink(work, f"{user_box.home}/bin/deploy")

    probe = "greet; deploy; cat ~/bin/key ~/bin/everything/.ssh/* ~/work/lib/* 2>/dev/null; true"
    result = user_box.sh(probe, env=on_path(user_box, f"{user_box.home}/bin"))

    assert result.stdout == "greeted\ndeployed\n", result.stderr


def test_a_shim_that_starts_something_outside_fails_and_shows_nothing(user_box):
    # proves TOOL-04
    user_box.write(f"{user_box.home}/elsewhere/tool", "#!/bin/sh\necho CANARY\n", mode=0o755)
    user_box.write(f"{user_box.home}/.mine/shims/tool", f"#!/bin/sh\nexec {user_box.home}/elsewhere/tool\n", mode=0o755)
    user_box.mkdir(f"{user_box.home}/.mine/versions")
    environ = on_path(user_box, f"{user_box.home}/.mine/shims")

    assert user_box.host("tool", env=environ).stdout == "CANARY\n"
    result = user_box.sh("tool", env=environ)
    assert (result.stdout, result.returncode) == ("", 127)


def test_a_directory_that_is_swapped_all_the_time_never_shows_a_secret(user_box):
    # proves TOOL-04, SAND-09
    greeter(user_box, f"{user_box.home}/one")
    user_box.write(f"{user_box.home}/.ssh/id", "CANARY")
    user_box.write(f"{user_box.home}/.ssh/greet", "#!/bin/sh\necho CANARY\n", mode=0o755)
    link(user_box, f"{user_box.home}/tools", "one")
    link(user_box, f"{user_box.home}/next", ".ssh")
    going = threading.Event()

    def swap() -> None:
        here, there, aside = (f"{user_box.home}/{name}" for name in ("tools", "next", "aside"))
        while not going.is_set():
            os.rename(here, aside)
            os.rename(there, here)
            os.rename(aside, there)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        said = [user_box.sh("greet; cat ~/tools/*; cat ~/.ssh/*", env=on_path(user_box, f"{user_box.home}/tools"))
                for _ in range(12)]  # fmt: skip
    finally:
        going.set()
        thread.join()

    assert not [result.stdout for result in said if "CANARY" in result.stdout]


def test_four_thousand_entries_are_not_too_many_to_start(user_box):
    # proves TOOL-04
    places = [user_box.mkdir(f"{user_box.home}/p/{number}") for number in range(400)]
    user_box.write(f"{user_box.home}/p/7/greet", SCRIPT, mode=0o755)
    entries = [*places, *(f"/nowhere/{number}" for number in range(3600))]

    result = user_box.sh("greet", env=on_path(user_box, *entries))

    assert result.stdout == "greeted\n", result.stderr[-2000:]


def test_what_belongs_to_an_environment_comes_with_its_bin(user_box):
    # proves TOOL-04
    user_box.host("python3", "-m", "venv", "--without-pip", f"{user_box.home}/envs/x").check_returncode()
    user_box.write(f"{user_box.home}/envs/x/lib/data", "data of it\n")
    script = f"#!{user_box.home}/envs/x/bin/python\nimport sys\nprint(open(sys.prefix + '/lib/data').read(), end='')\n"
    user_box.write(f"{user_box.home}/envs/x/bin/tool", script, mode=0o755)

    flags = ("--toolchain", "none", "--set", f"path={user_box.home}/envs/x/bin")
    assert user_box.sh("tool", flags=flags).stdout == "data of it\n"
