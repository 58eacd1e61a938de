"""Write the modules of a launch as few: `scripts/amalgamate.py DIRECTORY` makes `amalgamation.py` and four more.

A launch loads some seventy small modules. Finding, opening and checking each of them takes longer than running them,
so every installation gets them once more in four files, without docstrings, annotations and what only type checkers
read: what is needed until bwrap runs, what is loaded while it is at work, what a repository needs, and what a session
of the client needs. A fifth is for the broker, which is loaded while the client starts. The interpreter compiles and
keeps them as it does with any module, so there is no cache of our own that could be out of date. A checkout runs the
modules themselves.

Each module becomes a function whose names are all global; its code then runs in the namespace of the real module. Those
of the first file run in the order in which they need each other, so that none is looked for: that takes the interpreter
longer than running most of them.
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
# runs, while it is at work, and in a repository; and what a session of the client has besides.
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
    plan.project
    plan.sandbox_md
    plan.seccomp
    plan.storage
    plan.warnings
    report
    session
    state
    stub_journal
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
    launch.limits
    launch.name_files
    launch.supervise
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
    launch.git_kept
    launch.git_session
    launch.git_setup
    launch.git_state
    """.split()  # noqa: SIM905 - one on a line
)
CLIENT = tuple(
    """
    host_proxy
    launch.broker
    launch.broker_wire
    launch.git_sandbox
    launch.undo_contents
    launch.undo_look
    launch.undo_manifest
    launch.undo_refs
    launch.undo_scan
    launch.undo_seed
    launch.undo_sidecar
    launch.undo_store
    launch.undo_taking
    plan.broker
    plan.network_model
    plan.own_network
    report.forms
    report.leaked_values
    report.resume_hint
    tables.barred_ranges
    tables.spellings
    """.split()  # noqa: SIM905 - one on a line
)
# In the first file, for sessions with such settings, at a terminal, or with processes of ours beside them.
SOMETIMES = ("config.files", "facts.company", "launch.process", "launch.sidecars", "launch.terminal_modes")
# What a broker loads that holds a key or a login, and does nothing else.
BROKER = tuple(
    """
    broker
    broker.http
    broker.http.bodies
    broker.http.chunks
    broker.http.cleaning
    broker.http.forward
    broker.http.handler
    broker.http.messages
    broker.http.recognition
    broker.http.recording
    broker.http.repetition
    broker.http.stream
    broker.http.upstream
    broker.main
    broker.model_api
    broker.model_api.credentials
    broker.model_api.metering
    broker.model_api.service
    files
    host_proxy
    launch
    launch.broker_wire
    launch.tls_context
    launch.token_copy
    plan
    plan.network_model
    syscalls
    tables
    tables.agent
    tables.prices
    tables.spellings
    values
    """.split()  # noqa: SIM905 - one on a line
)
OTHERS = {"amalgamation_later": LATER, "amalgamation_git": REPOSITORY, "amalgamation_client": CLIENT}

HEAD = '"""Modules of a launch in one file, made by scripts/amalgamate.py: do not edit, do not read."""\n\n'
SEPARATOR = "\n\n"
FINDER = '''
import sys
from os.path import dirname


class _Finder:
    """Gives out what is in these files when it is wanted; whatever is not is found beside them as ever."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in MODULES:
            if name not in OTHERS:
                return None
            MODULES.update(getattr(__import__("claudebox", fromlist=[OTHERS[name]]), OTHERS[name]).MODULES)
        spec = type(__spec__)(name, _Finder)
        if name in PACKAGES:
            spec.submodule_search_locations = [f"{dirname(__file__)}/{'/'.join(name.split('.')[1:])}"]
        return spec

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        exec(MODULES[module.__name__].__code__, module.__dict__)


'''
TAIL = """
for _name in ORDER:  # each comes after what it needs, so none is looked for
    _module = sys.modules[_name] = type(sys)(_name)
    _module.__package__, _, _last = _name.rpartition(".")
    setattr(sys.modules[_module.__package__], _last, _module)
    if _name in PACKAGES:
        _module.__package__, _module.__path__ = _name, [f"{dirname(__file__)}/{_last}"]
    _Finder.exec_module(_module)
sys.meta_path.insert(0, _Finder)

from claudebox.cli import entry
"""
BROKER_TAIL = """
sys.meta_path.insert(0, _Finder)

from claudebox.broker import main
"""


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

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self._body(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

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
    needed = {name: [other for other in _find_needed(name) if other in FIRST] for name in FIRST}
    order = [f"claudebox.{name}" for name in graphlib.TopologicalSorter(needed).static_order()]
    first = f"{_bundle((*FIRST, *SOMETIMES))}ORDER = {order!r}\n{_names(FIRST)}OTHERS = {others!r}\n"
    return {
        "amalgamation.py": f"{HEAD}{first}{FINDER}{TAIL}",
        "amalgamation_broker.py": f"{HEAD}{_bundle(BROKER)}{_names(BROKER)}OTHERS = {{}}\n{FINDER}{BROKER_TAIL}",
        **{f"{file}.py": f"{HEAD}{_bundle(names)}" for file, names in OTHERS.items()},
    }


def _names(names: tuple[str, ...]) -> str:
    """Return which of these modules are packages."""
    return f"PACKAGES = {[f'claudebox.{name}' for name in names if _path(name).name == '__init__.py']!r}\n"


def _path(name: str) -> Path:
    path = SOURCE.joinpath("claudebox", *name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _parse(name: str) -> ast.Module:
    tree: ast.Module = _Bare().visit(_Shorten().visit(ast.parse(_path(name).read_text(encoding="utf-8"))))
    return ast.fix_missing_locations(tree)


def _bundle(names: tuple[str, ...]) -> str:
    """Return a function for each module, and a table of them."""
    functions = []
    for name in names:
        tree = _parse(name)
        symbols = symtable.symtable(ast.unparse(tree), name, "exec").get_symbols()
        bound = sorted(symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported())
        declared = [ast.Global(names=bound)] if bound else []
        body = [*declared, *tree.body] or [ast.Pass()]
        function = ast.parse(f"def _{name.replace('.', '_')}(): pass").body[0]
        function.body = body  # type: ignore[attr-defined]
        functions.append(ast.unparse(ast.fix_missing_locations(function)))
    table = "".join(f'    "claudebox.{name}": _{name.replace(".", "_")},\n' for name in names)
    return f"{SEPARATOR.join(functions)}\n\n\nMODULES = {{\n{table}}}\n"


def _find_needed(name: str) -> Iterator[str]:
    """Yield what has to be there before the body of a module runs: the package around it, and what it imports."""
    yield name.rpartition(".")[0]
    for statement in _parse(name).body:
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").partition(".")[0] == "claudebox":
            module = (statement.module or "").removeprefix("claudebox").removeprefix(".")
            yield module
            yield from (f"{module}.{alias.name}".removeprefix(".") for alias in statement.names)


if __name__ == "__main__":
    for file, text in amalgamate().items():
        Path(sys.argv[1], file).write_text(text, encoding="utf-8")
