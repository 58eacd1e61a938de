"""Secrets in files of the project: where they are, and the same file without them.

Off the launch path: imported only where a file is named like a secret, or an address of git carries a password. Every
step is linear in the size of a file, and none recurses: who wrote it may want the launcher to hang (E16).
"""

from __future__ import annotations

import json
import os
import re

from claudebox.base.files import read_small
from claudebox.host.records import SecretFile
from claudebox.tables.secrets import VALUE_PREFIXES, name_looks_secret, value_looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


_LIMIT = 1 << 20
_MOST_BYTES = 16 << 20  # of all files together; what is beyond is taken for a secret as a whole
_BINARY = (".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".ppk")
_PAIR = re.compile(r"""^(\s*(?:export\s+)?["']?)([\w.\-/:@]+?)(["']?\s*(?:=|:(?=[\s"']|$))\s*)(.*)$""", re.ASCII)
_PASSWORD = re.compile(r"(://[^/\s:@]*:)([^/\s@]+)(@)")
_TOKEN = re.compile(r"https?://[^/\s:@]{20,}@")  # instead of the name of a user
_USER = re.compile(r"(?<=://)[^/\s@]+@")
_PEM = re.compile(r"-----(BEGIN|END) [A-Z ]*PRIVATE KEY-----")
_HARMLESS = re.compile(
    r"(?i)^(|[0-9]{1,6}|true|false|yes|no|on|off|null|none|debug|info|warn(ing)?|error|trace|dev(elopment)?|"
    r"prod(uction)?|test(ing)?|staging|local|localhost|utf-?8|[a-z0-9.\-]*:[0-9]{1,5}|\.{0,2}/[\w./\-]*|"
    r"https?://[^@?]*|<[^>]*>|\$\{?\w+\}?|change_?me|x+|\*+)$"
)
_RANDOM = re.compile(r"^(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9+/=_\-]{20,}$")
_JSON = re.compile(r'"(?:[^"\\]|\\.)*+"?|[{}\[\],:]', re.DOTALL)  # strings, closed or not, and what stands between them


def examine(paths: tuple[str, ...]) -> tuple[SecretFile, ...]:
    """Return the files that hold secrets."""
    found: list[SecretFile] = []
    left = _MOST_BYTES
    for path in paths:
        name = os.path.basename(path).lower()
        try:
            status = os.lstat(path)
        except OSError:  # it has gone
            continue
        identity = (status.st_dev, status.st_ino)
        content = read_small(path, limit=_LIMIT) if left > 0 else None
        if name.endswith(_BINARY) or content is None or b"\0" in content:
            if content != b"":
                # A key store, or too large to look at: nothing of it is shown.
                found.append(SecretFile(path, (), b"", identity))
            continue
        left -= len(content)
        text = content.decode("utf-8", "surrogateescape")
        lines = tuple(sorted({number for number, _ in _lines(text, name)}))
        if lines:
            masked = _masked_copy(text, name, set(lines)).encode("utf-8", "surrogateescape")
            found.append(SecretFile(path, lines, masked, identity))
    return tuple(found)


def _lines(text: str, name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that hold a secret, by the names and shapes that claudebox knows."""
    if _is_json(text):
        number, last = 1, 0
        for start, end, masked in _strings(text):
            if masked != text[start:end]:
                number, last = number + text.count("\n", last, start), start
                yield number, ""
        return
    for number, line in enumerate(text.split("\n"), 1):
        if "PRIVATE KEY-----" in line and "BEGIN" in line:
            yield number, line
            continue
        if _PASSWORD.search(line) or (name == "config" and (_TOKEN.search(line) or "extraheader" in line.lower())):
            yield number, line
            continue
        pair = _PAIR.match(line)
        if pair is None or (line.lstrip().startswith(("#", ";", "//")) and "authToken" not in line):
            if re.search(r"\bpassword\s+\S+", line) and "netrc" in name:
                yield number, line
            continue
        value = pair[4].strip().rstrip(",;").strip("\"'")
        named = name_looks_secret(pair[2].rsplit(":", 1)[-1]) and len(value) >= 4 and not _HARMLESS.match(value)
        # In a file that is named like a secret, whatever looks random is one; the values of git are names and digests.
        random = name != "config" and _RANDOM.match(value) and not _HARMLESS.match(value)
        if named or random or value_looks_secret(value) or ("htpasswd" in name and value):
            yield number, line


def _masked_copy(text: str, name: str, marked: set[int]) -> str:
    """Return the text with the same keys and harmless values."""
    if _is_json(text):
        pieces: list[str] = []
        last = 0
        for start, end, masked in _strings(text):
            pieces += text[last:start], masked
            last = end
        return "".join((*pieces, text[last:]))
    everything = name.startswith(".env") or name.endswith(".env") or ".tfvars" in name
    rows: list[str] = []
    until = ""  # the quote or the PEM line that ends a value of several lines
    for number, line in enumerate(text.split("\n"), 1):
        if until:
            end = line.find(until)
            rows.append(
                _shape(line) if end < 0 else (line if until.startswith("-") else _shape(line[:end]) + line[end:])
            )
            until = "" if end >= 0 else until
            continue
        pem = _PEM.search(line)
        if pem and pem[1] == "BEGIN":
            tail = line[pem.end() :]
            rows.append(line[: pem.end()] + re.sub(r"[A-Za-z0-9+/=]{8,}", lambda match: _shape(match[0]), tail))
            until = "" if "-----END" in tail else "-----END"
            continue
        if name == "config":
            rows.append(_git_line(line) if number in marked else line)
            continue
        pair = _PAIR.match(line)
        if pair is None:
            rows.append(
                re.sub(r"(\bpassword\s+)(\S+)", lambda m: m[1] + _shape(m[2]), line) if number in marked else line
            )
            continue
        if number in marked or (everything and not line.lstrip().startswith("#")):
            value, until = _value(pair[4], always=number in marked)
            rows.append(pair[1] + pair[2] + pair[3] + value)
        else:
            rows.append(line)
    return "\n".join(rows)


def _is_json(text: str) -> bool:
    if not text.lstrip().startswith(("{", "[{", "[\n")):
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    except RecursionError:  # nested deeper than any program would read
        return True
    return True


def _strings(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield where each value is that is a string, and what is shown in its place; a list inherits its key."""
    keys = [""]
    before: re.Match[str] | None = None  # a string that may turn out to be a key
    for token in _JSON.finditer(text):
        mark = token[0][0]
        if before is not None and mark != ":":
            yield before.start(), before.end(), _masked(before[0], keys[-1])
        if before is not None and mark == ":":
            keys[-1] = _decoded(before[0])
        elif mark in "{[":
            keys.append(keys[-1])
        elif mark in "}]" and len(keys) > 1:
            keys.pop()
        before = token if mark == '"' else None
    if before is not None:
        yield before.start(), before.end(), _masked(before[0], keys[-1])


def _decoded(token: str) -> str:
    try:
        value: str = json.loads(token)
    except ValueError:
        return token
    return value


def _masked(token: str, key: str) -> str:
    value = _decoded(token)
    plain = _plain(value, key)
    return token if plain == value else json.dumps(plain)


def _git_line(line: str) -> str:
    if "extraheader" in line.lower():
        return line.partition("=")[0] + "= "
    without = _USER.sub("", line)
    pair = _PAIR.match(line)
    if without != line or pair is None:
        return without
    return pair[1] + pair[2] + pair[3] + _value(pair[4], always=True)[0]


def _value(raw: str, *, always: bool) -> tuple[str, str]:
    """Return a harmless value, and the quote that it still waits for."""
    quote = raw[:1] if raw[:1] in ('"', "'") else ""
    end = raw.find(quote, 1) if quote else -1
    if quote and end < 0:
        return quote + _shape(raw[1:]), quote
    inner, rest = (raw[1:end], raw[end:]) if quote else _without_comment(raw)
    if _PASSWORD.search(inner):
        inner = _PASSWORD.sub(lambda match: match[1] + _shape(match[2]) + match[3], inner)
    elif not _HARMLESS.match(inner) or (always and len(inner) >= 4 and not inner.startswith(("http://", "https://"))):
        inner = _shape(inner)
    return quote + inner + rest, ""


def _without_comment(raw: str) -> tuple[str, str]:
    """Return a value without quotes, and what follows it: a comment, or blanks and a comma."""
    at = raw.find("#")
    while at > 0 and not raw[at - 1].isspace():
        at = raw.find("#", at + 1)
    inner = raw[:at].rstrip() if at > 0 else raw.rstrip().removesuffix(",").removesuffix(";")
    return inner, raw[len(inner) :]


def _shape(value: str) -> str:
    """Return characters of the same kinds; a prefix that tells the kind of secret stays."""
    prefix = next((start for start in VALUE_PREFIXES if value.startswith(start)), "")
    rest = value[len(prefix) :]
    return prefix + "".join(
        "0" if char.isdigit() else "X" if char.isupper() else "x" if char.isalpha() else char for char in rest
    )


def _plain(value: str, key: str) -> str:
    """Return what is shown in place of a value of this name."""
    if _PEM.search(value):
        return re.sub(r"(?m)^(?!-----).*$", lambda match: _shape(match[0]), value)
    if _PASSWORD.search(value):
        return _PASSWORD.sub(lambda match: match[1] + _shape(match[2]) + match[3], value)
    if (name_looks_secret(key) and not _HARMLESS.match(value)) or value_looks_secret(value) or _RANDOM.match(value):
        return _shape(value)
    return value
