"""Root trees of Debian in the user's cache directory, and running programs in them.

Where packages come from is what apt on this machine is configured with.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "claudebox-matrix"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
USER = "newcomer"  # an ordinary account, which may use sudo


class TreeError(Exception):
    """One line that says what is wrong."""


def of_tests(suite: str) -> Path:
    """Return the tree in which tests run; it keeps what scripts/setup installs there."""
    tree = CACHE / f"{suite}-tests"
    if not (tree / "stamp").exists():
        copy(fresh(suite), tree)
    return tree


def fresh(suite: str) -> Path:
    """Return the tree of a fresh system; made if there is none."""
    tree = CACHE / suite
    if not (tree / "stamp").exists():
        remove(tree)
        bootstrap(suite, tree)
        (tree / "stamp").touch()
    return tree


def bootstrap(suite: str, tree: Path, packages: tuple[str, ...] = ()) -> None:
    """Make a tree with an ordinary account and the authorities that this machine trusts."""
    if not shutil.which("mmdebstrap"):
        raise TreeError("mmdebstrap is missing: apt-get install mmdebstrap")
    CACHE.mkdir(parents=True, exist_ok=True)
    print(f"matrix: making {tree}", file=sys.stderr)
    source = f"deb [signed-by={KEYRING}] {_archive()} {suite} main"
    argv = [
        "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--format=directory",
        f"--include={','.join(('sudo', *packages))}", *_apt_options(),
        f'--customize-hook=chroot "$1" useradd --create-home --shell /bin/bash --groups sudo {USER}',
        suite, str(tree), source,
    ]  # fmt: skip
    if subprocess.run(argv, check=False, stdout=sys.stderr).returncode:
        remove(tree)
        raise TreeError(f"mmdebstrap could not make a tree of {suite}")
    (tree / f"etc/sudoers.d/{USER}").write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n", encoding="ascii")
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    if bundle.exists():  # again from the second place whenever the package writes the first
        for name in (str(bundle), "/usr/local/share/ca-certificates/machine.crt"):
            (tree / name[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(bundle, tree / name[1:])


def _archive() -> str:
    """Return where apt on this machine gets Debian's packages."""
    argv = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"]
    result = subprocess.run(argv, capture_output=True, encoding="utf-8", check=False)
    rows = [line.split(" ", 1)[1] for line in result.stdout.splitlines() if line.startswith("Debian ")]
    if not rows or not os.path.exists(KEYRING):
        raise TreeError("apt on this machine has no archive of Debian; run `apt-get update`, or use a Debian")
    return rows[0]


def _apt_options() -> list[str]:
    """Return how apt on this machine reaches its archives: proxies, and what it accepts."""
    result = subprocess.run(["apt-config", "dump"], capture_output=True, encoding="utf-8", check=True)
    wanted = re.compile(r'Acquire::((https?|ftp)::.*|Check-Valid-Until|Retries) "..*";')
    return [f"--aptopt={line}" for line in result.stdout.splitlines() if wanted.fullmatch(line)]


def check_out(tree: Path, account: str) -> str:
    """Put this checkout, with what is not committed, into the home of an account; return where it lies inside."""
    home = f"/home/{USER}" if account == "user" else "/root"
    target = tree / home[1:] / "claudebox"
    target.mkdir(exist_ok=True)
    for path in target.iterdir():
        if path.name not in (".venv", ".local"):  # made inside
            remove(path)
    git = ["git", "-c", "safe.directory=*"]
    subprocess.run([*git, "clone", "-q", "-n", "--no-hardlinks", TOP, target / "clone"], check=True)
    (target / "clone/.git").rename(target / ".git")
    (target / "clone").rmdir()
    listed = subprocess.run(
        [*git, "-C", str(TOP), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, check=True,
    )  # fmt: skip
    for name in map(os.fsdecode, filter(None, listed.stdout.split(b"\0"))):
        if os.path.lexists(TOP / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TOP / name, target / name, follow_symlinks=False)
    subprocess.run([*git, "-C", str(target), "reset", "-q"], check=True)
    entry = os.stat(tree / home[1:])
    subprocess.run(["chown", "-R", f"{entry.st_uid}:{entry.st_gid}", str(target)], check=True)
    return f"{home}/claudebox"


def client(checkout: str) -> list[str]:
    """Return how the client of this checkout is seen inside; where there is none, set-up installs one."""
    client = (TOP / ".local/client").resolve()
    return ["--bind", f"{client}={checkout}/.local/client"] if (client / "installed.json").exists() else []


def enter(
    tree: Path, account: str, directory: str, words: list[str], limit: int, binds: list[str] | None = None,
    *, quiet: bool = True,
) -> tuple[int, str]:  # fmt: skip
    """Run a program in a tree; return its status and what it printed."""
    for name in ("etc/resolv.conf", "etc/hosts"):
        shutil.copy(f"/{name}", tree / name)
    with open(tree / "etc/hosts", "a", encoding="utf-8") as file:
        file.write(f"\n127.0.1.1 {tree.name}\n")
    name = USER if account == "user" else "root"
    argv = [sys.executable, "-I", str(TOP / "scripts/machine.py"), *(binds or ()), str(tree), name, directory, *words]
    if quiet:
        return follow(argv, limit)
    return subprocess.run(argv, check=False, timeout=limit).returncode, ""


def follow(argv: list[str], limit: int) -> tuple[int, str]:
    """Run a program without input for a limited time; print and return what it prints."""
    argv = ["timeout", "--kill-after=10", str(limit), *argv]
    output = []
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
        errors="replace", cwd=TOP,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            sys.stdout.write(line)
            sys.stdout.flush()
    if process.returncode == 124:
        raise TreeError(f"it did not end within {limit} seconds")
    return process.returncode, "".join(output)


def copy(source: Path, target: Path) -> None:
    """Copy a tree as it is, in the place of what was there."""
    remove(target)
    subprocess.run(["cp", "-a", "--reflink=auto", str(source), str(target)], check=True)


def remove(path: Path) -> None:
    """Remove a file or a tree."""
    subprocess.run(["rm", "-rf", "--one-file-system", "--", str(path)], check=True)


def read(path: Path) -> str:
    """Return the text of a file; of one that is missing, none."""
    return path.read_text(encoding="utf-8") if path.exists() else ""
