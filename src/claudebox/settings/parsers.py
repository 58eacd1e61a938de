"""One value that a user gave → its meaning, or an error that says what would be right."""

from __future__ import annotations

import os

from claudebox.agent import kinds
from claudebox.base.errors import ClaudeboxError
from claudebox.settings.records import (
    AddressRequest,
    Constant,
    GitCredential,
    MountRequest,
    NameRequest,
    Published,
    SecretRequest,
)
from claudebox.tables.environment import MADE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from claudebox.settings.layers import SettingValue


_LONGEST_PATH = 4000  # bytes, of the kernel's 4096: bwrap puts something in front
_NOT_IN_REFS = frozenset(" :?*[\\{")


def refusal(given: SettingValue, text: str, hint: str = "") -> ClaudeboxError:
    """Return the error for a value, which `document` rewrites for a key of a file."""
    return ClaudeboxError(f"`{given.origin}`: {text}", hint=hint)


def _unexpected(given: SettingValue, expected: str) -> ClaudeboxError:
    return ClaudeboxError(f"`{given.origin}` must be {expected}, not `{given.value}`")


def valid_name(name: str) -> bool:
    """Return whether every program accepts this as the name of a variable (A14)."""
    return name.isascii() and name.replace("_", "a").isalnum() and not name[:1].isdigit()


def valid_source(text: str, kinds: tuple[str, ...]) -> bool:
    """Return whether this says where a secret comes from: `env:NAME`, `file:PATH` or `command:WORDS`."""
    kind, _, rest = text.partition(":")
    valid = {"env": valid_name(rest), "file": rest.startswith(("/", "~/")), "command": bool(rest.strip())}
    return kind in kinds and valid[kind]


# Texts and names


def origin(given: SettingValue) -> str:
    return given.origin


def is_word(word: str) -> Callable[[SettingValue], bool]:
    """Return a parser that compares a choice with this word."""
    return lambda given: given.value == word


def _request(given: SettingValue) -> NameRequest:
    return NameRequest(given.value, given.origin, given.untrusted)


def name(given: SettingValue) -> NameRequest:
    if not valid_name(given.value):
        hint = "letters, digits and `_`, and no value: claudebox takes the value from the environment"
        raise refusal(given, f"`{given.value}` is not the name of a variable", hint)
    return _request(given)


def constant(given: SettingValue) -> Constant:
    """Read NAME=VALUE; of a file of variables, the value is apart."""
    name, assigned, value = given.value.partition("=")
    hidden = "value" in given.fields
    if hidden:
        assigned, value = "=", given.fields["value"]
    if not assigned or not valid_name(name):
        raise refusal(given, f"`{name}` is not the name of a variable", "write `NAME=VALUE`")
    if name in MADE:
        raise refusal(given, f"`{name}` is made by claudebox")
    return Constant(name, value, given.origin, given.untrusted, hidden)


def part(given: SettingValue) -> NameRequest:
    """Read the name of a part of the host's ~/.claude."""
    if "/" in given.value or given.value in (".", ".."):
        raise refusal(given, f"`{given.value}` is not a name in ~/.claude", "one name, no `/`")
    return _request(given)


def protected(given: SettingValue) -> NameRequest:
    names = kinds.list_protected_names()
    if given.value not in names:
        known = ", ".join(f"`{name}`" for name in names)
        raise refusal(given, f"`{given.value}` is not protected", f"protected are {known}")
    return _request(given)


AUTO, NONE = "auto", "none"  # of toolchains: the programs of the host's PATH, or none at all


def toolchain(given: SettingValue) -> NameRequest:
    if given.value in (AUTO, NONE):
        if given.untrusted:
            raise refusal(given, "only you can decide about your PATH", "name toolchains instead")
        return _request(given)
    from claudebox.tables.tools import TOOLCHAINS

    if given.value not in TOOLCHAINS:
        known = ", ".join(f"`{name}`" for name in (AUTO, NONE, *TOOLCHAINS))
        raise refusal(given, f"there is no toolchain `{given.value}`", f"there are {known}")
    return _request(given)


def package(given: SettingValue) -> NameRequest:
    plain = given.value.translate({ord(char): "a" for char in "._+-"})
    if not plain.isascii() or not plain.isalnum() or given.value[0] in ".-+":
        raise refusal(given, f"`{given.value}` is not the name of a package of nixpkgs")
    return _request(given)


def nixpkgs(given: SettingValue) -> str:
    if not well_formed(given.value):
        hint = "`github:NixOS/nixpkgs/COMMIT`, `path:/DIRECTORY`, or a name of your registry: `flake:NAME`"
        raise refusal(given, f"`{given.value}` is not a package set", hint)
    return given.value


def commit(given: SettingValue) -> str:
    value = given.value
    if not value or not value.isprintable() or set(value) & _NOT_IN_REFS or value[0] in "-/." or ".." in value:
        raise refusal(given, f"`{value}` does not name a branch, a tag or a commit")
    return value


# Secrets, domains and addresses: modules of their own, which most launches do not load


def credential(given: SettingValue) -> GitCredential:
    """Read the credential for git, without its token."""
    host, token, username = (given.fields[name] for name in ("host", "token", "username"))
    name, _, port = host.partition(":")
    if not name.replace("-", "a").replace(".", "a").isalnum() or not name.isascii() or (port and not port.isdigit()):
        raise refusal(given, f"`{host}` is not the name of a host", "for example `github.com`")
    if not valid_source(token, ("env", "command")):
        hint = "never write the token itself into a file"
        raise refusal(given, "the token does not come from `env:NAME` or `command:WORDS`", hint)
    if not username.isprintable():
        raise refusal(given, f"`{username}` is not a user name")
    return GitCredential(host, token, username, given.origin)


def secret(given: SettingValue) -> SecretRequest:
    from claudebox.settings import secrets as settings_secrets

    return settings_secrets.read_secret(given)


def domain(given: SettingValue) -> None:
    """Check a domain, or the name of a group of them."""
    from claudebox.settings import domains as settings_domains

    settings_domains.check(given.value, given.origin)


def group(given: SettingValue) -> None:
    """Check `GROUP=DOMAIN`, one member of a group."""
    from claudebox.settings import domains as settings_domains

    name, _, host = given.value.partition("=")
    if not settings_domains.is_group(name):
        raise refusal(given, f"`{name}` cannot be the name of a group", "one word: letters, digits, `-` and `_`")
    settings_domains.parse_domain(host, given.origin)


def address(given: SettingValue) -> AddressRequest:
    from claudebox.settings import domains as settings_domains

    return settings_domains.read_address(given)


# Paths


def copied_path(given: SettingValue) -> str:
    """Read a path in the project."""
    parts = given.value.rstrip("/").split("/")
    if given.value.startswith("/") or any(part in ("", ".", "..") for part in parts) or parts[0] == ".git":
        raise _unexpected(given, "a path in the project, such as `node_modules`")
    return "/".join(parts)


def undo_pattern(given: SettingValue) -> str:
    """Read the name of a directory, or a pattern for names or paths in the project."""
    if given.value.startswith("/") or not {"", ".", ".."}.isdisjoint(given.value.split("/")):
        raise _unexpected(given, "a name, or a pattern such as `*.iso` or `data/*`")
    return given.value


def device(given: SettingValue) -> NameRequest:
    if not given.value.startswith("/dev/") or ".." in given.value.split("/"):
        raise refusal(given, f"`{given.value}` is not in /dev", "for example `/dev/video0`")
    return _request(given).replace(name=os.path.normpath(given.value))


def mount_row(given: SettingValue) -> MountRequest:
    """Read one of `mounts`; in a user's file a relative path would mean something else in each project."""
    source, dest = given.fields["host"], given.fields["sandbox"]
    if not given.untrusted and not source.startswith(("/", "~/")):
        raise refusal(given, f"`{source}` is relative", "write it absolute, or with `~/`")
    return _mount(given, source, dest or None, writable=given.fields["mode"] == "rw")


def mount_ro(given: SettingValue) -> MountRequest:
    r"""Read SRC[:DEST]; `\:` is a colon of a path."""
    return _mount(given, *split(given.value), writable=False)


def mount_rw(given: SettingValue) -> MountRequest:
    r"""Read SRC[:DEST]; `\:` is a colon of a path."""
    return _mount(given, *split(given.value), writable=True)


def program_directory(given: SettingValue) -> MountRequest:
    """Read a directory of programs."""
    if ":" in given.value:
        raise refusal(given, f"`{given.value}` is not one directory", "repeat it for another")
    if not given.origin.startswith("-") and not given.value.startswith(("/", "~/")):
        raise refusal(given, f"`{given.value}` is relative", "write it absolute, or with `~/`")
    return _mount(given, given.value, None, writable=False).replace(programs=True)


def _mount(given: SettingValue, source: str, dest: str | None, *, writable: bool) -> MountRequest:
    """Return a mount whose paths are as they were written: `resolve` makes them absolute."""
    if not source:
        raise ClaudeboxError(f"`{given.origin} {given.value}` names no source", hint=f"`{given.origin} SRC[:DEST]`")
    if dest is not None and not dest.startswith(("/", "~/")):
        hint = "write a colon that belongs to a path as `\\:`"
        raise refusal(given, f"the destination `{dest}` is not an absolute path", hint)
    if dest is not None and ".." in dest.split("/"):
        raise refusal(given, f"the destination `{dest}` contains `..`")
    try:
        written = os.fsencode(dest or ""), os.fsencode(source)
    except UnicodeEncodeError:  # of JSON, which may hold half a character
        raise refusal(given, f"`{given.value}` cannot be the name of a file") from None
    if len(written[0]) > _LONGEST_PATH or (len(written[0]) > 255 and max(map(len, written[0].split(b"/"))) > 255):
        raise refusal(given, f"the destination `{(dest or '')[:64]}…` is longer than a path can be")
    return MountRequest(source, dest or "", writable, given.origin, given.untrusted)


def split(value: str) -> tuple[str, str | None]:
    r"""Split SRC[:DEST] at its first colon; `\:` is a colon of a path. A value holds no NUL."""
    source, colon, dest = value.replace("\\\\", "\0b").replace("\\:", "\0c").partition(":")
    source, dest = (text.replace("\0c", ":").replace("\0b", "\\\\") for text in (source, dest))
    return source, dest if colon else None


def resolve(request: MountRequest, home: str, workdir: str) -> MountRequest:
    """Return a mount with absolute paths; without a destination it is at the same place inside."""
    source = _absolute(request.source, home, workdir)
    return request.replace(source=source, dest=_absolute(request.dest, home, workdir) if request.dest else source)


def _absolute(path: str, home: str, workdir: str) -> str:
    if not path.startswith("/"):
        path = home + path[1:] if path == "~" or path.startswith("~/") else f"{workdir}/{path}"
    path = os.path.normpath(path)
    return path[1:] if path.startswith("//") else path  # normpath keeps two leading slashes


# Numbers


def number(most: int, *, least: int = 0, unit: int = 1) -> Callable[[SettingValue], int]:
    """Return a parser of whole numbers of this unit."""

    def read(given: SettingValue) -> int:
        value = given.value
        if not (value.isascii() and value.isdigit() and len(value) < 9 and least <= int(value) <= most):
            raise _unexpected(given, f"a number from {least} to {most}")
        return int(value) * unit

    return read


def _is_port(text: str) -> bool:
    from claudebox.base.addresses import read_port

    return read_port(text) > 0


def port(given: SettingValue) -> int:
    if not _is_port(given.value):
        raise _unexpected(given, "a port from 1 to 65535")
    return int(given.value)


def published(given: SettingValue) -> Published:
    """Return the ports of `3000` or `8080:3000`: the host's, then the sandbox's."""
    host, fixed, inside = given.value.rpartition(":")
    if not _is_port(inside) or (fixed and not _is_port(host)):
        expected = "a port from 1 to 65535"
        raise _unexpected(given, f"{expected}, or `HOST:PORT` with two of them" if fixed else expected)
    return Published(int(host or inside), int(inside), bool(fixed))


def _quantity(units: Mapping[str, int], digits: int, expected: str) -> Callable[[SettingValue], int]:
    """Return a parser of whole numbers above 0 with a unit."""

    def read(given: SettingValue) -> int:
        unit = given.value.lstrip("0123456789")
        amount = given.value[: len(given.value) - len(unit)]
        if unit.upper() not in units or not 0 < len(amount) <= digits or not int(amount):
            raise _unexpected(given, expected)
        return int(amount) * units[unit.upper()]

    return read


tokens = _quantity({"": 1, "K": 1000, "M": 1_000_000}, 12, "a number of tokens, such as `200000`, `200k` or `2M`")
time = _quantity({"": 1, "S": 1, "M": 60, "H": 3600, "D": 86400}, 7, "a time, such as `90s`, `30m` or `8h`")
size = _quantity(
    {f"{letter}{rest}": 1 << 10 * power for power, letter in enumerate(("", *"KMGT")) for rest in ("", "B", "I", "IB")},
    9, "a size, such as `512M` or `8G`",
)  # fmt: skip


def dollars(given: SettingValue) -> int:
    """Read an amount of US dollars, in millionths."""
    return _hundredths(given, 6, "an amount of US dollars, such as `5` or `0.50`") * 10_000


def processors(given: SettingValue) -> int:
    """Read hundredths of a processor."""
    return _hundredths(given, 4, "a number of processors, such as `2` or `0.5`")


def _hundredths(given: SettingValue, digits: int, expected: str) -> int:
    whole, dot, part = given.value.removeprefix("$").partition(".")
    both = f"{whole}{part:0<2}"
    fits = 0 < len(whole) <= digits and len(part) <= 2 and bool(part) == bool(dot)
    if not fits or not both.isascii() or not both.isdigit() or not int(both):
        raise _unexpected(given, expected)
    return int(both)


# References to a package set. Only a few kinds, of plain characters: they end in commands, configuration and JSON.


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:+~@")
_HEX = frozenset("0123456789abcdef")
_NAME = "nixpkgs"


def well_formed(reference: str) -> bool:
    """Return whether claudebox accepts this reference."""
    if not reference or not set(reference) <= _PLAIN or reference.startswith("-") or ".." in reference.split("/"):
        return False
    kind, colon, rest = reference.partition(":")
    if not colon:
        return reference == _NAME
    if kind == "path":
        return rest.startswith("/")
    if kind == "flake":
        return bool(rest) and ":" not in rest and not rest.startswith("/")
    return kind in ("github", "gitlab") and rest.count("/") in (1, 2) and all(rest.split("/")) and ":" not in rest


def pinned(reference: str) -> bool:
    """Return whether it never changes: a path of the store, or a commit."""
    kind, _, rest = reference.partition(":")
    if not well_formed(reference):
        return False
    if kind == "path":
        return rest.startswith("/nix/store/")
    commit = rest.split("/")[2:]
    return kind in ("github", "gitlab") and len(commit) == 1 and len(commit[0]) == 40 and set(commit[0]) <= _HEX


def portable(reference: str) -> bool:
    """Return whether it means the same inside as it does on the host."""
    return pinned(reference) or (well_formed(reference) and reference.startswith(("github:", "gitlab:")))


def directory(reference: str) -> str:
    """Return the directory that a reference names, or nothing."""
    return reference.removeprefix("path:") if reference.startswith("path:/") else ""


def registry(reference: str) -> str:
    """Return a flake registry, as JSON, in which `nixpkgs` is this if it can be used inside."""
    kind, _, rest = reference.partition(":")
    if not portable(reference):
        return '{"version": 2, "flakes": []}\n'
    if kind == "path":
        target = f'"type": "path", "path": "{rest}"'
    else:
        owner, repository, *commit = rest.split("/")
        target = f'"type": "{kind}", "owner": "{owner}", "repo": "{repository}"'
        if commit:
            target += f', "{"rev" if pinned(reference) else "ref"}": "{commit[0]}"'
    return f'{{"version": 2, "flakes": [{{"from": {{"type": "indirect", "id": "{_NAME}"}}, "to": {{{target}}}}}]}}\n'
