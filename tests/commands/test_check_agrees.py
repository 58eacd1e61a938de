"""For every fault that these tests know: `--check` fails if and only if a launch does, and says the same.

A fault is a function that spoils something of a `Machine`; where its remedy can be applied it is, and a launch works.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.conftest import Box, need
from tests.run.test_refusals import FAKE, WRAPPER
from tests.support import baking

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

CLIENT = b"#!/bin/sh\nexit 0\n"
SECRET = '[[secrets]]\nenv = "TOKEN"\nhosts = ["service.example"]\nfrom = "{source}"\n'
LISTED = ("--network", "allow", "--allow-domain", "service.example")
WAIT = "touch up; while test -e up; do sleep 0.05; done"
NUMBERS = {"x86_64": 0, "aarch64": 1}
# On x86_64 and aarch64.
SYSCALLS = {
    "landlock_restrict_self": (446, 446), "memfd_create": (319, 279), "mount": (165, 40),
    "move_mount": (429, 429), "openat2": (437, 437), "pidfd_open": (434, 434), "pivot_root": (155, 41),
    "setns": (308, 268), "setsockopt": (54, 208), "socketpair": (53, 199),
}  # fmt: skip


@dataclass
class Machine:
    """A box, and how claudebox is started in it."""

    box: Box
    bwrap: Path  # the one that claudebox uses
    background: Callable[..., subprocess.Popen[str]]
    refuse: str
    flags: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)  # words in front of the command, as root
    after_demotion: list[str] = field(default_factory=list)  # words in front of the command, as the account
    cwd: str = ""

    @property
    def client(self) -> Path:
        return Path(self.box.base, "bin/claude")

    @property
    def state(self) -> str:
        return f"{self.box.home}/.claudebox"

    def mounted(self, script: str) -> None:
        """Have everything run in a mount namespace in which root did this."""
        self.before = ["unshare", "--mount", "sh", "-ec", f'{script}; exec "$@"', "sh"]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = (*self.before, *self.box.account.words, *self.after_demotion, self.box.program, *words)
        options = {"cwd": self.cwd or self.box.project, "user": 0, "group": 0}
        return self.box.host(*command, **options)

    def launch(self) -> subprocess.CompletedProcess[str]:
        return self.run("-y", *self.flags)

    def check(self) -> subprocess.CompletedProcess[str]:
        return self.run("--check", "--json", *self.flags)


class Fault(NamedTuple):
    """What is wrong, and what puts it right."""

    name: str
    spoil: Callable[[Machine], object]
    mend: Callable[[Machine], object]
    says: str = ""


def said(result: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """Return the errors that a launch printed, and its hint."""
    errors = re.findall(r"^error: (.*)$", result.stderr, re.MULTILINE)
    hint = re.search(r"^hint: (.*)\Z", result.stderr, re.MULTILINE | re.DOTALL)
    return "; ".join(errors), hint[1].strip() if hint else ""


def found(result: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """Return what `--check` says of the launch: no settings at all are refused before anything is examined."""
    if result.returncode == 125:
        return said(result)
    document = json.loads(result.stdout)
    failed = [row for row in document["findings"] if row["status"] == "failed"]
    assert document["ok"] == (not failed)
    return (failed[0]["detail"], failed[0]["remedy"].strip()) if failed else ("", "")


def nobody(machine: Machine, home: str) -> None:
    """Run as somebody without an account, with this home."""
    machine.before = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
    machine.run = lambda *words: machine.box.host(  # type: ignore[method-assign]
        *machine.before, machine.box.program, *words, user=0, group=0
    )
    machine.box.environ["HOME"] = home
    os.chown(machine.box.project, 54321, 54321)


def give_home(machine: Machine) -> None:
    own = machine.box.mkdir(f"{machine.box.base}/own")
    os.chown(own, 54321, 54321)
    machine.box.environ["HOME"] = own


def own_state(machine: Machine) -> Path:
    """Let a launch make the state, and return the directory of this project in it."""
    assert machine.launch().returncode == 0
    return next(Path(machine.state, "instances").iterdir())


def remove_client(machine: Machine) -> None:
    machine.client.unlink()


def damage(machine: Machine) -> None:
    directory = own_state(machine)
    (directory / "claude/.claude.json").write_text("{")
    (directory / "seeded").unlink()


def undamage(machine: Machine) -> None:
    (next(Path(machine.state, "instances").iterdir()) / "claude/.claude.json").unlink()


def client_in_project(machine: Machine) -> None:
    remove_client(machine)
    os.symlink(machine.box.write("claude", CLIENT, mode=0o755), machine.client)


def client_outside(machine: Machine) -> None:
    remove_client(machine)
    machine.box.write(str(machine.client), CLIENT, mode=0o755)


def config_of_all(machine: Machine) -> None:
    os.chmod(machine.box.write(f"{machine.state}/config.toml"), 0o666)


def no_tunnel(machine: Machine) -> None:
    machine.flags += ("--network", "inet")
    machine.mounted("mount -t tmpfs none /dev/net")


def replace_client(content: bytes, mode: int = 0o755) -> Callable[[Machine], object]:
    return lambda machine: machine.box.write(str(machine.client), content, mode=mode)


def limit(*words: str) -> Callable[[Machine], object]:
    return lambda machine: machine.after_demotion.extend(("prlimit", *words))


def no_limit(machine: Machine) -> None:
    machine.after_demotion.clear()


def unmounted(machine: Machine) -> None:
    machine.before.clear()


def config(text: str) -> Callable[[Machine], object]:
    return lambda machine: machine.box.write(f"{machine.state}/config.toml", text)


def flags(*words: str) -> Callable[[Machine], object]:
    return lambda machine: machine.flags.extend(words)


def other_bwrap(content: str) -> Callable[[Machine], object]:
    def spoil(machine: Machine) -> None:
        machine.bwrap.write_text(content)

    return spoil


def good_bwrap(machine: Machine) -> None:
    machine.bwrap.unlink(missing_ok=True)
    shutil.copy("/usr/bin/bwrap", machine.bwrap)


def refuse(name: str) -> Callable[[Machine], object]:
    number = SYSCALLS[name][NUMBERS.get(platform.machine(), 0)]
    return lambda machine: machine.after_demotion.extend((machine.refuse, str(number), "1", "/usr/bin/env"))


def move(path: Callable[[Machine], str]) -> Callable[[Machine], object]:
    return lambda machine: os.rename(path(machine), f"{machine.box.base}/moved")


def of_account(path: Callable[[Machine], str]) -> Callable[[Machine], object]:
    return lambda machine: os.chown(path(machine), machine.box.account.uid, machine.box.account.gid)


def without_libraries(machine: Machine) -> None:
    machine.box.write(f"{machine.state}/config.toml", SECRET.format(source="env:TOKEN_OUTSIDE"))
    machine.box.environ["TOKEN_OUTSIDE"] = "a-value-that-nobody-guesses-0123456789"
    machine.flags += LISTED
    places = [f"{os.path.dirname(os.path.dirname(machine.box.program))}/.local/libraries"]
    places += [path for path in ("/usr/lib/python3/dist-packages/cryptography",) if os.path.isdir(path)]
    machine.mounted("; ".join(f"mount -t tmpfs none {path}" for path in places))


FAULTS = [
    Fault("no home", lambda machine: nobody(machine, "/nonexistent"), give_home, "no home directory"),
    Fault("home is the root", lambda machine: nobody(machine, "/"), give_home, "no home directory"),
    Fault("home is read-only", lambda machine: machine.mounted(
        f"mount --bind {machine.box.home} {machine.box.home}; mount -o remount,bind,ro {machine.box.home}"),
        unmounted, "Read-only file system"),
    Fault("home of root", lambda machine: os.chown(machine.box.home, 0, 0),
          of_account(lambda machine: machine.box.home), "Permission denied"),
    Fault("state is a file", lambda machine: machine.box.write(machine.state), move(lambda machine: machine.state),
          "is not a directory"),
    Fault("state is a link", lambda machine: os.symlink("/var", machine.state), move(lambda machine: machine.state),
          "is not a directory"),
    Fault("state of root", lambda machine: os.chown(machine.box.mkdir(machine.state), 0, 0),
          of_account(lambda machine: machine.state), "belongs to another user"),
    Fault("others write to the state", lambda machine: os.chmod(machine.box.mkdir(machine.state), 0o777),
          lambda machine: os.chmod(machine.state, 0o755), "others can write"),
    Fault("state cannot be written", lambda machine: os.chmod(machine.box.mkdir(machine.state), 0o500),
          lambda machine: os.chmod(machine.state, 0o700), "Permission denied"),
    Fault("disk is full", lambda machine: machine.mounted(
        f"mount -t tmpfs -o nr_inodes=4,uid={machine.box.account.uid},mode=700 none "
        f"{machine.box.mkdir(machine.state)}"), unmounted, "free disk space"),
    Fault("state of another project", lambda machine: (own_state(machine) / "project").write_text("/other"),
          lambda machine: shutil.rmtree(f"{machine.state}/instances"), "is the state of"),
    Fault("damaged .claude.json", damage, undamage, "damaged"),
    Fault("few open files", limit("--nofile=64:64"), no_limit, "open files"),
    Fault("small files", limit("--fsize=1000:1000"), no_limit, "the limit on the size of files is too low"),
    Fault("no files", limit("--fsize=0:0"), no_limit, "ulimit -f unlimited"),
    Fault("no processes", limit("--nproc=0:0"), no_limit, "ulimit -u unlimited"),
    Fault("masked /proc", lambda machine: machine.mounted("mount --bind /dev/null /proc/keys"), unmounted, "/proc"),
    Fault("chroot", lambda machine: machine.mounted(
        'd=$(mktemp -d); mount --rbind / $d; set -- /usr/sbin/chroot $d env -C "$PWD" "$@"'), unmounted, "a chroot"),
    *(Fault(f"no {name}", refuse(name), no_limit) for name in SYSCALLS),
    Fault("no bwrap", lambda machine: machine.bwrap.unlink(), good_bwrap, "bubblewrap"),
    Fault("setuid bwrap", lambda machine: machine.bwrap.chmod(0o4755), good_bwrap, "setuid"),
    Fault("bwrap of others", lambda machine: machine.bwrap.chmod(0o777), good_bwrap, "replaced by other users"),
    Fault("old bwrap", other_bwrap(WRAPPER.format(change="pass").replace(" --size ", " ").replace(" --seccomp ", " ")),
          good_bwrap, "does not know `--seccomp`"),
    Fault("silent bwrap", other_bwrap(FAKE + "sys.exit(1)\n"), good_bwrap, "no error output"),
    Fault("no user namespaces", other_bwrap(
        FAKE + "sys.exit('bwrap: Creating new namespace failed: Operation not permitted')\n"), good_bwrap,
        "the user namespace could not be made"),
    Fault("no client", remove_client, replace_client(CLIENT), "was not found"),
    Fault("client cannot be run", lambda machine: machine.client.chmod(0o644), replace_client(CLIENT), "executable"),
    Fault("half a client", replace_client(b"echo"), replace_client(CLIENT), "is not a program"),
    Fault("foreign client", replace_client(b"\x7fELF\2\1\1" + bytes(11) + b"\x03\0" + bytes(44)),
          replace_client(CLIENT), "another machine"),
    Fault("old client", replace_client(b"#!/usr/bin/env node\n"), replace_client(CLIENT), "needs 2.1.113 or newer"),
    Fault("client in the project", client_in_project, client_outside, "is in the project"),
    Fault("config is no TOML", config("network =\n"), config(""), "config.toml"),
    Fault("config has a strange key", config("nonsense = 1\n"), config(""), "nonsense"),
    Fault("config of others", config_of_all, lambda machine: os.chmod(f"{machine.state}/config.toml", 0o600)),
    Fault("no such profile", flags("--profile", "no-such"), lambda machine: machine.flags.clear(), "no-such"),
    Fault("bad variable", flags("--env", "A B"), lambda machine: machine.flags.clear()),
    Fault("no such mount", flags("--mount-ro", "/nonexistent"), lambda machine: machine.flags.clear()),
    Fault("mount of keys", lambda machine: [
        machine.box.write(f"{machine.box.home}/.ssh/id"), flags("--mount-ro", "~/.ssh")(machine)],
        lambda machine: machine.flags.clear()),
    Fault("no libraries", without_libraries, unmounted, "`cryptography`"),
    Fault("secret that fails", lambda machine: [
        config(SECRET.format(source="command:false"))(machine), flags(*LISTED)(machine)], config("")),
    Fault("bad address of the model", lambda machine: machine.box.environ.update(
        ANTHROPIC_API_KEY="x" * 30, ANTHROPIC_BASE_URL="gopher://x"),
        lambda machine: machine.box.environ.pop("ANTHROPIC_BASE_URL")),
    Fault("no tunnel", no_tunnel, lambda machine: machine.flags.clear(), "modprobe tun"),
    Fault("project is the home", lambda machine: setattr(machine, "cwd", machine.box.home),
          lambda machine: setattr(machine, "cwd", "")),
    Fault("project is of the system", lambda machine: setattr(machine, "cwd", "/usr"),
          lambda machine: setattr(machine, "cwd", "")),
]  # fmt: skip
# Nothing that stops a launch; all of them at once.
HARMLESS = {"LANG": "C", "TERM": "", "TMPDIR": "/nonexistent", "NO_COLOR": "1", "XDG_RUNTIME_DIR": "/nonexistent"}


@pytest.fixture(scope="module")
def own_copy(checkout: str) -> Iterator[tuple[str, Path]]:
    """Return a copy of claudebox that uses a bwrap of its own, and that bwrap."""
    base = baking.copy(checkout)
    baked = Path(base, "src/claudebox/build_paths.py")
    empty = "TOOLS: dict[str, str] = {}"
    assert empty in baked.read_text()
    baked.write_text(baked.read_text().replace(empty, f"TOOLS = {{'bwrap': '{base}/bwrap'}}"))
    yield f"{base}/bin/claudebox", Path(base, "bwrap")
    shutil.rmtree(base)


@pytest.fixture
def machine(user_box, own_copy, background, compiled) -> Machine:
    need(os.getuid() == 0, "privileges of root")
    program, bwrap = own_copy
    user_box.program = program
    user_box.write(f"{user_box.base}/bin/claude", CLIENT, mode=0o755)
    user_box.environ["PATH"] = f"{user_box.base}/bin:/usr/bin:/bin"
    made = Machine(user_box, bwrap, background, f"{compiled}/refuse")
    good_bwrap(made)
    return made


# One of each kind; the others run with --all.
USUAL = {
    "no home", "state is a link", "others write to the state", "disk is full", "state of another project",
    "damaged .claude.json", "few open files", "no user namespaces", "no setns", "no bwrap", "old bwrap", "no client",
    "foreign client", "config has a strange key", "mount of keys", "no libraries", "no tunnel", "project is the home",
}  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=() if fault.name in USUAL else pytest.mark.slow) for fault in FAULTS],
    ids=lambda fault: fault.name,
)
def test_check_and_a_launch_agree_about(machine, fault):
    # proves HOST-10, UX-05, E08
    fault.spoil(machine)
    check, launch = machine.check(), machine.launch()
    fault.mend(machine)
    mended = machine.launch()

    assert launch.returncode in (125, 126, 127), launch.stderr
    assert check.returncode in (1, 125)
    assert "Traceback" not in check.stderr + launch.stderr
    assert "CVE-2026-87766" not in check.stdout  # what cannot be tried on this bwrap is not said of it
    assert found(check) == said(launch)
    assert fault.says in launch.stderr
    assert len(said(launch)[0].splitlines()) == 1
    assert mended.returncode == 0, mended.stderr


def test_check_and_a_launch_agree_that_much_does_no_harm(machine):
    # proves HOST-10, UX-05
    machine.box.environ |= HARMLESS
    machine.after_demotion += ["prlimit", "--core=unlimited", "--memlock=0", "--nofile=1024:1024", "--", "sh", "-c",
                               'umask 0777; exec "$0" "$@" <&-']  # fmt: skip
    machine.mounted("mount -t tmpfs -o noexec,mode=555 none /dev/shm")
    launch, check = machine.launch(), machine.check()

    assert launch.returncode == 0, launch.stderr
    assert check.returncode == 0, check.stdout
    assert not os.path.lexists(f"{machine.box.base}/moved")


def test_a_check_takes_no_state_away_that_a_session_has_begun_to_use(user_box):
    # proves HOST-10
    user_box.write(f"{user_box.base}/bin/claude", CLIENT, mode=0o755)
    user_box.environ["PATH"] = f"{user_box.base}/bin:/usr/bin:/bin"
    other = user_box.mkdir(f"{user_box.base}/other")
    # A secret is fetched in the midst of a check, when the state is not made yet; that is when the session begins.
    begin = user_box.write(
        f"{user_box.base}/begin",
        f"#!/bin/sh\ncd {other}\n{user_box.program} -y --exec -- sh -c '{WAIT}'"
        " </dev/null >/dev/null 2>&1 &\nwhile ! test -e up; do sleep 0.05; done\necho a-value-that-nobody-guesses-1\n",
        mode=0o755,
    )
    user_box.write(f"{user_box.home}/.claudebox/profiles/held.toml", SECRET.format(source=f"command:{begin}"))
    check = user_box.claudebox(
        "--check", "--network", "allow", "--allow-domain", "service.example", "--profile", "held"
    )
    try:
        assert check.returncode == 0, check.stdout
        assert len(os.listdir(f"{user_box.home}/.claudebox/instances")) == 2
    finally:
        os.unlink(f"{other}/up")
