"""One value that a user gave → what it means, or the line that tells what would be right."""

from __future__ import annotations

import os

from claudebox.agent import claude
from claudebox.base.addresses import read_port
from claudebox.base.errors import ClaudeboxError
from claudebox.settings.records import Constant, GitCredential, MountRequest, NameRequest
from claudebox.tables import paths as tables_paths
from claudebox.tables.environment import MADE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from claudebox.settings.layers import Given
    from claudebox.settings.records import AddressRequest, SecretRequest


_LONGEST_PATH = 4000  # bytes, of the kernel's 4096: bwrap puts something in front
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_NEVER = frozenset(" :?*[\\{")  # in no name of a commit


def valid_name(name: str) -> bool:
    """Return whether every program agrees that this is the name of a variable (A14)."""
    return name.isascii() and name.replace("_", "a").isalnum() and not name[:1].isdigit()


def origin(given: Given) -> str:
    """Return what asked for it."""
    return given.origin


def words(given: Given) -> tuple[str, ...]:
    """Return the words of a command."""
    return tuple(given.fields.values())


def is_word(word: str) -> Callable[[Given], bool]:
    """Return a parser that tells whether this was chosen."""
    return lambda given: given.value == word


def _request(given: Given) -> NameRequest:
    return NameRequest(given.value, given.origin, given.untrusted)


def name(given: Given) -> NameRequest:
    """Read the name of a variable."""
    if not valid_name(given.value):
        raise ClaudeboxError(
            f"`{given.origin}`: `{given.value}` is not the name of a variable",
            hint="letters, digits and `_`, and no value: claudebox takes the value from the environment",
        )
    return _request(given)


def domain(given: Given) -> None:
    """Read a domain, or the name of a group of them."""
    from claudebox.settings import domains as settings_domains

    settings_domains.check(given.value, given.origin)


def address(given: Given) -> AddressRequest:
    """Read an address or a network."""
    from claudebox.settings import domains as settings_domains

    return settings_domains.read_address(given)


def group(given: Given) -> None:
    """Read one row of a group: its name, and a host."""
    from claudebox.settings import domains as settings_domains

    name, _, host = given.value.partition("=")
    if not settings_domains.is_group(name):
        raise ClaudeboxError(
            f"`{given.origin}`: `{name}` cannot be the name of a group", hint="one word: letters, digits, `-` and `_`"
        )
    settings_domains.parse_domain(host, given.origin)


def part(given: Given) -> NameRequest:
    """Read the name of a part of the host's ~/.claude."""
    if "/" in given.value or given.value in (".", ".."):
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is not a name in ~/.claude", hint="one name, no `/`")
    if given.value in claude.NOT_INHERITED:
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is state of the host's client and stays there")
    return _request(given)


def protected(given: Given) -> NameRequest:
    """Read the name of something protected."""
    if given.value not in tables_paths.NAMES:
        known = ", ".join(f"`{name}`" for name in tables_paths.NAMES)
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is not protected", hint=f"protected are {known}")
    return _request(given)


def constant(given: Given) -> Constant:
    """Read NAME=VALUE."""
    name, assigned, value = given.value.partition("=")
    if not assigned or not valid_name(name):
        raise ClaudeboxError(f"`{given.origin}`: `{name}` is not the name of a variable", hint="write `NAME=VALUE`")
    if name in MADE:
        raise ClaudeboxError(f"`{given.origin}`: `{name}` is made by claudebox")
    return Constant(name, value, given.origin, given.untrusted)


def toolchain(given: Given) -> NameRequest:
    """Read the name of a toolchain."""
    from claudebox.tables.tools import TOOLCHAINS

    if given.value not in TOOLCHAINS:
        known = ", ".join(f"`{name}`" for name in TOOLCHAINS)
        raise ClaudeboxError(f"`{given.origin}`: there is no toolchain `{given.value}`", hint=f"there are {known}")
    return _request(given)


def package(given: Given) -> NameRequest:
    """Read the name of a package."""
    plain = given.value.translate({ord(char): "a" for char in "._+-"})
    if not plain.isascii() or not plain.isalnum() or given.value[0] in ".-+":
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is not the name of a package of nixpkgs")
    return _request(given)


def nixpkgs(given: Given) -> str:
    """Read a reference to a package set."""
    if not well_formed(given.value):
        raise ClaudeboxError(
            f"`{given.origin}`: `{given.value}` is not a package set",
            hint="`github:NixOS/nixpkgs/COMMIT`, `path:/DIRECTORY`, or a name of your registry: `flake:NAME`",
        )
    return given.value


def credential(given: Given) -> GitCredential:
    """Read the credential for git: never the token itself."""
    host, token, username = (given.fields[name] for name in ("host", "token", "username"))
    name, _, port = host.partition(":")
    if not name.replace("-", "a").replace(".", "a").isalnum() or not name.isascii() or (port and not port.isdigit()):
        raise ClaudeboxError(f"`{given.origin}`: `{host}` is not the name of a host", hint="`github.com`, say")
    kind, _, rest = token.partition(":")
    if not (kind == "env" and valid_name(rest)) and not (kind == "command" and rest.strip()):
        raise ClaudeboxError(
            f"`{given.origin}`: the token does not come from `env:NAME` or `command:WORDS`",
            hint="never write the token itself into a file",
        )
    if not username.isprintable():
        raise ClaudeboxError(f"`{given.origin}`: `{username}` is not a user name")
    return GitCredential(host, token, username, given.origin)


def secret(given: Given) -> SecretRequest:
    """Read one of `secrets`."""
    from claudebox.settings import secrets as settings_secrets

    return settings_secrets.read_secret(given)


def kept_name(given: Given) -> str:
    """Read a name in the home under which another agent keeps its state."""
    parts = given.value.split("/")
    if given.value.startswith("/") or any(part in ("", ".", "..") for part in parts) or not given.value.isprintable():
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is not a name in the home", hint="`.codex`, say")
    if parts[0] in (".claude", ".claude.json", ".gitconfig", ".claudebox"):
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is claudebox's own")
    return given.value


def mount_row(given: Given) -> MountRequest:
    """Read one of `mounts`; what is relative in a file of the user would mean something else in each project."""
    source, dest = given.fields["host"], given.fields["sandbox"]
    if not given.untrusted and not source.startswith(("/", "~/")):
        raise ClaudeboxError(f"`{given.origin}`: `{source}` is relative", hint="write it absolute, or with `~/`")
    return _mount(given, source, dest or None, writable=given.fields["mode"] == "rw")


def mount_ro(given: Given) -> MountRequest:
    r"""Read SRC[:DEST]; `\:` is a colon of a path."""
    return _mount(given, *split(given.value), writable=False)


def mount_rw(given: Given) -> MountRequest:
    r"""Read SRC[:DEST]; `\:` is a colon of a path."""
    return _mount(given, *split(given.value), writable=True)


def program_directory(given: Given) -> MountRequest:
    """Read a directory of programs; what is relative in a file would mean something else in each project."""
    if ":" in given.value:
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is not one directory", hint="repeat it for another")
    if not given.origin.startswith("-") and not given.value.startswith(("/", "~/")):
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is relative", hint="write it absolute, or with `~/`")
    return _mount(given, given.value, None, writable=False).replace(programs=True)


def _mount(given: Given, source: str, dest: str | None, *, writable: bool) -> MountRequest:
    """Return a mount whose paths are as they were written: `resolve` makes them absolute."""
    if not source:
        raise ClaudeboxError(f"`{given.origin} {given.value}` names no source", hint=f"`{given.origin} SRC[:DEST]`")
    if dest is not None and not dest.startswith(("/", "~/")):
        raise ClaudeboxError(
            f"`{given.origin}`: the destination `{dest}` is not an absolute path",
            hint="write a colon that belongs to a path as `\\:`",
        )
    if dest is not None and ".." in dest.split("/"):
        raise ClaudeboxError(f"`{given.origin}`: the destination `{dest}` contains `..`")
    try:
        written = os.fsencode(dest or ""), os.fsencode(source)
    except UnicodeEncodeError:  # of JSON, which may hold half a character
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` cannot be the name of a file") from None
    if len(written[0]) > _LONGEST_PATH or (len(written[0]) > 255 and max(map(len, written[0].split(b"/"))) > 255):
        raise ClaudeboxError(f"`{given.origin}`: the destination `{(dest or '')[:64]}…` is longer than a path can be")
    return MountRequest(source, dest or "", writable, given.origin, given.untrusted)


def resolve(request: MountRequest, home: str, workdir: str) -> MountRequest:
    """Return a mount with absolute paths; without a destination it is at the same place inside."""
    source = _absolute(request.source, home, workdir)
    return request.replace(source=source, dest=_absolute(request.dest, home, workdir) if request.dest else source)


def _absolute(path: str, home: str, workdir: str) -> str:
    if not path.startswith("/"):
        path = home + path[1:] if path == "~" or path.startswith("~/") else f"{workdir}/{path}"
    path = os.path.normpath(path)
    return path[1:] if path.startswith("//") else path  # it keeps two slashes in front


def device(given: Given) -> NameRequest:
    """Read the path of a device node."""
    if not given.value.startswith("/dev/") or ".." in given.value.split("/"):
        raise ClaudeboxError(f"`{given.origin}`: `{given.value}` is not in /dev", hint="`/dev/video0`, for example")
    return _request(given).replace(name=os.path.normpath(given.value))


def split(value: str) -> tuple[str, str | None]:
    """Split SRC[:DEST] at its colon."""
    if "\\" not in value:
        source, colon, dest = value.partition(":")
        return source, dest if colon else None
    parts = [""]
    escaped = False
    for char in value:
        if escaped:
            parts[-1] += char if char == ":" else "\\" + char
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == ":" and len(parts) == 1:
            parts.append("")
        else:
            parts[-1] += char
    parts[-1] += "\\" if escaped else ""
    return parts[0], parts[1] if len(parts) > 1 else None


def dollars(given: Given) -> int:
    """Read an amount of US dollars, in millionths."""
    whole, dot, cents = given.value.removeprefix("$").partition(".")
    plain = (whole + cents).isascii() and (whole + cents).isdigit() and len(whole) <= 6 and len(cents) <= 2
    if not plain or not whole or (dot and not cents) or not int(whole + cents):
        raise ClaudeboxError(f"`{given.origin}` is an amount of US dollars, not `{given.value}`", hint="`5` or `0.50`")
    return int(whole) * 1_000_000 + int(cents.ljust(2, "0")) * 10_000


def tokens(given: Given) -> int:
    """Read a number of tokens."""
    factor = {"k": 1000, "m": 1_000_000}.get(given.value[-1:].lower(), 1)
    digits = given.value[:-1] if factor > 1 else given.value
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 12 and int(digits)):
        raise ClaudeboxError(
            f"`{given.origin}` is a number of tokens, not `{given.value}`", hint="`200000`, `200k` or `2M`"
        )
    return int(digits) * factor


def number(most: int, unit: int = 1) -> Callable[[Given], int]:
    """Return a parser of numbers from 0 on, of this unit."""

    def read(given: Given) -> int:
        value = given.value
        if not (value.isascii() and value.isdigit() and len(value) < 9 and int(value) <= most):
            raise ClaudeboxError(f"`{given.origin}` is a number from 0 to {most}, not `{value}`")
        return int(value) * unit

    return read


def port(given: Given) -> int:
    """Read a TCP port."""
    if not read_port(given.value):
        raise ClaudeboxError(f"`{given.origin}` is a port from 1 to 65535, not `{given.value}`")
    return int(given.value)


def undo_pattern(given: Given) -> str:
    """Return the name of a directory, or a pattern for names or for paths in the project."""
    value = given.value
    if not value or value.startswith("/") or not {"", ".", ".."}.isdisjoint(value.split("/")):
        raise ClaudeboxError(f"`{given.origin}` is a name, or a pattern such as `*.iso` or `data/*`, not `{value}`")
    return value


def commit(given: Given) -> str:
    """Return what names a commit: a branch, a tag, or its digits."""
    value = given.value
    if not value or not value.isprintable() or set(value) & _NEVER or value[0] in "-/." or ".." in value:
        raise ClaudeboxError(f"`{given.origin}`: `{value}` does not name a branch, a tag or a commit")
    return value


def copied_path(given: Given) -> str:
    """Return a path in the project."""
    parts = given.value.rstrip("/").split("/")
    if given.value.startswith("/") or any(part in ("", ".", "..") for part in parts) or parts[0] == ".git":
        raise ClaudeboxError(f"`{given.origin}` is a path in the project, as `node_modules`, not `{given.value}`")
    return "/".join(parts)


def size(given: Given) -> int:
    """Return a number of bytes."""
    value = given.value.upper().removesuffix("B").removesuffix("I")
    digits, unit = (value[:-1], value[-1:]) if value[-1:] in _UNITS else (value, "")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits) > 0):
        raise ClaudeboxError(f"`{given.origin}` is a size, as `512M` or `8G`, not `{given.value}`")
    return int(digits) * _UNITS[unit]


def time(given: Given) -> int:
    """Return a number of seconds."""
    value = given.value
    digits, unit = (value[:-1], value[-1:]) if value[-1:] in _SECONDS else (value, "")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 8 and int(digits) > 0):
        raise ClaudeboxError(f"`{given.origin}` is a time, as `90s`, `30m` or `8h`, not `{given.value}`")
    return int(digits) * _SECONDS[unit]


def count(given: Given) -> int:
    """Return a number of processes: few enough to be a limit, enough for a program to start."""
    if not (given.value.isascii() and given.value.isdigit() and 16 <= int(given.value[:9]) <= 1 << 20):
        raise ClaudeboxError(f"`{given.origin}` is a number from 16 to {1 << 20}, not `{given.value}`")
    return int(given.value)


def processors(given: Given) -> int:
    """Return hundredths of a processor."""
    whole, _, part = given.value.partition(".")
    if not ((whole + part).isascii() and (whole + part).isdigit() and len(whole) < 5 and len(part) < 3):
        raise ClaudeboxError(f"`{given.origin}` is a number of processors, as `2` or `0.5`, not `{given.value}`")
    found = int(whole or 0) * 100 + int((part + "00")[:2])
    if not found:
        raise ClaudeboxError(f"`{given.origin}` is more than 0")
    return found


# References to a package set: which are well-formed, which can never mean something else, what a registry says of
# one.
#
# A few kinds only, of plain characters: they end in commands, in configuration and in JSON.


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:+~@")
_HEX = frozenset("0123456789abcdef")
_NAME = "nixpkgs"


def well_formed(reference: str) -> bool:
    """Return whether this is a reference that claudebox takes."""
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
    """Return whether it means the same for ever: a path of the store, or a commit."""
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
    """Return the directory that a reference names, if it does."""
    return reference.removeprefix("path:") if reference.startswith("path:/") else ""


def registry(reference: str) -> str:
    """Return a registry in which `nixpkgs` is this, if that is known inside, and nothing else."""
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
