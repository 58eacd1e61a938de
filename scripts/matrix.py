"""Try claudebox on other systems: root trees of Debian, each entered as a machine of its own.

The trees lie in the user's cache directory. Where packages come from is what apt on this machine is configured with;
pip and npm inside find the configuration that they have here. Nothing of it is written into the checkout.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

from scripts import trees  # noqa: E402
from scripts.trees import TreeError  # noqa: E402

RESULTS = TOP / "docs/platforms.toml"
SUITES = {"bookworm": "Debian 12", "trixie": "Debian 13", "sid": "Debian sid"}
PURE = ("-m", "pure")
FOLDERS = tuple(sorted({path.parent.name for path in (TOP / "tests").glob("*/test_*.py")}))
PARTS = {
    "fast": ["--fast"],
    "whole": [],
    **{name: [f"tests/{name}"] for name in FOLDERS},
    "pure": list(PURE),
    "top": sorted(f"tests/{path.name}" for path in (TOP / "tests").glob("test_*.py")),
}
# The part of the gate that runs on Debian 13: what depends most on Python, bwrap, git, the kernel's view of a terminal.
GATE_SUITE = "trixie"
GATE_PACKAGES = (
    "bubblewrap", "ca-certificates", "git", "iproute2", "keyutils", "netbase", "passt", "procps", "python3",
    "python3-venv", "strace", "tmux",
)  # fmt: skip
GATE_TESTS = (
    "tests/plan", "--ignore=tests/plan/test_aarch64.py", "tests/base",
    *(f"tests/host/test_{name}.py" for name in ("hosts", "odd_hosts")),
    "tests/commands/test_words.py",
    *(f"tests/git/test_formats.py::test_refs_in_tables_come_back{more}" for more in ("", "_from_a_linked_worktree")),
    "tests/git/test_agent_worktrees.py::test_other_formats_of_repositories",
    *(f"tests/run/test_{name}.py" for name in ("descriptors", "home", "protected_repositories", "terminal")),
    "tests/git/test_git.py",
    *(f"tests/commands/test_verify.py::test_{name}" for name in (
        "every_promise_is_held_by_a_real_launch_and_nothing_is_left",
        "neither_a_library_that_stays_open_nor_a_number_0_misleads_the_probe",
    )),
    *(f"tests/broker/test_client_broker.py::test_{name}" for name in (
        "a_whole_session_with_tools_and_the_key_is_nowhere_inside", "a_login_is_used_and_nothing_of_it_is_inside",
    )),
    *(f"tests/agent/test_client_session.py::test_{name}" for name in (
        "the_tui_comes_up_without_a_question_and_does_everything_a_person_wants",
    )),
)  # fmt: skip
GATE_LIBRARIES = (
    "cffi", "cryptography", "execnet", "h11", "hypothesis", "iniconfig", "packaging", "pluggy", "pycparser", "pygments",
    "pytest", "pytest-timeout", "pytest-xdist", "sortedcontainers",
)  # fmt: skip
EXAMPLES = """\
examples:
  scripts/matrix run trixie                     what a newcomer does on a fresh system: scripts/run </dev/null
  scripts/matrix test sid                       scripts/test, whole, as root
  scripts/matrix --as user test sid network     one part; `fast` and `pure` are parts, too
  scripts/matrix test trixie tests/commands/test_verify.py -x
  scripts/matrix python 3.12                    unit, golden and property tests with another Python
  scripts/matrix shell sid -- bwrap --version   any program, in the tree of the tests
"""


def main() -> int:
    """Do what was asked for."""
    options = _parser().parse_args()
    if options.command not in ("python", "here", "gate") and os.getuid() != 0:
        raise TreeError("root trees are made and entered as root: run this with sudo")
    begin = time.monotonic()
    status, tests = {
        "make": _make, "run": _run, "test": _test, "gate": _gate, "shell": _shell, "python": _python, "here": _here,
    }[options.command](options)  # fmt: skip
    if options.record and options.command in ("run", "test", "python", "here"):
        _record(options, status, tests, time.monotonic() - begin)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "scripts/matrix", description=(__doc__ or "").partition("\n")[0], epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--as", dest="account", choices=("root", "user"), default="root", help="who runs it inside")
    parser.add_argument("--limit", type=int, default=3600, metavar="SECONDS", help="end it after this time (3600)")
    parser.add_argument("--record", action="store_true", help="write the result to docs/platforms.toml")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, *, suite: bool = True) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        if suite:
            command.add_argument("suite", choices=SUITES)
        return command

    add("make", "make the tree anew")
    add("run", "run scripts/run </dev/null in a fresh copy of the tree, as a newcomer")
    test = add("test", "run scripts/test in the tree: whole, a part, or what pytest takes")
    add("shell", "run a program, or a shell, in the tree of the tests").add_argument("words", nargs="*")
    add("gate", f"run the part of the gate that is for {SUITES[GATE_SUITE]}", suite=False).add_argument(
        "--prepare", action="store_true", help="only make its tree, if there is none"
    )
    python = add("python", "run unit, golden and property tests with another Python of this machine", suite=False)
    python.add_argument("version", help="3.12, for example")
    here = add("here", "run scripts/test on this machine", suite=False)
    for command in (test, here):
        command.add_argument("part", nargs=argparse.REMAINDER, help=f"one of {', '.join(PARTS)}; or pytest's arguments")
    return parser


def _make(options: argparse.Namespace) -> tuple[int, str]:
    for tree in (trees.CACHE / options.suite, trees.CACHE / f"{options.suite}-tests"):
        trees.remove(tree)
    trees.fresh(options.suite)
    return 0, ""


def _run(options: argparse.Namespace) -> tuple[int, str]:
    """Be a newcomer: a fresh system, a checkout in the home, one command, no terminal."""
    tree = trees.CACHE / f"{options.suite}-fresh"
    trees.copy(trees.fresh(options.suite), tree)
    try:
        checkout = trees.check_out(tree, options.account)
        status, output = trees.enter(tree, options.account, checkout, ["scripts/run"], options.limit)
    finally:
        trees.remove(tree)
    shown = output.partition("run: nobody is logged in")[0]  # what follows is the demonstration
    for word in ("Traceback", "rror:"):
        if word in shown:
            raise TreeError(f"scripts/run printed {word} while it set up")
    return status, ""


def _test(options: argparse.Namespace) -> tuple[int, str]:
    tree = trees.of_tests(options.suite)
    checkout = trees.check_out(tree, options.account)
    words = ["scripts/test", *PARTS.get(" ".join(options.part) or "whole", options.part)]
    status, output = trees.enter(tree, options.account, checkout, words, options.limit, trees.client(checkout))
    return status, _summary(output)


def _shell(options: argparse.Namespace) -> tuple[int, str]:
    tree = trees.of_tests(options.suite)
    checkout = trees.check_out(tree, options.account)
    words = options.words or ["bash", "-i"]
    return trees.enter(tree, options.account, checkout, words, options.limit, trees.client(checkout), quiet=False)[
        0
    ], ""


def _here(options: argparse.Namespace) -> tuple[int, str]:
    words = PARTS.get(" ".join(options.part) or "whole", options.part)
    status, output = trees.follow([str(TOP / "scripts/test"), *words], options.limit)
    return status, _summary(output)


def _gate(options: argparse.Namespace) -> tuple[int, str]:
    """Run the part of the gate, in a tree that has just what it needs; the client is the one of this checkout."""
    why = _no_gate()
    if why:
        print(f"matrix: no tests on {SUITES[GATE_SUITE]}: {why}", file=sys.stderr)
        return 0, ""
    try:
        tree = _gate_tree(options.limit)
    except TreeError as error:
        if os.environ.get("CI") == "true":
            raise
        print(f"matrix: no tests on {SUITES[GATE_SUITE]}: {error}", file=sys.stderr)
        return 0, ""
    if options.prepare:
        return 0, ""
    checkout = trees.check_out(tree, "root")
    python = "/opt/venv/bin/python"
    words = [python, "-I", "scripts/suite.py", f"--python={python}", *GATE_TESTS]
    status, _ = trees.enter(tree, "root", checkout, words, options.limit, trees.client(checkout))
    return status, ""


def _no_gate() -> str:
    """Return why this part is not for this machine."""
    if os.environ.get("CLAUDEBOX_MATRIX"):
        return "this is a tree itself"
    if os.getuid():
        return "root trees are made and entered as root"
    release = trees.read(Path("/etc/os-release"))
    if "\nID=debian\n" not in release:
        return "apt on this machine has no archive of Debian"
    return "this is one" if f"VERSION_CODENAME={GATE_SUITE}\n" in release else ""


def _gate_tree(limit: int) -> Path:
    """Return the tree of the gate; made anew where its packages or libraries have changed."""
    tree = trees.CACHE / f"{GATE_SUITE}-gate"
    lock = "".join(_locked(GATE_LIBRARIES))
    stamp = "\n".join((*GATE_PACKAGES, lock))
    if trees.read(tree / "stamp") != stamp:
        trees.remove(tree)
        trees.bootstrap(GATE_SUITE, tree, GATE_PACKAGES)
        (tree / "opt/lock.txt").write_text(lock, encoding="utf-8")
        script = (
            "python3 -I -m venv /opt/venv && "
            "/opt/venv/bin/python -I -m pip install -q --disable-pip-version-check --require-hashes -r /opt/lock.txt"
        )
        status, _ = trees.enter(tree, "root", "/", ["sh", "-c", script], limit)
        if status:
            raise TreeError(f"the libraries of the tests could not be installed in {tree}")
        (tree / "stamp").write_text(stamp, encoding="utf-8")
    return tree


def _python(options: argparse.Namespace) -> tuple[int, str]:
    """Run the pure tests with another Python that this machine has."""
    python = _interpreter(options.version)
    venv = trees.CACHE / f"python-{options.version}"
    lock = TOP / "requirements/test.txt"
    stamp = python + lock.read_text(encoding="utf-8")
    if trees.read(venv / "stamp") != stamp:
        trees.remove(venv)
        subprocess.run([python, "-I", "-m", "venv", venv], check=True)
        pip = [f"{venv}/bin/python", "-I", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "--require-hashes", "-r", str(lock)], check=True)
        (venv / "stamp").write_text(stamp, encoding="utf-8")
    status, output = trees.follow([f"{venv}/bin/python", "-Im", "pytest", "-q", "-n", "2", *PURE], options.limit)
    return status, _summary(output)


def _interpreter(version: str) -> str:
    """Return a Python of this version: in PATH, of pyenv, or of uv."""
    found = shutil.which(f"python{version}", path="/usr/local/bin:/usr/bin")
    if found:
        return found
    roots = [os.environ.get("PYENV_ROOT", f"{Path.home()}/.pyenv"), f"{Path.home()}/.local/share/uv/python"]
    places = [path for root in roots for path in sorted(Path(root).glob(f"**/*{version}.*/bin/python{version}"))]
    if not places:
        raise TreeError(f"there is no Python {version} in /usr/bin, of pyenv, or of uv")
    return str(places[-1])


def _summary(output: str) -> str:
    """Return the last line of the first run of pytest: what failed there is run again."""
    found = re.search(r"^=* ?((\d+ \w+, )*\d+ (passed|failed|errors?)(, \d+ \w+)*) in [\d.]+s", output, re.MULTILINE)
    return found[1] if found else ""


def _locked(names: tuple[str, ...]) -> list[str]:
    """Return the lines of the lock that are about these packages."""
    blocks = re.split(r"^(?=[a-z])", (TOP / "requirements/test.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [block for block in blocks if block.partition("==")[0] in names]


def _record(options: argparse.Namespace, status: int, tests: str, seconds: float) -> None:
    """Write one result in the place of an older one of the same kind; scripts/generate makes a table of them."""
    row = {
        "system": SUITES[options.suite] if "suite" in options else _system(),
        "account": options.account if "suite" in options else "user" if os.getuid() else "root",
        "part": {"run": "run", "python": "pure"}.get(
            options.command, " ".join(getattr(options, "part", ())) or "whole"
        ),
        "versions": _versions(options),
        "result": (tests or "passed") if status == 0 else f"failed{': ' * bool(tests)}{tests}",
        "minutes": f"{seconds / 60:.1f}",
        "date": time.strftime("%Y-%m-%d"),
    }
    key = ("system", "account", "part", "python")
    row["python"] = row["versions"].partition(",")[0]
    rows = tomllib.loads(trees.read(RESULTS)).get("result", [])
    rows = [other for other in rows if [other[name] for name in key] != [row[name] for name in key]]
    text = "# Written by `scripts/matrix --record`; `scripts/generate` makes the table of platforms.md of it.\n"
    for result in sorted([*rows, row], key=lambda result: [result[name] for name in key]):
        text += "\n[[result]]\n" + "".join(f'{name} = "{value}"\n' for name, value in result.items())
    RESULTS.write_text(text, encoding="utf-8")


def _system() -> str:
    fields = dict(line.split("=", 1) for line in trees.read(Path("/etc/os-release")).splitlines() if "=" in line)
    return f"{fields.get('NAME', 'Linux').strip(chr(34)).split()[0]} {fields.get('VERSION_ID', '').strip(chr(34))}"


def _versions(options: argparse.Namespace) -> str:
    """Return the versions of what matters most; of what set-up installed, where a newcomer's tree is gone again."""
    python = _interpreter(options.version) if options.command == "python" else "/usr/bin/python3"
    words = ["sh", "-c", f"{python} -V; bwrap --version; git --version"]
    if "suite" in options:
        words = [
            sys.executable,
            "-I",
            str(TOP / "scripts/machine.py"),
            str(trees.of_tests(options.suite)),
            "root",
            "/",
            *words,
        ]
    result = subprocess.run(words, capture_output=True, encoding="utf-8", check=False)
    shown = ", ".join(result.stdout.splitlines())
    return shown.replace("bubblewrap", "bwrap").replace("git version", "git")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TreeError as error:
        print(f"matrix: error: {error}", file=sys.stderr)
        sys.exit(1)
