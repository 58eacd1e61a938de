"""`claudebox help` and `--help`, from the tables of settings and verbs; `--version`."""

from __future__ import annotations

import json
import os
import textwrap
from itertools import zip_longest

from claudebox import SUMMARY, __version__
from claudebox.base import console
from claudebox.base.errors import ClaudeboxError
from claudebox.settings.records import sentences
from claudebox.settings.table import SETTINGS
from claudebox.settings.verbs import VERBS, find_verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.settings.layers import Settings
    from claudebox.settings.records import Setting
    from claudebox.settings.verbs import Verb


USAGE = ("claudebox [flags] [words for the agent]", "claudebox VERB ...")
EXAMPLES = (
    ("claudebox", "start Claude Code in this directory"),
    ('claudebox -y -p "fix the tests"', "print one answer, without asking first"),
    ("claudebox undo", "take back what the last session did"),
    ("claudebox new login", "a second agent, on a branch of its own"),
    ("claudebox codex", "start another agent"),
)
STATUSES = (
    ("125", "claudebox refused, or could not set up the sandbox"),
    ("126", "the agent was found but cannot be run"),
    ("127", "the agent was not found"),
    ("130", "you declined"),
    ("any other", "that of the agent"),
)
TOPICS = {
    "flags": "all flags",
    "verbs": "all verbs, in a line each",
    "settings": "all settings and their defaults",
    "agents": "the agents, and where they are",
    "schema": "the JSON Schema of settings, or of task files",
}
_WIDTH, _COLUMN = 80, 28


def run(flags: Settings, environ: dict[str, str]) -> int:
    """Print the help, a schema, or the version."""
    console.write(_answer(flags, environ), descriptor=1)
    return 0


def _answer(flags: Settings, environ: dict[str, str]) -> Iterable[str]:
    if not flags.verb:
        return help_text() if flags.on("help") else [f"claudebox {__version__}"]
    if flags.verb != "help" or flags.on("help"):
        return _explain_verb(flags.verb)
    match flags.words:
        case ():
            return help_text()
        case (("flags" | "verbs" | "settings") as topic,):
            return {"flags": flags_text, "verbs": verbs_text, "settings": settings_text}[topic]()
        case ("settings", key):
            return _explain_setting(key)
        case ("agents",):
            return _list_agents(environ)
        case ("schema",):
            from claudebox.commands.profiles import schema_text

            return [schema_text()]
        case ("schema", "task"):
            from claudebox.many.tasks.task import SCHEMA

            return [json.dumps(SCHEMA, indent=2)]
        case (word,):
            return _explain_verb(word)
        case ("complete", *words):
            from claudebox.commands.complete import list_candidates

            return list_candidates(words, environ)
        case _:
            raise ClaudeboxError(f"there is no help on `{' '.join(flags.words)}`", hint=_topics())


def help_text() -> Iterator[str]:
    """Yield the lines of `--help`: one screen."""
    yield sentences(SUMMARY)
    yield f"usage: {'   or: '.join(USAGE)}"
    yield from (f"  {command:<34} {meaning}" for command, meaning in EXAMPLES)
    yield "Flags, anywhere before `--`; every other word goes to the agent:"
    flags = [row for row in SETTINGS if row.brief]
    half = (len(flags) + 1) // 2
    for left, right in zip_longest(flags[:half], flags[half:]):
        line = f"  {_label(left):<17} {left.brief:<19} "
        yield f"{line}{_label(right):<21}  {right.brief}" if right else line.rstrip()
    yield "Verbs, as the first word; `claudebox VERB --help` explains one:"
    for group in dict.fromkeys(verb.group for verb in VERBS):
        yield f"  {group:<18} {' '.join(verb.word for verb in VERBS if verb.group == group)}"
    yield f"More: `claudebox help` with {' '.join(TOPICS)}.  Version {__version__}"


def flags_text() -> Iterator[str]:
    """Yield all flags of a launch, and the exit statuses."""
    for group in dict.fromkeys(row.group for row in SETTINGS if row.flags):
        yield f"{group}:"
        for row in (row for row in SETTINGS if row.group == group and row.flags):
            yield from _help_row(row)
        yield ""
    yield "Exit status:"
    for status, meaning in STATUSES:
        yield f"  {status:<{_COLUMN - 2}}{meaning}"


def verbs_text() -> Iterator[str]:
    """Yield all verbs by group."""
    for group in dict.fromkeys(verb.group for verb in VERBS):
        yield f"{group}:"
        for verb in (verb for verb in VERBS if verb.group == group):
            yield from _columns(verb.usage.removeprefix("claudebox "), verb.help)


def settings_text() -> Iterator[str]:
    """Yield all settings of files with their defaults."""
    yield "Keys of ~/.claudebox/config.toml (`claudebox init` writes it), of profiles and a"
    yield "project's .claudebox.toml; `--set KEY=VALUE` changes one for a launch."
    yield "`claudebox help settings KEY` explains one; `--explain` shows those in force."
    rows = [row for row in SETTINGS if row.in_files != "none"]
    for group in dict.fromkeys(row.group for row in rows):
        yield ""
        yield f"{group}:"
        for row in (row for row in rows if row.group == group):
            yield from _columns(_with_default(row), row.help)


def _with_default(row: Setting) -> str:
    default = "false" if row.shape == "switch" else f'"{row.default}"' if row.default else ""
    return f"{row.file_key} = {default}" if default else row.file_key


def _explain_setting(key: str) -> Iterator[str]:
    """Yield everything about one setting."""
    from claudebox.settings import document

    row = document.find_row(key)
    if row is None:
        raise document.unknown_key(key, "claudebox help settings")
    yield f"{_with_default(row)}  ({', '.join(row.choices) or document.WANTED[row.shape]})"
    yield ""
    yield from _paragraph(row.described)
    for field in row.fields:
        yield from _columns(field.name, field.help + (f" (default: {field.default})" if field.default else ""))
    yield ""
    yield "  Example:"
    yield from (f"    {line}" for line in document.example(row))
    yield ""
    if row.flags:
        yield from _columns("flag", _label(row))
    if row.variable:
        yield from _columns("variable", f"{row.variable}={'A,B' if row.grows else row.metavar}")
    where = {"project": "any file of settings; a project's file may need your approval", "profile": "profiles only"}
    yield from _columns("allowed in", where.get(row.in_files, "your own files, not in a project's"))


def _list_agents(environ: dict[str, str]) -> Iterator[str]:
    """Yield the agents that claudebox knows, and where each is on this machine."""
    from claudebox.agent import facts, kinds
    from claudebox.host import machine, programs

    home, workdir = machine.current_home(environ), os.getcwd()
    path = programs.search_path(environ, workdir)
    rows = []
    for kind in kinds.find_kinds():
        client, problem = facts.look_for_client(kind, home, path, workdir, "")
        missing = f"not installed: {kind.install}" if problem and problem.status == 127 else problem and problem.message
        rows.append((kind.name, kind.title, client.path if client else missing or ""))
    yield "claudebox NAME starts one; `agent` in ~/.claudebox/config.toml chooses the default."
    yield ""
    yield from console.table(rows)


def _explain_verb(word: str) -> Iterator[str]:
    """Return the lines of `claudebox VERB --help`."""
    verb = find_verb(word)
    if verb is None:
        raise ClaudeboxError(f"there is no help on `{word}`", hint=_topics())
    return _verb_lines(verb)


def _topics() -> str:
    return f"topics: {', '.join(TOPICS)}; verbs: {', '.join(row.word for row in VERBS)}"


def _verb_lines(verb: Verb) -> Iterator[str]:
    flags = " [flags]" if verb.flags else ""
    yield f"usage: {verb.usage}{flags}{' [flags and words of a launch]' if verb.launches else ''}"
    yield ""
    yield from _paragraph(f"{sentences(verb.help)} {verb.details}".rstrip())
    if verb.flags:
        yield ""
    for row in verb.flags:
        yield from _help_row(row)


def _paragraph(text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text.replace("`", ""), _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


def _label(row: Setting) -> str:
    return ", ".join(row.flags) + (f" {row.metavar}" if row.metavar else "")


def _help_row(row: Setting) -> Iterator[str]:
    notes = [row.details, "repeatable" if row.grows and row.flags else "",
             f"default: {row.default}" if row.default else "",
             f"also {row.variable}={'A,B' if row.grows else row.metavar}" if row.variable else ""]  # fmt: skip
    yield from _columns(_label(row), "; ".join(filter(None, (row.help, *notes))))


def _columns(label: str, text: str) -> Iterator[str]:
    lines = textwrap.wrap(text, _WIDTH - _COLUMN, break_on_hyphens=False)
    if len(label) > _COLUMN - 4:
        yield f"  {label}"
    else:
        yield f"  {label:<{_COLUMN - 2}}{lines.pop(0)}"
    for line in lines:
        yield " " * _COLUMN + line
