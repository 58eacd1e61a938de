"""Where claudebox starts: the project at its own path, writable, and never the home, the system or a hidden place."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from tests.conftest import few, need
from tests.support.terminals import Terminal

from claudebox.tables import paths as tables_paths


def refused(box, directory: str, *, by: str = "") -> None:
    """Assert that claudebox does not start here, and that a program outside could."""
    control = box.host("sh", "-c", "echo ran", cwd=directory)
    result = box.run("sh", "-c", "echo ran", cwd=directory)

    assert control.stdout == "ran\n"
    assert result.returncode == 125, (directory, result.stderr)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "hint: " in result.stderr
    assert by in result.stderr


@pytest.mark.accounts
def test_the_project_is_writable_at_its_own_path(box):
    # proves SAND-05
    box.write("sub/old", "old")

    result = box.sh("pwd; cat sub/old; echo new >sub/new; rm sub/old; mkdir made; ln -s new sub/link; chmod 700 made")

    assert result.stdout.splitlines() == [box.project, "old"]
    assert sorted(os.listdir(f"{box.project}/sub")) == ["link", "new"]
    assert os.stat(f"{box.project}/made").st_mode & 0o777 == 0o700


def test_nothing_around_the_project_is_visible_or_changes(box):
    # proves SAND-04, SAND-05
    box.write(f"{box.base}/neighbour/file", "neighbour")

    result = box.sh(f"ls -A ..; cat ../neighbour/file; echo x >../made; echo x >{box.base}/made; cd / && cd {box.base}")

    assert set(result.stdout.split()) == {"home", "project"}
    assert sorted(os.listdir(box.base)) == ["home", "neighbour", "project"]


@pytest.mark.parametrize("directory", [
    "/", "/etc", "/etc/ssl", "/tmp", "/var/tmp", "/var", "/usr", "/usr/local", "/usr/bin", "/bin", "/home", "/opt",
    "/dev", "/dev/shm", "/dev/pts", "/proc", "/proc/1", "/sys", "/sys/kernel", "/run", "/boot", "/mnt", "/srv", "/lib",
])  # fmt: skip
def test_directories_of_the_system_are_refused(user_box, directory):
    # proves SAND-05, C08
    need(os.path.isdir(directory), directory)
    refused(user_box, directory)


@pytest.mark.parametrize("directory", ["/", "/root", "/etc", "/usr/lib", "/var/log", "/tmp"])
def test_root_is_refused_them_as_well(root_box, directory):
    # proves SAND-05, C08
    refused(root_box, directory)


@pytest.mark.parametrize("place", [
    "", ".ssh", ".ssh/deeper/still", ".gnupg", ".aws", ".config", ".config/gh", ".config/gcloud", ".local",
    ".local/share", ".local/bin", ".cache", "bin", ".claude", ".claude/projects", ".claudebox", ".docker", ".kube",
    ".mozilla", ".password-store", ".var", "snap/firefox",
])  # fmt: skip
def test_the_home_and_its_hidden_places_are_refused(user_box, place):
    # proves SAND-05, C07, C08
    directory = user_box.mkdir(f"{user_box.home}/{place}".rstrip("/"))
    os.chmod(f"{user_box.home}/.claudebox" if place == ".claudebox" else directory, 0o700)

    refused(user_box, directory)


def test_whatever_contains_the_home_is_refused(box):
    # proves SAND-05, C07, C08
    refused(box, box.base, by="contains your home")
    box.home = box.mkdir(f"{box.project}/a/b/home")
    refused(box, box.project, by="contains your home")


def test_an_ordinary_directory_in_the_home_is_accepted(box):
    # proves SAND-05
    for place in ("work", ".config-of-mine", "src/.ssh-tools", ".local/share/project"):
        directory = box.mkdir(f"{box.home}/{place}")
        result = box.run("pwd", cwd=directory)
        assert result.stdout == f"{directory}\n", result.stderr


def test_links_to_refused_directories_are_refused(box):
    # proves SAND-05, C06
    box.mkdir(f"{box.home}/.ssh")
    for index, target in enumerate((box.home, f"{box.home}/.ssh", "/", "/etc", box.base)):
        link = f"{box.project}/link-{index}"
        os.symlink(target, link)
        refused(box, link)


def test_a_link_to_a_project_is_followed_once_and_shown_by_its_real_name(box):
    # proves C06
    link = f"{box.base}/link"
    os.symlink(box.project, link)

    result = box.run("pwd", "-P", cwd=link, env={"PWD": link})

    assert result.stdout == f"{box.project}\n"
    assert box.project in result.stderr
    assert f"{link}," not in result.stderr


@pytest.mark.root
@pytest.mark.parametrize("target", ["home", "home/.ssh", "base"])
def test_the_same_directory_under_another_name_is_refused(box, target):
    # proves SAND-05, C07, C08
    box.mkdir(f"{box.home}/.ssh")
    alias = box.mkdir(f"{box.base}-alias")
    source = {"home": box.home, "home/.ssh": f"{box.home}/.ssh", "base": box.base}[target]
    # A bind mount in a mount namespace of the test: no link and no path tells that it is the same.
    account = f"--reuid {box.account.uid} --regid {box.account.gid} --clear-groups"
    script = f'mount --bind {source} {alias} && cd {alias} && exec setpriv {account} -- "$@"'
    outside = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    try:
        control = subprocess.run(
            [*outside, "sh", "-c", "pwd; ls -A"], capture_output=True, text=True, env=box.variables(), check=False
        )
        result = subprocess.run(
            [*outside, box.program, "-y", "--exec", "--", "echo", "ran"],
            capture_output=True, text=True, env=box.variables(), check=False,
        )  # fmt: skip
    finally:
        shutil.rmtree(alias)

    assert control.stdout.startswith(f"{alias}\n")
    assert result.returncode == 125, result.stderr
    assert result.stdout == ""


def test_hidden_places_that_are_links_hide_what_they_point_at(box):
    # proves SAND-05, SAND-09, C09
    dotfiles = box.mkdir(f"{box.home}/dotfiles")
    box.mkdir(f"{dotfiles}/ssh")
    box.mkdir(f"{dotfiles}/claudebox")
    os.chmod(f"{dotfiles}/claudebox", 0o700)
    os.symlink("dotfiles/ssh", f"{box.home}/.ssh")

    refused(box, dotfiles, by=".ssh")
    refused(box, f"{dotfiles}/ssh", by=".ssh")
    os.unlink(f"{box.home}/.ssh")
    os.symlink("dotfiles/claudebox", f"{box.home}/.claudebox")
    refused(box, dotfiles)  # the agent could edit the policy of its next launch


def test_runtime_directories_of_the_session_are_refused(user_box):
    # proves C08, C26
    runtime = user_box.mkdir(f"{user_box.base}/runtime/deeper")
    user_box.environ["XDG_RUNTIME_DIR"] = os.path.dirname(runtime)

    refused(user_box, runtime)
    refused(user_box, os.path.dirname(runtime))


@pytest.mark.parametrize("name", few([
    "with space", "new\nline", "tab\there", "colon:colon", "-leading", "--bind", "quote'quote", 'double"double',
    "$(touch x)", "`touch x`", "glob*?[a]", "percent%s%n", "back\\slash", "ünïcödé", b"invalid-\xff\xfe", "trailing ",
    "semi;colon", "\x1b]0;title\x07", "a" * 200, "..name", "{brace,brace}", "~tilde", "#hash", "a=b", "!x",
    "bidi\u202e",
], 13))  # fmt: skip
def test_any_name_of_a_directory_works(user_box, name):
    # proves C11, B12
    directory = user_box.mkdir(os.path.join(user_box.base, os.fsdecode(name)))
    user_box.mkdir(os.path.join(directory, "deeper"))

    result = user_box.run("sh", "-c", "pwd >made; cd deeper && touch here", cwd=directory)

    assert result.returncode == 0, result.stderr
    assert sorted(os.listdir(directory)) == ["deeper", "made"]
    assert os.listdir(os.path.join(directory, "deeper")) == ["here"]
    with open(os.path.join(directory, "made"), "rb") as file:
        assert file.read() == os.fsencode(directory) + b"\n"
    assert "\x1b" not in result.stderr
    assert sorted(os.listdir(user_box.base)) == sorted(["home", "project", os.path.basename(directory)])


def swap_while_asking(box, replacement: str, *, link: bool, flags: tuple[str, ...] = ()) -> str:
    """Replace the project while claudebox asks, say yes, and return what was shown."""
    script = "cat file; echo made >made; echo e''nd"
    with Terminal(box, argv=(box.program, *flags, "--exec", "--", "sh", "-c", script)) as terminal:
        terminal.expect(r"Proceed\?")
        os.rename(box.project, f"{box.base}/moved")
        (os.symlink if link else os.rename)(replacement, box.project)
        terminal.type("y")
        terminal.expect(r"\nend\n|error: .*\n")
        return terminal.raw()


@pytest.mark.parametrize("link", [True, False])
def test_a_project_that_was_replaced_while_claudebox_asked_is_not_used(box, link):
    # proves C10, E07
    box.write("file", "of-the-project\n")
    secret = box.mkdir(f"{box.base}/secret")
    box.write(f"{secret}/file", "secret-of-the-host\n")

    shown = swap_while_asking(box, secret, link=link)

    assert box.host("cat", f"{box.project}/file").stdout == "secret-of-the-host\n"  # by name it is that one now
    assert "secret-of-the-host" not in shown
    assert "was replaced by something else since it was shown" in " ".join(shown.split())
    assert os.listdir(f"{box.project}/") == ["file"]
    assert os.listdir(f"{box.base}/moved") == ["file"]


@pytest.mark.parametrize("link", [True, False])
def test_nothing_is_mounted_but_the_directory_that_was_examined(box, altered, link):
    # proves C10, E07
    # Without the second look, and without stubs, what remains is the comparison of what bwrap has mounted.
    head = "def check_project(plan: Plan) -> None:\n"
    stub = "git_facts.empty_name(workdir)"
    altered(box, edits={"run/prepare.py": (head, f"{head}    return\n"), "host/gather.py": (stub, '""')})
    box.write("file", "of-the-project\n")
    secret = box.mkdir(f"{box.base}/secret")
    box.write(f"{secret}/file", "secret-of-the-host\n")

    shown = swap_while_asking(
        box, secret, link=link, flags=tuple(f"--allow={name}" for name, _, _ in tables_paths.PROTECTED)
    )

    assert "secret-of-the-host" not in shown
    assert "was replaced by something else while the sandbox was being built" in " ".join(shown.split())
    assert os.listdir(f"{box.project}/") == ["file"]
    assert os.listdir(f"{box.base}/moved") == ["file"]


def test_an_extra_mount_that_was_replaced_since_it_was_shown_is_not_mounted(user_box):
    # proves C10, E07, EXT-02
    box = user_box
    data = box.mkdir(f"{box.base}/data")
    box.write(f"{data}/file", "as-shown\n")
    secret = box.mkdir(f"{box.home}/.aws")
    box.write(f"{secret}/file", "secret-of-the-host\n")
    command = (box.program, "--mount-ro", f"{data}:/data", "--exec", "--", "sh", "-c", "cat /data/file; echo e''nd")

    with Terminal(box, argv=command) as terminal:
        terminal.expect(r"Proceed\?")
        os.rename(data, f"{box.base}/moved")
        os.symlink(secret, data)
        terminal.type("y")
        terminal.expect(r"\nend\n|error: .*\n")
        shown = terminal.raw()

    assert box.host("cat", f"{data}/file").stdout == "secret-of-the-host\n"
    assert "was replaced by something else while the sandbox was being built" in " ".join(shown.split())
    assert "secret-of-the-host" not in shown


def test_the_spelling_of_a_linked_directory_exists_inside(box):
    # proves WORK-01
    box.write("file", "content")
    for link in (f"{box.home}/link", f"{box.base}/deep/er/link"):
        os.symlink(box.project, f"{box.mkdir(os.path.dirname(link))}/{os.path.basename(link)}")
        without = box.sh(f"cat {link}/file", env={"PWD": box.project})
        result = box.sh(f"cat {link}/file; cd {link} && pwd -P", env={"PWD": link})
        assert without.returncode != 0
        assert result.stdout == f"content{box.project}\n", result.stderr


def test_no_link_is_made_in_what_belongs_to_the_host_or_for_another_directory(box):
    # proves WORK-01, C27
    shared, elsewhere = box.mkdir(f"{box.base}/shared"), box.mkdir(f"{box.base}/elsewhere")
    os.symlink(box.project, f"{shared}/link")
    os.symlink(elsewhere, f"{box.base}/other")
    for spelling in (f"{shared}/link", f"{box.base}/other", f"{shared}/link/../link", "relative", "/proc/self/cwd"):
        result = box.run("true", flags=("--mount-rw", shared), env={"PWD": spelling})
        assert result.returncode == 0, result.stderr
        explained = box.claudebox("--explain", "--mount-rw", shared, "--exec", "true", env={"PWD": spelling}).stdout
        assert "as your shell spells it" not in explained
    assert os.listdir(shared) == ["link"]


def test_names_of_the_hosts_own_file_resolve_in_tier_full(root_box):
    # proves WORK-02
    names = root_box.write(f"{root_box.base}/hosts", "192.0.2.7 printer.internal\n")
    script = f"mount --bind {names} /etc/hosts; exec {root_box.program} -y --network $0 --exec -- getent hosts $1"
    found = {
        (tier, name): root_box.host("unshare", "-m", "sh", "-c", script, tier, name).stdout.split()[:1]
        for tier in ("full", "none")
        for name in ("printer.internal", "localhost", "claudebox")
    }

    assert found["full", "printer.internal"] == ["192.0.2.7"]
    assert found["none", "printer.internal"] == []
    assert all(found[tier, name] for tier in ("full", "none") for name in ("localhost", "claudebox"))
