"""Packages of a profile: built before the launch, in order, found again at once, and named if they cannot be had."""

from __future__ import annotations

import glob
import os
import pty
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.support.terminals import Terminal


@pytest.fixture
def watched(nix_box, overhear):
    """Return a box whose person chose the package set of the tests, and a function that tells how often `nix` ran."""
    ran = overhear(nix_box)
    nix_box.mkdir(f"{nix_box.home}/.claudebox")
    os.chmod(f"{nix_box.home}/.claudebox", 0o700)
    nix_box.write(f"{nix_box.home}/.claudebox/config.toml", f'nixpkgs = "{nix_box.daemon.packages}"\n')

    def builds() -> int:
        return len([line for line in ran() if " build " in line])

    return nix_box, builds


def packages(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--package", name))


def test_packages_are_on_path_in_the_order_in_which_they_were_asked_for(watched):
    # proves PKG-01
    box, builds = watched

    for names, first in ((("second", "first", "hello"), "second"), (("first", "second"), "first")):
        result = box.sh("tool", flags=packages(*names))
        assert result.stdout == f"{first}\n", result.stderr
        assert f"claudebox: resolving packages: {', '.join(names)}" in result.stderr
    assert builds() == 2


def test_the_second_launch_runs_nothing(watched):
    # proves PKG-01
    box, builds = watched
    flags = packages("hello", "first")
    assert box.sh("hello && tool", flags=flags).stdout == "Hello, world!\nfirst\n"
    assert builds()

    again = box.sh("hello && tool", flags=flags)

    assert again.stdout == "Hello, world!\nfirst\n"
    assert builds() == 0
    assert "resolving" not in again.stderr


def test_only_outputs_with_programs_come_onto_path(watched):
    # proves PKG-01
    box, _ = watched

    result = box.sh("outputs; command -v outputs-config; echo $PATH", flags=packages("outputs"))

    said, path = result.stdout.splitlines()
    assert said == "from bin"
    added = [entry for entry in path.split(":") if entry.startswith("/nix/store/")]
    assert [entry.rpartition("-")[2] for entry in added] == ["bin/bin"]


def test_attributes_of_attributes_are_packages_too(watched):
    # proves PKG-01
    box, _ = watched

    assert box.sh("hello", flags=packages("nested.hello")).stdout == "Hello, world!\n"


@pytest.mark.parametrize(("name", "reason"), [
    ("nosuch", "does not provide attribute"),
    ("broken", "this build fails on purpose"),
    ("unfree", "has an unfree license"),
])  # fmt: skip
def test_a_package_that_cannot_be_had_stops_the_launch_with_its_name(watched, name, reason):
    # proves PKG-01
    box, _ = watched

    result = box.sh("echo inside", flags=packages("hello", name))
    optional = box.sh("hello", flags=(*packages("hello", name), "--set", "packages_optional=true"))

    assert (result.returncode, result.stdout) == (125, "")
    assert f"error: `--package`: package `{name}` could not be built" in result.stderr
    assert "package `hello`" not in result.stderr
    assert reason in result.stderr
    assert (optional.returncode, optional.stdout) == (0, "Hello, world!\n")
    assert f"package {name} could not be built; it is missing inside" in optional.stderr


def test_a_package_set_that_cannot_be_reached_is_told(watched):
    # proves PKG-01
    box, _ = watched
    commit = "61b7c44c4073f0b827768aff0049561b5110ea5a"
    offline = {"NIX_CONFIG": "download-attempts = 1\nconnect-timeout = 1", "https_proxy": "http://127.0.0.1:9"}

    flags = ("--set", f"nixpkgs=github:NixOS/nixpkgs/{commit}", *packages("hello"))
    result = box.sh("true", flags=flags, env=offline)

    assert result.returncode == 125
    assert "package `hello` could not be built" in result.stderr
    assert "unable to download" in result.stderr


def test_packages_stay_until_the_garbage_collector_is_told_otherwise(daemons, nix_boxes, ordinary_account):
    # proves PKG-01
    box = nix_boxes(daemons(ordinary_account, min_free="1002"), ordinary_account)
    flags = ("--set", "nix=off", "--set", f"nixpkgs={box.daemon.packages}", *packages("hello", "outputs"))
    script = "hello; outputs"
    assert box.sh(script, flags=flags).stdout == "Hello, world!\nfrom bin\n"
    hello = box.daemon.build("hello")

    box.daemon.client("nix-store", "--gc")
    kept = os.path.exists(box.daemon.real(hello))
    again = box.sh(script, flags=flags)
    shutil.rmtree(f"{box.home}/.claudebox/nix")
    box.daemon.client("nix-store", "--gc")
    gone = not os.path.exists(box.daemon.real(hello))
    anew = box.sh(script, flags=flags)

    assert (kept, gone) == (True, True)
    assert "resolving" not in again.stderr
    assert again.stdout == anew.stdout == "Hello, world!\nfrom bin\n"


def test_what_is_gone_from_the_store_is_built_again(daemons, nix_boxes, ordinary_account):
    # proves PKG-01
    box = nix_boxes(daemons(ordinary_account, min_free="1003"), ordinary_account)
    flags = ("--set", "nix=off", "--set", f"nixpkgs={box.daemon.packages}", *packages("first"))
    assert box.sh("tool", flags=flags).stdout == "first\n"
    first = box.daemon.build("first")
    for link in Path(box.home, ".claudebox/nix").glob("*/*"):
        if link.is_symlink():
            link.unlink()
    box.daemon.client("nix-store", "--delete", first)

    result = box.sh("tool", flags=flags)

    assert result.stdout == "first\n", result.stderr
    assert "resolving" in result.stderr


def test_a_package_set_that_changes_is_noticed(watched):
    # proves PKG-01
    box, builds = watched
    copy = f"{box.base}/set"
    shutil.copytree(box.daemon.packages.removeprefix("path:"), copy)
    flags = ("--set", f"nixpkgs=path:{copy}", *packages("hello"))
    assert box.sh("hello", flags=flags).stdout == "Hello, world!\n"
    assert builds()

    flake = Path(copy, "flake.nix")
    flake.write_text(flake.read_text().replace("Hello,", "Goodbye,"))

    assert box.sh("hello", flags=flags).stdout == "Goodbye, world!\n"
    assert builds()


def test_packages_of_yesterday_do_where_nothing_newer_can_be_had(daemons, nix_boxes, ordinary_account):
    # proves PKG-01
    box = nix_boxes(daemons(ordinary_account, min_free="1006"), ordinary_account)
    flags = ("--set", "nix=off", "--set", f"nixpkgs={box.daemon.packages}", *packages("hello"))
    assert box.sh("hello", flags=flags).stdout == "Hello, world!\n"
    (record,) = Path(box.home, ".claudebox/nix").glob("*/paths")

    os.utime(record, (1, 1))
    looked = box.sh("hello", flags=flags)
    os.utime(record, (1, 1))
    box.daemon.stop()
    try:
        offline = box.sh("hello", flags=flags)
        other = box.sh("tool", flags=(*flags, *packages("first")))
    finally:
        box.daemon.start()

    assert "resolving" in looked.stderr
    assert (offline.returncode, offline.stdout) == (0, "Hello, world!\n"), offline.stderr
    assert "packages are those of last time: hello could not be built" in offline.stderr
    assert other.returncode == 125


def test_a_build_ends_with_a_launcher_that_is_killed(watched):
    # proves SAND-15
    box, _ = watched
    with subprocess.Popen(
        [box.program, "-y", *packages("slow"), "--exec", "--", "true"], cwd=box.project, env=box.variables(),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **box.account.demotion,
    ) as process:  # fmt: skip
        assert until(lambda: building(box))
        process.kill()

    assert until(lambda: not building(box))


def building(box) -> bool:
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            words = Path(path).read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{box.daemon.packages}#slow".encode() in words and b"build" in words:
            return True
    return False


def until(condition, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_progress_is_shown_on_a_terminal(watched):
    # proves PKG-01
    box, _ = watched
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [box.program, "-y", *packages("needs-hello"), "--exec", "--", "needs-hello"], cwd=box.project,
        env=box.variables(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, text=True,
        start_new_session=True, **box.account.demotion,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        output, _ = process.communicate(timeout=30)
    os.close(ours)

    assert output == "Hello, dependency!\n", shown
    assert b"resolving packages: needs-hello" in shown
    assert b"building" in shown or b"built" in shown


def test_nothing_is_built_or_written_before_the_answer(watched):
    # proves HOUSE-01, PKG-01
    box, builds = watched
    state = f"{box.home}/.claudebox"
    with Terminal(box) as terminal:
        for answer, status in (("n", 130), ("y", 0)):
            terminal.type(shlex.join((box.program, *packages("first"), "--exec", "--", "tool")))
            terminal.expect("packages are resolved at the start: first")
            terminal.expect(r"Proceed\? \[Y/n\] ")
            assert builds() == 0
            assert os.listdir(state) == ["config.toml"]
            terminal.press(f"{answer}\r")
            assert terminal.prompt() == status
            assert bool(builds()) == (answer == "y")
    assert "nix" in os.listdir(state)


def test_showing_builds_nothing(watched):
    # proves UX-04
    box, builds = watched

    shown = box.claudebox("--explain", *packages("slow"), "--exec", "--", "true")

    assert shown.returncode == 0, shown.stderr
    assert "packages are resolved at the start: slow" in shown.stdout
    assert builds() == 0


def test_a_project_file_names_attributes_only_and_is_asked_for(watched):
    # proves PKG-01, EXT-01
    box, builds = watched
    hostile = box.write("evil/flake.nix", "throw 1")
    box.write(".claudebox.toml", f'packages = ["path:{os.path.dirname(hostile)}#x"]\n')
    refused = box.sh("true")
    box.write(".claudebox.toml", f'nixpkgs = "path:{os.path.dirname(hostile)}"\n')
    chosen = box.sh("true")
    box.write(".claudebox.toml", 'packages = ["hello"]\n')
    unapproved = box.sh("hello")

    assert (refused.returncode, chosen.returncode) == (125, 125)
    assert "cannot come from a project" in chosen.stderr
    assert unapproved.returncode == 127
    assert builds() == 0


def test_an_ordinary_machine_path_stays_behind_the_packages(watched):
    # proves SAND-10
    box, _ = watched

    result = box.sh("echo $PATH; command -v ls", flags=packages("coreutils"))

    path, ls = result.stdout.splitlines()
    entries = path.split(":")
    assert ls.startswith("/nix/store/")
    assert entries[-3:] == ["/usr/local/bin", "/usr/bin", "/bin"]
    writable = box.sh("for d in $(echo $PATH | tr : ' '); do test -w $d && echo $d; done", flags=packages("coreutils"))
    assert writable.stdout == ""
