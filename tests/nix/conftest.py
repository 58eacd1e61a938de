"""Boxes on hosts with Nix: real daemons, each with a private store and a small package set."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import Account, Box, make_box, need
from tests.nix.daemon import Daemon, Installation
from tests.nix.machine import Machine
from tests.nix.probes import Listener
from tests.nix.relocation import Relocation
from tests.nix.standins import StandIn
from tests.support.baking import bake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Account("root", 0, 0)
VERSION = "2.26"
# Where `scripts/setup --test` unpacks it, beside the one that the distribution installs.
_PLACES = ("/usr/bin", "/var/cache/claudebox-tests/nix-trixie")


def installation() -> Installation:
    """Return the Nix of the tests, wherever it is on this machine."""
    need(shutil.which("busybox") and shutil.which("bash-static"), "busybox-static and bash-static")
    for place in _PLACES:
        if os.path.exists(f"{place}/nix"):
            told = subprocess.run([f"{place}/nix", "--version"], capture_output=True, text=True, check=False).stdout
            if f"(Nix) {VERSION}." in told:
                return Installation(place)
    need(condition=False, what=f"Nix {VERSION}; see scripts/setup --test")
    raise AssertionError


@dataclass
class NixBox(Box):
    """A box whose host has a daemon of the test."""

    daemon: Daemon = None  # type: ignore[assignment]

    def variables(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        basic = super().variables()
        return {**basic, **self.daemon.environ, **self.environ, **(extra or {})}


@pytest.fixture(scope="session")
def daemons() -> Iterator[Callable[..., Daemon]]:
    """Return what starts a daemon, or hands out the running one of that kind: kinds are shared, tests must not mind."""
    running: dict[object, Daemon] = {}

    def start(
        owner: Account = ROOT, trusted: tuple[str, ...] = ("root",), sandbox: str = "true",
        **settings: str,
    ) -> Daemon:  # fmt: skip
        key = (owner, trusted, sandbox, tuple(sorted(settings.items())))
        if key not in running:
            if os.getuid() != owner.uid:
                need(os.getuid() == 0, "root, who alone can run a daemon for another account")
            running[key] = Daemon(installation(), owner, trusted, sandbox, settings)
            running[key].start()
        return running[key]

    yield start
    for daemon in running.values():
        daemon.remove()


@pytest.fixture(scope="session")
def baked_checkout(checkout: str) -> Callable[..., str]:
    """Return what bakes paths into a copy of claudebox, once for each set of them."""
    copies: dict[str, str] = {}

    def make(tools: dict[str, str], **others: object) -> str:
        key = repr((tools, others))
        copies[key] = copies.get(key) or bake(checkout, tools, **others)
        return copies[key]

    return make


@pytest.fixture
def nix_boxes(baked_checkout: Callable[..., str]) -> Iterator[Callable[..., NixBox]]:
    """Return what makes a box on a host with a daemon."""
    need(shutil.which("bwrap"), "bubblewrap")
    boxes: list[NixBox] = []

    def make(daemon: Daemon, account: Account, **baked: object) -> NixBox:
        # The newer Nix is not in /usr: only a package build can tell claudebox of it.
        program = baked_checkout({"nix": daemon.nix.program()}, **baked)
        box = NixBox(**{**vars(make_box(account, program)), "daemon": daemon})
        boxes.append(box)
        return box

    yield make
    for box in boxes:
        shutil.rmtree(box.base, ignore_errors=True)


@pytest.fixture
def multi_user(daemons: Callable[..., Daemon]) -> Daemon:
    """Return a daemon as distributions run it: root's, with sandboxed builds, trusting root alone."""
    return daemons()


@pytest.fixture
def nix_box(nix_boxes: Callable[..., NixBox], multi_user: Daemon, ordinary_account: Account) -> NixBox:
    """Return a box of an ordinary, untrusted user."""
    return nix_boxes(multi_user, ordinary_account)


@pytest.fixture
def trusted_box(nix_boxes: Callable[..., NixBox], daemons: Callable[..., Daemon], ordinary_account: Account) -> NixBox:
    """Return a box of a user whom the daemon trusts."""
    return nix_boxes(daemons(trusted=("root", "claudebox-test")), ordinary_account)


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Return a server on the host's loopback."""
    server = Listener()
    yield server
    server.close()


@pytest.fixture
def overhear(baked_checkout: Callable[..., str]) -> Callable[[NixBox], Callable[[], list[str]]]:
    """Return what makes the `nix` of a host write down what claudebox runs it with, since the last time of asking."""

    def make(box: NixBox) -> Callable[[], list[str]]:
        log = box.write(f"{box.base}/log")
        script = f'#!/bin/sh\nprintf "%s\\n" "$*" >>{log}\nexec {box.daemon.nix.program()} "$@"\n'
        wrapper = box.write(f"{box.base}/bin/nix", script, mode=0o755)
        box.program = f"{baked_checkout({'nix': wrapper})}/bin/claudebox"

        def ran() -> list[str]:
            lines = Path(log).read_text().splitlines()
            box.write(log)
            return lines

        return ran

    return make


@dataclass
class MachineBox(NixBox):
    """A box on a machine that has /nix at its place."""

    machine: Machine = None  # type: ignore[assignment]

    def variables(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        basic = {"HOME": self.home, "TERM": "xterm", "NIX_CONF_DIR": f"{self.daemon.base}/etc"}
        return {**basic, "PATH": self.machine.search_path, **self.environ, **(extra or {})}

    def host(self, *argv: str, **options: object) -> subprocess.CompletedProcess[str]:
        as_root: dict[str, object] = {"user": None, "group": None, "extra_groups": None}  # `enter` gives it up again
        directory = str(options.pop("cwd", self.project))
        return super().host(*self.machine.enter(self.account, directory), *argv, **as_root, **options)


@pytest.fixture(scope="session")
def relocated(daemons: Callable[..., Daemon]) -> dict[str, str]:
    """Return packages of Debian's programs in the store of the usual daemon."""
    daemon = daemons()
    packages = Relocation(daemon).packages
    packages["bash"] = daemon.build("bash")
    return packages


@pytest.fixture(scope="session")
def nixos(daemons: Callable[..., Daemon], relocated: dict[str, str]) -> Iterator[Machine]:
    """Return a machine like NixOS: no /usr, every program in the store."""
    need(os.getuid() == 0, "root, who alone can build a machine for a test")
    machine = Machine(daemons(), relocated)
    yield machine
    machine.remove()


@pytest.fixture(scope="session")
def standin(daemons: Callable[..., Daemon], relocated: dict[str, str]) -> StandIn:
    """Return what flake.nix is evaluated and built with instead of its inputs."""
    return StandIn(daemons(), relocated)


@pytest.fixture
def nixos_box(account: Account, nixos: Machine, standin: StandIn, checkout: str) -> Iterator[MachineBox]:
    """Return a box on a machine like NixOS, with the package that flake.nix builds, as root and as an ordinary user."""
    need(shutil.which("bwrap"), "bubblewrap")
    made = make_box(account, checkout)
    made.program = f"{standin.package('claudebox')}/bin/claudebox"
    box = MachineBox(**{**vars(made), "daemon": nixos.daemon, "machine": nixos})
    yield box
    shutil.rmtree(box.base, ignore_errors=True)


@pytest.fixture
def machine_boxes(nix_boxes: Callable[..., NixBox], ordinary_account: Account) -> Iterator[Callable[[str], MachineBox]]:
    """Return what makes a box on a machine with /usr and with /nix at its place, where the daemon runs too.

    Only there can a daemon build without a sandbox: a store elsewhere wants one in any case.
    """
    need(os.getuid() == 0, "root, who alone can build a machine for a test")
    made: list[tuple[Daemon, Machine]] = []

    def make(sandbox: str) -> MachineBox:
        daemon = Daemon(installation(), ROOT, sandbox=sandbox)
        daemon.start()
        daemon.stop()
        daemon.machine = Machine(daemon)
        made.append((daemon, daemon.machine))
        daemon.start()
        return MachineBox(**{**vars(nix_boxes(daemon, ordinary_account)), "machine": daemon.machine})

    yield make
    for daemon, machine in made:
        daemon.remove()
        machine.remove()
