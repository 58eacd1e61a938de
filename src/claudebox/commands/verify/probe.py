"""The program that `--verify` runs inside the sandbox: it tries what must be impossible there.

It imports nothing of claudebox, reads a specification from a file, and writes one line of JSON per promise. Each probe
stands below the promise that it tries, and returns what it found, or an empty string. Values to look for are reversed
in the specification, so that finding one means that it leaked elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import pty
import resource
import signal
import socket
import stat
import subprocess
import sys
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Spec = dict[str, Any]
    Probe = Callable[[Spec], str]


_LARGEST = 64 << 20  # bytes of a file, or of the memory of a process, that are searched
_NUMBERS = {  # of system calls: keyctl, io_uring_setup, unshare
    "x86_64": (250, 425, 272),
    "aarch64": (219, 425, 97),
}
_CLOCKS = 2.0  # seconds between the clock of a program and that of a file system
_TIOCLINUX = 0x541C
_CLONE_NEWUSER = 0x10000000
_NETLINK_AUDIT = 9
_FROM_SHELL = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}  # made by shells and by Python themselves
_DENIED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY, errno.ENXIO)
_SURVIVAL = 5  # seconds; `--verify` waits for less

# The promises in their order: the text, the requirements and threats that it covers, and the probe.
PROMISES: dict[str, tuple[str, str, Probe]] = {}


class Untestable(Exception):  # noqa: N818 - not an error
    """Why a promise cannot be tested here."""


def promise(text: str, proves: str) -> Callable[[Probe], Probe]:
    def keep(probe: Probe) -> Probe:
        PROMISES[probe.__name__] = text, proves, probe
        return probe

    return keep


def _given(spec: Spec, key: str, why: str) -> Any:
    value = spec.get(key)
    if value in (None, "", []):  # 0 is a valid number of shared memory
        raise Untestable(why)
    return value


def _read(path: str, limit: int = 1 << 20) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def _processes() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def _search(spec: Spec, wanted: str) -> str:
    """Look for a value in all processes, and in files that are not older than the canaries."""
    value = wanted[::-1].encode()
    for process in _processes():
        if any(value in _read(f"/proc/{process}/{name}") for name in ("environ", "cmdline")):
            return f"it is in the environment or the arguments of process {process}"
    since = spec["since"] - _CLOCKS
    for place in ("/run", "/etc", "/tmp", "/dev/shm", os.path.expanduser("~"), spec["workdir"]):
        for directory, _, files in os.walk(place):
            for path in (os.path.join(directory, name) for name in files):
                try:
                    status = os.lstat(path)
                except FileNotFoundError:
                    continue
                young = status.st_ctime >= since and stat.S_ISREG(status.st_mode)
                if young and value in _read(path, _LARGEST):
                    return f"it is in {path}"
    return ""


def _answers(address: str | tuple[str, int]) -> bool:
    """Return whether something accepts connections at a path, an abstract name, or a host and port."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(2)
        try:
            client.connect(address)
        except OSError:
            return False
    return True


def _syscall(which: int, *words: int | None) -> int:
    """Make a system call; return its result, or the negative errno."""
    import ctypes

    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        raise Untestable(f"system call numbers of {platform.machine()} are unknown")
    library = ctypes.CDLL(None, use_errno=True)
    result: int = library.syscall(numbers[which], *words)
    return result if result >= 0 else -ctypes.get_errno()


def _writable(path: str) -> bool:
    """Return whether a path can be written; its content does not change."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            attempt = f"{path.rstrip('/')}/.claudebox-{os.getpid()}"
            os.close(os.open(attempt, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
            os.unlink(attempt)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@promise("files that your shell has open do not enter", "A04")
def descriptors(_spec: Spec) -> str:  # the first: libraries of Python keep files open once they are loaded
    extra = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if int(name) > 2 and not target.startswith("/proc/"):
            extra.append(f"{name} ({target})")
    return f"open: {', '.join(extra[:3])}" if extra else ""


@promise("a redirected file can be read, not reopened", "A21")
def redirected(spec: Spec) -> str:
    if os.read(0, 4096) != spec["token"][::-1].encode():
        raise Untestable("standard input is not the file that was planted")
    try:
        descriptor = os.open("/proc/self/fd/0", os.O_RDONLY | os.O_NONBLOCK)
        found = os.read(descriptor, 4096)
    except OSError:
        found = b""
    return "a file can be opened again through /proc/self/fd" if found else ""


@promise("variables of the host do not enter, and no value or mount shows in arguments", "SAND-02 A01 A02")
def environment(spec: Spec) -> str:
    token = spec["token"][::-1].encode()
    for process in _processes():
        if token in _read(f"/proc/{process}/environ"):
            return f"the canary is in /proc/{process}/environ"
        words = _read(f"/proc/{process}/cmdline")
        if token in words:
            return f"the canary is in /proc/{process}/cmdline"
        if b"--ro-bind\0" in words or b"--setenv\0" in words:
            return f"/proc/{process}/cmdline shows the options of the sandbox"
    extra = sorted(set(os.environ) - set(spec["variables"]) - _FROM_SHELL)
    return f"not in the plan: {', '.join(extra[:5])}" if extra else ""


@promise("the memory of the first process contains nothing of the host", "A03")
def memory(spec: Spec) -> str:
    token = spec["token"][::-1].encode()
    for line in _read("/proc/1/maps").decode("utf-8", "replace").splitlines():
        place, access, *_ = line.split()
        first, _, last = place.partition("-")
        size = int(last, 16) - int(first, 16)
        if not access.startswith("rw") or size > _LARGEST or "[v" in line:
            continue
        try:
            with open("/proc/1/mem", "rb", buffering=0) as file:
                file.seek(int(first, 16))
                if token in (file.read(size) or b""):
                    return "the canary is in the memory of process 1"
        except OSError:
            continue
    return ""


@promise("the kernel's keyrings do not answer", "A08 A09")
def keyrings(_spec: Spec) -> str:
    result = _syscall(0, 0, -3, 0)
    if result >= 0:
        return "the session keyring answers"
    if result != -errno.EPERM:
        return f"keyctl is not filtered: {os.strerror(-result)}"
    return "/proc/keys lists keys" if _read("/proc/keys") else ""


@promise("your keys, tokens, history and profiles are hidden, and secrets planted beside them",
         "SAND-04 SAND-08 SAND-09")  # fmt: skip
def hidden(spec: Spec) -> str:
    for path, device, inode in spec["hidden"]:
        try:
            status = os.stat(path)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) == (device, inode):
            return f"{path} is visible"
    return ""


@promise("your refresh token does not enter", "AUTH-01 I01 I02")
def login(spec: Spec) -> str:
    path, field = _given(spec, "login", "there is no login")
    return "a refresh token is inside" if field.encode() in _read(path) else ""


@promise("your API key or login is not inside, and the broker does not reveal it", "AUTH-01 I03")
def credential(spec: Spec) -> str:
    wanted = _given(spec, "credential", "there is no key or login here, or you let it enter")
    if found := _search(spec, wanted):
        return found
    for place, field, variable, placeholder in spec["models"]:
        given = os.environ.get(variable, placeholder)
        with socket.socket(socket.AF_INET if isinstance(place, int) else socket.AF_UNIX) as client:
            client.settimeout(20)
            client.connect(("127.0.0.1", place) if isinstance(place, int) else place)
            client.sendall(f"GET /v1/organizations HTTP/1.1\r\nhost: x\r\n{field}: {given}\r\n\r\n".encode())
            answer = client.recv(1 << 16)
        if b" 403 " not in answer.partition(b"\r\n")[0]:
            return "the broker does not refuse a request outside of the API"
        if wanted[::-1].encode() in answer:
            return "the broker reveals it"
    return ""


@promise("values of `[[secrets]]` are not inside, only their placeholders", "SECR-01 A01")
def held_secrets(spec: Spec) -> str:
    return _search(spec, _given(spec, "held", "there are no `[[secrets]]` that this tier can use"))


@promise("sockets of the host do not answer, not even renamed ones in the project", "SAND-09 C19 C33")
def sockets(spec: Spec) -> str:
    found = filter(_answers, _given(spec, "sockets", "no socket could be made"))
    return next((f"{path} answers" for path in found), "")


@promise("secrets in files of the project are masked", "A20 C32")
def masked(spec: Spec) -> str:
    """Look for the words of masked files in all files here, and in everything that git has."""
    given = _given(spec, "masked", "secrets in the project are shown, or it cannot be written")
    salt, wanted, lengths = spec["token"][::-1].encode(), given["words"], set(given["lengths"])
    seen: set[bytes] = set()
    found_shown, limit = False, time.monotonic() + _SEARCH
    for name, content in _list_contents(spec["workdir"]):
        words = {word for word in content.translate(_BLANKS).split() if len(word) in lengths} - seen
        seen |= words
        for place in (wanted.get(hashlib.sha256(salt + word).hexdigest()) for word in words):
            if place:
                return f"the value at {place} can be read in {name}"
            found_shown = found_shown or place == ""
        if time.monotonic() > limit:
            raise Untestable(f"there is more here than can be searched in {_SEARCH:.0f} seconds")
    return "" if found_shown else "the search does not find what is shown"


_SEARCH = 20.0  # seconds
_BLANKS = bytes(32 if chr(byte) in "\t\r\n\f\v\0,;:=/@\"'`{}[]()<>&?" else byte for byte in range(256))


def _list_contents(workdir: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents: of files, and of what git has."""
    for place in (workdir, "/run", "/tmp", os.path.expanduser("~")):
        for directory, _, files in os.walk(place):
            for path in (os.path.join(directory, name) for name in files):
                if path != sys.argv[1] and os.path.lexists(path) and stat.S_ISREG(os.lstat(path).st_mode):
                    yield path, _read(path, _LARGEST)
    words = ("git", "-C", workdir, "cat-file", "--batch", "--batch-all-objects", "--unordered")
    try:
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as git:
            rest, piece = b"", b"-"
            while piece and git.stdout is not None:
                piece = git.stdout.read(1 << 20)
                whole, _, rest = (rest + piece).rpartition(b"\n")
                yield "an object of git", whole if piece else rest
    except OSError:  # there is no git
        return


@promise("abstract sockets of the host do not answer", "F15 F16")
def abstract(spec: Spec) -> str:
    name = _given(spec, "abstract", "not promised in this tier before Linux 6.12")
    return "an abstract socket of the host answers" if _answers(f"\0{name}") else ""


@promise("services of this machine do not answer", "NET-T NET-01 F01")
def listeners(spec: Spec) -> str:
    for address, port in _given(spec, "listeners", "not promised in tier `full`"):
        if _answers((address, port)):
            return f"{address}:{port} answers"
    return ""


@promise("only listed domains answer, and no IP address does", "NET-03 F05 F13")
def domains(spec: Spec) -> str:
    for host, port in _given(spec, "unlisted", "promised in tier `allow` only"):
        with socket.create_connection(("127.0.0.1", 3128), timeout=5) as client:
            client.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
            answer = client.recv(64)
        if not answer.startswith(b"HTTP/1.1 403 "):
            return f"the proxy answers {answer[:20]!r} to {host}:{port}"
        if _answers((host.strip("[]"), port)):
            return f"{host}:{port} answers"
    return ""


@promise("processes of the host are invisible", "SEC-02 A06")
def processes(spec: Spec) -> str:
    process = _given(spec, "process", "no process could be started")
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return f"process {process} of the host is visible"
    same = process == os.getpid() or f"/{process}" in os.path.realpath("/proc/self")  # the number, but not the process
    return "" if same else f"process {process} of the host can be signalled"


@promise("shared memory of the host is invisible", "A11")
def shared_memory(spec: Spec) -> str:
    number = _given(spec, "shared_memory", "this machine has no System V shared memory")
    listed = [line.split()[1] for line in _read("/proc/sysvipc/shm").splitlines()[1:]]
    return "shared memory of the host is listed" if str(number).encode() in listed else ""


@promise("nothing can be typed into your terminal", "B01 B02 B04")
def terminal(_spec: Spec) -> str:
    _, slave = pty.openpty()
    child = os.fork()
    if child == 0:
        code = 0
        try:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            fcntl.ioctl(slave, termios.TIOCSTI, b"x")
            code = 1
        except OSError:
            try:
                fcntl.ioctl(slave, _TIOCLINUX, bytes(8))
            except OSError as error:
                code = 0 if error.errno == errno.EPERM else 2
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return ("", "a program can type into its terminal", "typing into terminals is not filtered")[code]


@promise("no user namespaces can be made", "H01 C24")  # they would expose more of the kernel
def user_namespaces(spec: Spec) -> str:
    if spec.get("userns"):
        raise Untestable("--set allow_userns=true: not promised")
    child = os.fork()
    if child == 0:
        os._exit(1 if _syscall(2, _CLONE_NEWUSER) == 0 else 0)
    return "a user namespace could be made" if os.waitpid(child, 0)[1] else ""


@promise("rarely used parts of the kernel are closed", "H02 F17")
def kernel_surface(_spec: Spec) -> str:
    result = _syscall(1, 1, None)
    if result != -errno.EPERM:
        return f"io_uring is not filtered: {'it answers' if result >= 0 else os.strerror(-result)}"
    for family, protocol, name in ((40, 0, "AF_VSOCK"), (38, 0, "AF_ALG"), (16, _NETLINK_AUDIT, "audit")):
        try:
            socket.socket(family, socket.SOCK_STREAM if family == 40 else socket.SOCK_DGRAM, protocol).close()
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT):
                continue
        return f"a socket of {name} is not filtered"
    return ""


@promise("no capabilities, and a seccomp filter on every process", "H03 H04 H05")
def privileges(_spec: Spec) -> str:
    for process in ("1", "self"):
        lines = _read(f"/proc/{process}/status").decode().splitlines()
        status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        wanted = {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
        wrong = [f"{key} is {status.get(key)}" for key, value in wanted.items() if status.get(key) != value]
        if wrong:
            return f"process {process}: {', '.join(wrong)}"
    return ""


@promise("no core files, and a limit on processes", "A19 H08")
def limits(_spec: Spec) -> str:
    if resource.getrlimit(resource.RLIMIT_CORE) != (0, 0):
        return "core files are written"
    if resource.getrlimit(resource.RLIMIT_NPROC)[0] == resource.RLIM_INFINITY:
        return "the number of processes is not limited"
    return ""


@promise("hostname and boot parameters are hidden", "A17")
def names(spec: Spec) -> str:
    if not spec["hostname"]:
        raise Untestable("a seccomp filter forbids sethostname here")
    if socket.gethostname() != "claudebox":
        return "the hostname is visible"
    return "boot parameters of the host are visible" if _read("/proc/cmdline") else ""


@promise("only what the plan says is writable", "SAND-04 SAND-06 C25")
def read_only(spec: Spec) -> str:
    for path in ("/", *spec["read_only"]):
        if _writable(path):
            return f"{path} can be written"
    for place in _writable_mounts():
        if place not in spec["writable"] and place != "/proc" and not place.startswith("/dev/"):
            return f"{place} is mounted writable"
    return ""


def _writable_mounts() -> Iterator[str]:
    for line in _read("/proc/self/mountinfo").decode("utf-8", "surrogateescape").splitlines():
        fields = line.split(" ")
        if "rw" in fields[5].split(","):
            yield fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


@promise("tier, variables and mounts are those of your settings", "PROF-01 E07")
def settings(spec: Spec) -> str:
    for name, digest in spec["variables"].items():
        if name not in os.environ:
            return f"the variable {name} is missing"
        if digest and hashlib.sha256(os.fsencode(os.environ[name])).hexdigest() != digest:
            return f"the variable {name} has another value"
    for path, writable, device, inode in spec["asked"]:
        status = os.stat(path)
        if (status.st_dev, status.st_ino) != (device, inode):
            return f"{path} is not what was mounted there"
        if not writable and _writable(path):
            return f"{path} can be written"
    shared = os.readlink("/proc/self/ns/net") == spec["network_namespace"]
    if shared != spec["shared"]:
        return f"tier {spec['network']}, but the network is {'' if shared else 'not '}that of the host"
    routes = [line.split()[0] for line in _read("/proc/net/route").decode().splitlines()[1:]]
    if spec["isolated"] and routes:
        return f"tier {spec['network']}, but there is a route through {routes[0]}"
    return ""


@promise("the project is writable", "SAND-05")  # a useless sandbox protects nothing
def project(spec: Spec) -> str:
    path = _given(spec, "project", "you cannot write the project either")
    return "" if _writable(path) else "the project cannot be written"


@promise("files that your tools obey cannot change", "SEC-04 C20 C22 D05 D06 D21")
def protected(spec: Spec) -> str:
    for path in _given(spec, "protected", "nothing is protected here: --allow, or no repository"):
        if not os.path.lexists(path):
            return f"{path} can be created"
        if _writable(path):
            return f"{path} can be written"
        aside = f"{path}.claudebox-{os.getpid()}"
        try:
            os.rename(path, aside)
        except OSError as error:
            if error.errno in _DENIED:
                continue
        else:
            os.rename(aside, path)
        return f"{path} can be replaced"
    return ""


@promise("the Nix daemon is reachable only where the plan says so", "NIXSEC-01 G01 G03")
def nix_daemon(spec: Spec) -> str:
    access = _given(spec, "nix", "there is no Nix on this machine")
    if _answers("/nix/var/nix/daemon-socket/socket") == (access == "off"):
        return "it answers" if access == "off" else "it does not answer"
    return ""


@promise("nothing outlives the sandbox", "SAND-15 E12")
def survivors(_spec: Spec) -> str:
    """Leave a process behind that holds our output open: `--verify` looks whether that ends."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.dup2(1, 2)
            signal.alarm(_SURVIVAL)
            signal.pause()
        os._exit(0)
    os.wait()
    return ""


def main(path: str) -> None:
    """Run all probes and report."""
    signal.alarm(60)
    with open(path, encoding="ascii") as file:
        spec = json.load(file)
    for name, (_, _, probe) in PROMISES.items():
        try:
            detail = probe(spec)
        except Untestable as why:
            row = {"promise": name, "status": "untestable", "detail": str(why)}
        except Exception as error:  # noqa: BLE001 - a probe that fails must not count as held
            row = {"promise": name, "status": "broken", "detail": f"the probe failed: {error!r}"}
        else:
            row = {"promise": name, "status": "broken" if detail else "held", "detail": detail}
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
