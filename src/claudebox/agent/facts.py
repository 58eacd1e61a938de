"""The agent on this machine: its program, its login, and what of its settings can come along. No token is kept."""

from __future__ import annotations

import os

from claudebox import build_paths
from claudebox.agent.claude import CLAUDE, UPSTREAM
from claudebox.base import syscalls
from claudebox.base.errors import NOT_EXECUTABLE, NOT_FOUND, ClaudeboxError
from claudebox.base.files import Closing, list_names, parse_object, read_small, real_path
from claudebox.base.records import Value
from claudebox.host.programs import executable, find_tool
from claudebox.host.records import AgentFacts
from claudebox.tables.secrets import looks_secret, value_looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Literal

    from claudebox.base.state import Instance
    from claudebox.host.texts import Texts
    from claudebox.settings.records import Policy


_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of ELF
_PLATFORM = {"x86_64": "x64", "aarch64": "arm64"}  # how npm calls them
_PACKAGE = 1 << 18  # of a package.json
_STUB = 4096  # what npm leaves for a binary that was not installed is smaller than this
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
    client, problem = look_for_client(home, path, workdir, policy.client)
    login = find_login(home, instance)
    if policy.brokered and login.known and not find_credential(environ, login):
        login = read_login(login)
    brings = bool(policy.inherit or policy.shared_home)
    inherited = find_inherited(policy, home) if brings else ()
    servers: bytes = b""
    if any(request.name == CLAUDE.servers for request in policy.inherit):
        servers, told = find_servers(home)
        inherited = (*inherited, *told)
    return AgentFacts(
        login=login,
        client=client,
        client_problem=problem,
        parts=list_parts(home) if brings else (),
        inherited=inherited,
        texts=_examine_texts(policy, home),
        mcp_servers=servers,
        managed=find_managed(),
        memory_files=(
            read_small(CLAUDE.instructions, follow=True) or b"",
            read_small(f"{home}/.claudebox/CLAUDE.md") or b"",
        ),
    )


def _examine_texts(policy: Policy, home: str) -> Texts | None:
    directory = f"{home}/{CLAUDE.directory}"
    if not policy.inherit and not policy.shared_home:
        return None
    from claudebox.host import texts

    return texts.examine(directory, texts.TEXTS if policy.shared_home else (row.name for row in policy.inherit))


def find_login(home: str, instance: Instance) -> Login:
    """Return the login to use: claudebox's own before that of the host's client."""
    own = f"{instance.login}/credentials.json"
    if os.path.isfile(own):
        return Login("claudebox", own)
    host = f"{home}/{CLAUDE.directory}/.credentials.json"
    if os.path.isfile(host):
        return Login("host", host)
    inside = f"{instance.own_login}/store/.credentials.json"
    return Login(path=inside) if os.path.isfile(inside) else Login()


def read_login(login: Login) -> Login:
    """Return the same login with what it says of itself; the tokens are not kept."""
    tokens = tokens_of(syscalls.parse_json(read_small(login.path, limit=_LIMIT, follow=True) or b""))
    if tokens is None or not isinstance(tokens.get("accessToken"), str):
        return login
    found = []
    for field, variable in UPSTREAM.login_traits:
        value = tokens.get(field)
        words = [word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str)]
        if words and all(word and set(word) <= _PLAIN for word in words):
            found.append((variable, " ".join(words)))
    return login.replace(usable=True, traits=tuple(found))


def text_at(document: object, field: str) -> str:
    """Return the text of a field of JSON, named `FIELD.FIELD`; "" if there is none."""
    found = value_at(document, field)
    return found if isinstance(found, str) else ""


def value_at(document: object, field: str) -> object:
    for name in field.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document


def tokens_of(document: object) -> dict[str, Any] | None:
    """Return the part of a login file that holds the tokens."""
    tokens = document.get(UPSTREAM.tokens) if isinstance(document, dict) else None
    return tokens if isinstance(tokens, dict) else None


def as_document(tokens: dict[str, Any]) -> dict[str, Any]:
    """Return a login file with these tokens."""
    return {UPSTREAM.tokens: tokens}


def list_tokens(path: str) -> Iterator[tuple[str, str]]:
    """Yield the tokens of a login file, and what to call them."""
    tokens = tokens_of(syscalls.parse_json(read_small(path, limit=_LIMIT) or b"{}")) or {}
    for key, name in (("accessToken", "access token of the login"), ("refreshToken", "refresh token of the login")):
        if isinstance(tokens.get(key), str):
            yield name, tokens[key]


def find_credential(environ: dict[str, str], login: Login) -> str:
    """Return the credential that the client would use: the name of a variable, or `login`, or nothing.

    Towards a gateway a certificate or headers of the user's own are one, too.
    """
    named = [name for name in UPSTREAM.credentials if environ.get(name)]
    if not named and not login.usable and environ.get(UPSTREAM.base_url):
        named = [name for name in (UPSTREAM.certificate[0], UPSTREAM.headers) if environ.get(name)]
    return next(iter(named), "login" if login.usable else "")


def look_for_client(
    home: str, path: Sequence[str], workdir: str, given: str
) -> tuple[Client | None, ClaudeboxError | None]:
    """Return the client, or what is wrong with it: not every session needs one."""
    try:
        return find_client(home, path, workdir, given), None
    except ClaudeboxError as problem:
        return None, problem


def find_client(home: str, path: Sequence[str], workdir: str, given: str = "") -> Client:
    """Return the client, the `given` one if there is one, or say why there is none that can be run."""
    places = [build_paths.TOOLS["claude"]] if "claude" in build_paths.TOOLS else []
    places += [f"{directory}/claude" for directory in path]
    places += [os.path.join(home, place[2:]) if place[0] == "~" else place for place in CLAUDE.places]
    places = [given] if given else places
    inside = workdir.rstrip("/") + "/"
    refusal: ClaudeboxError | None = None
    for found in dict.fromkeys(places):
        if not os.path.lexists(found):
            continue
        try:
            client = _examine(found, home, path)
        except ClaudeboxError as error:
            refusal = refusal or error
            continue
        if not client.path.startswith(inside):
            return client
        refusal = refusal or ClaudeboxError(
            f"`claude` at `{found}` lies in the project, which could have replaced it",
            hint=f"install it outside: `{CLAUDE.install}`",
            status=NOT_EXECUTABLE,
        )
    raise refusal or ClaudeboxError(
        "`claude` was not found on PATH or in the places where it is usually installed",
        hint=f"install it with `{CLAUDE.install}`, or with the installer of claude.ai",
        status=NOT_FOUND,
    )


def _examine(found: str, home: str, path: Sequence[str]) -> Client:
    """Follow links, stubs and shims to the file that really runs."""
    real = real_path(found)
    manager = _shim_manager(found, real)
    if manager:
        real = real_path(_ask(manager, home, path, found))
    wrapped = f"{os.path.dirname(real)}/node_modules/.bin/claude"
    if real.endswith("/.claude/local/claude") and os.path.lexists(wrapped):
        real = real_path(wrapped)
    head = _head(real)
    if not head.startswith((b"\x7fELF", b"#!")):
        sibling = _platform_package(real)
        if sibling is None:
            raise _broken(found, "is not a program (an installation that stopped half-way?)")
        real, head = sibling, _head(sibling)
    if not os.access(real, os.X_OK):
        raise _broken(found, "is not executable")
    if head.startswith(b"\x7fELF"):
        wanted = _MACHINES.get(os.uname().machine)
        if wanted is not None and int.from_bytes(head[18:20], "little") != wanted:
            raise _broken(found, f"is built for another machine than {os.uname().machine}")
    version = _version(real)
    on_node = b"node" in head.split(b"\n", 1)[0] and not head.startswith(b"\x7fELF")
    if on_node or (version and version < CLAUDE.least):
        named = f"version {spell_version(version)}" if version else "a version that runs on Node"
        raise ClaudeboxError(
            f"`claude` at `{found}` is {named}, and claudebox needs {spell_version(CLAUDE.least)} or newer",
            hint=f"update it: `{CLAUDE.install}@latest`, or `claude update`",
            status=NOT_EXECUTABLE,
        )
    return Client(found, real, version)


def spell_version(version: tuple[int, ...]) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version))


def _version(real: str) -> tuple[int, ...]:
    """Read the client's version without running it: from its name, as the installer and Nix give it, or its package."""
    parts = real.split("/")
    named = [part.rpartition("claude-code-")[2] for part in reversed(parts) if "claude-code-" in part]
    named += [parts[number + 1] for number, part in enumerate(parts[:-1]) if part in ("versions", "claude-code")]
    for version in filter(None, map(_numbers, named)):
        return version
    for place in (os.path.dirname(real), os.path.dirname(os.path.dirname(real))):
        content = read_small(f"{place}/package.json", limit=_PACKAGE) or b""
        if b'"@anthropic-ai/claude-code' in content:
            after = content.partition(b'"version"')[2].split(b'"', 2)
            return _numbers(os.fsdecode(after[1])) if len(after) == 3 else ()
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


def _broken(found: str, problem: str) -> ClaudeboxError:
    return ClaudeboxError(
        f"`claude` at `{found}` {problem}",
        hint=f"install it again: `{CLAUDE.install}`",
        status=NOT_EXECUTABLE,
    )


def _platform_package(real: str) -> str | None:
    """Look beside the stub that npm leaves where it may not run install scripts."""
    machine = _PLATFORM.get(os.uname().machine, "")
    scope = os.path.dirname(os.path.dirname(os.path.dirname(real)))
    for name in (f"claude-code-linux-{machine}", f"claude-code-linux-{machine}-musl"):
        for base in (scope, os.path.join(os.path.dirname(os.path.dirname(real)), "node_modules/@anthropic-ai")):
            candidate = f"{base}/{name}/claude"
            if executable(candidate) and _head(candidate).startswith(b"\x7fELF"):
                return real_path(candidate)
    return None


def _shim_manager(found: str, real: str) -> str | None:
    """Return the version manager whose shim this is: the shim itself would look for its home inside."""
    name = os.path.basename(real)
    if name in ("mise", "volta-shim", "rtx"):
        return "volta" if name == "volta-shim" else name
    if "/shims/" in found:
        content = read_small(real, limit=_STUB) or b""
        for manager in ("asdf", "mise"):
            if manager.encode() in content:
                return manager
    return None


def _ask(manager: str, home: str, path: Sequence[str], found: str) -> str:
    """Ask the version manager for the file behind its shim, outside of the project."""
    program = find_tool(manager, (*path, f"{home}/.local/bin", f"{home}/.asdf/bin", f"{home}/.volta/bin"))
    if program is None:
        raise _broken(found, f"is a shim of {manager}, which was not found")
    from subprocess import SubprocessError, run

    environ = {"HOME": home, "PATH": ":".join(path)}
    try:
        answer = run([program, "which", "claude"], cwd="/", env=environ, capture_output=True, timeout=10, check=False)
    except (OSError, SubprocessError) as error:
        raise _broken(found, f"is a shim of {manager}, which did not answer") from error
    target = os.fsdecode(answer.stdout).strip()
    if answer.returncode or not target.startswith("/") or not os.path.exists(target):
        raise _broken(found, f"is a shim of {manager}, which does not know `claude`")
    return target


def find_inherited(policy: Policy, home: str) -> tuple[tuple[str, str], ...]:
    """Return what a user should know who brings the host's settings in: kind and name of each."""
    parts = {request.name for request in policy.inherit}
    if not policy.shared_home and "settings.json" not in parts:
        return ()
    document = _read_document(f"{home}/{CLAUDE.directory}/settings.json")
    return tuple(dict.fromkeys(_names(document)))


def find_servers(home: str) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """Return the MCP servers of the user's own configuration as a file for the client, and what to say of each.

    Values of variables and headers that look like secrets stay out and are named; a server that has one among its
    arguments or in its address stays out itself.
    """
    import json

    table = _read_document(f"{home}/.claude.json", _STATE_LIMIT).get("mcpServers")
    servers, told = {}, []
    for name, row in table.items() if isinstance(table, dict) else ():
        if not isinstance(row, dict):
            continue
        words = [str(row.get(key, "")) for key in ("command", "url")]
        arguments = row.get("args")
        words += [str(word) for word in arguments] if isinstance(arguments, list) else []
        if any(value_looks_secret(word.rpartition("=")[2]) for word in words):
            told.append(("MCP server", f"{name} is left out: a secret is among its words"))
            continue
        kept, withheld = _without_secrets(row)
        servers[name] = kept
        without = f", without {', '.join(withheld)}" if withheld else ""
        told.append(("MCP server", f"{name} (`{' '.join(word for word in words if word)}`{without})"))
    return json.dumps({"mcpServers": servers}).encode() if servers else b"", tuple(told)


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


def list_parts(home: str) -> tuple[tuple[str, str, bool], ...]:
    """Return the entries of the agent's directory: name, place, and whether it is a directory."""
    directory = f"{home}/{CLAUDE.directory}"
    places_of = ((name, real_path(f"{directory}/{name}")) for name in list_names(directory))
    return tuple((name, real, os.path.isdir(real)) for name, real in places_of if os.path.exists(real))


def find_managed() -> tuple[tuple[str, str], ...]:
    """List what the administrator manages; CLAUDE.md is joined with ours, drop-ins stand beside ours."""
    rows: list[tuple[str, str]] = []
    for directory in (CLAUDE.managed, f"{CLAUDE.managed}/managed-settings.d"):
        names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
        paths = [f"{directory}/{name}" for name in names if name not in ("CLAUDE.md", "managed-settings.d")]
        rows += [(path, real_path(path)) for path in paths if os.path.exists(path)]
    return tuple(rows)
