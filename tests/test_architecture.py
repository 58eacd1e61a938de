"""The borders between the folders of claudebox, found by reading the imports and the uses of `os` in its source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from claudebox.tables.tiers import TIERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SOURCE = Path(__file__).resolve().parent.parent / "src/claudebox"

# A folder is a phase. What each may import at run time, by prefix of the dotted name; `ROOT` stands for the files at
# the top that every phase may use. A folder that is not in the table may import everything.
ROOT = (
    "build_paths", "console", "errors", "files", "host_proxy", "places", "state", "stub_journal", "syscalls", "values",
)  # fmt: skip
BORDERS = {
    "tables": ("values",),
    "config": (*ROOT, "tables", "config"),
    "facts": (*ROOT, "tables", "facts", "config.model", "config.domains", "config.nix_references"),
    "plan": (
        *ROOT, "tables", "plan", "config.model", "config.domains", "config.nix_references", "config.options",
        "facts.model", "facts.nix_model",
    ),
    "launch": (
        *ROOT, "tables", "launch", "network", "config.model", "plan.model", "plan.network_model", "plan.bwrap_args",
        "facts.model", "facts.nix_model", "facts.nix_handshake", "report.caches", "git",
        "report.tree",  # what agents made is removed in one way
        "undo.sidecar",
    ),
    "report": (
        *ROOT, "tables", "report", "plan.model", "plan.network_model", "facts.model", "facts.git_model",
        "facts.nested_git", "git", "launch.process",
        "undo",  # the one answer to what changed
    ),
    "undo": (*ROOT, "tables", "undo", "launch", "plan.model", "config.model", "facts.model", "report.tree"),
    "git": (*ROOT, "tables", "git", "facts.git_config", "facts.git_executed", "facts.git_model", "launch.process"),
    # Processes of ours share with the launcher how they end, what is said on the wire, and how a login is renewed.
    "network": (*ROOT, "tables", "network", "plan.model", "plan.network_model", "config.domains", "launch.process"),
    "broker": (
        *ROOT, "tables", "broker", "network", "plan.model", "plan.network_model", "config.domains",
        "launch.broker_wire", "launch.tls_context", "launch.token_copy",
        "launch.secret_values", "facts.programs",  # a value is read again as it was read at first
        "launch.placeholder",  # and what everybody knows of it is told by the same table
    ),
}  # fmt: skip
# Names that say nothing without their module: a public function has a verb and a noun.
BARE_VERBS = {"decide", "find", "make", "parse", "read"}
# Files at the top that phases rest on; they rest on nothing but one another.
FOUNDATION = {*ROOT, "__init__"}
# These read nothing but their arguments: a plan is the same for the same settings and facts, and a test needs no
# machine. Of `config`, only finding files and asking for trust look at the machine.
PURE = ("tables", "plan", "config", "errors", "values")
NOT_PURE = ("config.files", "config.trust", "config.syntax", "config.validate")
CONVERTING = {"config.addresses": {"syscalls"}}  # `inet_pton`
# Not on the way of a launch.
BESIDE = ("broker", "commands", "demo")
# Functions of `os` that compute and do not look.
COMPUTING = {
    "fsdecode", "fsencode", "fspath", "path.basename", "path.commonpath", "path.dirname", "path.isabs", "path.join",
    "path.normpath", "path.split", "path.splitext",
}  # fmt: skip
FOR_PEOPLE = {"reason", "why", "note", "advice"}  # fields that are read by people and by no code
BUILTINS_THAT_ACT = {"breakpoint", "compile", "eval", "exec", "input", "open", "print", "__import__"}


def modules() -> dict[str, Path]:
    """Return every module by its dotted name inside the package."""
    found = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in sorted(SOURCE.rglob("*.py"))}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


MODULES = modules()


def within(name: str, prefixes: Iterable[str]) -> bool:
    """Return whether a module is one of these, or lies in one of these folders."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


ON_THE_PATH = sorted(name for name in MODULES if not within(name, BESIDE))
DECIDING = sorted(name for name in MODULES if within(name, PURE) and not within(name, NOT_PURE))


def of_each(names: Iterable[str]) -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """Make one test of what holds for each of these modules: hundreds of them would cost more than what they do."""

    def decorate(test: Callable[[str], None]) -> Callable[[], None]:
        def every() -> None:
            failures = []
            for name in names:
                try:
                    test(name)
                except AssertionError as error:
                    failures.append(f"{name}: {error}")
            assert not failures, "\n".join(failures)

        every.__name__ = test.__name__
        return every

    return decorate


@cache
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


@cache
def imported(name: str, *, lazily: bool = True) -> set[str]:
    """Return the modules that a module imports, by their dotted names; ours as `claudebox.folder.module`."""
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
    """Return the modules of claudebox that a module imports, by their dotted names inside the package."""
    found = {module.removeprefix("claudebox.") for module in imported(name, lazily=lazily)}
    return found & set(MODULES)


@cache
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


@of_each(sorted(MODULES))
def test_a_phase_imports_only_what_its_folder_may(name):
    # proves HOUSE-05
    folder = name.split(".")[0]
    if folder in FOUNDATION:
        assert own_imports(name) <= FOUNDATION
    elif folder in BORDERS:
        strange = {module for module in own_imports(name) if not within(module, BORDERS[folder])}
        assert not strange, f"{folder} may import {', '.join(BORDERS[folder]) or 'nothing'}"


def test_every_folder_has_its_border():
    folders = {name.split(".")[0] for name in MODULES if "." in name}

    assert folders == {*BORDERS, "commands", "demo"}


def test_the_check_of_borders_can_fail():
    assert "facts.host" in own_imports("commands.check")
    assert not within("facts.host", BORDERS["plan"])
    assert not within("plan.models", ("plan.model",))


@of_each(DECIDING)
def test_what_decides_reads_nothing(name):
    assert uses_of_os(name) <= COMPUTING
    called = {
        node.func.id
        for node in ast.walk(parsed(name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & BUILTINS_THAT_ACT
    foreign = {module for module in imported(name) if module.split(".")[0] not in ("claudebox", "__future__", "os")}
    assert foreign <= {"binascii", "json"}  # which compute; the second one only when it is asked for
    assert "json" not in imported(name, lazily=False)


@of_each(DECIDING)
def test_what_decides_uses_nothing_that_acts(name):
    acting = {"files", "state", "stub_journal", "syscalls"} - CONVERTING.get(name, set())
    assert not own_imports(name) & acting


def test_the_check_of_uses_of_os_can_fail():
    assert "lstat" in uses_of_os("facts.git")
    assert "environ.get" in uses_of_os("console")
    assert "syscalls" in own_imports("launch.start")


@of_each(sorted(MODULES))
def test_only_one_file_touches_the_c_modules(name):
    private = {module for module in imported(name) if module.startswith("_") and module != "__future__"}

    assert not private or name == "syscalls"


@of_each(ON_THE_PATH)
def test_the_environment_comes_in_by_one_door(name):
    # The edge, the setting for no colours, a process of its own, and what asks where git of the host would look.
    if name in ("cli", "console", "launch.token_refresh", "git.disarm"):
        return
    assert not {use for use in uses_of_os(name) if use.startswith(("environ", "getenv"))}


@of_each(ON_THE_PATH)
def test_no_program_is_looked_up_by_name(name):
    # proves E02
    assert not {
        use
        for use in uses_of_os(name)
        if use in ("execvp", "execvpe", "execlp", "execlpe", "spawnvp", "system", "popen")
    }


@of_each(sorted(MODULES))
def test_wording_is_not_control_flow(name):
    # proves HOUSE-06
    assert not wordings(parsed(name)), "decide by a field made for it, such as `Mount.role`"


def test_the_check_of_wording_can_fail():
    for text in ('row.reason.startswith("asked")', 'row.reason == "x"', '"x" in row.reason', "row.why != PIN"):
        assert wordings(ast.parse(text)), text
    assert not wordings(ast.parse('f"{row.reason}" + clean(row.why)'))


@of_each(sorted(MODULES))
def test_no_code_compares_the_name_of_a_tier(name):
    # proves NET-T
    assert not tier_comparisons(parsed(name)), "decide by a field of `Tier`"


def test_the_check_of_tiers_can_fail():
    for text in (
        'policy.network == "full"', 'plan.network != "none"', 'spec["network"] in ("full", "inet")',
        'match plan.network:\n case "allow": pass', '{"full": 1}[plan.network]',
    ):  # fmt: skip
        assert tier_comparisons(ast.parse(text)), text
    assert not tier_comparisons(ast.parse('f"{plan.network}", TIERS[plan.network], stub != "none"'))


def tier_comparisons(tree: ast.AST) -> list[str]:
    """Return where something is decided by the name of a tier."""
    found = []
    for node in ast.walk(tree):
        names = {getattr(part, "value", "") for part in ast.walk(node) if isinstance(part, ast.Constant)} & {*TIERS}
        asked = {ast.Compare: node, ast.Match: getattr(node, "subject", node), ast.Subscript: node}.get(type(node))
        text = ast.unparse(asked) if names and asked is not None else ""
        if ("network" in text or "tier" in text) and not any(f"network={name!r}" in text for name in names):
            found.append(text)
    return found


def wordings(tree: ast.AST) -> list[str]:
    """Return where text that is made for people is compared or searched."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts = [node.func.value]
        else:
            continue
        found += [ast.unparse(node) for part in parts if isinstance(part, ast.Attribute) and part.attr in FOR_PEOPLE]
    return found


@of_each(ON_THE_PATH)
def test_links_are_resolved_by_one_function(name):
    # proves E16
    # Python's own recurses once per link, and a project can hold thousands.
    if name == "files" or within(name, ("session", "demo", "commands")):
        return
    assert "path.realpath" not in uses_of_os(name), "use files.real_path"


@of_each(sorted(MODULES))
def test_every_module_says_what_it_is_for(name):
    assert ast.get_docstring(parsed(name)), f"{name} has no docstring"


@of_each(sorted(MODULES))
def test_modules_have_names_that_say_something(name):
    assert not {"utils", "util", "helpers", "helper", "common", "misc"} & set(name.split("."))
    assert "claudebox" not in name


@of_each([name for name in sorted(MODULES) if within(name, ("network", "broker"))])
def test_who_enforces_ranges_is_handed_them(name):
    # proves HOUSE-03
    taken = {
        alias.name
        for node in ast.walk(parsed(name))
        if isinstance(node, ast.ImportFrom) and node.module in ("claudebox.tables.barred_ranges", "claudebox.tables")
        for alias in node.names
    }

    assert not taken & {"barred_ranges", "BARRED", "OPEN6"}, "take `Ranges` of the plan"


def test_a_name_means_one_class():
    # proves HOUSE-05
    found: dict[str, set[str]] = {}
    for name in MODULES:
        body = parsed(name).body
        for node in (*body, *(inner for other in body if isinstance(other, ast.If) for inner in other.body)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, set()).add(name)

    assert {name: places for name, places in found.items() if len(places) > 1} == {}


@of_each(sorted(MODULES))
def test_functions_are_named_by_verb_and_noun(name):
    # proves HOUSE-05
    bare = {node.name for node in parsed(name).body if isinstance(node, ast.FunctionDef)} & BARE_VERBS

    assert not bare
