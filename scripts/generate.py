"""Write the man page, the schema, the table of agents, and the tables in docs/.

All of it is committed; `--check` writes nothing and fails if something is stale, which tests/test_generated.py uses.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "src"), str(TOP)]

from scripts import reference  # noqa: E402

from claudebox.agent.facts import spell_version  # noqa: E402
from claudebox.agent.record import AgentKind  # noqa: E402
from claudebox.commands import profiles  # noqa: E402
from claudebox.tables import paths  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TREE = "<!-- tree: written by scripts/generate from the docstrings; do not edit -->"
_END_OF_TREE = "<!-- end of tree -->"
_SETTINGS = "<!-- settings: written by scripts/generate from the tables of settings and verbs; do not edit -->"
_END_OF_SETTINGS = "<!-- end of settings -->"
_RESULTS = "<!-- results: written by scripts/generate from docs/platforms.toml; do not edit -->"
_END_OF_RESULTS = "<!-- end of results -->"
_AGENTS = "<!-- agents: written by scripts/generate from their rows; do not edit -->"
_END_OF_AGENTS = "<!-- end of agents -->"
_TRIED = "<!-- agents: written by scripts/generate from docs/agents.toml; do not edit -->"
_END_OF_TRIED = "<!-- end of agents -->"


def main() -> int:
    """Write what is stale, or tell it."""
    stale = [path for path, content in outputs().items() if _read(TOP / path) != content]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path} is stale; run scripts/generate")
        return 1 if stale else 0
    for path in stale:
        (TOP / path).parent.mkdir(exist_ok=True)
        (TOP / path).write_text(outputs()[path], encoding="utf-8")
        print(f"wrote {path}")
    return 0


def outputs() -> dict[str, str]:
    """Return every generated file with its content."""
    return {
        "man/claudebox.1": reference.man_page(),
        "docs/claudebox.schema.json": profiles.schema_text() + "\n",
        "docs/design.md": _between("docs/design.md", (_TREE, _END_OF_TREE, ("```", *tree(), "```"))),
        "docs/settings.md": _between("docs/settings.md", (_SETTINGS, _END_OF_SETTINGS, reference.settings_page())),
        "docs/guide.md": _between("docs/guide.md", (_AGENTS, _END_OF_AGENTS, list_agents())),
        "src/claudebox/tables/agents.py": agents_table(),
        "docs/platforms.md": _between(
            "docs/platforms.md", (_RESULTS, _END_OF_RESULTS, results()), (_TRIED, _END_OF_TRIED, agent_results())
        ),
    }


def read_agents() -> list[AgentKind]:
    """Return the rows of all agents."""
    names = sorted(path.stem for path in (TOP / "src/claudebox/agent").glob("*.py"))
    modules = {name: importlib.import_module(f"claudebox.agent.{name}") for name in names if name != "__init__"}
    rows = [
        row for name, module in modules.items() if isinstance(row := getattr(module, name.upper(), None), AgentKind)
    ]
    return sorted(rows, key=lambda row: row.name != "claude")


def list_agents() -> Iterator[str]:
    """Yield the table of agents: versions, and where their keys and logins are found."""
    yield "| agent | versions | variables of the host | or else on the host |"
    yield "|---|---|---|---|"
    for row in read_agents():
        files = (place.rpartition(":")[0] for api in row.upstreams for place in api.files)
        kept = dict.fromkeys((*(login.path for login in row.logins), *files))
        keys = dict.fromkeys(row.key_variables)
        versions = f"{spell_version(row.least)} to {spell_version(row.tried)}"
        yield f"| `{row.name}` | {versions} | {_code(keys)} | {_code(kept)} |"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"


def agents_table() -> str:
    """Return what is known of all agents by every launch, which loads the row of one alone."""
    rows = read_agents()
    known = {name for name, _, _ in paths.PROTECTED}
    protected = {path: why for row in rows for path, why in row.protected if path not in known}
    hidden = {path: why for row in rows for path, why in row.hides}
    addresses = sorted({api.base_url for row in rows for api in row.upstreams if api.base_url})
    return "\n".join((
        '"""What every launch must know of all agents; written by scripts/generate from their rows: do not edit."""',
        "", "from __future__ import annotations", "",
        f"NAMES: tuple[str, ...] = ({', '.join(json.dumps(row.name) for row in rows)})", "",
        "# In the project: what some agent of the host executes or obeys, and why.",
        *_pairs("PROTECTED", protected), "",
        "# In the home: where they keep logins and conversations.",
        *_pairs("HIDDEN", hidden), "",
        "# Variables with the addresses that keys are sent to: no project sets them.",
        "ADDRESSES: frozenset[str] = frozenset((",
        *textwrap.wrap(", ".join(map(json.dumps, addresses)), 116, initial_indent="    ", subsequent_indent="    "),
        "))  # fmt: skip", "",
    ))  # fmt: skip


def _pairs(name: str, rows: dict[str, str]) -> Iterator[str]:
    yield f"{name}: tuple[tuple[str, str], ...] = ("
    yield from (f"    ({json.dumps(path)}, {json.dumps(why)})," for path, why in rows.items())
    yield ")"


def _between(file: str, *parts: tuple[str, str, Iterable[str]]) -> str:
    """Return a page with these lines between its markers."""
    text = (TOP / file).read_text(encoding="utf-8")
    for begin, end, rows in parts:
        before, first, rest = text.partition(begin)
        _, second, after = rest.partition(end)
        if not first or not second:
            raise SystemExit(f"{file} has lost the markers of what is generated in it")
        text = "".join((before, begin, "\n", *(f"{row}\n" for row in rows), end, after))
    return text


def results() -> Iterator[str]:
    """Yield the table of what was tried where: a row for each system, account and Python, a column for each kind."""
    found = tomllib.loads((TOP / "docs/platforms.toml").read_text(encoding="utf-8")).get("result", [])
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in found:
        where = rows.setdefault((row["system"], row["versions"], row["account"]), {})
        where[row["part"]] = f"{row['result']} ({row['date']})"
    yield "| system | versions | as | `scripts/run` | tests |"
    yield "|---|---|---|---|---|"
    for (system, versions, account), parts in sorted(rows.items()):
        run, whole = parts.pop("run", "-"), parts.pop("whole", "")
        tests = "<br>".join((*filter(None, (whole,)), *(f"{name}: {result}" for name, result in sorted(parts.items()))))
        yield f"| {system} | {versions} | {account} | {run} | {tests or '-'} |"


def agent_results() -> Iterator[str]:
    """Yield the table of the agents that were tried."""
    found = tomllib.loads((TOP / "docs/agents.toml").read_text(encoding="utf-8"))["agent"]
    columns = [name for name in found[0] if name not in ("name", "version", "date")]
    yield f"| agent | {' | '.join(columns)} | on |"
    yield f"|{'---|' * (len(columns) + 2)}"
    for row in found:
        yield f"| {row['name']} {row['version']} | {' | '.join(row[name] for name in columns)} | {row['date']} |"


def tree() -> Iterator[str]:
    """Yield the folders of the package, each with its modules and the first sentence of its docstring."""
    yield "src/claudebox/"
    yield from _branch(TOP / "src/claudebox", 1)


def _branch(folder: Path, depth: int) -> Iterator[str]:
    for path in sorted(path for path in folder.iterdir() if (path / "__init__.py").exists()):
        yield f"{'  ' * depth + path.name + '/':<20} {_job(path / '__init__.py')}"
        yield from _branch(path, depth + 1)


def _job(path: Path) -> str:
    lines = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
    return lines[0] if lines else ""


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
