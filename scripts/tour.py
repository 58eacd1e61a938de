"""A short tour: plant secrets on a throw-away host, and look for them from inside the sandbox.

Every probe runs twice, outside and inside. It must find its secret outside, or finding nothing inside would prove
nothing. The secrets are made up, and everything lies in a temporary directory that is removed at the end.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLAUDEBOX = (sys.executable, "-IS", f"{TOP}/bin/claudebox")
WORD = "tour-secret"  # part of every planted secret
SHOWN = 96  # columns
FILES = {
    ".ssh/id_ed25519": "an SSH key",
    ".aws/credentials": "cloud credentials",
    ".netrc": "a password for a host",
    ".bash_history": "the shell's history",
}
VARIABLES = {"AWS_SECRET_ACCESS_KEY": f"{WORD}-aws", "GITHUB_TOKEN": f"ghp_{WORD}", "DATABASE_URL": f"{WORD}-url"}
DESCRIPTOR = 9
KEYRING = {"x86_64": (248, 250), "aarch64": (217, 219)}  # numbers of add_key and keyctl
JOIN, SEARCH, SESSION = 1, 10, -3  # operations of keyctl, and the session keyring


class Probe(NamedTuple):
    """Something that is looked for; the script succeeds if it finds it."""

    what: str
    script: str
    network: str = "full"


class Stage(NamedTuple):
    """The throw-away host."""

    home: str
    project: str
    environ: dict[str, str]

    def outside(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script without a sandbox."""
        return self._run(("sh", "-c", script))

    def inside(self, script: str, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run a script in the sandbox."""
        return self._run((*CLAUDEBOX, "-y", *flags, "--exec", "--", "sh", "-c", script))

    def _run(self, argv: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        key = os.open(f"{self.home}/.ssh/id_ed25519", os.O_RDONLY)
        os.dup2(key, DESCRIPTOR)  # as a careless shell would leave it open
        try:
            return subprocess.run(
                argv, cwd=self.project, env=self.environ, pass_fds=(DESCRIPTOR,), stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
        finally:
            os.close(key)
            os.close(DESCRIPTOR)


def main() -> int:
    """Walk through it; 0 if everything was as promised."""
    base = tempfile.mkdtemp(prefix="claudebox-tour-")
    try:
        stage = _set(base)
        if not _show_audit(stage):
            print("\nThere is no sandbox to look at; `scripts/run --check` tells more.")
            return 1
        good = _look_for_secrets(stage)
        good &= _do_some_work(stage)
    finally:
        shutil.rmtree(base)
    print()
    print("Everything was as promised." if good else "Something was NOT as promised; see the lines marked FAILED.")
    print("Try it yourself in a project: scripts/run --shell, scripts/run --explain, scripts/run --help")
    return 0 if good else 1


def _set(base: str) -> Stage:
    home, project = f"{base}/home", f"{base}/project"
    os.mkdir(project)
    for name in FILES:
        os.makedirs(os.path.dirname(f"{home}/{name}"), exist_ok=True)
        _write(f"{home}/{name}", f"{WORD} of {name}\n")
    _write(f"{home}/.gitconfig", f"[user]\n\tname = Ada\n\temail = ada@example.org\n[github]\n\ttoken = {WORD}\n")
    environ = {"HOME": home, "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8", **VARIABLES}
    return Stage(home, project, environ)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _show_audit(stage: Stage) -> bool:
    print("A throw-away home with made-up secrets, and a project. This is what claudebox says before it starts")
    print("(with -y it does not ask):")
    print()
    begin = time.monotonic()
    done = stage.inside("exit 7")
    took = (time.monotonic() - begin) * 1000
    for line in done.stderr.splitlines():
        whole = len(line) <= SHOWN or done.returncode != 7
        print(f"    {line if whole else line[: SHOWN - 3] + '...'}")
    print()
    return _tell(done.returncode == 7, "a command ran inside and its exit status came back", f"{took:.0f} ms in all")


def _look_for_secrets(stage: Stage) -> bool:
    print()
    print("The same probe, outside and inside:")
    print()
    good = True
    with socket.create_server(("127.0.0.1", 0)) as server:
        for probe in _probes(server.getsockname()[1]):
            outside = stage.outside(probe.script).returncode
            inside = stage.inside(probe.script, "--network", probe.network).returncode
            if outside != 0:
                good &= _tell(False, probe.what, "not even found outside: this probe proves nothing")  # noqa: FBT003
            else:
                seen = {0: "FOUND", 1: "no"}.get(inside, f"status {inside}")
                good &= _tell(inside == 1, probe.what, f"outside: found; inside: {seen}")
    return good & _try_to_write(stage)


def _try_to_write(stage: Stage) -> bool:
    """Write into the home from both sides; inside it is another home, whatever the script believes."""
    stage.outside("echo >~/from-outside")
    ran = stage.inside("echo >~/from-inside").returncode == 0
    outside, inside = (os.path.exists(f"{stage.home}/from-{side}") for side in ("outside", "inside"))
    if not outside:
        return _tell(False, "writing to the home", "not even possible outside: this probe proves nothing")  # noqa: FBT003
    return _tell(
        ran and not inside, "writing to the home", "outside: arrives; inside: " + ("ARRIVES" if inside else "no")
    )


def _probes(port: int) -> list[Probe]:
    """Return what to look for; each script ends with 0 if it is there and with 1 if not."""
    probes = [
        Probe("secrets among the variables", f"env | grep -q {WORD}"),
        Probe("... and in /proc/*/environ", f"cat /proc/[0-9]*/environ 2>&1 | grep -qa {WORD}"),
        *(Probe(f"{what}, ~/{name}", f"grep -q {WORD} ~/{name} 2>&1 || exit 1") for name, what in FILES.items()),
        Probe("a token in ~/.gitconfig", f"grep -q {WORD} ~/.gitconfig"),
        Probe("a file that the shell left open", f"{{ cat <&{DESCRIPTOR}; }} 2>&1 | grep -q {WORD}"),
        Probe("other processes", f"test -d /proc/{os.getpid()}"),
        Probe("the host's loopback, with --network none", _connect(port), "none"),
    ]
    number = _plant_key()
    if number:
        probes.append(Probe("a key in the kernel's session keyring", _search_key(number)))
    return probes


def _connect(port: int) -> str:
    return _python(f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)")


def _python(program: str) -> str:
    return f'python3 -I -c "{program}" 2>/dev/null || exit 1'


def _plant_key() -> int:
    """Put a key into a session keyring of our own; return the number of keyctl, 0 where that is impossible."""
    add_key, keyctl = KEYRING.get(platform.machine(), (0, 0))
    call = ctypes.CDLL(None).syscall
    if not keyctl or call(keyctl, JOIN, None) < 0:
        return 0
    return keyctl if call(add_key, b"user", b"claudebox-tour", WORD.encode(), len(WORD), SESSION) >= 0 else 0


def _search_key(keyctl: int) -> str:
    call = f"ctypes.CDLL(None).syscall({keyctl}, {SEARCH}, {SESSION}, b'user', b'claudebox-tour', 0)"
    return _python(f"import ctypes, sys; sys.exit({call} < 0)")


def _do_some_work(stage: Stage) -> bool:
    print()
    print("And ordinary work goes on:")
    print()
    good = True
    work = (
        ("a file is written", "echo 'print(6 * 7)' >answer.py", ""),
        ("a program runs", "python3 answer.py", "42"),
        (
            "git commits",
            "git init -q && git add . && git commit -qm 'Answer' && git log --format='%an: %s'",
            "Ada: Answer",
        ),
        ("temporary files have a place", 'f=$(mktemp) && echo here >"$f" && cat "$f"', "here"),
    )
    for what, script, expected in work:
        done = stage.inside(script)
        good &= _tell(done.returncode == 0 and done.stdout.strip() == expected, what, done.stdout.strip())
    kept = os.path.exists(f"{stage.project}/answer.py") and os.path.isdir(f"{stage.project}/.git")
    good &= _tell(kept, "the work is there on the host", "answer.py, .git")
    left = sorted(set(os.listdir(stage.project)) - {"answer.py", ".git"})
    return _tell(not left, "nothing else was left in the project", " ".join(left)) and good


def _tell(good: bool, what: str, detail: str) -> bool:  # noqa: FBT001
    print(f"  {'ok' if good else 'FAILED':<7} {what:<45} {detail}".rstrip(), flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())
