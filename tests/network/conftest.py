"""Boxes that stand in the small world of `topology`, once for every uplink that this machine has."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import Account, Box, make_box, need
from tests.network import topology
from tests.network.topology import PORT
from tests.support.baking import bake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.network.topology import World

PYTHON = "/usr/bin/python3"
UPLINKS = ("slirp4netns", "pasta")
# Where `scripts/fetch-debian` was told to put it, on a distribution whose own is too old.
FETCHED_PASTA = os.environ.get("CLAUDEBOX_TEST_PASTA", "/var/cache/claudebox-tests/pasta/pasta")


@dataclass
class Asking:
    """A probe that runs inside."""

    process: subprocess.Popen[str]

    def __call__(self, kind: str, where: str) -> str:
        """Try one target, and return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([kind, where, PORT]) + "\n")
        self.process.stdin.flush()
        return str(json.loads(self.process.stdout.readline())[0])

    def end(self) -> str:
        """Let it end, and return what claudebox has said."""
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        if self.process.stdin.closed:
            return ""
        self.process.stdin.close()
        assert self.process.wait(15) == 0
        return self.process.stderr.read()


@dataclass
class NetBox(Box):
    """A box whose host is a namespace of the test."""

    world: World | None = None
    uplink: str = ""  # claudebox chooses by itself

    def run(self, *argv: str, flags: tuple[str, ...] = (), **options: object) -> subprocess.CompletedProcess[str]:
        return super().run(*argv, flags=(*self.choice, *flags), **options)

    @property
    def choice(self) -> tuple[str, ...]:
        return ("--set", f"uplink={self.uplink}") if self.uplink else ()

    def host(self, *argv: str, **options: object) -> subprocess.CompletedProcess[str]:
        as_root: dict[str, object] = {"user": None, "group": None, "extra_groups": None}  # `outside` gives it up again
        return super().host(*self.outside(*argv), **as_root, **options)

    def outside(self, *argv: str) -> tuple[str, ...]:
        """Return the words that run a command on the host of the small world, as the account."""
        assert self.world is not None
        identity = ("--reuid", str(self.account.uid), "--regid", str(self.account.gid), "--clear-groups")
        return (*self.world.within("host"), "setpriv", *identity, "--", *argv)

    @contextlib.contextmanager
    def start(self, *argv: str, flags: tuple[str, ...] = (), **options: object) -> Iterator[subprocess.Popen[str]]:
        """Start a command in the sandbox and do not wait for it; whatever the test finds, it ends with the test."""
        words = self.outside(self.program, "-y", *self.choice, *flags, "--exec", "--", *argv)
        settings: dict[str, object] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        settings |= {"cwd": self.project, "env": self.variables(), "text": True, **options}
        with subprocess.Popen(words, **settings) as process:  # type: ignore[call-overload]
            try:
                yield process
            finally:
                process.kill()

    @contextlib.contextmanager
    def asking(self, flags: tuple[str, ...], *, wait: bool = False) -> Iterator[Asking]:
        """Start the probe in the sandbox, to be asked one target after the other; it has to end well."""
        script = self.write("probe.py", Path(__file__).with_name("probe.py").read_text())
        words = (PYTHON, script, *(("--wait",) if wait else ()), "--follow")
        with self.start(*words, flags=flags, stdin=subprocess.PIPE) as process:
            asking = Asking(process)
            yield asking
            asking.end()

    def probe(
        self, targets: list[list[object]], *, flags: tuple[str, ...] | None, wait: bool = True
    ) -> list[list[str]]:
        """Try targets inside, or on the host where no flags are given; return answer and seconds of each."""
        script = self.write("probe.py", Path(__file__).with_name("probe.py").read_text())
        words = (PYTHON, script, json.dumps(targets), *(("--wait",) if wait else ()))
        result = self.host(*words) if flags is None else self.run(*words, flags=flags)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def world(open_tunnel: None) -> Iterator[World]:
    """Build the small world."""
    need(os.getuid() == 0, "root, who alone can build namespaces for a test")
    need(shutil.which("ip"), "iproute2")
    made = topology.World()
    try:
        made.build()
        yield made
    finally:
        made.destroy()


def new_enough(pasta: str | None) -> bool:
    if pasta is None or not os.path.exists(pasta):
        return False
    probe = [pasta, "--map-host-loopback", "none", "--version"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="session")
def pasta_checkout(checkout: str) -> str:
    """Return a copy of claudebox into which a packager has written where pasta is."""
    found = next((path for path in (shutil.which("pasta"), FETCHED_PASTA) if new_enough(path)), None)
    need(found, "pasta of 2024 or newer; see scripts/fetch-debian")
    return bake(checkout, {"pasta": str(found)})


@pytest.fixture(params=UPLINKS)
def uplink(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def netbox(account: Account, uplink: str, world: World, request: pytest.FixtureRequest) -> Iterator[NetBox]:
    """Return a box in the small world, for each account and each uplink."""
    yield from _netbox(account, uplink, world, request)


@pytest.fixture
def user_netbox(
    ordinary_account: Account, uplink: str, world: World, request: pytest.FixtureRequest
) -> Iterator[NetBox]:
    """Return a box of an ordinary user, for each uplink."""
    yield from _netbox(ordinary_account, uplink, world, request)


@pytest.fixture
def plain_netbox(ordinary_account: Account, world: World, request: pytest.FixtureRequest) -> Iterator[NetBox]:
    """Return a box of an ordinary user, for what does not depend on the uplink, or chooses it."""
    yield from _netbox(ordinary_account, "", world, request)


@pytest.fixture
def box_in_world(account: Account, world: World, request: pytest.FixtureRequest) -> Iterator[NetBox]:
    """Return a box for each account, for what does not depend on the uplink."""
    yield from _netbox(account, "", world, request)


def _netbox(account: Account, uplink: str, world: World, request: pytest.FixtureRequest) -> Iterator[NetBox]:
    need(shutil.which("bwrap"), "bubblewrap")
    need(uplink == "pasta" or shutil.which("slirp4netns"), "slirp4netns")
    checkout = request.getfixturevalue("pasta_checkout" if uplink == "pasta" else "checkout")
    made = make_box(account, checkout)
    box = NetBox(**vars(made), world=world, uplink=uplink)
    yield box
    shutil.rmtree(box.base, ignore_errors=True)


assert sys.version_info >= (3, 11)
