"""The borders between the folders of claudebox, found by reading the imports and the uses of `os` in its source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from claudebox.agent import kinds
from claudebox.network.tiers import TIERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SOURCE = Path(__file__).resolve().parent.parent / "src/claudebox"

# Lower layers never import higher ones. A feature's folder has rooms of the core's layers: `git/plan.py` may what
# `plan/` may. What is not a room acts, like `run`, and is above the core.
LAYERS = (
    "base", "tables", "settings", "host", "plan", "run", "feature", "report", "session", "review", "many", "commands",
    "cli",
)  # fmt: skip
FEATURES = ("agent", "broker", "git", "network", "nix", "undo")
ROOMS = {"facts": "host", "config": "host", "plan": "plan", "records": "host"}
# Data of a feature, which every layer may read: the rows of agents, and of tiers.
TABLES = (*(f"agent.{name}" for name in ("kinds", "record", *kinds.NAMES)), "network.tiers")
# Where the core meets the features: what they found, what they planned, what of theirs runs beside a sandbox.
MEETINGS = ("host.gather", "plan.compose", "run.sidecars", "run.launch", "session")
# Names that say nothing without their module: a public function has a verb and a noun.
BARE_VERBS = {"decide", "find", "make", "parse", "read"}
# These read nothing but their arguments: a plan is the same for the same settings and facts, and a test needs no
# machine. Of `settings`, only finding files and asking for trust look at the machine.
PURE: tuple[str, ...] = (
    "tables",
    "plan",
    "settings",
    "base.errors",
    "base.records",
    *(f"{feature}.plan" for feature in FEATURES),
)
NOT_PURE = ("settings.files", "settings.trust", "settings.document", "settings.agent_rows")
# Not on the way of a launch.
BESIDE = (
    "commands", "many", "review", "broker.main", "broker.http", "broker.proxy", "broker.inject", "broker.model_api",
)  # fmt: skip
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


def layer(name: str) -> int:
    """Return how high a module stands."""
    folder, _, room = name.partition(".")
    if name in TABLES or folder not in (*LAYERS, *FEATURES):
        return LAYERS.index("tables")
    return LAYERS.index(ROOMS.get(room, "feature") if folder in FEATURES else folder)


def upwards(name: str) -> set[str]:
    """Return the modules of higher layers that a module imports."""
    return {other for other in own_imports(name) if layer(other) > layer(name)}


def test_no_module_but_its_own_names_the_agent():
    named = {name for name in MODULES if not name.startswith("agent.") and "agent.claude" in own_imports(name)}

    assert not named


@of_each(sorted(MODULES))
def test_no_layer_imports_a_higher_one(name):
    # proves HOUSE-03, HOUSE-05
    if name not in MEETINGS:
        assert not upwards(name)


def test_every_folder_has_its_layer():
    folders = {name.split(".")[0] for name in MODULES if "." in name}

    assert folders == {*LAYERS, *FEATURES} - {"feature", "session", "cli"}


def test_the_check_of_layers_can_fail():
    assert "host.machine" in own_imports("commands.check")
    assert layer("base.files") < layer("host.gather") < layer("plan.mounts") < layer("git.importer") < layer("cli")
    assert upwards("session") | upwards("run.sidecars") | upwards("host.gather")


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
    acting = {"base.files", "base.state", "base.syscalls", "base.process", "base.trees"}
    assert not own_imports(name) & acting


def test_the_check_of_uses_of_os_can_fail():
    assert "lstat" in uses_of_os("git.facts")
    assert "environ.get" in uses_of_os("base.console")
    assert "base.syscalls" in own_imports("run.start")


@of_each(sorted(MODULES))
def test_only_one_file_touches_the_c_modules(name):
    private = {module for module in imported(name) if module.startswith("_") and module != "__future__"}

    assert not private or name == "base.syscalls"


@of_each(ON_THE_PATH)
def test_the_environment_comes_in_by_one_door(name):
    # The edge, the setting for no colours, a process of its own, and what asks where git of the host would look.
    if name in ("cli", "base.console", "agent.renewal", "git.disarm"):
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
    if name == "base.files" or within(name, ("session", "commands", "many")):
        return
    assert "path.realpath" not in uses_of_os(name), "use files.real_path"


@of_each(sorted(MODULES))
def test_every_module_says_what_it_is_for(name):
    assert ast.get_docstring(parsed(name)), f"{name} has no docstring"


@of_each(sorted(MODULES))
def test_modules_have_names_that_say_something(name):
    assert not {"utils", "util", "helpers", "helper", "common", "misc"} & set(name.split("."))
    assert "claudebox" not in name


@of_each([name for name in sorted(MODULES) if within(name, ("network", "broker")) and not name.endswith(".plan")])
def test_who_enforces_ranges_is_handed_them(name):
    # proves HOUSE-03
    taken = {
        alias.name
        for node in ast.walk(parsed(name))
        if isinstance(node, ast.ImportFrom) and node.module in ("claudebox.tables.network", "claudebox.tables")
        for alias in node.names
    }

    assert not taken & {"network", "BARRED", "OPEN6"}, "take `Ranges` of the plan"


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
