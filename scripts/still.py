"""Draw what a command prints as docs/demo.svg: `scripts/still bin/claudebox demo`.

The still in the README is the output of a real run, in a terminal of its own; nothing of it is written by hand.
"""

from __future__ import annotations

import html
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

TARGET = Path(__file__).resolve().parent.parent / "docs/demo.svg"
COLUMNS, LIMIT = 100, 27  # of the terminal; lines that are shown
LINE, CHARACTER, MARGIN = 18, 8.4, 16  # pixels
COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "34": "#79c0ff", "36": "#76e3ea"}
_SEQUENCE = re.compile(r"\x1b\[([0-9;]*)m|\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


class Span(NamedTuple):
    """Text in one style."""

    text: str
    colour: str
    bold: bool
    dim: bool


def main() -> int:
    """Run the command and write the picture."""
    argv = sys.argv[1:] or ["bin/claudebox", "--demo"]
    lines = [list(spans(line)) for line in run(argv).replace("\r", "").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    TARGET.write_text(draw(lines[-LIMIT:], " ".join(["claudebox", *argv[1:]])), encoding="utf-8")
    print(f"wrote {TARGET.name}: {min(len(lines), LIMIT)} lines")
    return 0


def run(argv: list[str]) -> str:
    """Return what a command prints on a terminal."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    environ.pop("NO_COLOR", None)
    process = subprocess.Popen([*argv, "-y"], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    printed = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:
            break
        if not data:
            break
        printed += data
    process.wait()
    return printed.decode("utf-8", "replace")


def spans(line: str) -> list[Span]:
    """Return a line as pieces of one style each."""
    found: list[Span] = []
    colour, bold, dim, begin = "", False, False, 0
    for match in [*_SEQUENCE.finditer(line), None]:
        text = line[begin : match.start() if match else len(line)]
        if text:
            found.append(Span(text, colour, bold, dim))
        if match is None:
            break
        begin = match.end()
        for code in (match[1] or "0").split(";") if match[1] is not None else ():
            colour = COLOURS.get(code, "" if code in ("0", "39") else colour)
            bold = code == "1" or (bold and code not in ("0", "22"))
            dim = code == "2" or (dim and code not in ("0", "22"))
    return found


def draw(lines: list[list[Span]], title: str) -> str:
    """Return the picture of a terminal."""
    width, height = MARGIN * 2 + COLUMNS * CHARACTER, MARGIN * 2 + (len(lines) + 1) * LINE
    rows = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-family="monospace"'
            ' font-size="14">'
        ),
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0d1117"/>',
        f'<text x="{MARGIN}" y="{MARGIN + 12}" fill="#8b949e">$ {html.escape(title)}</text>',
    ]
    for number, line in enumerate(lines, 1):
        pieces = "".join(map(_piece, line))
        y = MARGIN + 12 + number * LINE
        rows.append(f'<text x="{MARGIN}" y="{y}" xml:space="preserve">{pieces}</text>')
    return "\n".join([*rows, "</svg>", ""])


def _piece(span: Span) -> str:
    fill = span.colour or ("#8b949e" if span.dim else "#e6edf3")
    weight = ' font-weight="bold"' if span.bold else ""
    return f'<tspan fill="{fill}"{weight}>{html.escape(span.text)}</tspan>'


if __name__ == "__main__":
    sys.exit(main())
