"""`--help`, from the table of settings, and `--version`."""

from __future__ import annotations

import textwrap

from claudebox import __version__
from claudebox.base import console
from claudebox.settings.table import SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.settings.layers import Settings
    from claudebox.settings.records import Setting


SUMMARY = "Claude Code with every permission, in a sandbox without your secrets"
_USAGE = "claudebox [own flags] [anything for claude]"
_COLUMN = 28
STATUSES = (
    ("125", "claudebox refused, or could not set up the sandbox"),
    ("126", "the client was found but cannot be run"),
    ("127", "the client was not found"),
    ("130", "you declined"),
    ("any other", "that of the client"),
)


def run(flags: Settings, _environ: dict[str, str]) -> int:
    """Print the help, or the version."""
    console.write(help_text() if flags.on("help") else [f"claudebox {__version__}"], descriptor=1)
    return 0


def help_text() -> Iterator[str]:
    """Yield the lines of `--help`."""
    yield f"claudebox {__version__}: {SUMMARY}"
    yield ""
    yield f"usage: {_USAGE}"
    yield "       claudebox [own flags] --exec -- COMMAND..."
    yield ""
    yield "Flags below are claudebox's, anywhere before `--`; every other word goes to claude in its order."
    for group in dict.fromkeys(row.group for row in SETTINGS):
        yield ""
        yield f"{group}:"
        for row in (row for row in SETTINGS if row.group == group and row.flags):
            yield from _help_row(row)
    yield ""
    yield "In files (~/.claudebox/config.toml, ~/.claudebox/profiles/NAME.toml, .claudebox.toml of a project):"
    keys = ", ".join(row.file_key for row in SETTINGS if row.in_files != "none")
    yield from textwrap.wrap(f"{keys}; `claudebox --init` writes a file that explains them", 100, initial_indent="  ",
                             subsequent_indent="  ")  # fmt: skip
    yield ""
    yield "Exit status:"
    for status, meaning in STATUSES:
        yield f"  {status:<{_COLUMN - 2}}{meaning}"


def _help_row(row: Setting) -> Iterator[str]:
    label = ", ".join(row.flags) + (f" {row.metavar}" if row.metavar else "")
    text = row.help + (f" (default: {row.default})" if row.default else "")
    if row.variable:
        text += f"; also {row.variable}={'A,B' if row.grows else row.metavar}"
    lines = textwrap.wrap(text, 78 - _COLUMN + 12)
    if len(label) > _COLUMN - 4:
        yield f"  {label}"
    else:
        yield f"  {label:<{_COLUMN - 2}}{lines.pop(0)}"
    for line in lines:
        yield " " * _COLUMN + line
