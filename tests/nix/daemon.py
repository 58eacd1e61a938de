"""A real nix-daemon of the test: a store of its own below a temporary directory, nothing of it in /nix."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import Account
    from tests.nix.machine import Machine

SYSTEM = f"{os.uname().machine}-linux"
PACKAGES = Path(__file__).with_name("packages")
TOKEN = "github.com=ghp_CanaryOfTheHostsNixConfiguration00"  # of the host's nix.conf: never seen inside


@dataclass(frozen=True)
class Installation:
    """Programs of Nix on the host."""

    directory: str

    @property
    def mounted(self) -> tuple[str, ...]:
        """Return the flags with which it is there inside: the system's is in any case."""
        return () if self.directory == "/usr/bin" else ("--mount-ro", self.directory)

    def program(self, name: str = "nix") -> str:
        return f"{self.directory}/{name}"


@dataclass
class Daemon:
    """A daemon with its store, its configuration and the package set of the tests."""

    nix: Installation
    owner: Account
    trusted: tuple[str, ...] = ("root",)
    sandbox: str = "true"
    settings: dict[str, str] = field(default_factory=dict)
    base: str = ""
    source: str = ""  # the package set in the store, as it is called inside
    seed: str = ""  # busybox and bash in the store
    machine: Machine | None = (
        None  # where it runs, with the store at /nix/store; otherwise here, with a store elsewhere
    )
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.base = tempfile.mkdtemp(prefix="claudebox-nix-")
        os.chmod(self.base, 0o755)
        for name in ("home", "root", "socket", "etc"):
            os.mkdir(f"{self.base}/{name}", 0o755)
            os.chown(f"{self.base}/{name}", self.owner.uid, self.owner.gid)
        shutil.copytree(PACKAGES, f"{self.base}/packages")
        os.mkdir(f"{self.base}/packages/seed")
        for name, origin in (("busybox", "busybox"), ("bash", "bash-static")):
            shutil.copy(str(shutil.which(origin)), f"{self.base}/packages/seed/{name}")
        for directory, names, files in os.walk(f"{self.base}/packages"):
            for name in (*names, *files):
                os.utime(f"{directory}/{name}", (1, 1))
        self.configure()

    @property
    def socket(self) -> str:
        return f"{self.base}/socket/socket"

    @property
    def packages(self) -> str:
        """Return the package set as the host reaches it."""
        return f"path:{self.base}/packages"

    @property
    def environ(self) -> dict[str, str]:
        """Return what makes a client on the host use this daemon."""
        return {"NIX_REMOTE": f"unix://{self.socket}?root={self.base}/root", "NIX_CONF_DIR": f"{self.base}/etc"}

    def real(self, path: str) -> str:
        """Return where something of the store lies on the host."""
        return f"{self.base}/root{path}"

    def configure(self, **settings: str) -> None:
        """Write nix.conf and the registry; a running daemon takes no notice before it is started again."""
        self.settings |= settings
        values = {
            "experimental-features": "nix-command flakes",
            "trusted-users": " ".join(self.trusted),
            "sandbox": self.sandbox,
            "build-users-group": "",
            "substituters": "",
            "max-jobs": "2",
            "flake-registry": f"{self.base}/etc/registry.json",
            "access-tokens": TOKEN,
            **{name.replace("_", "-"): value for name, value in self.settings.items()},
        }
        Path(f"{self.base}/etc/nix.conf").write_text("".join(f"{name} = {value}\n" for name, value in values.items()))
        Path(f"{self.base}/etc/registry.json").write_text(registry(f"{self.base}/packages"))

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        environ = {
            "NIX_REMOTE": "local" if self.machine else f"local?root={self.base}/root",
            "NIX_DAEMON_SOCKET_PATH": self.socket,
            "NIX_CONF_DIR": f"{self.base}/etc",
            "HOME": f"{self.base}/home",
            "PATH": f"{self.nix.directory}:/usr/bin:/bin",
            "NIX_BIN_DIR": self.nix.directory,
        }
        words = [self.nix.program("nix-daemon"), "--daemon"]
        demotion = {} if self.machine else self.owner.demotion
        if self.machine:
            words = [*self.machine.enter(self.owner), *words]
        with open(f"{self.base}/log", "ab") as log:
            self._process = subprocess.Popen(
                words, env=environ, cwd=f"{self.base}/home", stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                **demotion,  # type: ignore[call-overload]
            )  # fmt: skip
        end = time.monotonic() + 20
        while not self._answers():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.01)
        if not self.source:
            # The first one to connect makes the store; 2.8 stumbles if the next one comes meanwhile.
            while self.run("store", "ping", check=False).returncode:
                assert time.monotonic() < end, self.log()
            self.source = json.loads(self.run("flake", "metadata", "--json", self.packages).stdout)["path"]
            self.seed = self.run("eval", "--raw", f"{self.packages}#seed").stdout

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.socket) == 0

    def stop(self) -> None:
        """End the daemon; its sessions go on, as with systemd's."""
        if self._process:
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def restart(self) -> None:
        """Start it anew, with a new socket."""
        self.stop()
        self.start()

    def remove(self) -> None:
        self.stop()
        if os.getuid():  # what is in a store cannot be written to, and so not be removed
            subprocess.run(["chmod", "-R", "u+w", self.base], check=False)
        shutil.rmtree(self.base, ignore_errors=True)

    def log(self) -> str:
        return Path(f"{self.base}/log").read_text(errors="replace")

    def client(
        self, *argv: str, account: Account | None = None, check: bool = True, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of Nix on the host against this daemon."""
        home = tempfile.mkdtemp(prefix="home-", dir=self.base)
        who = account or self.owner
        os.chown(home, who.uid, who.gid)
        environ = {**self.environ, "HOME": home, "PATH": f"{self.nix.directory}:/usr/bin:/bin"}
        result = subprocess.run(
            [self.nix.program(argv[0]), *argv[1:]], env=environ, cwd=home, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=300, check=False, **who.demotion, **options,  # type: ignore[call-overload]
        )  # fmt: skip
        assert not check or result.returncode == 0, result.stderr
        return result  # type: ignore[no-any-return]

    def run(self, *argv: str, account: Account | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `nix` on the host against this daemon."""
        return self.client("nix", *argv, account=account, check=check)

    def build(self, name: str, output: str = "out") -> str:
        """Build a package of the set and return its path."""
        built = json.loads(self.run("build", "--no-link", "--json", f"{self.packages}#{name}").stdout)
        return str(built[0]["outputs"][output])

    def add(self, path: str, name: str = "") -> str:
        """Copy a file or directory into the store and return its path there."""
        words = ("--name", name) if name else ()
        return self.run("store", "add-path", *words, path).stdout.strip()

    def built(self, name: str) -> bool:
        """Return whether a package of the set is in the store, without building it."""
        shown = json.loads(self.run("path-info", "--json", "--derivation", f"{self.packages}#{name}").stdout)
        derivation = next(iter(shown)) if isinstance(shown, dict) else shown[0]["path"]
        outputs = self.client("nix-store", "--query", "--outputs", derivation).stdout.split()
        return all(os.path.exists(self.real(path)) for path in outputs)


def registry(path: str) -> str:
    """Return a flake registry in which `nixpkgs` is the package set at a path."""
    entry = {"from": {"type": "indirect", "id": "nixpkgs"}, "to": {"type": "path", "path": path}}
    return json.dumps({"version": 2, "flakes": [entry]})
