"""Man page and completions, from the table of settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from claudebox import __version__
from claudebox.commands.usage import STATUSES, SUMMARY
from claudebox.settings.table import SETTINGS
from claudebox.tables import paths as tables_paths
from claudebox.tables.tools import TOOLCHAINS

if TYPE_CHECKING:
    from claudebox.settings.records import Setting

_FILES = (
    "Settings are merged in this order: defaults, ~/.claudebox/config.toml, the profile with those that it extends, "
    ".claudebox.toml of the project as far as you approved it or it only tightens, the environment, flags."
)
_SHAPES = {
    "switch": "true or false",
    "choice": "string",
    "text": "string",
    "list": "array of strings",
    "words": "array of strings",
    "table": "table of strings",
    "record": "table",
    "rows": "array of tables",
    "groups": "tables with names of your own",
}
_PROFILES = "claudebox profiles 2>/dev/null | sed s/\\ .*//"  # names, one per line
_ZSH = str.maketrans({"[": "(", "]": ")", ":": " -", "`": ""})  # what means something in its descriptions
_PATHS = ("SRC[:DEST]", "DIRECTORY", "DIR", "FILE", "FILES", "NODE", "PATH")  # metavars of paths


def man_page() -> str:
    """Return the man page, section 1, as roff."""
    lines = [
        f'.TH CLAUDEBOX 1 "" "claudebox {__version__}"',
        ".SH NAME",
        f"claudebox \\- {_roff(SUMMARY)}",
        ".SH SYNOPSIS",
        ".B claudebox",
        "[own flags] [anything for claude]",
        ".SH DESCRIPTION",
        _roff(
            "Starts Claude Code in the current directory with every permission granted, inside a bubblewrap sandbox in "
            "which the environment, the home and the processes of the host do not exist. It shows what will enter, "
            "asks once, and hands over the terminal."
        ),
        ".PP",
        _roff(
            "Flags of claudebox stand anywhere before --; every other word goes to claude in its order. After -- "
            "everything is claude's."
        ),
        ".SH OPTIONS",
    ]
    for row in (row for row in SETTINGS if row.flags):
        flags = ", ".join(f"\\fB{_roff(flag)}\\fR" for flag in row.flags)
        lines += [".TP", flags + (f" \\fI{_roff(row.metavar)}\\fR" if row.metavar else "")]
        choices = f" One of: {', '.join(row.choices)}; default {row.default}." if row.choices else ""
        lines.append(_roff(_sentence(row.help) + choices))
    lines += [".SH SETTINGS IN FILES", _roff(_FILES)]
    for row in (row for row in SETTINGS if row.in_files != "none"):
        lines += [".TP", f"\\fB{_roff(row.file_key)}\\fR ({_SHAPES[row.shape]})", _roff(_in_file(row))]
    lines.append(".SH ENVIRONMENT")
    for row in (row for row in SETTINGS if row.variable):
        several = ", several separated by commas" if row.grows else ""
        name = row.flags[-1] if row.flags else row.file_key
        lines += [".TP", f"\\fB{row.variable}\\fR", _roff(f"As {name}{several}.")]
    lines += [".TP", "\\fBNO_COLOR\\fR", "No colours."]
    lines.append(".SH EXIT STATUS")
    for status, meaning in STATUSES:
        lines += [".TP", f"\\fB{status}\\fR", _roff(_sentence(meaning))]
    lines += [".SH SEE ALSO", ".BR bwrap (1)"]
    return "\n".join(lines) + "\n"


def _in_file(row: Setting) -> str:
    where = {"user": " Not in a project file.", "profile": " Only in a profile."}.get(row.in_files, "")
    fields = "".join(f" {field.name}: {field.help}." for field in row.fields)
    return _sentence(row.help.removesuffix("; repeatable")) + fields + where


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _roff(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")


def bash_completion() -> str:
    """Return the completion for bash; words that are not ours are completed as files."""
    cases = [
        f"    {'|'.join(row.flags)}) {_bash_values(row)}; return ;;"
        for row in SETTINGS
        if row.flags and row.shape != "switch"
    ]
    return "\n".join((
        "# bash completion for claudebox; generated from the table of settings",
        "_claudebox() {",
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} index",
        "  COMPREPLY=()",
        "  for ((index = 1; index < COMP_CWORD; index++)); do",
        '    [[ ${COMP_WORDS[index]} == -- ]] && { mapfile -t COMPREPLY < <(compgen -f -- "$word"); return; }',
        "  done",
        "  case $before in",
        *cases,
        "  esac",
        f'  [[ $word == -* ]] && mapfile -t COMPREPLY < <(compgen -W "{" ".join(_flags())}" -- "$word")',
        "}",
        "complete -o bashdefault -o default -F _claudebox claudebox",
        "",
    ))  # fmt: skip


def _words(row: Setting) -> tuple[str, ...]:
    """Return the values that a setting can have, where they are known."""
    if row.key == "toolchain":
        return (*row.alone, *TOOLCHAINS)
    if row.key == "allow":
        return tables_paths.NAMES
    return row.choices


def _bash_values(row: Setting) -> str:
    if words := _words(row):
        source = f'compgen -W "{" ".join(words)}"'
    elif row.key == "profile":
        source = f'compgen -W "$({_PROFILES})"'
    elif row.key == "env":
        source = "compgen -e"
    elif row.metavar in _PATHS:
        source = "compgen -f"
    else:
        return "compopt +o default +o bashdefault 2>/dev/null; COMPREPLY=()"
    return f'mapfile -t COMPREPLY < <({source} -- "$word")'


def _flags() -> list[str]:
    return [flag for row in SETTINGS for flag in row.flags]


def zsh_completion() -> str:
    """Return the completion for zsh."""
    lines = ["#compdef claudebox", "# generated from the table of settings", "_arguments -s -S \\"]
    for row in SETTINGS:
        for flag in row.flags:
            text = row.help.replace("'", "'\\''").translate(_ZSH)
            repeat = "*" if row.grows else ""
            lines.append(f"  '{repeat}{flag}[{text}]{_zsh_values(row)}' \\")
    lines.append("  '*:word for claude:_files'")
    return "\n".join(lines) + "\n"


def _zsh_values(row: Setting) -> str:
    if words := _words(row):
        return f":{row.key}:({' '.join(words)})"
    if row.key == "profile":
        return f':profile:(${{(f)"$({_PROFILES})"}})'
    if row.key == "env":
        return ":variable:_parameters -g *export*"
    if row.metavar in _PATHS:
        return ":path:_files"
    return f":{row.metavar.lower()}:" if row.metavar else ""


def fish_completion() -> str:
    """Return the completion for fish."""
    lines = ["# fish completion for claudebox; generated from the table of settings"]
    for row in (row for row in SETTINGS if row.flags):
        words = ["complete", "-c", "claudebox"]
        for flag in row.flags:
            words += ["-l", flag[2:]] if flag.startswith("--") else ["-s", flag[1:]]
        if values := _words(row):
            words += ["-x", "-a", f"'{' '.join(values)}'"]
        elif row.key == "profile":
            words += ["-x", "-a", f"'({_PROFILES})'"]
        elif row.key == "env":
            words += ["-x", "-a", "'(set -nx)'"]
        elif row.metavar:
            words.append("-r" if row.metavar in _PATHS else "-x")
        text = row.help.replace("'", "\\'").replace("`", "")
        lines.append(" ".join((*words, "-d", f"'{text}'")))
    return "\n".join(lines) + "\n"
