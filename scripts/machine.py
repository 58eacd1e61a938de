"""Run a program in a root tree as if that were a machine of its own.

machine.py [--bind SOURCE=TARGET]... ROOT ACCOUNT DIRECTORY WORDS: binds are read-only, their targets below ROOT.

A chroot forbids user namespaces, so the tree becomes the root of a mount namespace, with processes, System V objects, a
host name, /proc and /dev of its own. The network is that of this machine. Everything ends with this program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings  # noqa: F401 - execvpe wants it, and then it is out of reach

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x4000000, 0x8000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 32, 4096, 16384
MS_PRIVATE, MS_SLAVE = 1 << 18, 1 << 19
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
# name, major, minor
DEVICES = (
    ("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("kmsg", 1, 11), ("tty", 5, 0),
    ("net/tun", 10, 200), ("fuse", 10, 229),
)  # fmt: skip
LINKS = (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"))
# What leads to registries: addresses, proxies, authorities. The rest of the environment stays outside.
PASSED = ("PIP_", "UV_", "NPM_CONFIG_", "npm_config_", "CLAUDEBOX_TEST_", "SSL_CERT_", "PYTEST_")
PASSED_NAMES = frozenset((
    "CI", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
))  # fmt: skip
libc = ctypes.CDLL(None, use_errno=True)


def main(words: list[str]) -> int:
    """Enter the tree and run the program; return its exit status."""
    binds = []
    while words[:1] == ["--bind"]:
        binds.append(words[1].split("=", 1))
        words = words[2:]
    if len(words) < 4:
        sys.exit("usage: machine.py [--bind SOURCE=TARGET]... ROOT ACCOUNT DIRECTORY WORDS")
    root, account, directory, *words = words
    root = os.path.realpath(root)
    entry = _account(root, account)
    files = _configuration(entry)
    binds += [[path, path] for path in _indexes(files)]
    _call("unshare", libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID))
    first = os.fork()
    if first:
        # A signal that ends this process ends the machine; the terminal's own reach the program by themselves.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return _status(os.waitpid(first, 0)[1])
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    _mount(root, root, "", MS_BIND)
    for source, target in binds:
        _make_directories(root, target, entry)
        _mount(source, root + target, "", MS_BIND)
        _mount("none", root + target, "", MS_REMOUNT | MS_BIND | MS_RDONLY)
    _build(root, files, entry)
    return _first_process(entry, directory, words)


def _account(root: str, name: str) -> list[str]:
    with open(f"{root}/etc/passwd", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split(":") for line in file]
    found = [row for row in rows if row[0] == name]
    if not found:
        sys.exit(f"machine: error: there is no account {name} in {root}")
    return found[0]


def _configuration(entry: list[str]) -> dict[str, bytes]:
    """Return what pip and npm are configured with on this machine, by its place in the tree."""
    ours, theirs = os.path.expanduser("~"), entry[5]
    places = {"/etc/pip.conf": "/etc/pip.conf", "/etc/npmrc": "/etc/npmrc"}
    places |= {f"{ours}/{name}": f"{theirs}/{name}" for name in (".config/pip/pip.conf", ".npmrc")}
    found = {}
    for source, target in places.items():
        try:
            with open(source, "rb") as file:
                found[target] = file.read()
        except OSError:
            continue
    return found


def _indexes(files: dict[str, bytes]) -> set[str]:
    """Return directories of this machine that pip looks for packages in; an index has its files beside `simple`."""
    texts = [os.fsdecode(content) for path, content in files.items() if path.endswith("pip.conf")]
    texts += [value for key, value in os.environ.items() if key.startswith("PIP_")]
    words = (word.removeprefix("file://").removesuffix("/simple") for text in texts for word in text.split())
    return {word for word in words if word.startswith("/") and os.path.isdir(word) and word.count("/") > 1}


def _build(root: str, files: dict[str, bytes], entry: list[str]) -> None:
    """Mount what a machine has, and make the tree the root."""
    _mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _mount("/sys", f"{root}/sys", "", MS_BIND | MS_REC)
    _mount("none", f"{root}/sys", "", MS_REC | MS_SLAVE)
    _mount("tmpfs", f"{root}/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    os.mkdir(f"{root}/run/lock")
    os.chmod(f"{root}/run/lock", 0o1777)
    _devices(f"{root}/dev")
    # They may hold credentials of a registry: in memory, for the account alone, and gone with the machine.
    os.mkdir(f"{root}/run/machine")
    for number, (target, content) in enumerate(files.items()):
        copy = f"{root}/run/machine/{number}"
        with open(os.open(copy, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(content)
        os.chown(copy, int(entry[2]), int(entry[3]))
        _touch(root, target, entry)
        _mount(copy, root + target, "", MS_BIND)
    name = os.path.basename(root)
    libc.sethostname(name.encode(), len(name))
    os.chdir(root)
    machine = os.uname().machine
    if machine not in PIVOT_ROOT:
        sys.exit(f"machine: error: the number of pivot_root on {machine} is not known")
    _call("pivot_root", libc.syscall(PIVOT_ROOT[machine], b".", b"."))
    _call("umount", libc.umount2(b".", MNT_DETACH))
    os.chdir("/")


def _touch(root: str, path: str, entry: list[str]) -> None:
    """Make an empty file to mount on."""
    _make_directories(root, os.path.dirname(path), entry)
    with open(root + path, "ab"):
        pass
    _own(root, path, entry)


def _make_directories(root: str, path: str, entry: list[str]) -> None:
    """Make a directory and those above it, as far as they are missing."""
    missing = []
    while not os.path.isdir(root + path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        os.mkdir(root + directory)
        _own(root, directory, entry)


def _own(root: str, path: str, entry: list[str]) -> None:
    """Give the account what lies in its home."""
    if path.startswith(f"{entry[5]}/"):
        os.chown(root + path, int(entry[2]), int(entry[3]))


def _devices(place: str) -> None:
    _mount("tmpfs", place, "tmpfs", MS_NOSUID, "mode=755")
    for directory in ("net", "pts", "shm"):
        os.mkdir(f"{place}/{directory}")
    for name, major, minor in DEVICES:
        os.mknod(f"{place}/{name}", 0o20666, os.makedev(major, minor))
        os.chmod(f"{place}/{name}", 0o666)
    for name, target in LINKS:
        os.symlink(target, f"{place}/{name}")
    _mount("devpts", f"{place}/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5")
    _mount("tmpfs", f"{place}/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")


def _first_process(entry: list[str], directory: str, words: list[str]) -> int:
    """Start the program, and reap what becomes an orphan until it ends."""
    name, _, uid, gid, _, home, shell = entry
    variables = {
        key: value for key, value in os.environ.items() if key in PASSED_NAMES or key.startswith(PASSED)
    }  # fmt: skip
    basic = {
        "HOME": home, "USER": name, "LOGNAME": name, "SHELL": shell, "LANG": "C.UTF-8",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "TERM": os.environ.get("TERM", "dumb"), "CLAUDEBOX_MATRIX": os.uname().nodename,
    }  # fmt: skip
    child = os.fork()
    if not child:
        os.setgroups([int(gid)])  # sudo asks the group file by name
        os.setresgid(int(gid), int(gid), int(gid))
        os.setresuid(int(uid), int(uid), int(uid))
        os.umask(0o022)
        os.chdir(directory)
        try:
            os.execvpe(words[0], words, {**variables, **basic})
        except OSError as error:
            print(f"machine: error: {words[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    while True:
        process, status = os.wait()
        if process == child:
            os._exit(_status(status))


def _status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _call(f"mount {target}", result)


def _call(what: str, result: int) -> None:
    if result:
        sys.exit(f"machine: error: {what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
