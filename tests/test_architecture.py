"""The borders between the rooms of claudebox, found by reading the imports and the uses of `os` in its source."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).resolve().parent.parent / "src/claudebox"

# They decide, from values alone: a plan is the same for the same settings and facts, and a test needs no machine.
PURE = {
    "awareness", "brokerage", "bwrap", "catalogue", "client", "environment", "errors", "explain", "exposure",
    "guard", "model", "mounts", "placeholder", "withholding",
    "network", "places", "plan", "policy", "seccomp", "secrets", "settings", "shadows", "values", "wishes",
    "destinations", "domains", "nix.access", "nix.devshell", "nix.inside", "nix.model", "nix.references",
    "uplink.arguments",
}  # fmt: skip
# They act on the machine or read it as a whole; nothing that decides may reach for them.
ACTING = {
    "aftermath", "broker.libraries", "broker.start", "bubblewrap", "companions", "config", "credential", "custody",
    "dotfiles", "host", "inspection", "instance", "journal", "kernel", "launch", "record", "sources", "surroundings",
    "layout", "login", "obedience", "sockets", "supervise", "survey", "sweep", "terminal",
    "trust", "watched",
    "nix.daemon", "nix.facts", "nix.handshake", "nix.location", "nix.packages", "nix.relay",
    "uplink.addresses", "uplink.attachment", "uplink.barred", "uplink.candidates", "uplink.netlink",
    "uplink.process", "uplink.redirection", "uplink.relay", "uplink.rules", "uplink.warden",
}  # fmt: skip
# Processes of their own, and what is not a launch: never imported by one.
OFF_THE_PATH = {
    "broker",
    "commands",
    "demo",
    "detector",
    "document",
    "keeper",
    "leaks",
    "nix.builder",
    "nix.inquiry",
    "parsing",
    "ptyproxy",
    "screen",
}
# They dispatch to those, lazily.
LAZY = {"aftermath", "broker.start", "cli", "companions", "config", "host", "login", "survey", "trust"}
# What a launch uses of them after all.
ON_THE_PATH = {"broker", "broker.libraries", "broker.start"}
# It runs inside on its own, with nothing of the package around it.
LONG = {"commands.probe"}
# All that a launch may import at the top of a module; everything else is dear (bench/launch measures it).
CHEAP = {
    "__future__",
    "errno",
    "fcntl",
    "gc",
    "marshal",
    "os",
    "pwd",
    "resource",
    "select",
    "stat",
    "sys",
    "termios",
    "time",
    "claudebox",
}
# Functions of `os` that compute and do not look.
COMPUTING = {
    "fsdecode", "fsencode", "fspath", "path.basename", "path.commonpath", "path.dirname", "path.isabs", "path.join",
    "path.normpath", "path.split", "path.splitext",
}  # fmt: skip
BUILTINS_THAT_ACT = {"breakpoint", "compile", "eval", "exec", "input", "open", "print", "__import__"}


def modules() -> dict[str, Path]:
    """Return every module by its dotted name inside the package."""
    found = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in sorted(SOURCE.rglob("*.py"))}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


MODULES = modules()
ROOMS = sorted(name for name in MODULES if not {name, name.split(".")[0]} & OFF_THE_PATH or name in ON_THE_PATH)


def parsed(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def executed(node: ast.AST, *, lazily: bool = True) -> Iterator[ast.AST]:
    """Walk what runs: not what only type checkers see, and functions only if asked for."""
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            assert isinstance(child, ast.If)
            for other in child.orelse:
                yield from (other, *executed(other, lazily=lazily))
        elif lazily or not isinstance(child, ast.FunctionDef):
            yield child
            yield from executed(child, lazily=lazily)


def imported(name: str, *, lazily: bool = True) -> set[str]:
    """Return the modules that a module imports, by their dotted names; ours as `claudebox.room`."""
    found = set()
    for node in executed(parsed(name), lazily=lazily):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            base = node.module or ""
            if base.split(".")[0] != "claudebox":
                found.add(base)
                continue
            for alias in node.names:
                inside = f"{base}.{alias.name}".removeprefix("claudebox.")
                found.add(f"claudebox.{inside}" if inside in MODULES else base)
    return found


def own_imports(name: str, *, lazily: bool = True) -> set[str]:
    return {found.split(".")[1] for found in imported(name, lazily=lazily) if found.startswith("claudebox.")}


def uses_of_os(name: str) -> set[str]:
    """Return what a module takes from `os`: `open`, `path.join`, ..."""
    used = set()
    for node in ast.walk(parsed(name)):
        words = []
        current: ast.AST = node
        while isinstance(current, ast.Attribute):
            words.append(current.attr)
            current = current.value
        if isinstance(current, ast.Name) and current.id == "os" and words:
            used.add(".".join(reversed(words)))
    return {use for use in used if not any(other.startswith(f"{use}.") for other in used)}


def test_every_room_is_known_to_this_test():
    edge = {
        "baked", "broker", "cli", "claudebox", "console", "diagnosis", "files", "git", "nix", "programs",
        "provision", "toolchains", "uplink",
    }  # fmt: skip
    named = {"claudebox" if name == "__init__" else name for name in ROOMS}

    assert named <= PURE | ACTING | edge, "a new module: say which room it belongs to"
    assert named >= PURE


@pytest.mark.parametrize("name", sorted(PURE))
def test_what_decides_reads_nothing(name):
    assert uses_of_os(name) <= COMPUTING
    called = {
        node.func.id
        for node in ast.walk(parsed(name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & BUILTINS_THAT_ACT
    foreign = {module for module in imported(name) if module.split(".")[0] not in ("claudebox", "__future__", "os")}
    assert foreign <= {"json"}  # which only renders, and only when it is asked for
    assert "json" not in imported(name, lazily=False)


@pytest.mark.parametrize("name", sorted(PURE))
def test_what_decides_never_reaches_for_what_acts(name):
    assert not own_imports(name) & (ACTING | OFF_THE_PATH | {"cli", "files", "programs"})


def test_the_check_of_uses_of_os_can_fail():
    assert "lstat" in uses_of_os("git")
    assert "environ.get" in uses_of_os("console")
    assert "kernel" in own_imports("launch")


@pytest.mark.parametrize("name", ROOMS)
def test_a_launch_imports_only_what_is_cheap(name):
    if name == "kernel":
        return
    assert {module.split(".")[0] for module in imported(name, lazily=False)} <= CHEAP


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_one_file_touches_the_c_modules(name):
    private = {module for module in imported(name) if module.startswith("_") and module != "__future__"}

    assert not private or name == "kernel"


@pytest.mark.parametrize("name", ROOMS)
def test_helpers_and_commands_are_not_imported_by_a_launch(name):
    if not name.startswith("broker."):
        assert not own_imports(name, lazily=False) & OFF_THE_PATH
    else:
        assert {module for module in imported(name) if module.startswith("claudebox.broker")} <= {
            f"claudebox.{room}" for room in ON_THE_PATH
        }
    if name not in LAZY:
        assert not own_imports(name) & OFF_THE_PATH


@pytest.mark.parametrize("name", ROOMS)
def test_the_environment_comes_in_by_one_door(name):
    if name in ("cli", "console"):  # the edge, and the wish for no colours
        return
    assert not {use for use in uses_of_os(name) if use.startswith(("environ", "getenv"))}


@pytest.mark.parametrize("name", ROOMS)
def test_no_program_is_looked_up_by_name(name):
    # proves E02
    assert not {
        use
        for use in uses_of_os(name)
        if use in ("execvp", "execvpe", "execlp", "execlpe", "spawnvp", "system", "popen")
    }


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_module_is_small_and_says_what_it_is_for(name):
    text = MODULES[name].read_text(encoding="utf-8")

    assert ast.get_docstring(ast.parse(text)), f"{name} has no docstring"
    assert text.count("\n") <= 320 or name in LONG, f"{name} is longer than 320 lines"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules_have_names_that_say_something(name):
    assert not {"utils", "util", "helpers", "helper", "common", "misc"} & set(name.split("."))
    assert "claudebox" not in name


def test_types_are_imported_for_checkers_only():
    # `typing` alone costs a launch more than all of our own modules.
    for name in ROOMS:
        assert not {"typing", "collections.abc", "dataclasses", "enum"} & imported(name), name
