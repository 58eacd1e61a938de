"""The program that `--verify` runs inside the sandbox: it tries what must be impossible there.

It imports nothing of claudebox, reads a specification from a file, and writes one line of JSON per promise. Each probe
returns what it found, or an empty string. Outside of a sandbox it reports nearly everything as broken, which is how it
is tested. Secrets are reversed in the specification, so that finding one means that it leaked elsewhere.
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
import sys
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedRWPair

    Spec = dict[str, "object"]


_LARGEST = 64 << 20  # of the memory of a process that is searched
_NUMBERS = {  # of system calls: keyctl, io_uring_setup, unshare
    "x86_64": (250, 425, 272),
    "aarch64": (219, 425, 97),
}
_CLOCKS = 2.0  # seconds between the clock of a program and that of a file system
_TIOCLINUX = 0x541C
_CLONE_NEWUSER = 0x10000000
_NETLINK_AUDIT = 9
_NIX_HELLO, _NIX_ANSWER, _NIX_VERSION = 0x6E697863, 0x6478696F, 0x123  # 1.35, the first in which it tells
_NIX_TRUSTED = 1
_FROM_SHELL = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}  # made by shells and by Python themselves
_DENIED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY, errno.ENXIO)


class Untestable(Exception):  # noqa: N818 - not an error
    """Why a promise cannot be tested here."""


def _given(spec: Spec, key: str, why: str) -> list:  # type: ignore[type-arg]  # from JSON
    value = spec.get(key)
    if value in (None, "", []):  # 0 is a valid number of shared memory
        raise Untestable(why)
    return value if isinstance(value, list) else [value]


def _token(spec: Spec) -> bytes:
    return str(spec["token"])[::-1].encode()


def _processes() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def _read(path: str, limit: int = 1 << 20) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def environment(spec: Spec) -> str:
    """Look for the host's environment in all processes, and for unplanned variables."""
    token = _token(spec)
    for process in _processes():
        if token in _read(f"/proc/{process}/environ"):
            return f"the canary is in /proc/{process}/environ"
    extra = sorted(set(os.environ) - set(spec["variables"]) - _FROM_SHELL)  # type: ignore[call-overload]
    return f"not in the plan: {', '.join(extra[:5])}" if extra else ""


def arguments(spec: Spec) -> str:
    """Look for values and mounts of the plan in the arguments of all processes."""
    for process in _processes():
        words = _read(f"/proc/{process}/cmdline")
        if _token(spec) in words:
            return f"the canary is in /proc/{process}/cmdline"
        if b"--ro-bind\0" in words or b"--setenv\0" in words:
            return f"/proc/{process}/cmdline shows the options of the sandbox"
    return ""


def memory(spec: Spec) -> str:
    """Look for the canary in the memory of the first process."""
    token = _token(spec)
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


def descriptors(_spec: Spec) -> str:
    """Look for inherited descriptors."""
    extra = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if int(name) > 2 and not target.startswith("/proc/"):
            extra.append(f"{name} ({target})")
    return f"open: {', '.join(extra[:3])}" if extra else ""


def redirected(spec: Spec) -> str:
    """Reopen a file that was redirected to standard input."""
    if os.read(0, 4096) != _token(spec):
        raise Untestable("standard input is not the file that was planted")
    try:
        descriptor = os.open("/proc/self/fd/0", os.O_RDONLY | os.O_NONBLOCK)
        found = os.read(descriptor, 4096)
    except OSError:
        found = b""
    return "a file can be opened again through /proc/self/fd" if found else ""


def keyrings(spec: Spec) -> str:
    """Query the kernel's keyrings, and their list."""
    result = _syscall(0, 0, -3, 0)
    if result >= 0:
        return "the session keyring answers"
    if result != -errno.EPERM:
        return f"keyctl is not filtered: {os.strerror(-result)}"
    if _token(spec) in _read("/proc/keys") or _read("/proc/keys"):
        return "/proc/keys lists keys"
    return ""


def _syscall(which: int, *words: int | None) -> int:
    """Make a system call; return its result, or the negative errno."""
    import ctypes

    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        raise Untestable(f"system call numbers of {platform.machine()} are unknown")
    library = ctypes.CDLL(None, use_errno=True)
    result: int = library.syscall(numbers[which], *words)
    return result if result >= 0 else -ctypes.get_errno()


def hidden(spec: Spec) -> str:
    """Look for hidden files of the host, by device and inode."""
    for path, device, inode in spec["hidden"]:  # type: ignore[attr-defined]
        try:
            status = os.stat(path)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) == (device, inode):
            return f"{path} is visible"
    return ""


def secrets(spec: Spec) -> str:
    """Look for secrets planted beside the user's own."""
    for path in _given(spec, "secrets", "no canary could be written"):
        if os.path.lexists(path):
            return f"{path} is visible"
    return ""


def login(spec: Spec) -> str:
    """Look for the refresh token."""
    (path,) = _given(spec, "login", "there is no login")
    return "a refresh token is inside" if b"refreshToken" in _read(path) else ""


def _search(spec: Spec, wanted: bytes) -> str:
    """Look for a value in all processes and in files that are not older than the canaries."""
    for process in _processes():
        if any(wanted in _read(f"/proc/{process}/{name}") for name in ("environ", "cmdline")):
            return f"it is in the environment or the arguments of process {process}"
    since = float(str(spec["since"])) - _CLOCKS
    for place in ("/run", "/etc", "/tmp", "/dev/shm", os.path.expanduser("~"), str(spec["workdir"])):
        for directory, _, files in os.walk(place):
            for name in files:
                path = os.path.join(directory, name)
                try:
                    status = os.lstat(path)
                except FileNotFoundError:
                    continue
                young = status.st_ctime >= since and stat.S_ISREG(status.st_mode)
                if young and wanted in _read(path, _LARGEST):
                    return f"it is in {path}"
    return ""


def held_secrets(spec: Spec) -> str:
    """Look for the values of `[[secrets]]`."""
    (reversed_one,) = _given(spec, "held", "there are no `[[secrets]]` that this tier can use")
    return _search(spec, str(reversed_one)[::-1].encode())


def credential(spec: Spec) -> str:
    """Look for the broker's credential, and try to get it from the broker."""
    (reversed_one,) = _given(spec, "credential", str(spec.get("no_credential")))
    wanted = str(reversed_one)[::-1].encode()
    if found := _search(spec, wanted):
        return found
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(spec["broker"]))
        request = f"GET /v1/organizations HTTP/1.1\r\nhost: x\r\nx-api-key: {spec['placeholder']}\r\n\r\n"
        client.sendall(request.encode())
        answer = client.recv(1 << 16)
    if b" 403 " not in answer.partition(b"\r\n")[0]:
        return "the broker does not refuse a request outside of the API"
    return "the broker reveals it" if wanted in answer else ""


def sockets(spec: Spec) -> str:
    """Connect to sockets of the host, inside and outside of the project."""
    for path in _given(spec, "sockets", "no socket could be made"):
        if _answers(path):
            return f"{path} answers"
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


def masked(spec: Spec) -> str:
    """Read a file of the project with a secret."""
    (path,) = _given(spec, "masked", "`--set project_secrets=mask` is not set, or the project cannot be written")
    content = _read(path)
    if b"API_KEY=" not in content:
        return f"{path} cannot be read at all"
    return f"{path} shows its secret" if _token(spec) in content else ""


def abstract(spec: Spec) -> str:
    """Connect to an abstract socket of the host."""
    (name,) = _given(spec, "abstract", "not promised in this tier before Linux 6.12")
    return "an abstract socket of the host answers" if _answers("\0" + name) else ""


def listeners(spec: Spec) -> str:
    """Connect to services of this machine."""
    for address, port in _given(spec, "listeners", "not promised in tier `full`"):
        if _answers((address, port)):
            return f"{address}:{port} answers"
    return ""


def nix_daemon(spec: Spec) -> str:
    """Ask the Nix daemon whether it trusts us; if it is off, it must not answer at all."""
    (access,) = _given(spec, "nix", "there is no Nix on this machine")
    if access == "told":
        raise Untestable("you gave the sandbox the daemon: it does there what it does for you")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        try:
            client.connect("/nix/var/nix/daemon-socket/socket")
        except OSError as error:
            return "" if access == "off" else f"it does not answer: {error.strerror}"
        if access == "off":
            return "it answers"
        trust = _trust(client.makefile("rwb"))
    if trust is None:
        raise Untestable("this daemon is too old to report trust")
    return "it trusts the sandbox" if trust == _NIX_TRUSTED else ""


def _trust(stream: BufferedRWPair) -> int | None:
    """Shake hands with the daemon and return its trust level."""

    def send(*numbers: int) -> None:
        stream.write(b"".join(number.to_bytes(8, "little") for number in numbers))
        stream.flush()

    def receive() -> int:
        return int.from_bytes(stream.read(8), "little")

    send(_NIX_HELLO)
    if receive() != _NIX_ANSWER:
        raise OSError("not a Nix daemon")
    version = receive()
    send(_NIX_VERSION, 0, 0)
    if version < _NIX_VERSION:
        return None
    length = receive()
    stream.read(length + -length % 8)  # its version as text
    return receive()


def domains(spec: Spec) -> str:
    """Connect to destinations that are not listed: this machine, addresses, a name."""
    for host, port in _given(spec, "unlisted", "promised in tier `allow` only"):
        with socket.create_connection(("127.0.0.1", 3128), timeout=5) as client:
            client.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
            answer = client.recv(64)
        if not answer.startswith(b"HTTP/1.1 403 "):
            return f"the proxy answers {answer[:20]!r} to {host}:{port}"
        if _answers((host.strip("[]"), port)):
            return f"{host}:{port} answers"
    return ""


def processes(spec: Spec) -> str:
    """Signal a process of the host."""
    (process,) = _given(spec, "process", "no process could be started")
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        pass
    except PermissionError:
        return f"process {process} of the host is visible"
    else:
        if process != os.getpid() and f"/{process}" not in os.path.realpath("/proc/self"):
            return f"process {process} of the host can be signalled"
    return ""


def shared_memory(spec: Spec) -> str:
    """Look for shared memory of the host."""
    (number,) = _given(spec, "shared_memory", "this machine has no System V shared memory")
    listed = [line.split()[1] for line in _read("/proc/sysvipc/shm").splitlines()[1:]]
    return "shared memory of the host is listed" if str(number).encode() in listed else ""


def terminal(_spec: Spec) -> str:
    """Inject input into a terminal."""
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


def user_namespaces(spec: Spec) -> str:
    """Make a user namespace, which would expose more of the kernel."""
    if spec.get("userns"):
        raise Untestable("--set allow_userns=true: not promised")
    child = os.fork()
    if child == 0:
        os._exit(1 if _syscall(2, _CLONE_NEWUSER) == 0 else 0)
    return "a user namespace could be made" if os.waitpid(child, 0)[1] else ""


def kernel_surface(_spec: Spec) -> str:
    """Use parts of the kernel that programs rarely need."""
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


def privileges(_spec: Spec) -> str:
    """Look for capabilities, ways to gain one, and processes without the seccomp filter."""
    for process in ("1", "self"):
        rows = (
            line.split(":\t", 1) for line in _read(f"/proc/{process}/status").decode().splitlines() if ":\t" in line
        )
        status = {key: value.strip() for key, value in rows}
        wanted = {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
        wrong = [f"{key} is {status.get(key)}" for key, value in wanted.items() if status.get(key) != value]
        if wrong:
            return f"process {process}: {', '.join(wrong)}"
    return ""


def limits(_spec: Spec) -> str:
    if resource.getrlimit(resource.RLIMIT_CORE) != (0, 0):
        return "core files are written"
    if resource.getrlimit(resource.RLIMIT_NPROC)[0] == resource.RLIM_INFINITY:
        return "the number of processes is not limited"
    return ""


def names(spec: Spec) -> str:
    """Read hostname and boot parameters."""
    if not spec["hostname"]:
        raise Untestable("a seccomp filter forbids sethostname here")
    if socket.gethostname() != "claudebox":
        return "the hostname is visible"
    return "boot parameters of the host are visible" if _read("/proc/cmdline") else ""


def read_only(spec: Spec) -> str:
    """Write to read-only mounts, and look for unplanned writable ones."""
    for path in ("/", *spec["read_only"]):  # type: ignore[misc]
        if _writable(path):
            return f"{path} can be written"
    planned = {str(path) for path in spec["writable"]}  # type: ignore[attr-defined]
    for place in _writable_mounts():
        if place not in planned and place != "/proc" and not place.startswith("/dev/"):
            return f"{place} is mounted writable"
    return ""


def _writable_mounts() -> Iterator[str]:
    for line in _read("/proc/self/mountinfo").decode("utf-8", "surrogateescape").splitlines():
        fields = line.split(" ")
        if "rw" in fields[5].split(","):
            yield fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def _writable(path: str) -> bool:
    """Return whether a path can be written; its content does not change."""
    try:
        directory = stat.S_ISDIR(os.lstat(path).st_mode)
        if directory:
            attempt = f"{path.rstrip('/')}/.claudebox-{os.getpid()}"
            os.close(os.open(attempt, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
            os.unlink(attempt)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def settings(spec: Spec) -> str:
    """Compare variables, mounts and network with the settings."""
    for name, digest in spec["variables"].items():  # type: ignore[attr-defined]
        if name not in os.environ:
            return f"the variable {name} is missing"
        if digest and hashlib.sha256(os.fsencode(os.environ[name])).hexdigest() != digest:
            return f"the variable {name} has another value"
    for path, writable, device, inode in spec["asked"]:  # type: ignore[attr-defined]
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


def project(spec: Spec) -> str:
    """Write to the project: a useless sandbox protects nothing."""
    (path,) = _given(spec, "project", "you cannot write the project either")
    return "" if _writable(str(path)) else "the project cannot be written"


def protected(spec: Spec) -> str:
    """Write, replace and create files that the host's tools obey."""
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


def survivors(spec: Spec) -> str:  # noqa: RET503 - does not return where it is left behind
    """Leave a process behind; `--verify` checks whether it outlives the sandbox."""
    if os.fork():
        return ""
    os.setsid()
    if os.fork():
        os._exit(0)
    for descriptor in (0, 1, 2):
        os.dup2(os.open("/dev/null", os.O_RDWR), descriptor)
    os.execv("/bin/sh", ["sh", "-c", "sleep 20; :", str(spec["leftover"])])


PROBES: tuple[Callable[[Spec], str], ...] = (
    descriptors, redirected, environment, arguments, memory, keyrings, hidden, secrets, login, credential,
    held_secrets, sockets, masked, abstract, listeners, domains, processes, shared_memory, terminal,
    user_namespaces, kernel_surface, privileges, limits, names, read_only, settings, project, protected,
    nix_daemon, survivors,
)  # fmt: skip


def main(path: str) -> None:
    """Run all probes and report."""
    signal.alarm(60)
    with open(path, encoding="ascii") as file:
        spec = json.load(file)
    for probe in PROBES:
        name = probe.__name__
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
    time.sleep(0.05)  # so that the process left behind has started


if __name__ == "__main__":
    main(sys.argv[1])
