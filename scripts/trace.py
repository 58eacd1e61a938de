"""Print the requirements and threats of docs/ids.toml with the tests that name them (`# proves SAND-02, A01`).

The exit status is 1 if one of them has no test.
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TOP = Path(__file__).resolve().parent.parent
SECTIONS = {
    "requirements": "What claudebox must do",
    "threats": "Threats",
    "holes": "What earlier versions let through",
}
_MARK = re.compile(r"#\s*proves\s+(?P<ids>.+)$")


class Mark(NamedTuple):
    """One `# proves ...` in a test."""

    id: str
    file: str  # relative to the checkout
    line: int
    test: str  # the function around it; empty outside of any


def main() -> int:
    """Print a table for each section as Markdown."""
    ids, proofs = read_ids(), _group(find_marks())
    missing = [name for section in SECTIONS for name in ids[section] if name not in proofs]
    for section, title in SECTIONS.items():
        print(f"# {title}\n\n| id | what | tests |\n|---|---|---|")
        for name, text in ids[section].items():
            print(f"| {name} | {text} | {'<br>'.join(proofs.get(name, ()))} |")
        print()
    if missing:
        print(f"without a test: {' '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


def _group(marks: Iterable[Mark]) -> dict[str, dict[str, None]]:
    """Return the tests of each id, each once."""
    proofs: dict[str, dict[str, None]] = {}
    for mark in marks:
        test = mark.test.removeprefix("test_").replace("_", " ")
        proofs.setdefault(mark.id, {})[f"{mark.file}: {test}"] = None
    return proofs


def read_ids() -> dict[str, dict[str, str]]:
    """Return the requirements and the threats, by section and id."""
    return tomllib.loads((TOP / "docs/ids.toml").read_text(encoding="utf-8"))


def find_marks() -> Iterator[Mark]:
    """Yield the marks of all tests."""
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


if __name__ == "__main__":
    sys.exit(main())
