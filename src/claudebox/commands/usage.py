"""`claudebox help` and `--help`, from the tables of settings and verbs; `--version`."""

from __future__ import annotations

import json
import textwrap

from claudebox import __version__
from claudebox.base import console
from claudebox.base.errors import ClaudeboxError
from claudebox.settings.table import SETTINGS
from claudebox.settings.verbs import VERBS, find_verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.settings.layers import Settings
    from claudebox.settings.records import Setting
    from claudebox.settings.verbs import Verb


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
    """Print the help, a schema, or the version."""
    console.write(_answer(flags), descriptor=1)
    return 0


def _answer(flags: Settings) -> Iterable[str]:
    if not flags.verb:
        return help_text() if flags.on("help") else [f"claudebox {__version__}"]
    if flags.verb != "help" or flags.on("help"):
        return _help_verb(flags.verb)
    match flags.words:
        case ():
            return help_text()
        case ("schema",):
            from claudebox.commands.profiles import schema_text

            return [schema_text()]
        case ("schema", "task"):
            from claudebox.many.tasks.task import SCHEMA

            return [json.dumps(SCHEMA, indent=2)]
        case (word,):
            return _help_verb(word)
        case _:
            raise ClaudeboxError(f"`claudebox help`: unexpected argument `{flags.words[-1]}`")


def _help_verb(word: str) -> Iterator[str]:
    """Return the lines of `claudebox VERB --help`."""
    verb = find_verb(word)
    if verb is None:
        known = " ".join(row.word for row in VERBS)
        raise ClaudeboxError(f"there is no verb `{word}`", hint=f"verbs are: {known}")
    return _verb_lines(verb)


def _verb_lines(verb: Verb) -> Iterator[str]:
    flags = " [flags]" if verb.flags else ""
    yield f"usage: {verb.usage}{flags}{' [flags and words of a launch]' if verb.launches else ''}"
    yield ""
    for text in filter(None, (f"{verb.help[0].upper()}{verb.help[1:]}.", verb.details)):
        yield from textwrap.wrap(text.replace("`", ""), 78, initial_indent="  ", subsequent_indent="  ")
    if verb.flags:
        yield ""
    for row in verb.flags:
        yield from _help_row(row)


def help_text() -> Iterator[str]:
    """Yield the lines of `--help`."""
    yield f"claudebox {__version__}: {SUMMARY}"
    yield ""
    yield f"usage: {_USAGE}"
    yield "       claudebox [own flags] --exec -- COMMAND..."
    yield "       claudebox VERB ..."
    yield ""
    yield "Flags below are claudebox's, anywhere before `--`; every other word goes to claude in its order."
    for title in dict.fromkeys(verb.group for verb in VERBS):
        yield ""
        yield f"{title}:"
        for verb in (verb for verb in VERBS if verb.group == title):
            yield from _columns(f"{verb.word} {verb.operands}".rstrip(), verb.help)
    for group in dict.fromkeys(row.group for row in SETTINGS):
        yield ""
        yield f"{group}:"
        for row in (row for row in SETTINGS if row.group == group and row.flags):
            yield from _help_row(row)
    yield ""
    yield "In files (~/.claudebox/config.toml, ~/.claudebox/profiles/NAME.toml, .claudebox.toml of a project):"
    keys = ", ".join(row.file_key for row in SETTINGS if row.in_files != "none")
    yield from textwrap.wrap(f"{keys}; `claudebox init` writes a file that explains them", 100, initial_indent="  ",
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
    yield from _columns(label, text)


def _columns(label: str, text: str) -> Iterator[str]:
    lines = textwrap.wrap(text, 78 - _COLUMN + 12)
    if len(label) > _COLUMN - 4:
        yield f"  {label}"
    else:
        yield f"  {label:<{_COLUMN - 2}}{lines.pop(0)}"
    for line in lines:
        yield " " * _COLUMN + line
