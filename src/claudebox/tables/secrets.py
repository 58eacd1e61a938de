"""Recognising secrets by the name of a variable or by the shape of a value (SEC-01).

Plain string tests: the `re` module alone would cost a launch 6 ms.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


_NAME_PARTS = (
    "KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "AUTH", "COOKIE", "SESSION",
    "PRIVATE", "SIGNATURE", "WEBHOOK", "_PAT_", "_DSN", "CONNECTION_STRING", "DATABASE_URL",
)  # fmt: skip
_INNOCENT_NAMES = frozenset(("SSH_AUTH_SOCK", "XAUTHORITY", "DESKTOP_SESSION", "XDG_SESSION_TYPE", "XDG_SESSION_ID",
                             "XDG_SESSION_CLASS", "XDG_SESSION_DESKTOP", "SESSION_MANAGER", "GIT_AUTHOR_NAME",
                             "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_DATE", "KEYBOARD_LAYOUT", "MAX_THINKING_TOKENS",
                             "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "MAX_MCP_OUTPUT_TOKENS", "GOPRIVATE",
                             "CLAUDE_CODE_FILE_READ_MAX_OUTPUT_TOKENS"))  # fmt: skip
_VALUE_PREFIXES = (
    "sk-", "sk_live_", "sk_test_", "rk_live_", "pk_live_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_",
    "glpat-", "AKIA", "ASIA", "xoxb-", "xoxp-", "xoxa-", "xoxs-", "xapp-", "npm_", "pypi-", "AIza", "ya29.",
    "eyJhbGciOi", "hf_", "dop_v1_", "SG.", "age-secret-key-", "AGE-SECRET-KEY-", "hvs.", "dckr_pat_", "lin_api_",
)  # fmt: skip

VALUE_PREFIXES = _VALUE_PREFIXES
_IN_HOSTS = dict.fromkeys(map(ord, "abcdefghijklmnopqrstuvwxyz0123456789.-:*"))
_LONG_PART = 12  # of a path, in characters: a token is longer, and has digits in it

# Files that hold secrets as a rule, by name, in lower case. Whether one does, its content tells (`leaks`).
_FILE_NAMES = frozenset((
    ".npmrc", ".pypirc", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".htpasswd", ".dockercfg", ".git-credentials",
    ".vault-token", ".s3cfg", ".boto", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "credentials", "credentials.json",
    "service-account.json", "serviceaccount.json", "serviceaccountkey.json", "service_account.json", "gcp-key.json",
    "application_default_credentials.json", "kubeconfig", "secrets.yml", "secrets.yaml", "secrets.json",
    "secrets.toml", "auth.json", ".env", ".envrc", "master.key",
))  # fmt: skip
_FILE_ENDS = (
    ".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".ppk", ".ovpn", ".tfstate", ".tfstate.backup",
    ".tfvars", ".tfvars.json", ".env",
)  # fmt: skip
_FILE_STARTS = (".env.", "client_secret")
_EXAMPLES = (".example", ".sample", ".template", ".tpl", ".dist", ".defaults", ".pub")


def file_looks_secret(name: str) -> bool:
    """Return whether a file of this name usually holds secrets."""
    lower = name.lower()
    if lower.endswith(_EXAMPLES):
        return False
    return lower in _FILE_NAMES or lower.endswith(_FILE_ENDS) or lower.startswith(_FILE_STARTS)


def looks_secret(name: str, value: str) -> bool:
    """Return whether a variable looks as if it held a secret."""
    return name_looks_secret(name) or value_looks_secret(value)


def name_looks_secret(name: str) -> bool:
    """Return whether the name alone says so."""
    upper = name.upper()
    return upper not in _INNOCENT_NAMES and any(part in f"{upper}_" for part in _NAME_PARTS)


def value_looks_secret(value: str) -> bool:
    """Return whether the value has the shape of a known kind of secret."""
    return value.startswith(_VALUE_PREFIXES) or "PRIVATE KEY-----" in value or _has_password(value)


_LITERAL_LEAST, _RANDOM_LEAST = 6, 12  # characters of a value in a script
_SURE = ("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "TOKEN", "CREDENTIAL", "API_KEY", "APIKEY", "ACCESS_KEY")
_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_NOT_LITERAL = frozenset("$`()[]{}<> ")


def text_holds_secret(text: str) -> bool:
    """Return whether a script seems to hold a secret: a known kind of token, or a value under a telling name."""
    if "PRIVATE KEY-----" in text:
        return True
    upper = text.upper()
    if not any(part in upper for part in (*_NAME_PARTS, "BEARER ", "://")) and not any(
        prefix in text for prefix in _VALUE_PREFIXES
    ):
        return False
    for line in text.splitlines():
        words = line.translate(_SEPARATORS).split()
        if any(len(word) > _RANDOM_LEAST and value_looks_secret(word) and _is_random(word) for word in words):
            return True
        if "://" in line and any(_has_password(word) and not _NOT_LITERAL & set(word) for word in words):
            return True
        if _assigns_secret(line):
            return True
        _, bearer, rest = line.partition("Bearer ")
        token = rest.partition('"')[0].partition("'")[0].strip() if bearer else ""
        if len(token) > _RANDOM_LEAST and not _NOT_LITERAL & set(token) and _is_random(token):
            return True
    return False


_SEPARATORS = {ord(char): " " for char in "\"'`,;=()<>|&"}


def _assigns_secret(line: str) -> bool:
    for mark in ("=", ":"):
        left, found, right = line.partition(mark)
        words = left.partition(":")[0].split()  # without the type, as Python has it
        name = words[-1].strip("\"'") if words else ""
        if not found or not name or not _NAME_CHARS.issuperset(name) or not name_looks_secret(name.replace("-", "_")):
            continue
        value = right.strip().partition(" #")[0].rstrip(",; ")
        quoted = value[:1] in ("'", '"')
        literal = value[1:].partition(value[0])[0] if quoted else value.partition(" ")[0]
        if (_NOT_LITERAL - {" "} if quoted else _NOT_LITERAL) & set(literal) or literal.startswith(
            ("/", "~", ".", "-", "http")
        ):
            continue
        is_sure = any(part in name.upper().replace("-", "_") for part in _SURE)
        if len(literal) >= _LITERAL_LEAST and is_sure and (quoted or mark == "=") and not literal.isdigit():
            return True
        if len(literal) >= _RANDOM_LEAST and _is_random(literal):
            return True
    return False


def _is_random(value: str) -> bool:
    return any(char.isdigit() for char in value) and any(char.isalpha() for char in value)


def names_place(addresses: str) -> bool:
    """Return whether addresses say where and nothing else: no login, no query, no path that may hold a token."""
    for address in addresses.replace(",", " ").replace("|", " ").split():
        if address in ("direct", "off"):  # as Go has it
            continue
        scheme, marked, rest = address.rpartition("://")
        host, _, path = rest.partition("/")
        plain = "." in host and not host.translate(_IN_HOSTS) and not any(mark in path for mark in "@?#")
        parts = (part for part in path.split("/") if len(part) >= _LONG_PART)
        if (marked and scheme.rpartition("=")[2] not in ("http", "https")) or not plain:
            return False
        if any(char.isdigit() for part in parts for char in part):
            return False
    return True


def _has_password(value: str) -> bool:
    """Recognise `scheme://user:password@host`, and a token in the place of the user."""
    _, scheme, rest = value.partition("://")
    if not scheme:
        return False
    authority = rest.split("/", 1)[0]
    user, at, _ = authority.rpartition("@")
    if not at:
        return False
    return (":" in user and not user.endswith(":")) or user.startswith(_VALUE_PREFIXES)


# How common formats spell the bytes of a value: what to look for in a text that may hold it.
#
# Without `json`, `html` and `urllib`, which would cost the end of every session, and the start of the broker, 18 ms.


_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")
_JSON = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
_HTML = {34: b"&quot;", 38: b"&amp;", 39: b"&#x27;", 60: b"&lt;", 62: b"&gt;"}


URL_SAFE = bytes.maketrans(b"+/", b"-_")


def in_url(value: bytes) -> bytes:
    """Return it as part of a URL."""
    return b"".join(b"%c" % byte if byte in _UNRESERVED else b"%%%02X" % byte for byte in value)


def in_url_lower(value: bytes) -> bytes:
    """Return it as part of a URL, as some write it."""
    return b"".join(b"%c" % byte if byte in _UNRESERVED else b"%%%02x" % byte for byte in value)


def in_json(value: bytes) -> bytes:
    """Return it as part of a string of JSON, of which each byte is a character."""
    return b"".join(_JSON.get(byte) or (b"%c" if 32 <= byte < 127 else b"\\u%04x") % byte for byte in value)


def in_html(value: bytes) -> bytes:
    """Return it as text of HTML."""
    return b"".join(_HTML.get(byte) or b"%c" % byte for byte in value)


def in_base64(value: bytes, offset: int) -> bytes:
    """Return the part of a base64 text that the value alone decides, if it begins at this offset of three bytes."""
    import binascii

    whole = binascii.b2a_base64(b"\0" * offset + value, newline=False)
    return whole[-(-offset * 8 // 6) : (offset + len(value)) * 8 // 6]


def all_in_base64(value: bytes) -> Iterator[bytes]:
    """Yield it at every offset, in both alphabets."""
    for offset in range(3):
        text = in_base64(value, offset)
        yield text
        yield text.translate(URL_SAFE)


def encodings(value: bytes) -> Iterator[bytes]:
    """Yield every usual form of a value, itself first; in the same order for every value."""
    import binascii

    yield value
    for spell in (in_url, in_url_lower, in_json, in_html):
        yield spell(value)
    hexadecimal = binascii.hexlify(value)
    yield hexadecimal
    yield hexadecimal.upper()
    yield from all_in_base64(value)


# Presets for `permit` of a secret: what hosts of a kind are asked for, by method and path.
#
# Where a preset takes a repository, `{repository}` stands for it. GitHub's GraphQL is one path for everything, so
# none of them opens it.


_GITHUB_READ = (
    "GET /repos/{repository}", "GET /repos/{repository}/**", "GET /{repository}.git/info/refs",
    "POST /{repository}.git/git-upload-pack", "GET /{repository}/info/refs", "POST /{repository}/git-upload-pack",
)  # fmt: skip
PRESETS: dict[str, tuple[str, ...]] = {
    "github:read-all": ("GET /**", "POST /*/*/git-upload-pack"),
    "github:read": _GITHUB_READ,
    "github:push": (
        *_GITHUB_READ, "POST /{repository}.git/git-receive-pack", "POST /{repository}/git-receive-pack",
    ),
    "github:pull-requests": (
        *_GITHUB_READ, "POST /repos/{repository}/pulls", "PATCH /repos/{repository}/pulls/*",
        "POST /repos/{repository}/pulls/*/comments", "POST /repos/{repository}/pulls/*/reviews",
        "POST /repos/{repository}/pulls/*/requested_reviewers", "POST /repos/{repository}/issues/*/comments",
        "POST /repos/{repository}/issues/*/labels",
    ),
}  # fmt: skip
