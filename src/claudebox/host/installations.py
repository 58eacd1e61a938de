"""The user's own programs: the directories of the host's PATH, and the installations that their programs belong to.

One rule for every manager of versions: a directory of PATH is shown; where it is the `bin` of an installation, the
other parts of that are shown with it; and what a link in it leads to is shown in the same way. What lies beside an
installation (credentials, settings, sources, caches) stays out. Nothing is run, and nothing here decides by a name that
an agent could choose: a directory that agents of other sessions write to is kept out as a whole.
"""

from __future__ import annotations

import os
import stat

from claudebox.base import syscalls
from claudebox.base.files import OPEN_DIRECTORY, Closing, list_names, others_write, read_small, real_path
from claudebox.base.records import Value
from claudebox.host.records import KeptOut, KnownPlaces, PathFact, ancestors, covers
from claudebox.tables import tools as tables_tools
from claudebox.tables.secrets import file_looks_secret, text_holds_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from claudebox.host.paths import Examiner


_MOST_ENTRIES = 4096  # of a directory
_MOST_DIRECTORIES = 256  # of PATH; the variable itself must stay short enough for the kernel
_MOST_SHOWN = 512  # mounts
_MOST_LINKS = 40  # on the way to one program, as the kernel has it
_SEARCHED, _SEARCHED_IN_ALL = 1 << 20, 16 << 20  # bytes of scripts
_SOURCED = (".awk", ".bash", ".js", ".lua", ".mjs", ".pl", ".py", ".rb", ".sed", ".sh", ".zsh")
_PYTHON = "python"  # of an environment: a link to the interpreter
_ELF = b"\x7fELF"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Refusal(Value):
    why: str
    flags: str = "--set path="


_SUSPICIOUS = _Refusal("it seems to hold a secret", "--mount-ro ")


class Programs(Value):
    """What of the user's own programs is shown."""

    path: tuple[str, ...] = ()  # directories of PATH, in the order of the host
    shown: tuple[PathFact, ...] = ()  # each at its real place
    links: tuple[tuple[str, str], ...] = ()  # that lead to something shown
    masked: tuple[str, ...] = ()  # scripts that seem to hold a secret: empty inside
    partial: tuple[str, ...] = ()  # directories of which only the programs are shown, each by itself
    kept_out: tuple[KeptOut, ...] = ()
    names: frozenset[str] = frozenset()  # of the programs
    variables: tuple[tuple[str, str], ...] = ()  # that tell where an installation is


class Ground(Value):
    """What a directory of programs is judged by."""

    home: str
    workdir: str
    places: KnownPlaces
    state: str  # ~/.claudebox
    visible: tuple[str, ...]  # trees that are inside anyway
    taken: tuple[str, ...]  # where something of the sandbox's own stands that an agent can write
    agents: frozenset[str] = frozenset()  # names of programs that claudebox itself brings in


class Finder:
    """Collects directories of programs, and what they need."""

    def __init__(self, ground: Ground, examiner: Examiner, environ: Mapping[str, str]) -> None:
        self._ground, self._examiner, self._environ = ground, examiner, environ
        self._path: list[str] = []
        self._shown: dict[str, PathFact] = {}
        self._links: dict[str, str] = {}
        self._masked: dict[str, None] = {}
        self._partial: dict[str, None] = {}
        self._kept_out: dict[str, _Refusal] = {}
        self._names: set[str] = set()
        self._handled: set[str] = set()  # installations
        self._left = _SEARCHED_IN_ALL
        self._hidden = {row.fact.identity[1] for row in ground.places.hidden if row.fact.identity is not None}

    def add_path(self, entries: Iterable[str]) -> None:
        """Take directories of the host's PATH, in their order."""
        for entry in dict.fromkeys(entries):
            if not entry.isprintable():
                if os.path.isdir(entry):
                    self._kept_out[entry] = _Refusal("its name has characters that a terminal obeys", "")
            elif len(self._path) >= _MOST_DIRECTORIES:
                self._kept_out[entry] = _Refusal(f"PATH has more than {_MOST_DIRECTORIES} directories")
            else:
                self._add_directory(entry)

    def add_asked(self, directory: str) -> None:
        """Take what belongs to a directory that the user asked for, which is mounted anyway."""
        fact = self._examiner.fact(directory)
        if fact.kind == "directory" and not covers(self._ground.workdir, fact.real):
            self._shown[fact.real] = fact
            self._list(fact, searched=False)
            del self._shown[fact.real]

    def finish(self) -> Programs:
        """Return what was found, without what is in something else."""
        variables = tuple(self._find_variables())
        shown = {path: fact for path, fact in self._shown.items() if not self._is_in_another(path)}
        links = {
            path: target for path, target in self._links.items()
            if not any(covers(root, path) for root in (*shown, *self._ground.visible))
        }  # fmt: skip
        return Programs(
            path=tuple(self._path),
            shown=tuple(shown.values()),
            links=tuple(links.items()),
            masked=tuple(path for path in self._masked if any(covers(root, path) for root in shown)),
            partial=tuple(path for path in self._partial if path not in shown),
            kept_out=tuple(KeptOut(path, row.why, row.flags) for path, row in self._kept_out.items()),
            names=frozenset(self._names),
            variables=variables,
        )

    def _is_in_another(self, path: str) -> bool:
        return any(place in self._shown for place in ancestors(path)[1:])

    def _is_there(self, path: str) -> bool:
        """Return whether a real path is inside already."""
        return any(covers(root, path) for root in self._ground.visible) or any(
            place in self._shown for place in ancestors(path)
        )

    def _add_directory(self, entry: str) -> None:
        fact = self._examiner.fact(entry)
        if fact.kind != "directory":
            return
        if covers(self._ground.workdir, fact.real):
            # An environment that the user has activated is used as it is: no link that an agent may have made is
            # followed, so nothing else is shown because of it.
            if os.path.normpath(f"{self._environ.get('VIRTUAL_ENV', '')}/bin") == entry:
                self._path.append(fact.real)
            else:
                self._kept_out[entry] = _Refusal("it lies in the project, where the agent can change it")
            return
        if any(covers(root, fact.real) for root in self._ground.visible):
            self._reach(entry)
            self._path.append(entry)
            return
        why = self._why_not(fact, entry) or self._show_directory(fact)
        if why:
            self._kept_out[entry] = why
        else:
            self._reach(entry)
            self._path.append(entry)

    def _show_directory(self, fact: PathFact) -> _Refusal | None:
        """Show a directory of PATH; return why not, if it cannot be."""
        if fact.real in self._shown or fact.real in self._partial:
            return None
        if len(self._shown) >= _MOST_SHOWN:
            return _Refusal("there are too many directories of programs")
        self._shown[fact.real] = fact
        why = self._list(fact, searched=True)
        if why:
            self._shown.pop(fact.real, None)
        return why

    def _why_not(self, fact: PathFact, spelled: str = "") -> _Refusal | None:
        """Return why a directory or file of the user's cannot be shown."""
        places = self._ground.places
        if fact.identity in places.home.lineage:
            return _Refusal("it is your home, or holds it", "")
        if not fact.real.endswith("/bin") and any(fact.identity == row.identity for row in places.not_projects):
            return _Refusal("it holds much else than programs")
        for row in places.hidden:
            if fact.identity in row.fact.lineage or row.fact.identity in fact.lineage:
                return _Refusal(f"it would expose {row.fact.path} ({row.why})", "--set unsafe_mounts=true --set path=")
        excepted = any(place.identity in fact.lineage for place in places.allowed_beneath)
        for place in places.not_beneath:
            if place.identity in fact.lineage and not excepted:
                return _Refusal(f"it belongs to the system ({place.path})", "")
        for path in (fact.real, spelled):
            for taken in self._ground.taken:
                if path and (covers(taken, path) or covers(path, taken)):
                    return _Refusal(f"agents can write to {taken} inside", "")
        if fact.owner not in (0, os.getuid()):
            return _Refusal("it belongs to another user")
        return self._find_agent(fact.real)

    def _find_agent(self, real: str) -> _Refusal | None:
        """Return why not, if this lies in a project that agents work in."""
        for place in ancestors(real):
            name = syscalls.sha256(os.fsencode(place))[:16]
            if os.path.lexists(f"{self._ground.state}/instances/{name}"):
                return _Refusal(f"agents write to {place}, which is another project")
        return None

    # What a directory holds, and what that leads to.

    def _list(self, fact: PathFact, *, searched: bool) -> _Refusal | None:
        """Look through a directory of programs; return why it cannot be shown."""
        try:
            opened = os.open(fact.real, OPEN_DIRECTORY)
        except OSError as error:
            return _Refusal(f"it cannot be read: {error.strerror}", "")
        with Closing(opened) as directory:
            status = os.fstat(directory)
            if (status.st_dev, status.st_ino) != fact.identity:
                return _Refusal("it was replaced while it was examined")
            if searched and others_write(directory, status):
                return _Refusal("other users can write to it")
            with os.scandir(directory) as entries:
                listed = [entry for _, entry in zip(range(_MOST_ENTRIES + 1), entries, strict=False)]
            if searched and len(listed) > _MOST_ENTRIES:
                return _Refusal(f"it has more than {_MOST_ENTRIES} entries")
            if searched and (why := self._find_credential(listed)):
                return why
            prefix = self._find_installation(fact.real)
            own = not (prefix and self._is_certain(prefix))
            if searched and own and (why := self._search(directory, fact.real, listed)):
                return why
        if prefix:
            self._show_installation(prefix)
        for entry in listed:
            if entry.name in self._ground.agents:  # claudebox has its own way for them
                continue
            self._names.add(entry.name)
            if entry.is_symlink():
                self._follow_link(fact.real, entry.name)
            if entry.name in tables_tools.STARTERS and tables_tools.STARTERS[entry.name].parts:
                self._show_started(entry.name)
        return None

    def _find_credential(self, listed: list[os.DirEntry[str]]) -> _Refusal | None:
        for entry in listed:
            named = file_looks_secret(entry.name)
            if not named and entry.inode() not in self._hidden:
                continue
            status = entry.stat(follow_symlinks=False)
            if any((status.st_dev, status.st_ino) == row.fact.identity for row in self._ground.places.hidden):
                return _Refusal(f"{entry.name} in it is hidden", "--set unsafe_mounts=true --set path=")
            if named and stat.S_ISREG(status.st_mode) and not status.st_mode & 0o111:
                return _Refusal(f"{entry.name} lies beside the programs")
        return None

    def _search(self, directory: int, real: str, listed: list[os.DirEntry[str]]) -> _Refusal | None:
        """Search scripts of the user's own for secrets; return why that was not possible."""
        parts: list[str] = []
        for entry in listed:
            if entry.is_dir(follow_symlinks=False):
                if not self._is_part(f"{real}/{entry.name}", entry.name):
                    self._partial[real] = None
                    continue
            elif entry.is_file(follow_symlinks=False):
                if self._left <= 0:
                    return _Refusal("there is too much in it to be searched for secrets")
                if not self._is_program(directory, entry.name):
                    self._masked[f"{real}/{entry.name}"] = None
                    continue
                if self._holds_secret(directory, entry.name):
                    self._masked[f"{real}/{entry.name}"] = None
                    self._kept_out[f"{real}/{entry.name}"] = _SUSPICIOUS
                    continue
            parts.append(entry.name)
        if real in self._partial:
            del self._shown[real]
            self._show_parts(real, parts)
        return None

    @staticmethod
    def _is_part(path: str, name: str) -> bool:
        """Return whether a directory among the user's programs belongs to them."""
        return name in tables_tools.PARTS and not any(map(file_looks_secret, list_names(path)))

    def _show_parts(self, real: str, names: list[str]) -> None:
        for name in names:
            path = f"{real}/{name}"
            if os.path.islink(path):
                self._links[path] = os.path.normpath(os.path.join(real, os.readlink(path)))
            elif len(self._shown) < _MOST_SHOWN:
                self._shown[path] = self._examiner.fact(path)

    @staticmethod
    def _is_program(directory: int, name: str) -> bool:
        """Return whether a file can be run, or is read by those that can."""
        return name.endswith(_SOURCED) or os.access(name, os.X_OK, dir_fd=directory)

    def _holds_secret(self, directory: int | None, name: str) -> bool:
        """Search one file; the interpreter that a script names is shown."""
        try:
            opened = os.open(name, _READ, dir_fd=directory)
        except OSError:  # nothing that this user could read, here or inside
            return False
        with Closing(opened) as file:
            head = os.read(file, 4)
            if head == _ELF or not stat.S_ISREG(os.fstat(file).st_mode):
                return False
            content = head + os.read(file, _SEARCHED)
        self._left -= len(content)
        self._follow_interpreter(content)
        return text_holds_secret(content.decode("utf-8", "surrogateescape"))

    def _follow_interpreter(self, content: bytes) -> None:
        if content[:2] == b"#!":
            words = os.fsdecode(content[2:512].split(b"\n")[0]).split()
            if words and words[0].startswith("/") and not self._is_there(words[0]):
                self._follow(words[0])

    def _follow_link(self, real: str, name: str) -> None:
        try:
            target = os.readlink(f"{real}/{name}")
        except OSError:
            return
        if "/" not in target:
            return
        place = os.path.normpath(os.path.join(real, target))
        if not self._is_there(place):
            self._follow(f"{real}/{name}")
        elif name != _PYTHON and any(f"{part}/" in place for part in tables_tools.COLLECTIONS):
            self._follow_link(os.path.dirname(place), _PYTHON)  # each environment has an interpreter of its own

    def _follow(self, path: str) -> None:
        """Show the program that a path leads to, with its installation."""
        real = real_path(path)
        if not self._is_there(real):
            self._show_program(real)
        if self._is_there(real):
            self._reach(path)

    def _show_program(self, real: str) -> None:
        head, modules, _ = real.partition("/node_modules/")
        prefix = self._find_installation(os.path.dirname(real))
        if modules:
            self._show(f"{head}/node_modules")
        elif prefix and self._show_installation(prefix):
            self._show(os.path.dirname(real))
        else:
            fact = self._examiner.fact(real)
            if fact.kind == "file" and os.access(real, os.X_OK) and not self._why_not(fact):
                if self._left > 0 and not self._holds_secret(None, real):
                    self._shown[real] = fact
                else:
                    self._kept_out[real] = _SUSPICIOUS

    def _find_installation(self, directory: str) -> str:
        """Return the prefix of the installation that this is the `bin` of; nothing if it is not part of one."""
        prefix, name = os.path.split(directory)
        if name not in tables_tools.PROGRAM_DIRECTORIES or prefix == "/":
            return ""
        fact = self._examiner.fact(prefix)
        if fact.identity in self._ground.places.home.lineage:
            return ""
        names = set(list_names(prefix))
        is_checkout = ".git" in names and not names & tables_tools.MANAGED
        return prefix if names & tables_tools.LIBRARIES and not is_checkout else ""

    @staticmethod
    def _is_certain(prefix: str) -> bool:
        """Return whether a program made this installation, so that its scripts are none of the user's own."""
        return not tables_tools.CERTAIN.isdisjoint(list_names(prefix))

    def _show_installation(self, prefix: str) -> bool:
        """Show the parts of an installation, as a whole if there is nothing else; return whether they can be."""
        if prefix in self._handled:
            return True
        fact = self._examiner.fact(prefix)
        names = list_names(prefix)
        shared = any(fact.identity == row.identity for row in self._ground.places.not_projects)  # such as ~/.local
        if not shared and self._why_not(fact) and not self._holds_hidden(fact):
            return False
        self._handled.add(prefix)
        if os.path.dirname(prefix).endswith(tables_tools.COLLECTIONS):
            self._show(os.path.dirname(prefix))
        wanted = tables_tools.SHARED_PARTS if shared else tables_tools.PARTS
        parts = [name for name in names if name in wanted]
        certain = not tables_tools.CERTAIN.isdisjoint(names)
        if certain and not shared and len(parts) == len(names) and not self._holds_hidden(fact):
            self._show(prefix)
        else:
            for name in parts:
                self._show(f"{prefix}/{name}", searched=not certain and name in tables_tools.PROGRAM_DIRECTORIES)
        if "pyvenv.cfg" in names:
            self._follow_link(f"{prefix}/bin", _PYTHON)
        return True

    def _holds_hidden(self, fact: PathFact) -> bool:
        return any(fact.identity in row.fact.lineage[1:] for row in self._ground.places.hidden)

    def _show_started(self, name: str) -> None:
        """Show what a program starts that no link leads to."""
        started = tables_tools.STARTERS[name]
        root = self._environ.get(started.variable, "")
        root = os.path.normpath(root) if root.startswith("/") else f"{self._ground.home}/{started.root}"
        for part in started.parts:
            self._show(f"{root}/{part}".rstrip("/"))
        for path in started.files:
            self._show(f"{self._ground.home}/{path}")

    def _show(self, path: str, *, searched: bool = False) -> None:
        """Show a directory or a file wherever it really is; scripts of the user's own are searched first."""
        fact = self._examiner.fact(path)
        if fact.kind not in ("directory", "file") or len(self._shown) >= _MOST_SHOWN:
            return
        if not self._is_there(fact.real) and not self._why_not(fact):
            if searched and fact.kind == "directory":
                self._show_directory(fact)
            else:
                self._shown[fact.real] = fact
        if self._is_there(fact.real):
            self._reach(path)

    def _reach(self, path: str) -> None:
        """Note the links on the way to a path: inside they are made where nothing else shows them."""
        place, rest = "", path.strip("/").split("/")
        for _ in range(_MOST_LINKS):
            while rest:
                place = f"{place}/{rest.pop(0)}"
                if os.path.islink(place):
                    break
            else:
                return
            if any(covers(root, place) for root in self._ground.visible):
                return
            directory = os.path.dirname(place)
            target = os.path.normpath(os.path.join(real_path(directory), os.readlink(place)))
            self._links[place] = target
            place, rest = "", [*target.strip("/").split("/"), *rest]

    def _find_variables(self) -> Iterator[tuple[str, str]]:
        """Yield the variables that name something shown."""
        for name in tables_tools.LOCATING:
            value = self._environ.get(name, "")
            if value.startswith("/") and value.isprintable() and self._is_there(real_path(value)):
                self._reach(os.path.normpath(value))
                yield name, value


def read_choices(home: str) -> bytes:
    """Return which versions mise is told to use, and nothing else of its settings, which may hold secrets."""
    content = read_small(f"{home}/.config/mise/config.toml", follow=True)
    if content is None or b"[tools]" not in content:
        return b""
    import tomllib

    try:
        tools = tomllib.loads(content.decode()).get("tools", {})
    except (ValueError, RecursionError):
        return b""
    rows = [(name, value) for name, value in tools.items() if isinstance(value, str)]
    plain = "-_.:/@+"
    return b"[tools]\n" + b"".join(
        f'"{name}" = "{value}"\n'.encode() for name, value in rows
        if all(char.isalnum() or char in plain for char in name + value)
    )  # fmt: skip
