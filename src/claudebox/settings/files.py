"""Files of settings: found, opened without trusting them, and turned into layers.

`tomllib` would cost a launch 15 ms, so what `document` read is cached in ~/.claudebox/config-cache, by the digest of
the file. Nothing is written before `SettingsReader.save`.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat

from claudebox import __version__
from claudebox.agent import kinds
from claudebox.base import console, syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import OPEN_DIRECTORY, PACKAGE, Closing, list_names, mode_of, others_write, real_path
from claudebox.base.records import Value
from claudebox.settings import layers as settings_layers
from claudebox.settings.layers import Layer, Settings, SettingValue
from claudebox.settings.parsers import valid_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Literal

    from claudebox.settings.trust import TrustRequest

    Role = Literal["user", "profile", "project"]


PROJECT_FILE = ".claudebox.toml"
LIMIT = 64 << 10
BUILT_IN = f"{PACKAGE}/claudebox/profiles"
_SUFFIXES = (".toml", ".json")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_DIGEST = 64  # characters in front of a cache entry
_CACHE = "config-cache"
_FORMAT = 5  # of the cache; changes whenever the same file is read as something else
_OWNER = "settings must belong to you or root"
_KEPT = 64  # entries of the cache
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


class Source(Value):
    """One file of settings, read once."""

    path: str
    shown: str  # how a user would write the path
    role: Role
    content: bytes

    @property
    def digest(self) -> str:
        return syscalls.sha256(self.content)


class SettingsReader:
    """Turns the files of one user into layers."""

    def __init__(self, home: str) -> None:
        self._home = home
        self.state = f"{home}/.claudebox"
        self._unsaved: dict[str, dict[str, Any]] = {}
        self.user_layers: tuple[Layer, ...] | None = None  # once they were read
        self.opened: list[str] = []  # all files that count, as a user would write them

    def present(self) -> bool:
        """Return whether the user has a file of defaults."""
        return os.path.lexists(f"{self.state}/config.toml")

    def defaults(self) -> Layer | None:
        """Return the layer of ~/.claudebox/config.toml, if it exists."""
        path = f"{self.state}/config.toml"
        return self.layer(self._open(path, "user")) if os.path.lexists(path) else None

    def add_agents(self) -> None:
        """Make the user's own agents known to this process: ~/.claudebox/agents/NAME.toml."""
        directory = f"{self.state}/agents"
        entries = sorted(entry for entry in list_names(directory) if entry.endswith(".toml") and entry[0] != ".")
        sources = {entry.removesuffix(".toml"): self._open(f"{directory}/{entry}", "user") for entry in entries}
        kinds.add_own(kinds.make_own(name, self._read(source, _read_agent)) for name, source in sources.items())

    def project(self, workdir: str) -> Source | None:
        """Return the project's own file, unread and untrusted."""
        path = os.path.join(workdir, PROJECT_FILE)
        mode = mode_of(path)
        if not mode:
            return None
        if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            return self._open(path, "project", shown=PROJECT_FILE)
        if not stat.S_ISDIR(mode):
            raise ClaudeboxError(f"{PROJECT_FILE} is not a file", hint="it must be a file of the project itself")
        if os.listdir(path):  # an empty one is the stub of another session
            console.warn(f"{PROJECT_FILE} is not a file; ignored")
        return None

    def profile(self, name: str, origin: str) -> tuple[Layer, ...]:
        """Return the layers of a profile, after those that it extends."""
        chain: list[Layer] = []
        seen: list[str] = []
        wanted = name
        while wanted:
            path = self.find(wanted, origin, without=seen)
            if path in seen:
                names = " -> ".join((name, *(layer.given["extends"][0].value for layer in chain)))
                raise ClaudeboxError(f"`{origin}`: the profiles extend each other in a circle: {names}")
            seen.append(path)
            layer = self.layer(self._open(path, "profile"))
            chain.append(layer)
            extends = layer.given.get("extends")
            wanted, origin = (extends[0].value, extends[0].origin) if extends else ("", "")
        return tuple(reversed(chain))

    def find(self, name: str, origin: str, *, without: Iterable[str] = ()) -> str:
        """Return the path of a profile: the user's, or the built-in one that it extends under the same name."""
        if not name or name.startswith(".") or not set(name) <= _NAME:
            raise ClaudeboxError(
                f"`{origin}`: `{name}` cannot be the name of a profile", hint="letters, digits, `-`, `_` and `.`"
            )
        own = [path for path in self._candidates(f"{self.state}/profiles", name) if os.path.lexists(path)]
        if len(own) > 1:
            raise ClaudeboxError(f"`{origin}`: the profile `{name}` exists twice: {self.shown(own[0])} and "
                                 f"{self.shown(own[1])}", hint="remove one of them")  # fmt: skip
        built_in = [path for path in self._candidates(BUILT_IN, name) if os.path.exists(path)]
        if own and not (own[0] in without and built_in):
            return own[0]
        if built_in:
            return built_in[0]
        from claudebox.settings import document

        raise document.unknown_profile(name, origin, self.names())

    @staticmethod
    def _candidates(directory: str, name: str) -> list[str]:
        return [f"{directory}/{name}{suffix}" for suffix in _SUFFIXES]

    def names(self) -> dict[str, str]:
        """Return the paths of all profiles by name."""
        found: dict[str, str] = {}
        for directory in (BUILT_IN, f"{self.state}/profiles"):
            for entry in list_names(directory):
                stem, suffix = os.path.splitext(entry)
                if suffix in _SUFFIXES and not stem.startswith("."):
                    found[stem] = f"{directory}/{entry}"
        return found

    def shown(self, path: str) -> str:
        """Return a path as a user would write it."""
        if path.startswith(f"{BUILT_IN}/"):
            return f"built-in {os.path.basename(path)}"
        return "~" + path[len(self._home) :] if path.startswith(self._home.rstrip("/") + "/") else path

    def _open(self, path: str, role: Role, *, shown: str = "") -> Source:
        """Read a file that may be of any kind and any owner (C18, E05)."""
        shown = shown or self.shown(path)
        try:
            # A link is fine in the user's own files, and refused in a project.
            descriptor = os.open(path, _READ | (os.O_NOFOLLOW if role == "project" else 0))
        except OSError as error:
            if error.errno == errno.ELOOP and role == "project":
                raise ClaudeboxError(f"{shown} is a link", hint="it must be a file of the project itself") from None
            raise ClaudeboxError(f"{shown} cannot be read: {error.strerror}") from None
        with Closing(descriptor):
            status = os.fstat(descriptor)
            _check(shown, status)
            if not path.startswith(f"{BUILT_IN}/"):
                _check_owner(shown, descriptor, status)
                if role != "project" and os.lstat(path).st_uid not in (os.getuid(), 0):
                    raise ClaudeboxError(f"{shown} is a link of another user", hint=_OWNER)
            content = b""
            while len(content) <= LIMIT and (piece := os.read(descriptor, LIMIT + 1 - len(content))):
                content += piece
        if len(content) > LIMIT:
            raise _too_large(shown)
        return Source(path, shown, role, content)

    def _read(self, source: Source, read: Callable[[Source], dict[str, Any]]) -> dict[str, Any]:
        """Return what a file says, from the cache if it has been read before."""
        reader = f"{_FORMAT} {__version__} {marshal.version} {source.role}"
        key = syscalls.sha256(b"\0".join((reader.encode(), os.fsencode(source.path), source.content)))
        rows = self._recall(key)
        if rows is None:
            rows = self._unsaved[key] = read(source)
        self.opened.append(source.shown)
        return rows

    def layer(self, source: Source) -> Layer:
        """Return the settings of a file."""
        rows: dict[str, list[tuple[str, int, dict[str, str]]]] = self._read(source, _read_settings)
        untrusted = source.role == "project"
        return Layer(
            source.shown,
            {
                name: tuple(
                    SettingValue(value, f"{source.shown}:{line}" if line else source.shown, fields, untrusted)
                    for value, line, fields in values
                )
                for name, values in rows.items()
            },
        )

    def _recall(self, key: str) -> dict[str, Any] | None:
        directory = _open_private(f"{self.state}/{_CACHE}")
        if directory is None:
            return None
        try:
            descriptor = os.open(key, _READ | os.O_NOFOLLOW, dir_fd=directory)
        except OSError:
            return None
        finally:
            os.close(directory)
        with Closing(descriptor):
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not _is_ours(status) or status.st_size > LIMIT * 8:
                return None
            data = os.read(descriptor, status.st_size)
        if syscalls.sha256(data[_DIGEST:]).encode() != data[:_DIGEST]:  # damaged, and marshal checks nothing
            return None
        rows: dict[str, Any] = marshal.loads(data[_DIGEST:])  # noqa: S302 - written by us, and undamaged
        return rows

    def save(self) -> None:
        """Write the cache; without one, files are parsed again next time."""
        if not self._unsaved:
            return
        from claudebox.base.files import replace_file

        try:
            os.mkdir(f"{self.state}/{_CACHE}", 0o700)
        except OSError:
            pass
        directory = _open_private(f"{self.state}/{_CACHE}")
        if directory is None:
            return
        try:
            entries = os.listdir(directory)
            for entry in entries if len(entries) + len(self._unsaved) > _KEPT else ():
                os.unlink(entry, dir_fd=directory)
            for key, rows in self._unsaved.items():
                payload = marshal.dumps(rows)
                replace_file(directory, key, syscalls.sha256(payload).encode() + payload)
        except OSError:
            return
        finally:
            os.close(directory)
            self._unsaved.clear()


def _read_settings(source: Source) -> dict[str, Any]:
    from claudebox.settings import document

    return document.read_document(source)


def _read_agent(source: Source) -> dict[str, Any]:
    from claudebox.settings import agent_rows

    return agent_rows.read_row(source)


def _check(shown: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ClaudeboxError(f"{shown} is not a file")
    if status.st_size > LIMIT:
        raise _too_large(shown)


def _check_owner(shown: str, descriptor: int, status: os.stat_result) -> None:
    if status.st_uid not in (os.getuid(), 0):
        raise ClaudeboxError(f"{shown} belongs to another user", hint=_OWNER)
    if others_write(descriptor, status):
        raise ClaudeboxError(f"{shown} can be changed by other users", hint=f"`chmod go-w {shown}`")


def _too_large(shown: str) -> ClaudeboxError:
    return ClaudeboxError(f"{shown} is larger than {LIMIT >> 10} KiB", hint="no settings need so much")


def _open_private(path: str) -> int | None:
    """Open a directory that only its owner, this user, can write to."""
    try:
        descriptor = os.open(path, OPEN_DIRECTORY)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if status.st_uid == os.getuid() and not others_write(descriptor, status):
        return descriptor
    os.close(descriptor)
    return None


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def layers(flags: Settings, environ: dict[str, str], reader: SettingsReader) -> tuple[Layer, ...]:
    """Return the layers of the user's own files: defaults, then the chosen profile. They are read once."""
    if reader.user_layers is None:
        defaults = reader.defaults()
        found = (defaults,) if defaults else ()
        chosen = settings_layers.look_up("profile", flags, environ, found)
        profile = reader.profile(chosen[-1].value, chosen[-1].origin) if chosen else ()
        reader.user_layers = (*found, *profile)
    return reader.user_layers


def apply(
    flags: Settings,
    environ: dict[str, str],
    reader: SettingsReader,
    *,
    workdir: str,
    approve: Callable[[Iterable[str]], bool] | None,
) -> Settings:
    """Return the settings of a launch in this directory, with all files.

    `approve` shows the user what a project file asks for, and asks; without it nothing new is approved.
    """
    users = (*_read_answers(reader, workdir), *layers(flags, environ, reader))
    request = read_request(reader, workdir)
    if request is None:
        return settings_layers.merge(flags, environ, users)
    from claudebox.settings import trust

    return trust.settle(request, lambda extra: settings_layers.merge(flags, environ, (*users, *extra)), approve)


def _read_answers(reader: SettingsReader, workdir: str) -> Iterator[Layer]:
    """Yield what the user has answered about this project; every file of theirs counts for more."""
    if not os.path.lexists(f"{reader.state}/trust"):
        return
    from claudebox.settings import trust

    if trust.shows_secrets(reader.state, workdir):
        origin = "your answer for this project"
        yield Layer(origin, {"project_secrets": (SettingValue("show", origin),)})


def read_env_files(flags: Settings) -> Settings:
    """Return the flags with the variables of every `--env-file` before those of `--env`."""
    found = [row for given in flags.all("env_file") for row in _read_env_file(given.value)]
    given = {key: values for key, values in flags.given.items() if key != "env_file"}
    given["set_env"] = (*found, *given.get("set_env", ()))
    return flags.replace(given=given)


def _read_env_file(path: str) -> Iterator[SettingValue]:
    """Yield the variables of a file: NAME=VALUE, in quotes or not, after `export` or not; `#` begins a comment line."""
    given = path.startswith("/dev/")  # standard input, or a pipe of the shell: `<(pass show env)`
    try:
        with open(os.open(path, _READ & ~os.O_NONBLOCK if given else _READ), "rb") as file:
            if not given:
                _check(f"`--env-file {path}`", os.fstat(file.fileno()))
            content = file.read(LIMIT + 1)
    except OSError as error:
        raise ClaudeboxError(f"`--env-file {path}`: {error.strerror}") from None
    if len(content) > LIMIT:
        raise _too_large(f"`--env-file {path}`")
    for number, line in enumerate(content.decode("utf-8", "surrogateescape").splitlines(), 1):
        text = line.strip().removeprefix("export ").lstrip()
        if not text or text.startswith("#"):
            continue
        name, assigned, value = text.partition("=")
        name, value = name.rstrip(), value.strip()
        if not assigned or not valid_name(name):  # the line itself may hold a secret
            raise ClaudeboxError(f"`{path}:{number}` is not `NAME=VALUE`")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        yield SettingValue(name, f"{path}:{number}", {"value": value})


def read_request(reader: SettingsReader, workdir: str) -> TrustRequest | None:
    """Return what the project's own file asks for."""
    source = reader.project(workdir)
    if source is None:
        return None
    from claudebox.settings import trust

    path = trust.original_path(reader.state, real_path(source.path))
    return trust.TrustRequest(reader.state, path, source.digest, reader.layer(source))
