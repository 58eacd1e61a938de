"""Whether a value is a secret, and the fake one in its place.

A value under a telling name is a secret unless it says nothing. Any other one is judged by its look: in a file of
secrets it has to be plain to be shown, in other settings it has to look random to be hidden. Addresses are shown
without what may be secret in them.

Every launch in a project with such files runs this: linear string operations, without `re`, which costs 6 ms.
"""

from __future__ import annotations

from claudebox.tables.secrets import VALUE_PREFIXES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    # nothing: whatever says something is a secret; plain: what is not plain; random: what looks random
    Strictness = Literal["nothing", "plain", "random"]


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdefABCDEF")
_WORD = frozenset(f"{_LETTERS}{_LETTERS.upper()}0123456789")
_RANDOM = _WORD | frozenset("+/_-")
_FEW = 5  # digits of a port
LONGEST_NAME = 120  # characters
_SHORT = 4  # characters of the shortest secret

# Names.

_TELLING = frozenset((
    "apikey", "auth", "authorization", "authtoken", "bearer", "connectionstring", "cred", "creds", "credential",
    "credentials", "dbpass", "dsn", "extraheader", "hmac", "jwt", "key", "keys", "mailpass", "masterauth", "mnemonic",
    "otp", "pass", "passcode", "passwd", "password", "passwords", "passphrase", "passphrases", "pat", "pepper",
    "pgpass", "phrase", "pin", "pw", "pwd", "recovery", "requirepass", "rootpass", "salt", "secret", "secrets",
    "smtppass", "token", "tokens", "totp", "userpass",
    "contrasena", "contraseña", "kennwort", "mdp", "passe", "passwort", "senha",
))  # fmt: skip
_TELLING_ENDS = (
    "password", "passwd", "passphrase", "secret", "token", "tokens", "apikey", "apikeys", "accesskey", "secretkey",
    "privatekey", "masterkey", "authkey", "accountkey", "credentials", "pwd", "connectionstrings",
)  # fmt: skip
_COLLECTIONS = frozenset((  # everything below such a name is one
    "credentials", "keys", "passphrases", "passwords", "secrets", "strings", "tokens", "apikeys",
    "connectionstrings",
))  # fmt: skip
# `SESSION_DRIVER`, `TOKEN_TTL`, `PRIVATE_KEY_PATH`: their last word says that the value is something else.
_INNOCENT_ENDS = frozenset((
    "adapter", "age", "alg", "algorithm", "alias", "audience", "backend", "bean", "bits", "class", "client", "column",
    "config", "configuration", "converter", "count", "days", "decoder", "deserializer", "dir", "directory",
    "disabled", "domain", "driver", "email", "enabled", "encoder", "encoding", "endpoint", "engine", "env",
    "expiration", "expires", "expiry", "factory", "field", "file", "filter", "format", "generator", "group",
    "handler", "header", "host", "hostname", "hours", "id", "in", "index", "interval", "issuer", "iterations",
    "length", "level", "lifetime", "limit", "location", "manager", "mapper", "mapping", "max", "method", "min",
    "minutes", "mode", "ms", "name", "options", "param", "parameter", "path", "pattern", "policy", "pool", "port",
    "prefix", "properties", "property", "provider", "realm", "regex", "region", "required", "resolver", "rotation",
    "rounds", "samesite", "schema", "scope", "scopes", "seconds", "secure", "serializer", "server", "service",
    "settings", "size", "store", "strategy", "suffix", "table", "template", "timeout", "ttl", "type", "uri", "url",
    "usage", "user", "username", "validator", "version",
))  # fmt: skip
_OPEN_KEYS = frozenset(("cache", "composite", "max", "partition", "primary", "public", "publishable", "sort"))


def tells(name: str) -> bool:
    """Return whether a name says that its value is a secret."""
    words = split_name(name)
    if not words or words[-1] in _INNOCENT_ENDS or not _OPEN_KEYS.isdisjoint(words):
        return False
    is_connection = words[-2:-1] == ["connection"] and words[-1] in ("string", "strings")
    return is_connection or any(word in _TELLING or word.endswith(_TELLING_ENDS) for word in words)


def tells_of_all(name: str) -> bool:
    """Return whether a name says that everything below it is a secret."""
    words = split_name(name)
    return bool(words) and words[-1] in _COLLECTIONS and tells(name)


def split_name(name: str) -> list[str]:
    """Return the words of `AWS_SECRET_KEY`, `apiKey`, `spring.datasource.password`, in lower case."""
    words, start = [], 0
    for at in range(1, len(name) + 1):
        before, char = name[at - 1], name[at : at + 1]
        turn = before.islower() and char.isupper()
        if not char or turn or not char.isalpha() or not before.isalpha():
            if before.isalpha():
                words.append(name[start:at].lower())
            start = at
    return words


def is_name(text: str) -> bool:
    """Return whether this can be the name of a value, and is not a secret itself."""
    if not text or len(text) > LONGEST_NAME or "://" in text or text.startswith(VALUE_PREFIXES):
        return False
    if not set(text) <= _IN_NAMES:
        return False
    return not any(_is_random(word, _LONG_WORD) for word in text.replace("/", " ").replace(":", " ").split())


_IN_NAMES = _WORD | frozenset("_.-/:@$ *%?()[]")
_LONG_WORD = 16

# Values that say nothing.

_NOTHING = frozenset((
    "true", "false", "yes", "no", "on", "off", "null", "nil", "none", "undefined", "enabled", "disabled", "auto",
    "empty",
    # what installations begin with
    "admin", "changeit", "changeme", "change-me", "change_me", "default", "demo", "dev", "development", "docker",
    "dummy", "example", "fake", "foo", "guest", "local", "localhost", "minioadmin", "mysql", "pass", "password",
    "postgres", "postgresql", "rabbitmq", "redis", "root", "sample", "secret", "test", "testing", "todo", "user", "xxx",
    # words of scripts
    "direnv", "done", "dotenv", "else", "endif", "esac", "then",
    # what a thing of this name may be
    "array", "basic", "bearer", "cookie", "database", "digest", "file", "key", "lax", "ldap", "login", "memory",
    "oauth", "oauth2", "oidc", "optional", "plain", "required", "saml", "scram-sha-256", "session", "strict", "token",
))  # fmt: skip
_INSTEAD = tuple(
    f"{word}{mark}" for word in ("your", "change", "replace", "insert", "enter", "put", "example") for mark in "-_ "
)
# A reference to a value that stands elsewhere.
_REFERENCES = (
    "${",
    "$(",
    "<%",
    "{{",
    "%(",
    "<",
    "env(",
    "ENV[",
    "ENV.",
    "process.env",
    "op://",
    "classpath:",
    "vault:",
)


def _says_nothing(value: str) -> bool:
    """Return whether a value tells nothing, even under a telling name."""
    if len(value) < _SHORT or (len(set(value)) == 1 and value[0] in "xX*.-_") or value.lower() in _NOTHING:
        return True
    is_reference = value.startswith(_REFERENCES) or (value[0] == "$" and value.isupper())
    return (is_reference or value.lower().startswith(_INSTEAD) or _is_path(value)) and is_plain(value)


def _is_path(value: str) -> bool:
    return _is_place(value) or ("/" in value and value.rpartition(".")[2] in _FILE_ENDS)


_FILE_ENDS = ("pem", "key", "crt", "cer", "p12", "pfx", "jks", "json", "yml", "yaml", "txt", "toml", "pub", "conf")

# Plain values: words, numbers, hosts, paths, versions.

_BETWEEN = frozenset("._-/:,@=;*[]{}<>()$?&%|+ \t\"'")  # between the words of a plain value
_LONGEST_WORD, _LONGEST_CAPITALS, _LONGEST_NUMBER, _LONGEST_PLAIN = 20, 16, 13, 500
_VOWELS = frozenset("aeiouyAEIOUY")
_UNITS = frozenset((
    "ms", "s", "m", "min", "h", "d", "w", "y", "b", "k", "kb", "mb", "gb", "tb", "ki", "mi", "gi", "kib", "mib", "gib",
    "px", "em", "rem", "x", "th", "st", "nd", "rd", "fa", "g", "t",
))  # fmt: skip
_NUMBERED = frozenset((  # `utf8`, `us-east-1a`, `node20`, `sha256`
    "v", "utf", "utf8mb", "sha", "md", "hs", "rs", "es", "ps", "ipv", "s", "ec", "db", "web", "app", "node", "python",
    "py", "php", "java", "jdk", "mysql", "sqlite", "http", "h", "x", "amd", "arm", "aes", "base", "mp", "oauth", "tls",
    "tlsv", "ssl", "sslv", "q", "r", "t", "m", "c", "k", "n", "p", "e", "l", "d", "b", "i", "gpt", "host", "server",
    "redis", "worker", "shard", "zone", "eu", "us", "stage", "test", "dev", "key", "file", "xl", "xmx", "xms", "log",
))  # fmt: skip


def is_plain(value: str) -> bool:
    """Return whether a value is made of words, numbers and what stands between them, as no random secret is."""
    if len(value) > _LONGEST_PLAIN or any(word.startswith(VALUE_PREFIXES) for word in _split_tokens(value)):
        return False
    if _is_host(value) or _is_place(value):
        return True
    if not all(char.isalnum() or char in _BETWEEN for char in value):
        return False
    if value[:4].isdigit() and value[4:5] == "-":  # a time
        value = value.replace("T", " ").replace("Z", " ")
    return all(map(_is_plain_word, _split_words(value)))


def _is_plain_word(word: str) -> bool:
    if word.isalpha():
        return _is_spoken(word)
    if word.isdigit():
        return len(word) <= _LONGEST_NUMBER
    letters = word.rstrip("0123456789")
    if letters.isalpha():
        return letters.lower() in _NUMBERED and len(word) - len(letters) <= _FEW
    unit = word.lstrip("0123456789")
    if unit.isalpha():
        return unit.lower() in _UNITS and len(word) - len(unit) <= _LONGEST_NUMBER
    return False


def _is_spoken(word: str) -> bool:
    """Return whether letters are words: `localhost`, `HTTP`, `camelCase`."""
    if word.isupper():
        return len(word) <= _LONGEST_CAPITALS
    humps, start = 1, 0
    for at in range(1, len(word)):
        if word[at].isupper() and word[at - 1].islower():
            humps += 1
            if at - start > _LONGEST_WORD:
                return False
            start = at
    return (
        len(word) - start <= _LONGEST_WORD
        and (humps < 3 or len(word) >= 3 * humps)
        and (len(word) < 6 or not _VOWELS.isdisjoint(word) or not word.isascii())
    )


_IN_HOSTS = frozenset(f"{_LETTERS}0123456789.-")
_LONGEST_LABEL, _LONGEST_TOP = 40, 12


def _is_host(value: str) -> bool:
    """Return whether this is a host, a list of hosts, or an address of mail."""
    for part in value.replace(",", " ").split():
        name, at, host = part.rpartition("@")
        host, _, port = host.partition(":")
        labels = host.split(".")
        if len(labels) < 2 or not _IN_HOSTS.issuperset(host) or (port and not (port.isdigit() and len(port) <= _FEW)):
            return False
        is_address = all(label.isdigit() and len(label) <= 3 for label in labels) and len(labels) == 4
        is_named = labels[-1].isalpha() and 1 < len(labels[-1]) <= _LONGEST_TOP
        if not (is_address or is_named) or max(map(len, labels)) > _LONGEST_LABEL or not all(labels):
            return False
        if at and not (is_named and name and not port and all(map(_is_plain_word, _split_words(name)))):
            return False
    return bool(value.strip())


def _split_words(text: str) -> list[str]:
    return "".join(char if char.isalnum() else " " for char in text).split()


def _split_tokens(text: str) -> list[str]:
    return "".join(char if char in _RANDOM else " " for char in text).split()


def _is_place(value: str) -> bool:
    """Return whether this is the path of a file, in lower case: the names of directories may be digests."""
    return value.startswith(("/", "./", "../", "~/")) and value.count("/") > 1 and _IN_PLACES.issuperset(value)


_IN_PLACES = frozenset(f"{_LETTERS}0123456789./_~-")


_LEAST_RANDOM, _LEAST_IN_PROSE = 16, 6
_DATE = 8  # digits at the end of a name: `backup20261119`


def _is_random(word: str, least: int = _LEAST_RANDOM) -> bool:
    """Return whether a word of settings looks like a token."""
    if word.startswith(VALUE_PREFIXES):
        return True
    if len(word) < least or not _RANDOM.issuperset(word) or is_plain(word) or word[:1] in "/.":
        return False
    letters = word.rstrip("0123456789=")
    digits, inner = (sum(char in _DIGITS for char in part) for part in (word, letters))
    cases = any(map(str.islower, word)) + any(map(str.isupper, word))
    if _is_uuid(word) or (word.count("-") + word.count("_") + word.count("/") > len(word) // 5 and cases < 2):
        return False
    return word.isdigit() or (cases > 0 and (inner > 1 or digits > _DATE))


def _is_uuid(word: str) -> bool:
    parts = word.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and _HEX.issuperset("".join(parts))


# Fake values.

_KEPT = frozenset("._-/:@=,+ \t\r\n\f\v;{}[]()\"'")  # of a value, so that programs can still parse it
_ESCAPES = frozenset('nrtbf"\\/')  # after a backslash in double quotes
_FAKE = {
    **{ord(char): "x" for char in _LETTERS}, **{ord(char): "X" for char in _LETTERS.upper()},
    **{ord(char): "1" for char in "0123456789"}, **{ord(char): char for char in _KEPT},
}  # fmt: skip
_FAKE_HEX = {ord(char): "1" if char.isdigit() else "A" if char.isupper() else "a" for char in _HEX}


class _Fake(dict[int, str]):
    """A table for `str.translate`."""

    def __missing__(self, number: int) -> str:
        return "X" if chr(number).isupper() else "x"


_TABLE = _Fake(_FAKE)


def fake(value: str, *, escaped: bool = False) -> str:
    """Return characters of the same kinds; `escaped`: with the backslashes of a string in double quotes."""
    if "-----" in value:
        parts = value.split("-----")
        return "-----".join(part if _is_marker(part) else fake(part, escaped=escaped) for part in parts)
    if escaped and "\\" in value:
        return "".join(_fake_escaped(value))
    starts = (*VALUE_PREFIXES, "0x", "base64:")
    prefix = next((start for start in starts if value.startswith(start) and value != start), "")
    rest = value[len(prefix) :]
    compact = rest.replace("-", "")
    shown = rest.translate(_FAKE_HEX if compact and _HEX.issuperset(compact) and not compact.isdigit() else _TABLE)
    is_same = shown == rest and len(rest.strip("\"' \t")) >= _SHORT
    return prefix + ("x" * len(rest) if is_same else shown)


def _is_marker(text: str) -> bool:
    return text.startswith(("BEGIN ", "END ")) and text.replace(" ", "").isalnum() and text.isupper()


def _fake_escaped(value: str) -> Iterator[str]:
    start = 0
    while (at := value.find("\\", start)) >= 0:
        if at > start:
            yield value[start:at].translate(_TABLE)
        char = value[at + 1 : at + 2]
        if char == "u":
            yield "\\u0078"
            start = at + 6
        else:
            yield f"\\{char}" if char in _ESCAPES else "xx"[: 1 + len(char)]
            start = at + 2
    yield value[start:].translate(_TABLE)


# The judgement.

_SCHEMES = frozenset((
    "http", "https", "ws", "wss", "ftp", "ftps", "sftp", "ssh", "git", "postgres", "postgresql", "mysql", "mysql2",
    "mariadb", "sqlite", "sqlite3", "mssql", "sqlserver", "oracle", "cockroachdb", "clickhouse", "mongodb", "srv",
    "redis", "rediss", "memcached", "amqp", "amqps", "kafka", "nats", "mqtt", "mqtts", "smtp", "smtps", "imap", "imaps",
    "ldap", "ldaps", "s3", "gs", "file", "tcp", "udp", "unix", "elasticsearch", "bolt", "neo4j", "cassandra", "sb",
))  # fmt: skip
_CONNECTIONS = frozenset((  # how a text of `NAME=VALUE;` begins
    "server", "host", "hostname", "data source", "datasource", "endpoint", "defaultendpointsprotocol", "accountname",
    "driver", "provider", "addr", "address", "database", "initial catalog", "user id", "uid",
))  # fmt: skip


_HEADERS = ("authorization:", "basic ", "bearer ", "token ")


def mask(value: str, strictness: Strictness, *, escaped: bool = False) -> str:
    """Return what is shown in place of a value: itself if it is no secret."""
    if "PRIVATE KEY" in value:
        return fake(value, escaped=escaped)
    if ";" in value and value.partition("=")[0].strip().lower() in _CONNECTIONS:
        return _mask_parts(value, ";", "plain" if strictness == "nothing" else strictness, escaped=escaped)
    if "://" in value and (strictness != "nothing" or _scheme(value) in _SCHEMES):
        return _mask_addresses(value, strictness, escaped=escaped)
    if strictness != "nothing" and (at := _find_assigned(value)):
        return mask(value[:at], strictness, escaped=escaped) + _mask_simple(value[at:], "nothing", escaped=escaped)
    if strictness == "random" and value.lower().startswith(_HEADERS):
        strictness = "plain"
    if value.startswith("${") and value.endswith("}") and ":" in value:  # a name, and what counts without it
        name, colon, default = value[:-1].partition(":")
        dash = default[:1] if default[:1] in "-=?" else ""
        return name + colon + dash + _mask_simple(default[len(dash) :], strictness, escaped=escaped) + "}"
    if strictness == "random":
        return "".join(_mask_simple(word, strictness, escaped=escaped) for word in _split_blanks(value))
    return _mask_simple(value, strictness, escaped=escaped)


def mask_prose(text: str) -> str:
    """Return a comment without what looks like a token in it."""
    return "".join(fake(word) if _is_strange(word) else mask(word, "random") for word in _split_blanks(text))


def _is_strange(word: str) -> bool:
    """Return whether a word has letters and digits as no word of a comment has."""
    core = word.strip("\"'`.,;:!?()[]{}<>*#/-")
    odd = len(core) >= _LEAST_IN_PROSE and any(map(str.isdigit, core)) and any(map(str.isalpha, core))
    return odd and "://" not in core and not is_plain(core)


def _mask_simple(value: str, strictness: Strictness, *, escaped: bool) -> str:
    if strictness == "random":
        is_shown = not any(map(_is_random, _split_tokens(value)))
    else:
        is_shown = _says_nothing(value) if strictness == "nothing" else len(value) < _SHORT or is_plain(value)
    return value if is_shown else fake(value, escaped=escaped)


def _find_assigned(value: str) -> int:
    """Return where what follows `password=` in a value begins: of `redis:6379,password=…`, `required password="…";`."""
    end = value.find("=")
    while end > 0:
        start = end
        while start > max(0, end - LONGEST_NAME) and (value[start - 1].isalnum() or value[start - 1] in "_-."):
            start -= 1
        if tells(value[start:end]) and value[end + 1 :].strip("= "):
            return end + 1
        end = value.find("=", end + 1)
    return 0


def _scheme(address: str) -> str:
    """Return the innermost scheme: `postgresql` of `jdbc:postgresql://`."""
    word = address[: address.find("://")]
    return word.rpartition(":")[2].rpartition("+")[2].strip("\"' ").lower()


def _mask_addresses(text: str, strictness: Strictness, *, escaped: bool) -> str:
    """Mask passwords in addresses, and what in a path or a query is a secret by its name or look."""
    usual = "plain" if strictness == "nothing" else strictness
    first, *places = text.split("://")
    return "://".join((
        _mask_simple(first, usual, escaped=escaped),
        *(_mask_place(place, usual, escaped=escaped) for place in places),
    ))  # fmt: skip


def _mask_place(place: str, strictness: Strictness, *, escaped: bool) -> str:
    end = next((at for at, char in enumerate(place) if char in "/?#;"), len(place))
    port = place[:end].rpartition(":")[2]
    if "@" in place[end:] and ":" in place[:end] and "@" not in place[:end] and not port.isdigit():
        end = len(place)  # a password with a slash in it
    user, at, host = place[:end].rpartition("@")
    name, colon, password = user.partition(":")
    shown = _mask_simple(name, "plain", escaped=escaped)
    if colon:
        shown += colon + _mask_simple(password, "nothing", escaped=escaped)
    return shown + at + host + _mask_parts(place[end:], "/?&;#, ", strictness, escaped=escaped)


def _mask_parts(text: str, marks: str, strictness: Strictness, *, escaped: bool) -> str:
    """Mask each part between marks by its look, and the value of `NAME=VALUE` by its name."""
    found, start = [], 0
    for at in range(len(text) + 1):
        if at == len(text) or text[at] in marks:
            name, assigned, value = text[start:at].partition("=")
            if assigned and is_name(name):
                inner: Strictness = "nothing" if tells(name) else strictness
                if "://" in value:
                    found.append(f"{name}={_mask_addresses(value, inner, escaped=escaped)}")
                else:
                    found.append(f"{name}={_mask_simple(value, inner, escaped=escaped)}")
            else:
                found.append(_mask_simple(text[start:at], strictness, escaped=escaped))
            found.append(text[at : at + 1])
            start = at + 1
    return "".join(found)


def _split_blanks(value: str) -> Iterator[str]:
    """Yield words, and the blanks between them."""
    start = 0
    for at in range(1, len(value) + 1):
        if at == len(value) or value[at].isspace() != value[at - 1].isspace():
            yield value[start:at]
            start = at
