"""The text of a file with fake values: the same keys, the same structure.

One reading of lines serves every format: `NAME=VALUE` and `NAME: VALUE` with the quotes, comments, lists and braces of
dotenv, INI, properties, YAML, TOML, HCL and JSON. What it cannot tell apart counts as a value. Nothing here recurses,
and each step is linear in the size of a file: who wrote it may want the launcher to hang (E16).
"""

from __future__ import annotations

from claudebox.host import secret_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.host.secret_values import Strictness
    from claudebox.tables.secret_files import FileKind


_COMMENTS = ("#", ";", "//", "--", "/*", "!")
_COMMANDS = ("export ", "set ", "setenv ")
_QUOTES = "\"'`"
_BLANKS = " \t\r\f\v"
_BARE_WORDS = frozenset(("machine", "login", "password", "account", "default", "macdef", "localhost", "*"))
_PUNCTUATION = frozenset(" \t\r,;:{}[]()\"'")
_BETWEEN_WORDS = frozenset(" \t\r\n\f\v,;:=/@\"'`{}[]()<>&?")
# Texts of some programs, and the names below which everything is a secret in them.
_PROGRAMS = {"kind: Secret": ("data", "stringData"), '"terraform_version"': ("result", "value")}
_NAMING = ("name", "id", "username", "url", "host")  # tags whose text is no secret
_NAMES = ("key", "name", "id")  # attributes that name what `value` is
_NAMING_IN_PLIST = ("key", "date")
_CONTAINERS = ("value", "values", "default")  # what is below such a name is what the name above says
_PROSE = 3  # words of a comment after `name: `, which are no value then
_PORT = 5  # digits


def mask_text(text: str, kind: FileKind) -> str:
    """Return the text with fake values, each as long as the value is."""
    return _Masker(text, kind).run()


def find_lines(text: str, masked: str) -> tuple[int, ...]:
    """Return the numbers of the lines that differ."""
    pairs = enumerate(zip(text.split("\n"), masked.split("\n"), strict=True), 1)
    return tuple(number for number, (line, shown) in pairs if line != shown)


def find_values(text: str, masked: str) -> dict[str, int]:
    """Return the words of a text that its masked copy does not show, each with the line where it is first."""
    found: dict[str, int] = {}
    start, line = 0, 1
    for at in range(len(text) + 1):
        if at == len(text) or text[at] in _BETWEEN_WORDS:
            if text[start:at] != masked[start:at]:
                found.setdefault(text[start:at], line)
            start = at + 1
            line += text[at : at + 1] == "\n"
    return found


class _Level:
    """A name that other values are below: of a line that is indented less, or in front of a brace."""

    __slots__ = ("indent", "tells", "tells_of_all")

    def __init__(self, indent: int, name: str, above: _Level | None, *, tells_of_all: bool = False) -> None:
        around = above is not None and above.tells_of_all
        unnamed = (not name or name in _CONTAINERS) and above is not None and above.tells  # a list in a list
        self.indent = indent
        self.tells_of_all: bool = around or tells_of_all or secret_values.tells_of_all(name)
        self.tells: bool = unnamed or self.tells_of_all or secret_values.tells(name)


class _Masker:
    """Reads a text once, line by line."""

    def __init__(self, text: str, kind: FileKind) -> None:
        self._kind, self._text, self._lines = kind, text, text.split("\n")
        self._bare = kind == "bare"
        self._keeps_rest = self._bare and "-----BEGIN " in text  # beside keys, such files hold certificates
        self._usual: Strictness = "random" if kind == "mixed" else "plain"
        self._telling = [name for mark, names in _PROGRAMS.items() if mark in text for name in names]
        self._is_markup = text.lstrip("\ufeff \t\r\n")[:1] == "<" and text.rstrip()[-1:] == ">"
        self._tag, self._in_tag = "", False
        self._naming = _NAMING_IN_PLIST if "<plist" in text else _NAMING
        self._ends = {line.strip() for line in self._lines} - {""} if "<<" in text else frozenset()
        self._levels: list[_Level] = []  # by indentation
        self._braces: list[_Level] = []  # that are open
        self._quote = ""
        self._quoted: Strictness = self._usual  # of a value that goes on in the next line
        self._unpaired = ""  # quotes that do not come again
        self._in_key = False  # between BEGIN and END
        self._next = 0  # where the next line begins

    def run(self) -> str:
        shown: list[str] = []
        skipped = 0
        for number, line in enumerate(self._lines):
            self._next += len(line) + 1
            if skipped:
                skipped -= 1
                shown.append(line)
                continue
            if "-----BEGIN " in line and not self._in_key:
                skipped = self._count_public(number)
            shown.append("\r".join(map(self._mask_line, line.split("\r"))))
        return "\n".join(shown)

    def _count_public(self, number: int) -> int:
        """Return how many lines of a certificate or a public key follow its first one."""
        if "PRIVATE" in self._lines[number] or "SECRET" in self._lines[number] or "-----END" in self._lines[number]:
            return 0
        at = number + 1
        while at < len(self._lines) and _BASE64.issuperset(self._lines[at].strip().rstrip("=")):
            at += 1
        return at - number if at < len(self._lines) and "-----END " in self._lines[at] else 0

    def _mask_line(self, line: str) -> str:
        if self._in_key:
            self._in_key = "-----END" not in line
            return secret_values.fake(line)
        begin = line.find("-----BEGIN ")
        if begin >= 0 and "-----END" not in line and ("PRIVATE" in line or "SECRET" in line or "Static" in line):
            self._in_key = True
            name, start = self._find_name(line, _skip(line, 0))
            start = start if name is not None and start <= begin else 0
            return line[:start] + secret_values.fake(line[start:begin]) + secret_values.fake(line[begin:])
        if self._quote:  # or somebody else's quote stands open, and this line means what it says by itself
            return _combine(line, self._go_on(line), _Masker(line, self._kind).run())
        if self._keeps_rest:
            return line
        if self._is_markup:
            shown = "".join(self._mask_markup(line))
            return shown if "<" in line or ">" in line else _combine(line, shown, self._mask_block(line))
        if self._bare:
            start = _skip(line, 0)
            start += line.startswith("#", start)
            text = line[start:].rstrip()
            *parts, last = _split(text, " \t:")
            final = secret_values.fake(last) if last.isdigit() else _mask_bare(last)  # no port is the last word
            return line[:start] + "".join(map(_mask_bare, parts)) + final + line[start + len(text) :]
        return self._mask_flow(line, 0) if self._braces else self._mask_block(line)

    def _mask_markup(self, line: str) -> Iterator[str]:
        """Mask texts between tags, and values of attributes; in a file of secrets only names are shown as words."""
        at = 0
        while at < len(line):
            if not self._in_tag:
                end = line.find("<", at)
                end = len(line) if end < 0 else end
                text = line[at:end].rstrip()
                is_secret = self._usual == "plain" or secret_values.tells(self._tag)
                strictness = "nothing" if is_secret and self._tag not in self._naming else self._usual
                yield "-->".join(secret_values.mask(part, strictness) for part in text.split("-->"))  # of a comment
                yield line[at + len(text) : end]
                self._in_tag = end < len(line)
                at = end
                continue
            end = line.find(">", at)
            end = len(line) if end < 0 else end
            tag = line[at:end]
            if tag.startswith("<") and tag[1:2] not in ("/", "!", "?", ""):
                self._tag = tag[1:].split(None, 1)[0].rstrip("/")
            yield from self._mask_attributes(tag)
            yield line[end : end + 1]
            self._in_tag = end == len(line)
            at = end + 1

    def _mask_attributes(self, tag: str) -> Iterator[str]:
        start, quote, name, tells = 0, "", "", False
        for at, char in enumerate(tag):
            if not quote and char in "\"'":
                quote, name = char, tag[start:at].rstrip(" =").rpartition(" ")[2]
                yield tag[start : at + 1]
                start = at + 1
            elif char == quote:
                yield self._mask_attribute(name, tag[start:at], tells=tells)
                tells = tells or (name in _NAMES and secret_values.tells(tag[start:at]))
                start, quote = at, ""
        yield self._mask_attribute(name, tag[start:], tells=tells) if quote else tag[start:]

    def _mask_attribute(self, name: str, value: str, *, tells: bool) -> str:
        is_value = name in _CONTAINERS and (tells or self._usual == "plain")
        is_secret = is_value or (name not in _NAMES and secret_values.tells(name))
        return secret_values.mask(value, "nothing" if is_secret else self._usual)

    def _go_on(self, line: str) -> str:
        """Mask a line of a value in quotes that began in an earlier one."""
        end = line.find(self._quote)
        if end < 0:
            return secret_values.mask(line, self._quoted)
        after = end + len(self._quote)
        self._quote = ""
        return secret_values.mask(line[:end], self._quoted) + line[end:after] + self._mask_flow(line, after)

    def _mask_block(self, line: str) -> str:
        """Mask a line outside of braces."""
        start, is_comment, is_item = _skip(line, 0), False, False
        while mark := next((mark for mark in _COMMENTS if line.startswith(mark, start)), ""):
            start, is_comment = _skip(line, start + len(mark)), True
        while line[start : start + 2] == "- ":
            start, is_item = _skip(line, start + 2), True
        start += next((len(word) for word in _COMMANDS if line.startswith(word, start)), 0)
        if (
            not is_comment
            and line[start : start + 1] == "["
            and secret_values.is_name(line[start:].strip().strip("[]"))
        ):
            return line  # a section
        name, end = self._find_name(line, start)
        if name is None:
            return secret_values.mask_prose(line) if is_comment else self._mask_unnamed(line, start, is_item=is_item)
        if is_comment and line[end - 2 : end] != "=" and _is_prose(line[end:]) and line[end - 1] == ":":
            return secret_values.mask_prose(line)
        while self._levels and not is_comment and self._levels[-1].indent >= start:
            self._levels.pop()
        above = self._levels[-1] if self._levels else None
        level = _Level(start, name, above, tells_of_all=name in self._telling)
        if not is_comment:
            self._levels.append(level)
        return line[:end] + self._mask_value(line, end, level)

    def _find_name(self, line: str, start: int) -> tuple[str | None, int]:
        """Return the name with which a line begins, and where its value does."""
        if line[start : start + 1] in _QUOTES and line[start : start + 1]:
            close = _find_close(line, start)
            after = _skip(line, close + 1)
            if close > 0 and line[after : after + 1] in (":", "="):
                return line[start + 1 : close], after + 1 + line.startswith("=>", after)
            return None, start
        for at in range(start, min(len(line), start + secret_values.LONGEST_NAME)):
            if line[at] == "=" or (line[at] == ":" and self._is_colon(line, at)):
                name = line[start:at].strip()
                is_padding = line[at] == "=" and not line[at:].strip("= \t\r\"',;")
                if secret_values.is_name(name) and (not is_padding or secret_values.is_plain(name)):
                    return name, at + 1 + line.startswith("=>", at)
                return None, start
        words = line[start:].split()  # `password hunter2`, as properties may have it
        is_named = len(words) == 2 and secret_values.is_name(words[0]) and secret_values.tells(words[0])
        return (words[0], start + len(words[0])) if is_named else (None, start)

    def _is_colon(self, line: str, at: int) -> bool:
        after = line[at + 1 : at + 2]
        is_usual = not after or after in f"{_BLANKS}{_QUOTES}" or (self._usual == "random" and after != "/")
        return is_usual or secret_values.tells(line[:at])

    def _mask_unnamed(self, line: str, start: int, *, is_item: bool) -> str:
        """Mask a line without a name: an item of a list, or one of the lines of a value."""
        while self._levels and self._levels[-1].indent > start - 2 * is_item:
            self._levels.pop()
        level = self._levels[-1] if self._levels else None
        if level is not None and not is_item and level.indent >= start:
            level = None
        if level is None and self._usual == "plain" and len(line[start:].split()) == 1 and line[start] not in "{[":
            return line[:start] + secret_values.mask(
                line[start:], "nothing"
            )  # a token without a name, or with that of a user
        return line[:start] + self._mask_flow(line, start, level)

    def _mask_value(self, line: str, start: int, level: _Level) -> str:
        """Mask what follows a name, outside of braces."""
        at = _skip(line, start)
        char = line[at : at + 1]
        strictness: Strictness = "nothing" if level.tells else self._usual
        if char and char in _QUOTES:
            return line[start:at] + self._mask_flow(line, at, level)
        if char and char in "{[" and line[at : at + 2] != "{{":
            return line[start:at] + self._mask_flow(line, at, level)
        end = next((place for place in range(at, len(line)) if line[place] == "#" and line[place - 1] in _BLANKS), None)
        value = line[at:end].rstrip(f"{_BLANKS},;")
        word = value[2:].lstrip("-~").strip("\"'") if value.startswith("<<") else ""
        if word in self._ends:  # lines up to this word
            self._quote, self._quoted = word, strictness
            return line[start:]
        rest = line[at + len(value) : end]
        comment = self._mask_block(line[end:]) if end is not None else ""  # some programs know none
        return line[start:at] + secret_values.mask(value, strictness) + rest + comment

    def _mask_flow(self, line: str, start: int, outer: _Level | None = None) -> str:
        """Mask from here on: words, texts in quotes, and braces with names in them."""
        shown: list[str] = []
        level = self._braces[-1] if self._braces else outer
        tells = level is not None and level.tells
        can_be_name, name, at = bool(self._braces), "", start
        while at < len(line):
            char = line[at]
            strictness: Strictness = "nothing" if tells else self._usual
            if char in "{[":
                level = _Level(0, name, level, tells_of_all=name in self._telling)
                self._braces.append(level)
                tells, can_be_name, name, end = level.tells, True, "", at + 1
            elif char in "}],":
                if char != "," and self._braces:
                    self._braces.pop()
                level = self._braces[-1] if self._braces else outer
                tells, can_be_name, name, end = level is not None and level.tells, bool(self._braces), "", at + 1
            elif char in _QUOTES:
                end = self._find_end(line, at, strictness)
                after = _skip(line, end)
                if can_be_name and line[after : after + 1] in (":", "=") and line[after : after + 1]:
                    name, end = line[at + 1 : end - 1], after + 1
                    tells, can_be_name = self._tells(name, level), False
                else:
                    closed = end - 1 if end - 1 > at and line[end - 1] == char else end
                    shown.append(char + self._mask_quoted(line[at + 1 : closed], char, name, level, strictness))
                    shown.append(line[closed:end])
                    at = end
                    continue
            elif char in _BLANKS:
                end = _skip(line, at)
            elif line.startswith(("#", "//", "/*"), at) and (at == start or line[at - 1] in _BLANKS):  # a comment
                tells, can_be_name, name, end = False, bool(self._braces), "", at + 1 + (char == "/")
            else:
                end, word_name = self._find_word(line, at, can_be_name=can_be_name)
                if word_name is not None:
                    name, can_be_name = word_name, False
                    tells = self._tells(name, level)
                else:
                    shown.append(secret_values.mask(line[at:end], strictness))
                    at, can_be_name = end, False
                    continue
            shown.append(line[at:end])
            at = end
        return "".join(shown)

    def _mask_quoted(self, text: str, quote: str, name: str, level: _Level | None, strictness: Strictness) -> str:
        if quote == '"' or text.lstrip()[:1] not in ("{", "["):
            return secret_values.mask(text, strictness, escaped=quote == '"')
        inner = _Masker(text, self._kind)  # JSON; the same quotes cannot be in it
        inner._braces = [_Level(0, name, level)]
        return inner.run()

    def _tells(self, name: str, level: _Level | None) -> bool:
        above = level is not None and (level.tells_of_all or (level.tells and name in _CONTAINERS))
        return above or name in self._telling or secret_values.tells(name)

    def _find_word(self, line: str, start: int, *, can_be_name: bool) -> tuple[int, str | None]:
        """Return where words without quotes end, or where a name with its mark does."""
        for at in range(start, len(line)):
            char = line[at]
            if char in ",{}[]" or (char in _QUOTES and not line[at - 1].isalnum()):
                return max(at, start + 1), None
            if can_be_name and char in ":=" and at - start <= secret_values.LONGEST_NAME:
                after = line[at + 1 : at + 2]
                is_mark = char == "=" or not after or after in f"{_BLANKS}{_QUOTES}{{["
                if is_mark and secret_values.is_name(line[start:at].strip()):
                    return at + 1, line[start:at].strip()
        return len(line), None

    def _find_end(self, line: str, start: int, strictness: Strictness) -> int:
        """Return where a text in quotes ends; the next lines may be its rest."""
        close = _find_close(line, start)
        if close > 0:
            return close + 1
        quote = line[start]
        if not self._braces and quote not in self._unpaired:
            if self._text.find(quote, self._next) >= 0:
                self._quote, self._quoted = quote, strictness
            else:
                self._unpaired += quote
        return len(line)


_BASE64 = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/")


def _combine(line: str, one: str, other: str) -> str:
    """Return what neither of two readings masks, and fake characters for the rest."""
    return "".join(second if first == char else first for char, first, second in zip(line, one, other, strict=True))


def _skip(line: str, at: int) -> int:
    """Return where the blanks end."""
    while at < len(line) and line[at] in _BLANKS:
        at += 1
    return at


def _find_close(line: str, start: int) -> int:
    """Return where the quote at a place is closed, -1 if it is not; a backslash counts in double quotes only."""
    quote, at = line[start], start + 1
    while True:
        at = line.find(quote, at)
        if at < 0 or quote != '"':
            return at
        back = at - 1
        while line[back] == "\\":
            back -= 1
        if (at - back) % 2:
            return at
        at += 1


def _split(text: str, marks: str) -> list[str]:
    """Return the parts between marks, and the marks."""
    found, start = [], 0
    for at, char in enumerate(text):
        if char in marks:
            found += [text[start:at], char]
            start = at + 1
    return [*found, text[start:]]


def _mask_bare(word: str) -> str:
    is_shown = not word or word in " \t:" or word in _BARE_WORDS or (word.isdigit() and len(word) <= _PORT)
    return word if is_shown else secret_values.fake(word)


def _is_prose(text: str) -> bool:
    return len(text.split()) >= _PROSE and secret_values.is_plain(text.strip())
