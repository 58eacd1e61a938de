"""Secrets in files of the project: where they are, and the same file without them.

Off the launch path: imported only where a file is named like a secret, or an address of git carries a password.
"""

from __future__ import annotations

import json
import os
import re

from claudebox.facts.model import Leak
from claudebox.files import read_small
from claudebox.tables.secret_patterns import VALUE_PREFIXES, name_looks_secret, value_looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT = 1 << 20
_MOST_FILES = 64
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


def examine(paths: tuple[str, ...]) -> tuple[Leak, ...]:
    """Return the files that hold secrets."""
    found: list[Leak] = []
    for path in paths[:_MOST_FILES]:
        content = read_small(path, limit=_LIMIT)
        name = os.path.basename(path).lower()
        if name.endswith(_BINARY) or content is None or b"\0" in content:
            if content != b"":
                found.append(Leak(path, (), b""))  # a key store, or too large to look at: nothing of it is shown
            continue
        text = content.decode("utf-8", "surrogateescape")
        lines = sorted({number for number, _ in _lines(text, name)})
        if lines:
            shadow = _shadow(text, name, set(lines)).encode("utf-8", "surrogateescape")
            found.append(Leak(path, tuple(lines), shadow))
    return tuple(found)


def _lines(text: str, name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that hold a secret, by the names and shapes that claudebox knows."""
    document = _document(text)
    if document is not None:
        values = [json.dumps(value)[1:-1] for value in _masked(document)]
        yield from (
            (number, line) for number, line in enumerate(text.split("\n"), 1) if any(value in line for value in values)
        )
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


def _shadow(text: str, name: str, marked: set[int]) -> str:
    """Return the text with the same keys and harmless values."""
    document = _document(text)
    if document is not None:
        return json.dumps(_plain(document), indent=2) + "\n"
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


def _document(text: str) -> object:
    """Return what JSON says, None if it is none."""
    if not text.lstrip().startswith(("{", "[{", "[\n")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _masked(node: object, key: str = "") -> Iterator[str]:
    """Yield the strings that a shadow replaces."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _masked(value, str(name))
    elif isinstance(node, list):
        for value in node:
            yield from _masked(value, key)
    elif isinstance(node, str) and _plain(node, key) != node:
        yield node


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
    inner, rest = (raw[1:end], raw[end:]) if quote else re.match(r"^(.*?)(\s+#.*|[,;]?\s*)$", raw).groups()  # type: ignore[union-attr]
    if _PASSWORD.search(inner):
        inner = _PASSWORD.sub(lambda match: match[1] + _shape(match[2]) + match[3], inner)
    elif not _HARMLESS.match(inner) or (always and len(inner) >= 4 and not inner.startswith(("http://", "https://"))):
        inner = _shape(inner)
    return quote + inner + rest, ""


def _shape(value: str) -> str:
    """Return characters of the same kinds; a prefix that tells the kind of secret stays."""
    prefix = next((start for start in VALUE_PREFIXES if value.startswith(start)), "")
    rest = value[len(prefix) :]
    return prefix + "".join(
        "0" if char.isdigit() else "X" if char.isupper() else "x" if char.isalpha() else char for char in rest
    )


def _plain(node: object, key: str = "") -> object:
    if isinstance(node, dict):
        return {name: _plain(value, str(name)) for name, value in node.items()}
    if isinstance(node, list):
        return [_plain(value, key) for value in node]
    if isinstance(node, str) and node:
        if _PEM.search(node):
            return re.sub(r"(?m)^(?!-----).*$", lambda match: _shape(match[0]), node)
        if _PASSWORD.search(node):
            return _PASSWORD.sub(lambda match: match[1] + _shape(match[2]) + match[3], node)
        if (name_looks_secret(key) and not _HARMLESS.match(node)) or value_looks_secret(node) or _RANDOM.match(node):
            return _shape(node)
    return node
