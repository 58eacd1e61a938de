"""Draw docs/demo.svg, the still of the README: a session and its undo, as a terminal shows them.

The client, the sandbox, the broker and git are the real ones; the model is scripted, and its key is worthless. Two
things are replaced in what they print: the home by `~`, the model's address by that of Anthropic. Needs the client:
`scripts/client`.
"""

from __future__ import annotations

import html
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "src")]

from claudebox.commands.demo import scenario  # noqa: E402
from claudebox.commands.demo.server import ScriptedModel  # noqa: E402

TARGET = TOP / "docs/demo.svg"
CLIENT = TOP / ".local/client/node_modules/.bin"
COLUMNS = 100  # of the terminal
LINE, CHARACTER, MARGIN = 18, 8.4, 16  # pixels
COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "34": "#79c0ff", "36": "#76e3ea"}
PROMPT = "The test fails. Fix it and commit."
COMMANDS = (f'claudebox -p "{PROMPT}"', "claudebox undo")
_SEQUENCE = re.compile(  # colours; other CSI; OSC and its relatives; other escapes; control characters
    r"\x1b\[([0-9;]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[]P^_X].*?(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|[\x00-\x1f\x7f]"
)
_QUESTION = re.compile(rb"\[Y/n\] $|\[y/N\] $")


class Span(NamedTuple):
    """Text in one style."""

    text: str
    colour: str
    bold: bool
    dim: bool


def main() -> int:
    """Run the commands and write the picture."""
    with tempfile.TemporaryDirectory(prefix="still-") as base, ScriptedModel(list_steps()) as model:
        environ = furnish(Path(base), model.url)
        rows: list[list[Span]] = []
        for command in COMMANDS:
            printed = run(command, environ).replace(base, "~").replace(model.url, "https://api.anthropic.com")
            lines = [list(spans(line)) for line in printed.replace("\r", "").split("\n")]
            while lines and not lines[-1]:
                lines.pop()
            rows += [[Span(f"$ {command}", "#8b949e", bold=False, dim=False)], *lines, []]
    TARGET.write_text(draw(rows[:-1], "A session and its undo"), encoding="utf-8")
    print(f"wrote {TARGET.name}: {len(rows) - 1} lines")
    return 0


def list_steps() -> list[dict[str, object]]:
    """Return what the model says: it runs the test, repairs the code, and commits."""
    test = "python3 -m unittest 2>&1"
    repair = f"sed -i 's/{re.escape(scenario.WRONG)}/{scenario.RIGHT}/' {scenario.EDITED}"
    commit = "git commit -qam 'Count every value'"
    words = "`total` left out the first value. It is fixed, the test passes, and the change is committed."
    commands = (test, f"{repair} && {test} && {commit}")
    steps: list[dict[str, object]] = [
        {"tools": [{"name": "Bash", "input": {"command": command, "description": "Work"}}]} for command in commands
    ]
    return [*steps, {"say": words}]


def furnish(home: Path, url: str) -> dict[str, str]:
    """Make a home with settings and a project in it; return the environment."""
    project = home / "sums"
    for name, content in {**scenario.FILES, "../.gitconfig": "[user]\nname = You\nemail = you@example.org\n"}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(content, encoding="utf-8")
    (home / ".claudebox").mkdir(mode=0o700)
    (home / ".claudebox/config.toml").write_text('network = "inet"\ninherit = []\n', encoding="utf-8")
    environ = {
        "HOME": str(home), "PATH": f"{TOP / 'bin'}:{CLIENT}:/usr/bin:/bin", "TERM": "xterm-256color", "LANG": "C.UTF-8",
        "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-ant-of-the-still", "GITHUB_TOKEN": "ghp_ofTheStill",
    }  # fmt: skip
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "Begin"]):
        subprocess.run(["git", *words], cwd=project, env=environ, check=True)
    return environ


def run(command: str, environ: dict[str, str]) -> str:
    """Return what a command prints on a terminal of its own, where questions are answered with yes."""
    child, terminal = pty.fork()
    if not child:
        os.chdir(f"{environ['HOME']}/sums")
        os.execve("/bin/sh", ["sh", "-c", f"stty cols {COLUMNS} rows 50; exec {command}"], environ)
    printed = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        if b"\x1b[6n" in data:  # where the cursor is, claudebox asks when it has put the terminal in order
            os.write(terminal, b"\x1b[1;1R")
        printed += data
        if _QUESTION.search(printed):
            time.sleep(0.5)
            os.write(terminal, b"y\n")
    os.waitpid(child, 0)
    os.close(terminal)
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
    longest = max(sum(len(piece.text) for piece in line) for line in lines)
    width, height = MARGIN * 2 + longest * CHARACTER, MARGIN * 2 + len(lines) * LINE
    rows = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-family="monospace"'
            ' font-size="14">'
        ),
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0d1117"/>',
    ]
    for number, line in enumerate(lines):
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
