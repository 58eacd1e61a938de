"""The profile that lets bwrap make user namespaces on Ubuntu: written, taken by the real parser, and taken away again.

The kernel here may have no AppArmor, so the parser compiles and does not load; Ubuntu's switch is a file of the test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY, need

pytestmark = [pytest.mark.process, pytest.mark.slow]

UNPACKED = Path("/var/cache/claudebox-tests/apparmor")
PROFILES = UNPACKED / "root/etc/apparmor.d"
EXTRA = UNPACKED / "root/usr/share/apparmor/extra-profiles/bwrap-userns-restrict"
# Notes what it was asked, compiles with the features of AppArmor 4, and loads nothing.
PARSER = """#!/bin/sh
echo "$@" >>{log}
case $1 in -R) exec {parser} -N --base {base} "$2" >>{log} 2>/dev/null ;; esac
exec {parser} -Q -K -M {base}/abi/4.0 --base {base} "$2"
"""


class Ubuntu:
    """A machine that restricts user namespaces, in a mount namespace."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.log = base / "log"
        self.etc = base / "etc/apparmor.d"
        for name in ("abi", "abstractions", "local", "tunables"):
            shutil.copytree(PROFILES / name, self.etc / name)
        self.extra = base / "share/apparmor/extra-profiles"
        self.extra.mkdir(parents=True)
        for name in ("work-etc", "work-share"):
            (base / name).mkdir()
        (base / "kernel").mkdir()
        (base / "kernel/apparmor_restrict_unprivileged_userns").write_text("1\n")
        (base / "bin").mkdir()
        parser = base / "bin/apparmor_parser"
        parser.write_text(PARSER.format(log=self.log, parser=UNPACKED / "apparmor_parser", base="/etc/apparmor.d"))
        parser.chmod(0o755)
        self.log.write_text("")

    def run(self, *argv: str, answer: str = "") -> subprocess.CompletedProcess[str]:
        # Nothing is made on the machine of the test: /etc and /usr/share are covered by layers.
        layer = "mount -t overlay -o lowerdir={0},upperdir={1}/{2},workdir={1}/work-{2} none {0};"
        script = layer.format("/etc", self.base, "etc") + layer.format("/usr/share", self.base, "share")
        script += f'mount --bind {self.base}/kernel /proc/sys/kernel; exec "$@"'
        environ = {"PATH": f"{self.base}/bin:/usr/bin:/bin", "HOME": str(self.base)}
        return subprocess.run(
            ["unshare", "--mount", "sh", "-ec", script, "sh", *argv], env=environ, input=answer, capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    def script(self, *words: str, answer: str = "") -> subprocess.CompletedProcess[str]:
        return self.run(str(REPOSITORY / "scripts/apparmor"), *words, answer=answer)


@pytest.fixture
def ubuntu():
    need(os.getuid() == 0, "privileges of root")
    need(UNPACKED.is_dir(), "parser of AppArmor 4 (scripts/setup --test)")
    with tempfile.TemporaryDirectory(prefix="claudebox-apparmor-") as base:
        yield Ubuntu(Path(base))


def test_the_profile_is_shown_asked_about_written_compiled_and_taken_away(ubuntu):
    # proves HOST-12
    own = ubuntu.etc / "claudebox-bwrap"
    shown = ubuntu.script("--show")
    assert (shown.returncode, own.exists()) == (0, False), shown.stderr
    declined = ubuntu.script(answer="n\n")
    assert (declined.returncode, own.exists()) == (130, False)
    done = ubuntu.script(answer="y\n")
    assert done.returncode == 0, done.stderr
    assert own.read_text() in shown.stdout
    assert 'profile claudebox-bwrap "/usr/bin/bwrap" flags=(unconfined)' in own.read_text()
    assert ubuntu.log.read_text() == "-r /etc/apparmor.d/claudebox-bwrap\n"  # and the real one took it
    removed = ubuntu.script("--remove", "-y")
    assert (removed.returncode, own.exists()) == (0, False), removed.stderr
    assert ubuntu.log.read_text().splitlines()[1:] == ["-R /etc/apparmor.d/claudebox-bwrap", "claudebox-bwrap"]
    assert "there is no" in ubuntu.script("--remove").stdout


def test_a_profile_that_the_parser_does_not_take_is_an_error(ubuntu):
    # proves HOST-12
    (ubuntu.etc / "tunables/global").write_text("nonsense {\n")
    failed = ubuntu.script("-y")

    assert failed.returncode == 1
    assert "`apparmor_parser -r /etc/apparmor.d/claudebox-bwrap` failed" in failed.stderr
    assert not (ubuntu.etc / "claudebox-bwrap").exists()  # or it would fail at every start of the machine


@pytest.mark.parametrize("place", ["shipped", "disabled", "extra"])
def test_ubuntus_own_profile_comes_first(ubuntu, place):
    # proves HOST-12
    target = ubuntu.etc / "bwrap-userns-restrict"
    shutil.copy(EXTRA, ubuntu.extra if place == "extra" else target)
    if place == "disabled":
        (ubuntu.etc / "disable").mkdir()
        (ubuntu.etc / "disable/bwrap-userns-restrict").symlink_to("/etc/apparmor.d/bwrap-userns-restrict")
    done = ubuntu.script("-y")

    assert done.returncode == 0, done.stderr
    assert not (ubuntu.etc / "claudebox-bwrap").exists()  # two profiles for one program would conflict
    assert target.read_bytes() == EXTRA.read_bytes()
    assert not os.path.lexists(ubuntu.etc / "disable/bwrap-userns-restrict")
    assert ubuntu.log.read_text() == "-r /etc/apparmor.d/bwrap-userns-restrict\n"


def test_a_machine_without_the_restriction_is_left_alone(ubuntu):
    # proves HOST-12
    (ubuntu.base / "kernel/apparmor_restrict_unprivileged_userns").write_text("0\n")
    done = ubuntu.script("-y")

    assert (done.returncode, ubuntu.log.read_text()) == (0, "")
    assert "nothing to do" in done.stdout


@pytest.mark.parametrize("bwrap", ["/opt/a b/bwrap", "/nix/store/k7-bubblewrap-0.11.0/bin/bwrap", "/srv/ä/bwrap"])
def test_the_profile_names_the_bwrap_that_was_found(ubuntu, bwrap):
    # proves HOST-12
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from claudebox.host import remedies as apparmor;"
        "made = apparmor.find_remedy(sys.argv[2]); open(made.path, 'w').write(made.text); print(made.path)"
    )
    made = ubuntu.run("python3", "-IS", "-c", program, str(REPOSITORY / "src"), bwrap)
    assert made.returncode == 0, made.stderr
    taken = ubuntu.run("apparmor_parser", "-r", made.stdout.strip())

    assert taken.returncode == 0, taken.stderr
    assert f'"{bwrap}"' in (ubuntu.etc / "claudebox-bwrap").read_text()
