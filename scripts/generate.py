"""Write the man page, the completions, the tree of modules, and the tables that join requirements with their tests.

All of it is committed; `--check` writes nothing and fails if something is stale, which tests/test_generated.py uses.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "src"), str(TOP)]

from scripts import reference  # noqa: E402

from claudebox.commands import profiles  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MARK = re.compile(r"#\s*proves\s+(?P<ids>.+)$")
_NOTE = "<!-- written by scripts/generate from docs/ids.toml and the marks in the tests; do not edit -->"

_TREE = "<!-- tree: written by scripts/generate from the docstrings; do not edit -->"
_END_OF_TREE = "<!-- end of tree -->"
_RESULTS = "<!-- results: written by scripts/generate from docs/platforms.toml; do not edit -->"
_END_OF_RESULTS = "<!-- end of results -->"


class Mark(NamedTuple):
    """One `# proves ...` in a test."""

    id: str
    file: str  # relative to the checkout
    line: int
    test: str  # the function around it; empty outside of any


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
    ids = read_ids()
    proofs: dict[str, list[Mark]] = {}
    for mark in marks():
        proofs.setdefault(mark.id, []).append(mark)
    return {
        "man/claudebox.1": reference.man_page(),
        "docs/claudebox.schema.json": profiles.schema_text() + "\n",
        "completions/claudebox.bash": reference.bash_completion(),
        "completions/_claudebox": reference.zsh_completion(),
        "completions/claudebox.fish": reference.fish_completion(),
        "docs/requirements.md": _table("Requirements and their tests", "requirement", ids["requirements"], proofs),
        "docs/threats.md": _table("Threats and their tests", "threat", ids["threats"], proofs)
        + _holes(ids["holes"], proofs),
        "docs/design.md": _between("docs/design.md", _TREE, _END_OF_TREE, ("```", *tree(), "```")),
        "docs/platforms.md": _between("docs/platforms.md", _RESULTS, _END_OF_RESULTS, results()),
    }


def _between(file: str, begin: str, end: str, rows: Iterable[str]) -> str:
    """Return a page with these lines between its markers."""
    before, first, rest = (TOP / file).read_text(encoding="utf-8").partition(begin)
    _, second, after = rest.partition(end)
    if not first or not second:
        raise SystemExit(f"{file} has lost the markers of what is generated in it")
    return "".join((before, begin, "\n", *(f"{row}\n" for row in rows), end, after))


def results() -> Iterator[str]:
    """Yield the table of what was tried where: a row for each system, account and Python, a column for each kind."""
    found = tomllib.loads((TOP / "docs/platforms.toml").read_text(encoding="utf-8")).get("result", [])
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in found:
        where = rows.setdefault((row["system"], row["versions"], row["account"]), {})
        where[row["part"]] = f"{row['result']} ({row['date']})"
    yield "| system | versions | as | `scripts/run` | fast | whole | parts |"
    yield "|---|---|---|---|---|---|---|"
    for (system, versions, account), parts in sorted(rows.items()):
        cells = [parts.pop(name, "-") for name in ("run", "fast", "whole")]
        rest = "<br>".join(f"{name}: {result}" for name, result in sorted(parts.items())) or "-"
        yield f"| {' | '.join((system, versions, account, *cells, rest))} |"


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


def read_ids() -> dict[str, dict[str, str]]:
    """Return the requirements and the threats, by section and id."""
    return tomllib.loads((TOP / "docs/ids.toml").read_text(encoding="utf-8"))


def marks() -> Iterator[Mark]:
    """Find the marks of all tests; they are comments, so the tokens are read, and the functions around them."""
    for path in sorted((TOP / "tests").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        tests = [
            (node.lineno, node.end_lineno or node.lineno, node.name)
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        ]
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            found = _MARK.match(token.string) if token.type == tokenize.COMMENT else None
            if not found:
                continue
            line = token.start[0]
            around = next((name for first, last, name in tests if first <= line <= last), "")
            for name in re.split(r"[,\s]+", found["ids"].strip().rstrip(".")):
                yield Mark(name, path.relative_to(TOP).as_posix(), line, around)


def _table(title: str, what: str, ids: Mapping[str, str], proofs: Mapping[str, list[Mark]]) -> str:
    proved = sum(1 for name in ids if name in proofs)
    lines = [
        f"# {title}",
        "",
        _NOTE,
        "",
        f"{proved} of {len(ids)} have a test so far; an empty cell is work that is still to come.",
        "",
        f"| id | {what} | proved by |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {text} | {_links(proofs.get(name, []))} |" for name, text in ids.items()]
    return "\n".join(lines) + "\n"


def _holes(ids: Mapping[str, str], proofs: Mapping[str, list[Mark]]) -> str:
    rows = (f"| {name} | {text} | {_links(proofs.get(name, []))} |\n" for name, text in ids.items())
    head = "| id | hole | closed, as shown by |\n|---|---|---|\n"
    return f"\n## What earlier versions let through\n\n{head}{''.join(rows)}"


def _links(found: list[Mark]) -> str:
    """Link every test once; without lines, which would change with every edit of a test."""
    tests = dict.fromkeys((mark.file, mark.test) for mark in found)
    return "<br>".join(f"[{test.removeprefix('test_').replace('_', ' ')}](../{file})" for file, test in tests)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
