"""Printing and asking. Everything that claudebox prints goes through one sanitiser.

Names and paths come from hostile repositories: no escape sequence in one of them may reach the terminal (B12-B14).
"""

from __future__ import annotations

import os

from claudebox.base.errors import DECLINED, FAILED, ClaudeboxError, describe_failure
from claudebox.base.files import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


# Printable by Unicode's rules, and still invisible or misleading.
DECEIVING = frozenset(
    (*"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0\u2800",
     *map(chr, range(0xFE00, 0xFE0F)), *map(chr, range(0xE0100, 0xE01F0)))  # selectors; the 16th makes emoji
)  # fmt: skip
_LONGEST = 1500  # characters of an error
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


def clean(text: str) -> str:
    """Return the text with everything but plainly printable characters shown as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() and char not in DECEIVING else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8 (surrogateescape)
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def shorten(text: str, width: int = 120) -> str:
    """Return cleaned text of at most `width` characters."""
    text = clean(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def quote(path: str) -> str:
    return f"`{shorten(path, 300)}`"


def list_some(texts: Sequence[str], most: int) -> str:
    """Return the first `most` texts, and how many more there are."""
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def paint(text: str, style: str, *, descriptor: int = 2) -> str:
    """Return the text in a style, if the terminal has one and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or is_dumb() or not os.isatty(descriptor):
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def columns(otherwise: int = 100) -> int:
    """Return the width of the terminal on standard error."""
    try:
        return os.get_terminal_size(2).columns or otherwise
    except OSError:
        return otherwise


def lay_out(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield labels with texts beside them, wrapped to the terminal."""
    for label, text in rows:
        yield from wrap(text, f"  {label} ")


def wrap(text: str, start: str = "") -> Iterator[str]:
    """Yield a text behind its start, wrapped to the terminal; what is quoted can be copied from one line."""
    width = columns(0)  # no terminal: whole lines
    line, indent = start, " " * _visible(start)
    for number, word in enumerate(_unbroken(text)):
        if number and width and _visible(line) + 1 + _visible(word) > width:
            yield line
            line = indent
        elif number:
            line += " "
        line += word
    yield line


def _unbroken(text: str) -> Iterator[str]:
    """Yield the words of a text, with `quoted words` as one."""
    quoted: list[str] = []
    for word in text.split(" "):
        quoted.append(word)
        if " ".join(quoted).count("`") % 2 == 0:
            yield " ".join(quoted)
            quoted = []
    yield from quoted  # a quote that never ends


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), most: int = 60) -> Iterator[str]:
    """Yield rows in columns, cleaned; `right`: columns set flush right. The last one may exceed `most`."""
    cells = [[*(shorten(cell, most) for cell in row[:-1]), clean(row[-1])] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (
            f"{cell:>{width}}" if column in right else f"{cell:<{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(padded).rstrip()


def _visible(text: str) -> int:
    """Return the width of a painted text, at one column per character."""
    return sum(len(part.partition("m")[2] if number else part) for number, part in enumerate(text.split("\x1b[")))


def is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


def in_tmux() -> bool:
    return bool(os.environ.get("TMUX"))


def is_far() -> bool:
    """Return whether the terminal is behind ssh."""
    return "SSH_CONNECTION" in os.environ


def write(lines: Iterable[str], *, descriptor: int = 2) -> None:
    """Write lines that their renderer has already cleaned; only on standard output is a failure one of the command."""
    data = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
    try:
        write_all(descriptor, data)
    except BrokenPipeError:  # the reader has gone
        pass
    except OSError as error:
        if descriptor != 2:
            raise ClaudeboxError(f"the output cannot be written: {error.strerror}") from None


def report(error: ClaudeboxError) -> None:
    # One line each, whatever a name in it contains, and however long it is.
    messages = [shorten(message, _LONGEST) for message in (error.message, *error.more)]
    lines = [line for message in messages for line in _label("error:", "red", message)]
    if error.hint:
        lines += ["", *_label("hint:", "bold", error.hint)]
    write(lines)


def run_guarded(action: Callable[[], int]) -> int:
    """Run a command and return its exit status; a failure is reported and becomes a status."""
    try:
        return action()
    except ClaudeboxError as error:
        report(error)
        return error.status
    except KeyboardInterrupt:
        return DECLINED
    except (OSError, MemoryError) as error:
        report(describe_failure(error))
        return FAILED


def warn(message: str) -> None:
    write(_label("warning:", "yellow", message))


def warning(message: str) -> str:
    """Return a warning as it is printed."""
    return "\n".join(_label("warning:", "yellow", message))


def note(message: str) -> None:
    """Print a line that is neither error nor warning."""
    write(_label("claudebox:", "", message))


def _label(label: str, style: str, text: str) -> Iterator[str]:
    """Yield a message behind its label, cleaned and wrapped; its own lines stay lines."""
    for number, line in enumerate(text.split("\n")):
        yield from wrap(clean(line), "" if number else f"{paint(label, style) if style else label} ")


def confirm(question: str, *, default: bool) -> bool:
    answer = ask("\n".join(wrap(question)))
    return answer.strip().lower() in (b"y", b"yes") or (default and answer == b"\n")


def ask(question: str) -> bytes:
    """Prompt on /dev/tty, not standard input (UX-02); return b"" if it was closed."""
    import termios

    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        raise ClaudeboxError("there is no terminal to ask on", hint="add `-y` to go on without asking") from None
    answer = b""
    try:
        termios.tcflush(terminal, termios.TCIFLUSH)  # discard what was typed before the question
        os.write(terminal, question.encode())
        answer = os.read(terminal, 1024)
        return answer
    finally:
        if not answer.endswith(b"\n"):  # Ctrl+C or Ctrl+D
            os.write(terminal, b"\n")
        os.close(terminal)
