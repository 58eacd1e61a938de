"""`[[secrets]]`: values that stay outside, the hosts that get them, and what they permit there.

Imported only where there are such settings.
"""

from __future__ import annotations

from claudebox.base.addresses import read_port
from claudebox.base.errors import ClaudeboxError
from claudebox.network.tiers import TIERS
from claudebox.settings.domains import canonical
from claudebox.settings.parsers import refusal, valid_name, valid_source
from claudebox.settings.records import Constant, NameRequest, SecretRequest
from claudebox.tables.environment import AUTHORITIES, MADE
from claudebox.tables.secrets import PRESETS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.settings.layers import Settings, SettingValue


HTTPS = 443
# Header fields that servers keep, show to others, or need for something else.
_NOT_HEADERS = frozenset((
    "connection", "date", "destination", "etag", "expect", "forwarded", "from", "host", "keep-alive", "link",
    "location", "origin", "proxy-authorization", "proxy-connection", "range", "referer", "server", "slug", "te",
    "trailer", "transfer-encoding", "upgrade", "user-agent", "via", "warning",
))  # fmt: skip
_NOT_HEADER_PREFIXES = (
    "accept", "access-control-", "content-", "if-", "sec-", "x-amz-", "x-bz-", "x-forwarded-", "x-goog-meta",
)  # fmt: skip
_HEADER = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_METHOD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ-")
_NOT_METHODS = ("CONNECT", "TRACE", "TRACK")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
_SEGMENT = _NAME | frozenset("~!$&'()+,=:@%")
_EXAMPLE = "for example `GET /repos/acme/**`, or `github:read acme/shop`"


def read_secret(given: SettingValue) -> SecretRequest:
    """Return one row of `secrets`."""
    name, source = given.fields["env"], given.fields["from"]
    if not valid_name(name):
        raise refusal(given, f"`{name}` is not the name of a variable")
    if name in MADE or name in AUTHORITIES:
        raise refusal(given, f"`{name}` is made by claudebox")
    if not valid_source(source, ("env", "file", "command")):
        hint = "never write the value itself into a file of settings"
        raise refusal(given, "the value does not come from `env:NAME`, `file:/PATH` or `command:WORDS`", hint)
    hosts = dict.fromkeys(_read_host(word, given) for word in given.fields["hosts"].split())
    headers = dict.fromkeys(_read_header(word, given) for word in given.fields.get("headers", "").split())
    rows = given.fields.get("permit", "").split("\n")
    permit = dict.fromkeys(rule for row in rows if row for rule in read_permit(row, given.origin))
    weak = given.fields.get("weak") == "accept"
    return SecretRequest(name, tuple(hosts), source, given.origin, tuple(headers), weak, tuple(permit))


def _read_host(word: str, given: SettingValue) -> tuple[str, int]:
    """Return name and port; each host is named in full, since every host that matches gets the value."""
    name, colon, port = word.partition(":")
    if "*" in name:
        raise refusal(given, f"`{word}` would give the value to hosts of strangers", "name each host in full")
    host = canonical(name)
    if "." not in host:
        raise refusal(given, f"`{word}` is not the name of a host", "for example `api.github.com`")
    if colon and not read_port(port):
        raise refusal(given, f"`{port}` is not a port from 1 to 65535")
    return host, read_port(port) if colon else HTTPS


def _read_header(word: str, given: SettingValue) -> str:
    name = word.lower()
    if not set(name) <= _HEADER or name.strip("-") != name:
        raise refusal(given, f"`{word}` is not the name of a header field", "for example `x-my-token`")
    if name in _NOT_HEADERS or name.startswith(_NOT_HEADER_PREFIXES):
        raise refusal(given, f"`{word}` cannot carry a secret: servers keep this field, show it to others, or need it")
    return name


def read_permit(word: str, origin: str) -> tuple[str, ...]:
    """Return what one element permits, as `METHOD /path`: itself, or the rows of a preset."""
    method, _, path = word.partition(" ")
    if ":" in method:
        return _expand_preset(method, path, origin)
    if not path.startswith("/"):
        raise ClaudeboxError(f"`{origin}`: `{word}` in `permit` is not a method and a path", hint=_EXAMPLE)
    if method != "*" and (not method or not set(method) <= _METHOD or method in _NOT_METHODS):
        raise ClaudeboxError(f"`{origin}`: `{method}` in `permit` is not a permitted method", hint=_EXAMPLE)
    *parents, last = path[1:].split("/")
    if "**" in parents:
        raise ClaudeboxError(f"`{origin}`: `{word}`: `**` stands for the rest of the path, and only at its end")
    for part in (*parents, last or "*"):  # a trailing slash counts
        if part not in ("*", "**") and not _is_plain(part, _SEGMENT):
            hint = "write it as it is sent, without a query; `*` stands for one part, `**` for the rest"
            raise ClaudeboxError(f"`{origin}`: `{word}`: `{part}` is not a part of a path", hint=hint)
    return (f"{method} {path}",)


def _is_plain(part: str, characters: frozenset[str]) -> bool:
    return bool(part) and set(part) <= characters and part.strip(".") != ""


def _expand_preset(name: str, repository: str, origin: str) -> tuple[str, ...]:
    if name not in PRESETS:
        raise ClaudeboxError(f"`{origin}`: `permit` has no preset `{name}`", hint=f"there are {', '.join(PRESETS)}")
    rows = PRESETS[name]
    takes = any("{" in row for row in rows)
    owner, slash, rest = repository.partition("/")
    if takes and not (slash and _is_plain(owner, _NAME) and _is_plain(rest, _NAME)):
        raise ClaudeboxError(f"`{origin}`: `{name}` needs a repository", hint=f"`{name} acme/shop`")
    if repository and not takes:
        raise ClaudeboxError(f"`{origin}`: `{name}` is for all repositories: remove `{repository}`")
    return tuple(row.format(repository=repository.removesuffix(".git")) for row in rows)


def decide_secrets(
    settings: Settings, network: SettingValue, names: Iterable[NameRequest], constants: Iterable[Constant]
) -> tuple[SecretRequest, ...]:
    """Return the secrets; a row of a later file replaces one of an earlier file for the same variable."""
    found: dict[str, SecretRequest] = {}
    for secret in map(read_secret, settings.all("secrets")):
        if secret.env in settings.agent.brokered:
            raise ClaudeboxError(
                f"`{secret.origin}`: `{secret.env}` is the client's key, which the broker handles by itself"
            )
        other = found.get(secret.env)
        if other is not None and other.origin.rpartition(":")[0] == secret.origin.rpartition(":")[0]:
            raise ClaudeboxError(f"`{secret.origin}`: `{secret.env}` is listed twice", hint="name all hosts in one row")
        found[secret.env] = secret
    secrets = tuple(found.values())
    if TIERS[network.value].shared:
        raise ClaudeboxError(
            f"`{secrets[0].origin}`: secrets cannot be kept outside in tier `{network.value}`: "
            "the sandbox has no network of its own",
            hint="choose `--network inet` or `--network allow`",
        )
    asked = {request.name: request.origin for request in names} | {row.name: row.origin for row in constants}
    for secret in secrets:
        for name in (secret.env, secret.source.removeprefix("env:")):
            if name in asked:
                raise ClaudeboxError(
                    f"`{asked[name]}` lets `{name}` in, and `{secret.origin}` keeps its value out",
                    hint="remove one of them",
                )
    return secrets
