"""The man page and the tables of docs/settings.md, from the tables of settings and verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from claudebox import SUMMARY, __version__
from claudebox.commands.usage import EXAMPLES, STATUSES, USAGE
from claudebox.settings.document import WANTED
from claudebox.settings.records import sentences
from claudebox.settings.table import SETTINGS
from claudebox.settings.verbs import VERBS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.settings.records import Setting

_LIMITS = {"user": " Yours.", "profile": " In a profile.", "project": ""}
_KINDS = {
    "text": "text", "list": "list", "words": "list", "table": "table", "record": "table",
    "rows": "tables", "groups": "tables",
}  # fmt: skip
_FILES = (
    "Settings are merged in this order: defaults, ~/.claudebox/config.toml, the profile with those that it extends, "
    ".claudebox.toml of the project as far as you approved it or it only tightens, the environment, flags."
)


def man_page() -> str:
    """Return the man page, section 1, as roff."""
    lines = [
        f'.TH CLAUDEBOX 1 "" "claudebox {__version__}"',
        ".SH NAME",
        f"claudebox \\- {_roff(SUMMARY)}",
        ".SH SYNOPSIS",
        *(line for usage in USAGE for line in (_roff(usage), ".br")),
        ".SH DESCRIPTION",
        _roff(
            "Starts Claude Code, or another agent, in the current directory with every permission granted, inside a "
            "bubblewrap sandbox in which the environment, the home and the processes of the host do not exist. It "
            "shows what will enter, asks once, and hands over the terminal."
        ),
        ".PP",
        _roff("Flags of claudebox stand anywhere before --; every other word goes to the agent, as does all after --."),
        ".SH EXAMPLES",
    ]
    for command, meaning in EXAMPLES:
        lines += [".TP", f"\\fB{_roff(command)}\\fR", _roff(sentences(meaning))]
    lines.append(".SH VERBS")
    for verb in VERBS:
        lines += [".TP", f"\\fB{verb.usage[10:]}\\fR", _roff(f"{sentences(verb.help)} {verb.details}")]
        lines += [line for row in verb.flags for line in (".br", f"{_flag(row)}: {_roff(sentences(row.help))}")]
    lines.append(".SH OPTIONS")
    for row in (row for row in SETTINGS if row.flags):
        choices = f" One of: {', '.join(row.choices)}; default {row.default}." if row.choices else ""
        lines += [".TP", _flag(row), _roff(row.described + choices)]
    lines += [".SH SETTINGS IN FILES", _roff(_FILES)]
    for row in (row for row in SETTINGS if row.in_files != "none"):
        lines += [".TP", f"\\fB{_roff(row.file_key)}\\fR ({WANTED.get(row.shape, 'a string')})", _roff(_in_file(row))]
    lines.append(".SH ENVIRONMENT")
    for row in (row for row in SETTINGS if row.variable):
        several = ", several separated by commas" if row.grows else ""
        name = row.flags[-1] if row.flags else row.file_key
        lines += [".TP", f"\\fB{row.variable}\\fR", _roff(f"As {name}{several}.")]
    lines += [".TP", "\\fBNO_COLOR\\fR", "No colours."]
    lines.append(".SH EXIT STATUS")
    for status, meaning in STATUSES:
        lines += [".TP", f"\\fB{status}\\fR", _roff(sentences(meaning))]
    lines += [".SH SEE ALSO", ".BR bwrap (1)"]
    return "\n".join(lines) + "\n"


def settings_page() -> Iterator[str]:
    """Yield the tables of docs/settings.md: keys by group, flags of one launch, verbs."""
    rows = [row for row in SETTINGS if row.in_files != "none"]
    for group in dict.fromkeys(row.group for row in rows):
        yield f"\n## {group}\n"
        yield "| key | also | default, or kind | |"
        yield "|---|---|---|---|"
        for row in (row for row in rows if row.group == group):
            also = ", ".join(f"`{word}`" for word in (*row.flags, *filter(None, (row.variable,))))
            text = _cell(_in_file(row, _LIMITS[row.in_files]))
            yield f"| `{row.file_key}` | {also} | {_values(row)} | {text} |"
    yield "\n## Flags of one launch\n"
    yield "| flag | |"
    yield "|---|---|"
    for row in (row for row in SETTINGS if row.in_files == "none" and row.flags):
        yield f"| `{', '.join(row.flags)}{row.metavar and ' '}{_cell(row.metavar)}` | {_cell(row.described)} |"
    yield "\n## Verbs\n"
    yield "`claudebox VERB --help` says more.\n"
    yield "| verb | flags | |"
    yield "|---|---|---|"
    for verb in VERBS:
        flags = ", ".join(f"`{row.flags[-1]}`" for row in verb.flags)
        yield f"| `{_cell(verb.usage.removeprefix('claudebox '))}` | {flags} | {sentences(verb.help)} |"


def _values(row: Setting) -> str:
    if row.default:
        return f"`{row.default}`"
    return "`false`" if row.shape == "switch" else _KINDS[row.shape]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _in_file(row: Setting, limit: str | None = None) -> str:
    where = {"user": " Not in a project file.", "profile": " Only in a profile."}.get(row.in_files, "")
    where = where if limit is None else limit
    fields = "".join(f" `{field.name}`: {field.help}." for field in row.fields)
    return row.described + fields + where


def _flag(row: Setting) -> str:
    flags = ", ".join(f"\\fB{_roff(flag)}\\fR" for flag in row.flags)
    return flags + (f" \\fI{_roff(row.metavar)}\\fR" if row.metavar else "")


def _roff(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
