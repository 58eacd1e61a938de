"""What the tests share: accounts to run as, and a box with a project, a home and canaries of its own."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import importlib.util
import inspect
import json
import os
import pwd
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from tests.support import baking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

pytest_plugins = ("tests.support.client", "tests.support.installations", "tests.support.sandbox")

REPOSITORY = Path(__file__).resolve().parent.parent
ORDINARY_USER = "claudebox-test"
PATIENCE = 20.0  # seconds; only a hang needs them
IN_CI = os.environ.get("CI") == "true"
SHARED = "CLAUDEBOX_TEST_CHECKOUT"  # the directory of a run for what its workers share

# What one worker does as a whole, since it is made ready once for all of it: daemons, machines, installations.
TOGETHER = (
    ("tests/nix/test_flake", "tests/nix/test_machine", "tests/nix/test_nixos", "tests/nix/test_package.py"),
    ("tests/nix/",), ("tests/many/fleet/",), ("tests/run/test_containers",), ("tests/test_bench",),
    ("tests/test_packaging",), ("tests/test_architecture",),
)  # fmt: skip

settings.register_profile(
    "claudebox",
    deadline=None,  # workers share the machine
    max_examples=int(os.environ.get("CLAUDEBOX_TEST_EXAMPLES", "30")),  # `scripts/test --all` tries more
    database=None,
    derandomize=IN_CI,  # a failure there must be one that everybody can repeat
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("claudebox")


def is_disarmed(said: str, path: str) -> bool:
    """Return whether the end of a session says that something of a repository was put aside."""
    return any(line.split()[:2] == [path, "disarmed"] and "put aside" in line for line in said.splitlines())


def need(condition: object, what: str) -> None:
    """Fail in CI, skip elsewhere, where this machine lacks something that a test needs."""
    if not condition:
        (pytest.fail if IN_CI else pytest.skip)(f"this machine has no {what}")


def wait_until(condition: Callable[[], object], what: str, *, patience: float = PATIENCE) -> None:
    """Wait for something to become true, and fail if it does not."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience:.0f} seconds in vain: {what}")
        time.sleep(0.01)


SETPRIV = shutil.which("setpriv") or "setpriv"


@dataclass(frozen=True)
class Account:
    """Somebody who runs claudebox."""

    name: str
    uid: int
    gid: int

    @property
    def demotion(self) -> dict[str, object]:
        """Return what `subprocess` needs to run as this account."""
        if os.getuid() == self.uid:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words that make a command run as this account; a fork by `subprocess` would cost 7 ms more."""
        same = os.getuid() == self.uid
        return () if same else (SETPRIV, f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups", "--")


def _accounts() -> list[str]:
    return ["root", "user"] if os.getuid() == 0 else ["self"]


BEGUN = pytest.StashKey[float]()
# What a test asks for says which kind it is; a test of no kind is `pure` and runs anywhere, without privileges.
KINDS = {
    "engine": {"cluster", "daemons"},
    "client": {"real_client"},
    "sandbox": {"checkout", "ordinary_account"},
    "process": {"upstream"},
}

# What only `scripts/test --all` runs: other releases, whole machines, and root's variant of a test that also runs as an
# ordinary user, unless the test is marked `accounts`.
REST = {"new_bwrap", "rust", "podman", "cluster", "standin", "nixos", "machine_boxes"}
# Fixtures that only root can make.
ROOTS = {"root_box", "world", "daemons", "cluster", "elsewhere", "ubuntu", "mounted", "podman", "own_copy"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden plans instead of comparing")
    parser.addoption("--outcomes", metavar="FILE", help="write a line for every phase of every test (scripts/suite.py)")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Return whether the golden plans are to be written."""
    return bool(request.config.getoption("--update-golden"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with its kinds."""
    for item in items:
        asked = set(getattr(item, "fixturenames", ()))
        for kind, fixtures in KINDS.items():
            if asked & fixtures:
                item.add_marker(kind)
        if asked & REST or (_is_of_root(item) and not item.get_closest_marker("accounts")):
            item.add_marker("slow")
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("property")
        if asked & ROOTS:
            item.add_marker("root")
        if not {*KINDS, "slow"} & {mark.name for mark in item.iter_markers()}:
            item.add_marker("pure")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, for a minute at the most."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def bounded() -> None:
        await asyncio.wait_for(pyfuncitem.obj(**given), 60)

    asyncio.run(bounded())
    return True


def processor_time() -> float:
    """Return the seconds that this process and all that it has waited for have computed."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Say how much a test has computed: unlike its seconds, it hardly depends on what else the machine does."""
    yield
    item.user_properties.append(("cpu", processor_time() - item.stash[BEGUN]))


@pytest.hookimpl(tryfirst=True)  # before a mark that skips the test
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what only root can do."""
    item.stash[BEGUN] = processor_time()
    if item.get_closest_marker("root"):
        need(os.getuid() == 0, "privileges of root")


def _is_of_root(item: pytest.Item) -> bool:
    """Return whether this is root's variant of a test that runs as an ordinary user as well."""
    return len(_accounts()) > 1 and hasattr(item, "callspec") and item.callspec.params.get("account") == "root"


class Outcomes:
    """Write down how tests end."""

    def __init__(self, file: str) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cpu = dict(report.user_properties).get("cpu", 0.0) if report.when == "teardown" else 0.0
        row = {"test": report.nodeid, "outcome": report.outcome, "seconds": report.duration, "cpu": cpu}
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Hear signals that were set to be ignored, as a shell does for whatever it starts with `&`, and `nohup`."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if hasattr(config, "workerinput"):
        return
    os.environ[SHARED] = tempfile.mkdtemp(prefix="claudebox-checkout-")
    if outcomes := config.getoption("--outcomes"):
        config.pluginmanager.register(Outcomes(outcomes))


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ[SHARED], ignore_errors=True)


@functools.cache
def has_small_tests(file: str) -> bool:
    """Return whether a file starts nothing: one by one, its tests would cost more to hand out than to run."""
    return not re.search(r"box|pair|upstream|client|checkout|subprocess", (REPOSITORY / file).read_text())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Distribute tests one by one to whichever worker is free, but for what belongs together; that comes first."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            whole = next((places[0] for places in TOGETHER if nodeid.startswith(places)), "")
            file = nodeid.partition("::")[0]
            return whole or (file if has_small_tests(file) else nodeid)

    return Scheduler(config, log)


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> random.Random:
    """Return random numbers whose seed a failure shows; `CLAUDEBOX_TEST_SEED` repeats them."""
    seed = int(os.environ.get("CLAUDEBOX_TEST_SEED", time.time_ns()))
    request.node.add_report_section("setup", "seed", f"CLAUDEBOX_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(scope="session")
def ordinary_account() -> Account:
    """An account without privileges; made if the tests run as root."""
    if os.getuid() != 0:
        return Account("self", os.getuid(), os.getgid())
    with open("/run/claudebox-tests.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two workers at once would make two accounts of one name
        try:
            entry = pwd.getpwnam(ORDINARY_USER)
        except KeyError:
            subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", ORDINARY_USER], check=True)
            entry = pwd.getpwnam(ORDINARY_USER)
    return Account("user", entry.pw_uid, entry.pw_gid)


@pytest.fixture(params=_accounts())
def account(request: pytest.FixtureRequest, ordinary_account: Account) -> Account:
    """Run the test as root and as an ordinary user, or as whoever runs the tests."""
    return Account("root", 0, 0) if request.param == "root" else ordinary_account


def few(values: Iterable[object], count: int) -> list[object]:
    """Return parameters of which the gate tries `count`, spread evenly; a release tries them all."""
    chosen = list(values)
    kept = {number * len(chosen) // count for number in range(count)}
    rows = [value if isinstance(value, tuple) else (value,) for value in chosen]
    return [pytest.param(*row, marks=() if number in kept else pytest.mark.slow) for number, row in enumerate(rows)]


def every_case(name: str, values: Iterable[object], *, as_root: int, in_gate: int = 0) -> pytest.MarkDecorator:
    """Try every case as an ordinary user, and a number of them as root: for what the account changes little about."""
    chosen, accounts = list(values), _accounts()
    rows = few([(accounts[-1], value) for value in chosen], in_gate or len(chosen))
    if len(accounts) > 1:
        rows += [(accounts[0], value) for value in chosen[:: len(chosen) // as_root]]
    return pytest.mark.parametrize(("account", name), rows, indirect=["account"])


def install_libraries(directory: str) -> None:
    """Put the libraries of the broker where a checkout has them, without asking an index."""
    os.makedirs(directory)
    for name in ("cryptography", "cffi", "_cffi_backend"):
        spec = importlib.util.find_spec(name)
        assert spec is not None, f"{name} is not installed: run scripts/setup --test"
        assert spec.origin is not None
        if spec.submodule_search_locations:
            shutil.copytree(spec.submodule_search_locations[0], f"{directory}/{name}")
        else:
            shutil.copy(spec.origin, directory)


@pytest.fixture(scope="session")
def checkout() -> str:
    """Return a copy of claudebox that every account can read, with its bytecode beside it; all workers use the same."""
    base = os.environ[SHARED]
    with open(f"{base}/lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stat.S_IMODE(os.stat(base).st_mode) != 0o755:  # it is not complete yet
            for part in ("src", "bin"):
                shutil.copytree(REPOSITORY / part, f"{base}/{part}", ignore=shutil.ignore_patterns("__pycache__"))
            install_libraries(f"{base}/.local/libraries")
            subprocess.run(["/usr/bin/python3", "-m", "compileall", "-q", f"{base}/src"], check=True)
            os.chmod(base, 0o755)
    return base


@pytest.fixture(scope="session", autouse=True)
def no_copies_left() -> Iterator[None]:
    """Remove the copies that `bake` has made."""
    yield
    baking.clear()


@dataclass
class Box:
    """A project and a home of an account, and claudebox to start in them."""

    account: Account
    program: str
    base: str
    home: str
    project: str
    environ: dict[str, str] = field(default_factory=dict)

    def write(self, path: str, content: str | bytes = "", *, mode: int = 0o644) -> str:
        """Write a file of the account; a relative path is one of the project."""
        target = os.path.join(self.project, path)
        self.mkdir(os.path.dirname(target))
        Path(target).write_bytes(content.encode() if isinstance(content, str) else content)
        os.chmod(target, mode)
        os.chown(target, self.account.uid, self.account.gid)
        return target

    def mkdir(self, path: str) -> str:
        """Make a directory of the account and those above it."""
        target = os.path.join(self.project, path)
        missing = []
        current = target
        while not os.path.isdir(current):
            missing.append(current)
            current = os.path.dirname(current)
        for directory in reversed(missing):
            os.mkdir(directory)
            os.chown(directory, self.account.uid, self.account.gid)
        return target

    def variables(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        """Return the environment of the host for this box."""
        basic = {"HOME": self.home, "PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "xterm"}
        return {**basic, **self.environ, **(extra or {})}

    def host(self, *argv: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a program outside of any sandbox, as the account: the positive control."""
        env = self.variables(options.pop("env", None))  # type: ignore[arg-type]
        settings: dict[str, object] = {
            "cwd": self.project, "env": env, "capture_output": True, "timeout": 60, "stdin": subprocess.DEVNULL,
            "encoding": "utf-8", "errors": "surrogateescape", **options,
        }  # fmt: skip
        if {"user", "extra_groups"} & options.keys():
            settings = {**self.account.demotion, **settings}
        else:
            argv = (*self.account.words, *argv)
        if "input" in settings:
            del settings["stdin"]
        return subprocess.run(argv, check=False, **settings)  # type: ignore[call-overload, no-any-return]

    def claudebox(self, *argv: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run claudebox in the project."""
        return self.host(self.program, *argv, **options)

    def run(self, *argv: str, flags: tuple[str, ...] = (), **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command in the sandbox."""
        return self.claudebox("-y", *flags, "--exec", "--", *argv, **options)

    def sh(self, script: str, *, flags: tuple[str, ...] = (), **options: object) -> subprocess.CompletedProcess[str]:
        """Run a shell script in the sandbox."""
        return self.run("sh", "-c", script, flags=flags, **options)


def configure(box: Box) -> None:
    """Choose the network for a box that has chosen nothing, or a launch on a terminal asks for it."""
    if not os.path.lexists(f"{box.home}/.claudebox/config.toml"):
        box.write(f"{box.home}/.claudebox/config.toml", 'network = "full"\n', mode=0o600)
        os.chmod(f"{box.home}/.claudebox", 0o700)


def make_box(account: Account, checkout: str) -> Box:
    base = tempfile.mkdtemp(prefix="claudebox-test-")
    os.chmod(base, 0o755)
    box = Box(account, f"{checkout}/bin/claudebox", base, f"{base}/home", f"{base}/project")
    for directory in (box.home, box.project):
        os.mkdir(directory, 0o755)
        os.chown(directory, account.uid, account.gid)
    return box


@pytest.fixture(scope="session")
def open_tunnel() -> None:
    """Open the tunnel device to everybody, as ordinary distributions have it, and leave it so."""
    device = "/dev/net/tun"
    need(os.path.exists(device), device)
    if stat.S_IMODE(os.stat(device).st_mode) != 0o666:
        need(os.getuid() == 0, "tunnel device that everybody can open")
        os.chmod(device, 0o666)


@pytest.fixture
def box(account: Account, checkout: str) -> Iterator[Box]:
    """Return a fresh box, as root and as an ordinary user."""
    yield from fresh_box(account, checkout)


@pytest.fixture
def user_box(ordinary_account: Account, checkout: str) -> Iterator[Box]:
    """Return a fresh box of an ordinary user, for what does not depend on the account."""
    yield from fresh_box(ordinary_account, checkout)


def fresh_box(account: Account, checkout: str) -> Iterator[Box]:
    """Yield a box, and remove everything that is in it."""
    need(shutil.which("bwrap"), "bubblewrap")
    made = make_box(account, checkout)
    yield made
    shutil.rmtree(made.base, ignore_errors=True)


BWRAPS = "/var/cache/claudebox-tests"  # where set-up unpacks those of other suites


def unpacked_bwrap(suite: str, directory: Path) -> str:
    """Return the bwrap of another Debian suite as one binary that every account can run."""
    root = f"{BWRAPS}/bwrap-{suite}/root"
    need(os.path.exists(root) and shutil.which("patchelf"), f"bwrap of Debian {suite} (scripts/setup --test)")
    loader = next(Path(root).rglob("ld-linux-*.so.*"))
    libraries = {str(path.parent) for path in Path(root).rglob("*.so.*")}
    target = f"{directory}/bwrap"
    shutil.copy(f"{root}/usr/bin/bwrap", target)
    patch = ["patchelf", "--set-interpreter", str(loader), "--force-rpath", "--set-rpath", ":".join(sorted(libraries))]
    subprocess.run([*patch, target], check=True)
    return target


@pytest.fixture(scope="session", params=["trixie", "sid"])
def new_bwrap(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return each newer bwrap, which follows no link while it builds a sandbox: 0.12 and 0.13."""
    yield from _in_a_directory(request.param)


def _in_a_directory(suite: str) -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="claudebox-bwrap-")
    os.chmod(directory, 0o755)
    yield unpacked_bwrap(suite, Path(directory))
    shutil.rmtree(directory)


assert sys.version_info >= (3, 11)
