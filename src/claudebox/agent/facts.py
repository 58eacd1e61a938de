"""The agent on this machine: its program, its login, and what of its settings can come along. No token is kept."""

from __future__ import annotations

import os

from claudebox import build_paths
from claudebox.base import syscalls
from claudebox.base.errors import NOT_EXECUTABLE, NOT_FOUND, ClaudeboxError
from claudebox.base.files import Closing, list_names, parse_object, read_small, real_path
from claudebox.base.records import Value
from claudebox.host.programs import is_executable
from claudebox.host.records import AgentFacts
from claudebox.tables.paths import STATE
from claudebox.tables.secrets import looks_secret, value_looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Literal

    from claudebox.agent.record import AgentKind, LoginFile, ModelService
    from claudebox.base.state import Instance
    from claudebox.host.texts import Texts
    from claudebox.settings.records import Policy


_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of ELF
_PLATFORM = {"x86_64": "x64", "aarch64": "arm64"}  # how npm calls them
_PACKAGE = 1 << 18  # of a package.json
_LIMIT = 1 << 20
_STATE_LIMIT = 64 << 20
_TABLES = (
    ("env", "variable of settings.json"),
    ("hooks", "hook"),
    ("mcpServers", "MCP server"),
    ("enabledPlugins", "plugin"),
)
# Programs that the client runs because its settings say so.
_PROGRAMS = ("apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "otelHeadersHelper", "statusLine")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:.-")


class Client(Value):
    """The client's program, and what must be visible for it to run."""

    found: str  # where a user would say that it is
    path: str  # the file that is run
    version: tuple[int, ...] = ()  # where it is written beside the program
    needs: tuple[str, ...] = ()  # of a script: what it lies in, and its interpreter
    interpreter: str = ""  # of a script, where that is found by its name


class Login(Value):
    """Where the login comes from."""

    source: Literal["claudebox", "host", "none"] = "none"
    path: str = ""  # the file with the tokens, never mounted; one that was made inside has no source
    usable: bool = False  # it was read, and there are tokens in it
    traits: tuple[tuple[str, str], ...] = ()  # what else it says, as variables of the client

    @property
    def known(self) -> bool:
        """Return whether there is one."""
        return self.source != "none"


def find_agent(
    policy: Policy, environ: dict[str, str], home: str, path: tuple[str, ...], workdir: str, instance: Instance
) -> AgentFacts:
    """Look for the agent's program, login and settings."""
    agent = policy.agent
    client, problem = look_for_client(agent, home, path, workdir, policy.client)
    login = find_login(agent, home, instance)
    if policy.brokered and login.known and not find_credential(agent.upstream, environ, login):
        login = read_login(agent.upstream, login)
    brings = bool(policy.inherit or policy.shared_home)
    inherited = find_inherited(policy, home) if brings else ()
    servers: bytes = b""
    if agent.extras.servers and any(request.name == agent.extras.servers for request in policy.inherit):
        servers, told = find_servers(f"{home}/{agent.extras.servers_home}")
        inherited = (*inherited, *told)
    return AgentFacts(
        login=login,
        client=client,
        client_problem=problem,
        parts=list_parts(agent, home) if brings and agent.extras.not_inherited else (),
        inherited=inherited,
        texts=_examine_texts(policy, home),
        mcp_servers=servers,
        managed=find_managed(agent) if agent.extras.managed else (),
        memory_files=(
            (read_small(agent.instructions, follow=True) if agent.extras.managed else None) or b"",
            read_small(f"{home}/.claudebox/CLAUDE.md") or b"",
        ),
    )


def _examine_texts(policy: Policy, home: str) -> Texts | None:
    agent = policy.agent
    if not agent.extras.not_inherited or not (policy.inherit or policy.shared_home):
        return None
    from claudebox.host import texts

    wanted = {row.name for row in policy.inherit}
    names = [name for name in agent.extras.texts if policy.shared_home or name in wanted]
    return texts.examine(f"{home}/{agent.directory}", names)


def find_login(agent: AgentKind, home: str, instance: Instance) -> Login:
    """Return the login to use: claudebox's own before that of the host's client."""
    if agent.upstream.login is None:
        return Login()
    own = f"{instance.login}/credentials.json"
    if os.path.isfile(own):
        return Login("claudebox", own)
    host = f"{home}{agent.upstream.login.path[1:]}"
    if os.path.isfile(host):
        return Login("host", host)
    inside = f"{instance.own_login}/store/{os.path.basename(host)}"
    return Login(path=inside) if os.path.isfile(inside) else Login()


def read_login(service: ModelService, login: Login) -> Login:
    """Return the same login with what it says of itself; the tokens are not kept."""
    document = syscalls.parse_json(read_small(login.path, limit=_LIMIT, follow=True) or b"")
    if service.login is None or not text_at(document, service.login.access):
        return login
    found = []
    for field, variable in service.login_traits:
        value = value_at(document, field)
        words = [word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str)]
        if words and all(word and set(word) <= _PLAIN for word in words):
            found.append((variable, " ".join(words)))
    return login.replace(usable=True, traits=tuple(found))


def text_at(document: object, field: str) -> str:
    """Return the text of a field of JSON, named `FIELD.FIELD`; "" if there is none."""
    found = value_at(document, field)
    return found if isinstance(found, str) else ""


def read_field(path: str, field: str) -> str:
    """Return the text of a field of a small file: JSON, or lines of `NAME=value` as in `.env`; "" if there is none."""
    lines = (read_small(path, limit=_LIMIT, follow=True) or b"").split(b"\n")
    content = b"\n".join(line for line in lines if line.lstrip()[:2] != b"//")
    if content.lstrip()[:1] == b"{":
        return text_at(syscalls.parse_json(content), field)
    for line in reversed(content.decode("utf-8", "replace").splitlines()):
        name, sign, value = line.strip().removeprefix("export ").partition("=")
        value = value.strip()
        if sign and name.strip() == field:
            return value[1:].partition(value[0])[0] if value[:1] in ("'", '"') else value.partition(" #")[0].rstrip()
    return ""


def value_at(document: object, field: str) -> object:
    """Return the value of a field of JSON, named `FIELD.FIELD`, where `*` is the first one; None if there is none."""
    for name in field.split("."):
        values = document if isinstance(document, dict) else {}
        document = next(iter(values.values()), None) if name == "*" else values.get(name)
    return document


def list_secrets(agents: Iterable[AgentKind], home: str) -> Iterator[tuple[str, str]]:
    """Yield the tokens and keys in files of agents on this machine, and what to call them."""
    for agent in agents:
        for login in agent.logins:
            yield from list_tokens(login, f"{home}{login.path[1:]}")
        if agent.upstream.login is not None:
            yield from list_tokens(agent.upstream.login, f"{home}/{STATE}/login/credentials.json")
        for place in (place for api in agent.upstreams for place in api.files):
            path, _, field = place.rpartition(":")
            if found := read_field(f"{home}{path[1:]}" if path.startswith("~/") else path, field):
                yield f"{field} of {path}", found


def list_tokens(login: LoginFile, path: str) -> Iterator[tuple[str, str]]:
    """Yield the tokens of a login file, and what to call them."""
    for field, name in ((login.access, "access"), (login.refresh, "refresh")):
        if found := read_field(path, field):
            yield f"{name} token of the login", found


def find_credential(service: ModelService, environ: dict[str, str], login: Login) -> str:
    """Return the credential that the client would use: the name of a variable, or `login`, or nothing.

    Towards a gateway a certificate or headers of the user's own are one, too.
    """
    named = [name for name in service.credentials if environ.get(name)]
    if not named and not login.usable and environ.get(service.base_url):
        named = [name for name in (*service.certificate[:1], service.headers) if environ.get(name)]
    return next(iter(named), "login" if login.usable else "")


def look_for_client(
    agent: AgentKind, home: str, path: Sequence[str], workdir: str, given: str
) -> tuple[Client | None, ClaudeboxError | None]:
    """Return the client, or what is wrong with it: not every session needs one."""
    try:
        return find_client(agent, home, path, workdir, given), None
    except ClaudeboxError as problem:
        return None, problem


def find_client(agent: AgentKind, home: str, path: Sequence[str], workdir: str, given: str = "") -> Client:
    """Return the client, the `given` one if there is one, or say why there is none that can be run."""
    name = agent.name
    places = [build_paths.TOOLS[name]] if name in build_paths.TOOLS else []
    places += [f"{directory}/{name}" for directory in path]
    places += [os.path.join(home, place[2:]) if place[0] == "~" else place for place in agent.places]
    places = [given] if given else places
    inside = workdir.rstrip("/") + "/"
    refusal: ClaudeboxError | None = None
    for found in dict.fromkeys(places):
        if not os.path.lexists(found):
            continue
        try:
            client = _examine(agent, found, path)
        except ClaudeboxError as error:
            refusal = refusal or error
            continue
        if not any(f"{place}/".startswith(inside) for place in (client.path, client.interpreter, *client.needs)):
            return client
        refusal = refusal or ClaudeboxError(
            f"`{name}` at `{found}` is in the project, where an agent could have replaced it",
            hint=f"install it outside: `{agent.install}`",
            status=NOT_EXECUTABLE,
        )
    raise refusal or ClaudeboxError(
        f"`{name}` was not found on PATH or in the places where it is usually installed",
        hint=f"install it with `{agent.install}`",
        status=NOT_FOUND,
    )


def _examine(agent: AgentKind, found: str, path: Sequence[str]) -> Client:
    """Follow links, stubs and shims to the file that really runs."""
    real = _follow_shim(agent, found, real_path(found))
    wrapped = f"{os.path.dirname(real)}/node_modules/.bin/{agent.name}"
    if agent.directory and real.endswith(f"/{agent.directory}/local/{agent.name}") and os.path.lexists(wrapped):
        real = real_path(wrapped)
    head = _head(real)
    if not head.startswith((b"\x7fELF", b"#!")):
        sibling = _platform_package(agent, real)
        if sibling is None:
            raise _broken(agent, found, "is not a program; was its installation interrupted?")
        real, head = sibling, _head(sibling)
    if not os.access(real, os.X_OK):
        raise _broken(agent, found, "is not executable")
    script = not head.startswith(b"\x7fELF")
    if not script:
        wanted = _MACHINES.get(os.uname().machine)
        if wanted is not None and int.from_bytes(head[18:20], "little") != wanted:
            raise _broken(agent, found, f"is built for another machine than {os.uname().machine}")
    version = _version(agent, real)
    on_node = script and b"node" in head.split(b"\n", 1)[0]
    if (on_node and not agent.interpreted) or (version and version < agent.least):
        named = f"version {spell_version(version)}" if version else "a version that runs on Node"
        raise ClaudeboxError(
            f"`{agent.name}` at `{found}` is {named}, and claudebox needs {spell_version(agent.least)} or newer",
            hint=f"update it: `{agent.install}@latest`, or `{agent.name} update`",
            status=NOT_EXECUTABLE,
        )
    if not (script and agent.interpreted):
        return Client(found, real, version)
    needs, interpreter = _needs_of(agent, found, real, head, path)
    return Client(found, real, version, needs, interpreter)


def _needs_of(agent: AgentKind, found: str, real: str, head: bytes, path: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return the directories without which a script does not run, and its interpreter if it is found by its name."""
    words = os.fsdecode(head[2:].split(b"\n", 1)[0]).split()
    program = words[0] if words else ""
    if os.path.basename(program) != "env":
        environment = os.path.dirname(os.path.dirname(program))
        if not os.path.isfile(f"{environment}/pyvenv.cfg"):  # that of a virtual environment, as pipx makes it
            return (real,), ""
        base = real_path(program)
        return (environment, *(() if base.startswith("/usr/") else (os.path.dirname(os.path.dirname(base)),))), ""
    name = next((word for word in words[1:] if word[0] != "-" and "=" not in word), "")
    interpreter = next((f"{place}/{name}" for place in path if is_executable(f"{place}/{name}")), "")
    if not interpreter:
        raise _broken(agent, found, f"runs on `{name}`, which was not found")
    base, part, rest = real.partition("/node_modules/")
    if not part:
        return (real,), real_path(interpreter)
    # What `npm install -g` has put beside other packages brings its own; else they all lie beside it.
    depth = 2 if rest.startswith("@") else 1
    package = f"{base}{part}{'/'.join(rest.split('/')[:depth])}"
    return (package if base.endswith("/lib") else f"{base}/node_modules",), real_path(interpreter)


def spell_version(version: tuple[int, ...]) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version))


def _version(agent: AgentKind, real: str) -> tuple[int, ...]:
    """Read the client's version without running it: from its name, as the installer and Nix give it, or its package."""
    short = agent.package.rpartition("/")[2]
    parts = real.split("/")
    named = [part.rpartition(f"{short}-")[2] for part in reversed(parts) if f"{short}-" in part]
    named += [parts[number + 1] for number, part in enumerate(parts[:-1]) if part in ("versions", short)]
    for version in filter(None, map(_numbers, named)):
        return version
    places = [os.path.dirname(real)]
    places += [os.path.dirname(places[-1])]
    places += [os.path.dirname(places[-1])]
    called = (agent.package, *(row.partition("{machine}")[0] for row in agent.native))
    for place in places:
        content = read_small(f"{place}/package.json", limit=_PACKAGE) or b""
        if any(f'"{name}'.encode() in content for name in called):
            after = content.partition(b'"version"')[2].split(b'"', 2)
            return _numbers(os.fsdecode(after[1])) if len(after) == 3 else ()
    for place in list_names(f"{places[1]}/lib"):  # of a virtual environment
        packages = list_names(f"{places[1]}/lib/{place}/site-packages")
        for name in packages:
            if name.startswith(f"{short.replace('-', '_')}-") and name.endswith(".dist-info"):
                return _numbers(name.removesuffix(".dist-info").rpartition("-")[2])
    return ()


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    good = len(parts) == 3 and all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts)
    return tuple(map(int, parts)) if good else ()


def _head(path: str) -> bytes:
    try:
        with Closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)) as descriptor:
            return os.read(descriptor, 256)
    except OSError:
        return b""


def _broken(agent: AgentKind, found: str, problem: str) -> ClaudeboxError:
    return ClaudeboxError(
        f"`{agent.name}` at `{found}` {problem}",
        hint=f"install it again: `{agent.install}`",
        status=NOT_EXECUTABLE,
    )


def _platform_package(agent: AgentKind, real: str) -> str | None:
    """Look beside the stub that npm leaves where it may not run install scripts."""
    machine = _PLATFORM.get(os.uname().machine, "")
    package = os.path.dirname(os.path.dirname(real))
    beside = os.path.dirname(os.path.dirname(package)) if "/" in agent.package else os.path.dirname(package)
    for name in agent.native:
        for base in (beside, f"{package}/node_modules"):
            candidate = f"{base}/{name.replace('{machine}', machine)}"
            if is_executable(candidate) and _head(candidate).startswith(b"\x7fELF"):
                return real_path(candidate)
    return None


def _follow_shim(agent: AgentKind, found: str, real: str) -> str:
    """Return the program behind the shim of a version manager: the newest in its directories. Nothing is run."""
    directory, program = os.path.split(found)
    root = os.path.dirname(directory)
    if os.path.basename(real) == "volta-shim":
        places = [f"{root}/tools/image/packages/{agent.package}/bin/{program}"]
    elif os.path.basename(directory) == "shims":
        tools = [f"{root}/versions", *(f"{root}/installs/{name}" for name in list_names(f"{root}/installs"))]
        versions = [f"{tool}/{version}" for tool in tools for version in list_names(tool)]
        places = [f"{version}/{part}{program}" for version in versions for part in ("bin/", ".npm/bin/", "")]
    else:
        return real
    installed = sorted({real_path(place) for place in places if is_executable(place)})
    if not installed:
        raise _broken(agent, found, f"is a shim, and nothing in {root} is the program behind it")
    return max(installed, key=lambda place: _version(agent, place))


def find_inherited(policy: Policy, home: str) -> tuple[tuple[str, str], ...]:
    """Return what a user should know who brings the host's settings in: kind and name of each."""
    parts = {request.name for request in policy.inherit}
    if not policy.shared_home and "settings.json" not in parts:
        return ()
    document = _read_document(f"{home}/{policy.agent.directory}/settings.json")
    return tuple(dict.fromkeys(_names(document)))


def find_servers(path: str) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """Return the MCP servers of the user's own configuration as a file for the client, and what to say of each.

    Values of variables and headers that look like secrets stay out and are named; a server that has one among its
    arguments or in its address stays out itself.
    """
    table = _read_document(path, _STATE_LIMIT).get("mcpServers")
    servers, told = {}, []
    for name, row in table.items() if isinstance(table, dict) else ():
        if not isinstance(row, dict):
            continue
        words = [str(row.get(key, "")) for key in ("command", "url")]
        arguments = row.get("args")
        words += [str(word) for word in arguments] if isinstance(arguments, list) else []
        if any(value_looks_secret(word.rpartition("=")[2]) for word in words):
            told.append(("MCP server", f"{name} is left out: its arguments hold a secret"))
            continue
        kept, withheld = _without_secrets(row)
        servers[name] = kept
        without = f", without {', '.join(withheld)}" if withheld else ""
        told.append(("MCP server", f"{name} (`{' '.join(word for word in words if word)}`{without})"))
    return syscalls.render_json({"mcpServers": servers}).encode() if servers else b"", tuple(told)


def _without_secrets(row: dict[str, object]) -> tuple[dict[str, object], list[str]]:
    kept, withheld = dict(row), []
    for key in ("env", "headers"):
        table = row.get(key)
        if isinstance(table, dict):
            secret = [name for name, value in table.items() if looks_secret(str(name), str(value))]
            kept[key] = {name: value for name, value in table.items() if name not in secret}
            withheld += secret
    return kept, withheld


def _read_document(path: str, limit: int = _LIMIT) -> dict[str, object]:
    """Return what a file of the client says; nothing if it is not one."""
    return parse_object(read_small(path, limit=limit, follow=True))


def _names(document: dict[str, object]) -> Iterator[tuple[str, str]]:
    for key, kind in _TABLES:
        table = document.get(key)
        for name in table if isinstance(table, dict) else ():
            yield kind, str(name)
    for key in _PROGRAMS:
        if key in document:
            yield "program of settings.json", key


def list_parts(agent: AgentKind, home: str) -> tuple[tuple[str, str, bool], ...]:
    """Return the entries of the agent's directory: name, place, and whether it is a directory."""
    directory = f"{home}/{agent.directory}"
    places_of = ((name, real_path(f"{directory}/{name}")) for name in list_names(directory))
    return tuple((name, real, os.path.isdir(real)) for name, real in places_of if os.path.exists(real))


def find_managed(agent: AgentKind) -> tuple[tuple[str, str], ...]:
    """List what the administrator manages; instructions are joined with ours, drop-ins stand beside ours."""
    rows: list[tuple[str, str]] = []
    beside = {os.path.dirname(path) for path, _ in agent.extras.answers}
    for directory in (agent.extras.managed, *beside):
        paths = [f"{directory}/{name}" for name in (sorted(os.listdir(directory)) if os.path.isdir(directory) else ())]
        paths = [path for path in paths if path != agent.instructions and path not in beside]
        rows += [(path, real_path(path)) for path in paths if os.path.exists(path)]
    return tuple(rows)
