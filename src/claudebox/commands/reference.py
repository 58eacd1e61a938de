"""Help, man page and completions: each a rendering of the table of settings, so that none of them can drift."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from claudebox import __version__
from claudebox.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.settings import Setting

_SUMMARY = "Claude Code with every permission, in a sandbox without your secrets"
_USAGE = "claudebox [own flags] [anything for claude]"
_COLUMN = 28
_STATUSES = (
    ("125", "claudebox refused, or could not set up the sandbox"),
    ("126", "the client was found but cannot be run"),
    ("127", "the client was not found"),
    ("130", "you declined"),
    ("any other", "that of the client"),
)


def help_text() -> Iterator[str]:
    """Yield the lines of `--help`."""
    yield f"claudebox {__version__}: {_SUMMARY}"
    yield ""
    yield f"usage: {_USAGE}"
    yield "       claudebox [own flags] --exec -- COMMAND..."
    yield ""
    yield "Flags below are claudebox's, anywhere before `--`; every other word goes to claude in its order."
    for group in dict.fromkeys(row.group for row in SETTINGS):
        yield ""
        yield f"{group}:"
        for row in (row for row in SETTINGS if row.group == group):
            yield from _help_row(row)
    yield ""
    yield "Exit status:"
    for status, meaning in _STATUSES:
        yield f"  {status:<{_COLUMN - 2}}{meaning}"


def _help_row(row: Setting) -> Iterator[str]:
    label = ", ".join(row.flags) + (f" {row.metavar}" if row.metavar else "")
    text = row.help + (f" (default: {row.default})" if row.default else "")
    if row.variable:
        text += f"; also {row.variable}=A,B"
    lines = textwrap.wrap(text, 78 - _COLUMN + 12)
    if len(label) > _COLUMN - 4:
        yield f"  {label}"
    else:
        yield f"  {label:<{_COLUMN - 2}}{lines.pop(0)}"
    for line in lines:
        yield " " * _COLUMN + line


def man_page() -> str:
    """Return the man page, section 1, as roff."""
    lines = [
        f'.TH CLAUDEBOX 1 "" "claudebox {__version__}"',
        ".SH NAME",
        f"claudebox \\- {_roff(_SUMMARY)}",
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
    for row in SETTINGS:
        flags = ", ".join(f"\\fB{_roff(flag)}\\fR" for flag in row.flags)
        lines += [".TP", flags + (f" \\fI{_roff(row.metavar)}\\fR" if row.metavar else "")]
        choices = f" One of: {', '.join(row.choices)}; default {row.default}." if row.choices else ""
        lines.append(_roff(_sentence(row.help) + choices))
    lines.append(".SH ENVIRONMENT")
    for row in (row for row in SETTINGS if row.variable):
        lines += [".TP", f"\\fB{row.variable}\\fR", _roff(f"As {row.flags[-1]}, several separated by commas.")]
    lines += [".TP", "\\fBNO_COLOR\\fR", "No colours."]
    lines.append(".SH EXIT STATUS")
    for status, meaning in _STATUSES:
        lines += [".TP", f"\\fB{status}\\fR", _roff(_sentence(meaning))]
    lines += [".SH SEE ALSO", ".BR bwrap (1)"]
    return "\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _roff(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")


def bash_completion() -> str:
    """Return the completion for bash; words that are not ours are completed as files."""
    cases = [f"    {'|'.join(row.flags)}) {_bash_values(row)}; return ;;" for row in SETTINGS if row.shape != "switch"]
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


def _bash_values(row: Setting) -> str:
    if row.choices:
        source = f'compgen -W "{" ".join(row.choices)}"'
    elif row.metavar == "NAME":
        source = "compgen -e"
    else:
        source = "compgen -f"
    return f'mapfile -t COMPREPLY < <({source} -- "$word")'


def _flags() -> list[str]:
    return [flag for row in SETTINGS for flag in row.flags]


def zsh_completion() -> str:
    """Return the completion for zsh."""
    lines = ["#compdef claudebox", "# generated from the table of settings", "_arguments -s -S \\"]
    for row in SETTINGS:
        for flag in row.flags:
            text = row.help.replace("'", "").replace("[", "(").replace("]", ")").replace(":", " -").replace("`", "")
            repeat = "*" if row.shape == "list" else ""
            lines.append(f"  '{repeat}{flag}[{text}]{_zsh_values(row)}' \\")
    lines.append("  '*:word for claude:_files'")
    return "\n".join(lines) + "\n"


def _zsh_values(row: Setting) -> str:
    if row.choices:
        return f":{row.key}:({' '.join(row.choices)})"
    if row.metavar == "NAME":
        return ":variable:_parameters -g '*export*'".replace("'", "")
    return ":path:_files" if row.metavar else ""


def fish_completion() -> str:
    """Return the completion for fish."""
    lines = ["# fish completion for claudebox; generated from the table of settings"]
    for row in SETTINGS:
        words = ["complete", "-c", "claudebox"]
        for flag in row.flags:
            words += ["-l", flag[2:]] if flag.startswith("--") else ["-s", flag[1:]]
        if row.choices:
            words += ["-x", "-a", f"'{' '.join(row.choices)}'"]
        elif row.metavar == "NAME":
            words += ["-x", "-a", "'(set -nx)'"]
        elif row.metavar:
            words.append("-r")
        text = row.help.replace("'", "").replace("`", "")
        lines.append(" ".join((*words, "-d", f"'{text}'")))
    return "\n".join(lines) + "\n"
