"""Write the modules of a launch as three: `scripts/amalgamate.py DIRECTORY` makes `amalgamation.py` and two more.

A launch loads some seventy small modules. Finding, opening and checking each of them takes longer than running them,
so every installation gets them once more in three files, without docstrings, annotations and what only type checkers
read: what is needed until bwrap runs, what is loaded while it is at work, and what a repository needs. The interpreter
compiles and keeps them as it does with any module, so there is no cache of our own that could be out of date. A
checkout runs the modules themselves.

Each module becomes a function whose names are all global; its code then runs in the namespace of the real module. They
stand in the order in which they need each other, so that none is looked for: that takes the interpreter longer than
running most of them.
"""

from __future__ import annotations

import ast
import graphlib
import symtable
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).resolve().parent.parent / "src"
# Exactly what a launch of a command loads (tests/test_startup.py holds each list against a real one): before bwrap
# runs, while it is at work, and in a repository.
FIRST = tuple(
    """
    build_paths
    cli
    config
    config.agent_options
    config.model
    config.network_options
    config.options
    config.parsers
    config.policy
    config.settings
    config.task_options
    config.tool_options
    console
    errors
    facts
    facts.bubblewrap
    facts.distro
    facts.git
    facts.git_config
    facts.git_identity
    facts.git_model
    facts.host
    facts.login
    facts.model
    facts.mount_table
    facts.on_demand
    facts.paths
    facts.programs
    facts.project
    facts.protected
    facts.sockets
    files
    launch
    launch.approval
    launch.git_lock
    launch.live_sessions
    launch.prepare
    launch.start
    launch.storage
    launch.stubs
    launch.terminal
    plan
    plan.audit
    plan.bwrap_args
    plan.claude_code
    plan.compose
    plan.environment
    plan.git
    plan.git_settings
    plan.masking
    plan.model
    plan.mount_checks
    plan.mounts
    plan.network
    plan.network_model
    plan.project
    plan.sandbox_md
    plan.seccomp
    plan.storage
    plan.warnings
    session
    state
    syscalls
    tables
    tables.agent
    tables.bwrap
    tables.gate
    tables.git_keys
    tables.host_paths
    tables.inside
    tables.project_paths
    tables.secret_patterns
    values
    """.split()  # noqa: SIM905 - one on a line
)
LATER = tuple(
    """
    launch.freezer
    launch.inspect
    launch.job
    launch.name_files
    launch.supervise
    report
    report.changes
    report.leftovers
    report.listing
    report.session
    report.session_log
    report.sweep
    report.tree
    """.split()  # noqa: SIM905 - one on a line
)

REPOSITORY = tuple(
    """
    facts.git_executed
    facts.git_index
    facts.git_submodules
    launch.git_cleanup
    launch.git_copy
    launch.git_follow
    launch.git_session
    launch.git_setup
    launch.git_state
    """.split()  # noqa: SIM905 - one on a line
)
OTHERS = {"amalgamation_later": LATER, "amalgamation_git": REPOSITORY}  # files that are loaded with their first module

HEAD = '"""Modules of a launch in one file, made by scripts/amalgamate.py: do not edit, do not read."""\n\n'
SEPARATOR = "\n\n"
TAIL = '''
import sys
from os.path import dirname


def load(modules, packages):
    for name, function in modules.items():
        module = sys.modules[name] = type(sys)(name)
        module.__package__, _, last = name.rpartition(".")
        setattr(sys.modules[module.__package__], last, module)
        if name in packages:
            module.__package__ = name
            module.__path__ = [f"{dirname(__file__)}/{name[10:].replace('.', '/')}"]
        exec(function.__code__, module.__dict__)


class _Finder:
    """Loads one of the other files when a module of it is wanted; whatever is in none is found beside them as ever."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in OTHERS:
            return None
        if name not in sys.modules:
            file = getattr(__import__("claudebox", fromlist=[OTHERS[name]]), OTHERS[name])
            load(file.MODULES, file.PACKAGES)
        return type(__spec__)(name, _Finder)

    @staticmethod
    def create_module(spec):
        return sys.modules[spec.name]

    @staticmethod
    def exec_module(module):
        pass


load(MODULES, PACKAGES)
sys.meta_path.insert(0, _Finder)

from claudebox.cli import entry
'''


class _Shorten(ast.NodeTransformer):
    """Leaves out what nothing reads when the program runs."""

    def _body(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        body = node.body  # type: ignore[attr-defined]
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            del body[0]
        if not body and not isinstance(node, ast.Module):
            body.append(ast.Pass())
        return node

    visit_Module = visit_ClassDef = _body  # noqa: N815 - the names are ast's

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self._body(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        return node.orelse if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "__future__" else node


class _Bare(ast.NodeTransformer):
    """Takes the annotations off names of a module and of functions: a global cannot have one."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        for index, statement in enumerate(node.body):
            if isinstance(statement, ast.AnnAssign):  # fields of a `Value` are known by having one
                statement.annotation = ast.Constant(None)
            else:
                node.body[index] = self.visit(statement)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)


def amalgamate() -> dict[str, str]:
    """Return the text of each file."""
    others = {f"claudebox.{name}": file for file, names in OTHERS.items() for name in names}
    return {
        "amalgamation.py": f"{HEAD}{_bundle(FIRST)}OTHERS = {others!r}\n{TAIL}",
        **{f"{file}.py": f"{HEAD}{_bundle(names)}" for file, names in OTHERS.items()},
    }


def _bundle(names: tuple[str, ...]) -> str:
    """Return a function for each module, and a table of them."""
    functions, packages = {}, []
    needed: dict[str, list[str]] = {}
    for name in names:
        path = SOURCE.joinpath("claudebox", *name.split("."))
        if path.is_dir():
            packages.append(f"claudebox.{name}")
            path /= "__init__"
        tree = _Bare().visit(_Shorten().visit(ast.parse(path.with_suffix(".py").read_text(encoding="utf-8"))))
        text = ast.unparse(ast.fix_missing_locations(tree))
        symbols = symtable.symtable(text, name, "exec").get_symbols()
        bound = sorted(symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported())
        declared = [ast.Global(names=bound)] if bound else []
        body = [*declared, *tree.body] or [ast.Pass()]
        function = ast.parse(f"def _{name.replace('.', '_')}(): pass").body[0]
        function.body = body  # type: ignore[attr-defined]
        functions[name] = ast.unparse(ast.fix_missing_locations(function))
        needed[name] = [other for other in _find_needed(tree, name) if other in names]
    table = "".join(
        f'    "claudebox.{name}": _{name.replace(".", "_")},\n'
        for name in graphlib.TopologicalSorter(needed).static_order()
    )
    return f"{SEPARATOR.join(functions.values())}\n\n\nMODULES = {{\n{table}}}\nPACKAGES = {packages!r}\n"


def _find_needed(tree: ast.Module, name: str) -> Iterator[str]:
    """Yield what has to be there before the body of a module runs: the packages around it, and what it imports."""
    parts = name.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts)))
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").partition(".")[0] == "claudebox":
            module = (statement.module or "").removeprefix("claudebox").removeprefix(".")
            yield module
            yield from (f"{module}.{alias.name}".removeprefix(".") for alias in statement.names)


if __name__ == "__main__":
    for file, text in amalgamate().items():
        Path(sys.argv[1], file).write_text(text, encoding="utf-8")
