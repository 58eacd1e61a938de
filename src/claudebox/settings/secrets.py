"""`[[secrets]]` of the settings → which values stay outside and for which hosts, checked for contradictions.

Off the usual launch path: imported only where somebody has such settings.
"""

from __future__ import annotations

from claudebox.agent.claude import CREDENTIALS
from claudebox.base.addresses import read_port
from claudebox.base.errors import ClaudeboxError
from claudebox.network.tiers import TIERS
from claudebox.settings.domains import canonical
from claudebox.settings.parsers import valid_name
from claudebox.settings.records import SecretRequest
from claudebox.tables.environment import AUTHORITIES, MADE
from claudebox.tables.secrets import PRESETS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.settings.layers import Given, Settings
    from claudebox.settings.records import Constant, NameRequest


# `permit` of a secret: `METHOD /path`, or a preset with the repository that it is for.
#
# Off the usual launch path: imported only where somebody has such settings.


_METHOD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ-")
_PERMITS_NEVER = ("CONNECT", "TRACE", "TRACK")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
_SEGMENT = _NAME | frozenset("~!$&'()+,=:@%")
_EXAMPLE = "for example `GET /repos/acme/**`, or `github:read acme/shop`"


def read_permit(word: str, origin: str) -> tuple[str, ...]:
    """Return what one element permits, each as `METHOD /path`; or say what is wrong with it."""
    method, _, path = word.partition(" ")
    if ":" in method:
        return _preset(method, path, origin)
    if not path.startswith("/"):
        raise ClaudeboxError(f"`{origin}`: `{word}` in `permit` is not a method and a path", hint=_EXAMPLE)
    if method != "*" and (not method or not set(method) <= _METHOD or method in _PERMITS_NEVER):
        raise ClaudeboxError(f"`{origin}`: `{method}` in `permit` is not a method that can pass", hint=_EXAMPLE)
    *parents, last = path[1:].split("/")
    if "**" in parents:
        raise ClaudeboxError(f"`{origin}`: `{word}`: `**` stands for all that follows, and only at the end")
    for part in (*parents, last or "*"):  # a slash at the end counts
        if part not in ("*", "**") and not _is_plain(part):
            raise ClaudeboxError(
                f"`{origin}`: `{word}`: `{part}` is not a part of a path",
                hint="write it as it is sent, without a query; `*` stands for one whole part, `**` for all that follow",
            )
    return (f"{method} {path}",)


def _is_plain(part: str) -> bool:
    return bool(part) and set(part) <= _SEGMENT and part.strip(".") != ""


def _preset(name: str, repository: str, origin: str) -> tuple[str, ...]:
    if name not in PRESETS:
        raise ClaudeboxError(f"`{origin}`: `permit` has no preset `{name}`", hint=f"there are {', '.join(PRESETS)}")
    rows = PRESETS[name]
    takes = any("{" in row for row in rows)
    owner, slash, rest = repository.partition("/")
    named = slash and all(part and set(part) <= _NAME and part.strip(".") for part in (owner, rest))
    if takes and not named:
        raise ClaudeboxError(f"`{origin}`: `{name}` needs a repository", hint=f"`{name} acme/shop`")
    if repository and not takes:
        raise ClaudeboxError(f"`{origin}`: `{name}` is for all repositories: leave `{repository}` away")
    return tuple(row.format(repository=repository.removesuffix(".git")) for row in rows)


PORT = 443
_NEVER = frozenset((
    "connection", "date", "destination", "etag", "expect", "forwarded", "from", "host", "keep-alive", "link",
    "location", "origin", "proxy-authorization", "proxy-connection", "range", "referer", "server", "slug", "te",
    "trailer", "transfer-encoding", "upgrade", "user-agent", "via", "warning",
))  # fmt: skip
_NEVER_PREFIXES = (
    "accept", "access-control-", "content-", "if-", "sec-", "x-amz-", "x-bz-", "x-forwarded-", "x-goog-meta",
)  # fmt: skip
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


def read_secret(given: Given) -> SecretRequest:
    """Return one of the rows, or say what is wrong with it."""
    name, source = given.fields["env"], given.fields["from"]
    if not valid_name(name):
        raise ClaudeboxError(f"`{given.origin}`: `{name}` is not the name of a variable")
    if name in MADE or name in AUTHORITIES:
        raise ClaudeboxError(f"`{given.origin}`: `{name}` is made by claudebox")
    if name in CREDENTIALS:
        raise ClaudeboxError(f"`{given.origin}`: `{name}` is the client's key, which has its own way in")
    kind, _, rest = source.partition(":")
    if (
        not (kind == "env" and valid_name(rest))
        and not (kind == "file" and rest.startswith(("/", "~/")))
        and not (kind == "command" and rest.strip())
    ):
        raise ClaudeboxError(
            f"`{given.origin}`: the value does not come from `env:NAME`, `file:/PATH` or `command:WORDS`",
            hint="never write the value itself into a file of settings",
        )
    hosts = tuple(dict.fromkeys(_host(word, given.origin) for word in given.fields["hosts"].split()))
    headers = tuple(dict.fromkeys(_header(word, given.origin) for word in given.fields.get("headers", "").split()))
    rows = given.fields.get("permit", "").split("\n")
    permit = tuple(dict.fromkeys(rule for row in rows if row for rule in read_permit(row, given.origin)))
    return SecretRequest(name, hosts, source, given.origin, headers, given.fields.get("weak") == "accept", permit)


def _header(word: str, origin: str) -> str:
    """Return the name of a header field that may carry a value."""
    name = word.lower()
    if not set(name) <= _LETTERS or name.strip("-") != name:
        raise ClaudeboxError(f"`{origin}`: `{word}` is not the name of a header field", hint="for example `x-my-token`")
    if name in _NEVER or name.startswith(_NEVER_PREFIXES):
        raise ClaudeboxError(
            f"`{origin}`: `{word}` cannot carry a secret: servers keep this field, show it to others, or need it"
        )
    return name


def _host(word: str, origin: str) -> tuple[str, int]:
    """Return name and port; each host is named in full, since any other would get the value too."""
    name, colon, port = word.partition(":")
    if "*" in name:
        raise ClaudeboxError(
            f"`{origin}`: `{word}` would give the value to hosts that anybody may have named",
            hint="name each host in full",
        )
    host = canonical(name)
    if "." not in host:
        raise ClaudeboxError(f"`{origin}`: `{word}` is not the name of a host", hint="`api.github.com`, say")
    if colon and not read_port(port):
        raise ClaudeboxError(f"`{origin}`: `{port}` is not a port from 1 to 65535")
    return host, read_port(port) if colon else PORT


def decide_secrets(
    settings: Settings, network: Given, names: Iterable[NameRequest], constants: Iterable[Constant]
) -> tuple[SecretRequest, ...]:
    """Return the secrets of these settings; a later file replaces what an earlier one says about a variable."""
    found: dict[str, SecretRequest] = {}
    for secret in map(read_secret, settings.all("secrets")):
        other = found.get(secret.env)
        if other is not None and _file(other.origin) == _file(secret.origin):
            raise ClaudeboxError(f"`{secret.origin}`: `{secret.env}` is there twice", hint="name all hosts in one row")
        found[secret.env] = secret
    secrets = tuple(found.values())
    if TIERS[network.value].shared:
        first = secrets[0]
        raise ClaudeboxError(
            f"`{first.origin}`: secrets cannot be kept outside in tier `{network.value}`: "
            "the sandbox has no network of its own",
            hint="choose `--network inet` or `--network allow`",
        )
    asked = {request.name: request.origin for request in names} | {row.name: row.origin for row in constants}
    for secret in secrets:
        for name in (secret.env, secret.source.removeprefix("env:")):
            if name in asked:
                raise ClaudeboxError(
                    f"`{asked[name]}` lets `{name}` in, and `{secret.origin}` keeps its value out",
                    hint="leave one of them away",
                )
    return secrets


def _file(origin: str) -> str:
    return origin.rpartition(":")[0]
