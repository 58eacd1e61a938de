"""What an agent needs inside, from its row: its program, its variables, its arguments, its state."""

from __future__ import annotations

from claudebox.agent.facts import find_credential
from claudebox.base.errors import ClaudeboxError
from claudebox.host.records import covers
from claudebox.plan import environment as plan_environment
from claudebox.plan.records import Mount, Variable
from claudebox.settings.layers import list_words
from claudebox.tables.environment import CLIENT_DIRECTORY
from claudebox.tables.secrets import looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.agent.record import AgentKind, Upstream
    from claudebox.host.records import Host
    from claudebox.plan.records import Kind
    from claudebox.settings.records import NameRequest, Policy


_KEY_TAIL = 20  # how much of a key an agent remembers to know it again


def plan_mounts(policy: Policy, host: Host, held: str) -> Iterable[Mount]:
    """Bind the agent's program, its state in this project, and its login.

    `held` is the credential that the broker holds, or nothing.
    """
    agent, extras = policy.agent, policy.agent.extras
    yield from _program(policy, host)
    for path, place in agent.state:
        reason = "conversations and settings of this project"
        yield Mount(f"{host.home}/{path}", "bind", reason, f"{host.instance.directory}/{place}", role="state")
    if not extras.login:
        pass
    elif held:
        yield Mount(f"{extras.login}/store", "dir", "no login is kept inside", mode=0o755, role="state")
    elif host.agent.login.known:
        store = f"{host.instance.login}/store"
        reason = f"a short-lived token of the login of {host.agent.login.source}"
        yield Mount(f"{extras.login}/store", "ro-bind", reason, store, role="state")
    else:
        yield Mount(extras.login, "bind", "for a login made inside", host.instance.own_login, role="state")
    home, brought = f"{host.home}/{agent.directory}", dict(_inherited(policy, host))
    for name, real in brought.items():
        yield Mount(f"{home}/{name}", "ro-bind", f"yours, from the host's ~/{agent.directory}", real, role="client")
    yield from _text_rows(brought, policy, host)
    for path, real in host.agent.managed:
        yield Mount(path, "ro-bind", "settings that the machine's administrator manages", real, role="client")
    if extras.servers and any(request.name == extras.servers for request in policy.inherit):
        if not host.agent.mcp_servers:
            raise ClaudeboxError(f"`--set inherit=mcp`: no MCP server of ~/{extras.servers_home} can be used inside")
        reason = "your MCP servers, without their secrets"
        yield Mount(extras.servers_file, "file", reason, content=host.agent.mcp_servers, mode=0o644, role="client")
    if policy.program != "client" or agent.printing.isdisjoint(policy.words):  # one that prints asks nothing
        for path, content in extras.answers:
            reason = "answers the client's warning about permissions"
            yield Mount(path, "file", reason, content=content.encode(), mode=0o644, role="client")


def _program(policy: Policy, host: Host) -> Iterable[Mount]:
    agent, client = policy.agent, host.agent.client
    if client is None:
        return
    for path in client.needs:
        if not _is_shown(path, host):
            yield Mount(path, "ro-bind", "the client's files", path, role="client")
    if client.interpreter and not _is_shown(client.interpreter, host):
        name = client.interpreter.rpartition("/")[2]
        yield Mount(f"{CLIENT_DIRECTORY}/{name}", "ro-bind", "the client's runtime", client.interpreter, role="client")
    linked = client.needs or (client.path.startswith("/nix/store/") and host.system.store)
    yield Mount(agent.program, "symlink" if linked else "ro-bind", "the client", client.path, role="client")


def _is_shown(path: str, host: Host) -> bool:
    """Return whether the sandbox shows this of the system anyway."""
    return any(covers(root, path) for root in host.system.shown)


def fill(template: str, host: Host, key: str = "", *, quoted: bool = False) -> str:
    """Return a template of a row with what is known before the broker listens, `quoted` as in JSON and TOML."""
    for name, value in (("{home}", host.home), ("{workdir}", host.workdir.real), ("{key}", key)):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"') if quoted else value
        template = template.replace(name, escaped)
    return template


def command(policy: Policy, host: Host, arguments: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the agent's command line, with `arguments` of claudebox's own."""
    agent = policy.agent
    brings = host.agent.mcp_servers and policy.words[:1] != (agent.extras.servers,)
    servers = (f"--mcp-config={agent.extras.servers_file}",) if brings else ()
    always = () if policy.words[:1] and policy.words[0] in agent.unarmed else agent.always
    own = (*(fill(word, host, quoted='"' in word) for word in always), *arguments, *servers)
    return (agent.program, *own, *policy.words)


def lists_servers(policy: Policy) -> bool:
    """Whether the agent only shows or changes its list of MCP servers, and does no work in the project."""
    agent, words = policy.agent, policy.words
    return (
        policy.program == "client"
        and words[:1] == (agent.extras.servers,)
        and words[1:2] in {(word,) for word in agent.extras.server_lists}
    )


def notes(policy: Policy, host: Host) -> Iterable[str]:
    """Say if this client is newer than any that was tried, once for all that are: agents are updated every day."""
    agent, client = policy.agent, host.agent.client
    if client is not None and agent.tried and client.version > agent.tried:
        tried = ".".join(map(str, agent.tried))
        yield f"this {agent.name} is newer than {tried}, the newest tested with this claudebox"


def instructions(policy: Policy, host: Host) -> dict[str, Kind]:
    """Return where the agent reads what it should know about the sandbox, and how that gets there."""
    path = policy.agent.instructions
    if path.startswith("/"):
        return {path: "file"}
    return {f"{host.home}/{path}": "copy"} if path else {}  # over a file in what the agent can write


def mountpoints(policy: Policy, host: Host) -> tuple[tuple[str, bool], ...]:
    """Return the places below the instance to mount something on, and whether each is a directory."""
    agent = policy.agent
    kinds = {name: directory for name, _, directory in host.agent.parts}
    rows = [(f"{agent.directory}/{name}", kinds[name]) for name, _ in _inherited(policy, host)]
    rows += [(agent.instructions, False)] if agent.instructions else []
    return tuple(
        (f"{place}{path[len(kept) :]}", directory)
        for path, directory in rows
        for kept, place in agent.state
        if path.startswith(f"{kept}/")
    )


def _inherited(policy: Policy, host: Host) -> Iterable[tuple[str, str]]:
    agent, extras = policy.agent, policy.agent.extras
    present = {name: real for name, real, _ in host.agent.parts if name not in extras.not_inherited}
    if policy.shared_home:
        yield from ((name, real) for name, real in sorted(present.items()) if not find_exposed(real, agent, host))
        return
    for request in policy.inherit:
        if request.name == extras.servers:
            continue
        if request.name not in present:
            # An answer for all that will be there, or for another agent.
            if (request.name in extras.texts or not extras.not_inherited) and not request.origin.startswith("-"):
                continue
            raise ClaudeboxError(f"`{request.origin}`: there is no `{request.name}` in the host's ~/{agent.directory}")
        if exposed := find_exposed(present[request.name], agent, host):
            raise ClaudeboxError(
                f"`{request.origin}`: ~/{agent.directory}/{request.name} leads to {present[request.name]}, which would "
                f"expose {exposed}",
                hint="remove that link",
            )
        if not _stays_out(request, host):
            yield request.name, present[request.name]


def _stays_out(request: NameRequest, host: Host) -> bool:
    """Return whether this is one file with a secret, or more than was looked through and the user did not insist."""
    texts = host.agent.texts
    if texts is None:
        return False
    insists = request.origin.startswith("-")
    secret = any(place.rpartition(":")[0] == request.name for place in texts.secret)
    return secret or (request.name in texts.oversized and not insists)


def _text_rows(brought: dict[str, str], policy: Policy, host: Host) -> Iterable[Mount]:
    """Cover files with a secret, and show what links of the user in these parts lead to."""
    texts = host.agent.texts
    if texts is None:
        return
    home, asked = f"{host.home}/{policy.agent.directory}", {request.dest for request in policy.mounts}
    for place in texts.secret:
        path = place.rpartition(":")[0]
        if path.partition("/")[0] in brought and path not in dict(texts.links):
            yield Mount(f"{home}/{path}", "mask", "it seems to hold a secret", role="masked")
    for real in dict.fromkeys(real for path, real in texts.links if path.partition("/")[0] in brought):
        in_project = f"{real}/".startswith(f"{host.workdir.real}/")
        if real not in asked and not in_project and not find_exposed(real, policy.agent, host):
            reason = f"a link in the host's ~/{policy.agent.directory} leads here"
            yield Mount(real, "ro-bind", reason, real, role="client")


def find_exposed(real: str, agent: AgentKind, host: Host) -> str:
    """Return the hidden place that a part of the agent's directory would show by where its links lead."""
    own = _real_directory(agent, host)
    for hidden in host.places.hidden:
        place = hidden.fact.real
        inside = real[len(own) + 1 :].partition("/")[0] if place == own and real.startswith(f"{own}/") else ""
        if inside and inside not in agent.extras.not_inherited:
            continue
        if f"{real}/".startswith(f"{place}/") or f"{place}/".startswith(f"{real}/"):
            return hidden.fact.path
    return ""


def _real_directory(agent: AgentKind, host: Host) -> str:
    """Return where the host's own directory of the agent really is."""
    path = f"{host.home}/{agent.directory}"
    return next((row.fact.real for row in host.places.hidden if row.fact.path == path), path)


def warnings(policy: Policy, host: Host) -> Iterable[str]:
    """Name what of the user's own texts does not come along, and why."""
    texts, home = host.agent.texts, f"~/{policy.agent.directory}"
    if texts is None:
        return
    for place in texts.secret:
        yield f"{home}/{place} looks like a secret: the file stays out"
    for place in texts.oversized:
        how = "" if "/" in place else f"; `--set inherit={place}` brings it in anyway"
        yield f"{home}/{place} is not only text, and stays out{how}"
    for place, real in texts.links:
        if exposed := find_exposed(real, policy.agent, host):
            yield f"{home}/{place} leads to {real} and stays out: it would expose {exposed}"


def describe_missing_login(policy: Policy, host: Host) -> str:
    """Return how to log in, if the agent would start without any login."""
    named = {request.name for request in policy.names} | {constant.name for constant in policy.constants}
    agent, login = policy.agent, host.agent.login
    credentials = {*agent.upstream.credentials, *(variable for variable, *_ in agent.upstream.clouds)}
    settings = policy.shared_home or any(request.name == "settings.json" for request in policy.inherit)
    if agent.upstreams:
        return _describe_missing_key(policy, host, named)
    if (
        policy.program != "client" or agent.upstream.login is None or settings
        or find_credential(agent.upstream, host.environ, login) or login.known or login.path
        or credentials & named or (policy.words[:1] and policy.words[0] in agent.subcommands)
    ):  # fmt: skip
        return ""
    return f"not logged in: run `{agent.name}` outside and `/login` there (it stays outside), or `/login` inside"


def _describe_missing_key(policy: Policy, host: Host, named: set[str]) -> str:
    """Return how to give an agent a key, if it would start without any."""
    agent = policy.agent
    enter = {*named, *(secret.env for secret in host.secrets.held)}
    held = host.secrets.models or any(host.environ.get(name) for name in agent.key_variables)
    alone = bool(policy.words) and policy.words[0] in agent.unarmed
    if policy.program != "client" or held or alone or not enter.isdisjoint(agent.key_variables):
        return ""
    ways = [f"set {list_words(dict.fromkeys(agent.key_variables))}"] if agent.key_variables else []
    ways += ["log in"] if any(api.login for api in agent.upstreams) else []
    return f"no key: {' or '.join(ways)} on the host; it stays outside"


def plan_variables(policy: Policy, host: Host, held: str) -> Iterable[Variable]:
    """Return the variables that make the agent feel at home."""
    agent = policy.agent
    if policy.words[:1] and policy.words[0] in agent.extras.own_search:  # no agent runs then (SAND-10)
        path = f"{plan_environment.search_path(host)}:{host.home}/.local/bin"
        yield Variable("PATH", path, "claudebox", "programs, and where the client looks for its own")
    for name, template, reason in (*agent.env, *(agent.extras.env_of_root if host.uid == 0 else ())):
        yield Variable(name, fill(template, host), "claudebox", reason)
    if held or (agent.upstreams and policy.auth == "broker"):
        return
    for name in agent.keys:
        if name in host.environ:
            value = host.environ[name]
            yield Variable(name, value, "host", "the client's key", looks_secret(name, value))


def find_seeds(
    policy: Policy, host: Host, variables: Iterable[Variable], models: Iterable[Upstream] = ()
) -> tuple[tuple[str, str, str], ...]:
    """Return what answers the first questions: file below the instance, content, and the lock to take."""
    places = policy.agent.state
    key = next((row.value[-_KEY_TAIL:] for row in variables if row.name in policy.agent.keys[:1]), "")
    return tuple(
        (f"{place}{seed.path[len(path) :]}", fill(seed.content, host, key, quoted=True), seed.lock)
        for seed in (*policy.agent.seeds, *(seed for model in models for seed in model.seeds))
        for path, place in places
        if seed.path.startswith(f"{path}/")
    )
