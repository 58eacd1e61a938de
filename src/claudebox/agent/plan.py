"""What Claude Code needs: its program, its variables, its arguments, its state.

Everything that rests on undocumented behaviour of the client stands in this file, named; `pytest -m client` says what
changed when a new version breaks one of these.
"""

from __future__ import annotations

from claudebox.agent.claude import CLAUDE
from claudebox.base.errors import ClaudeboxError
from claudebox.host.texts import TEXTS
from claudebox.plan import environment as plan_environment
from claudebox.plan.records import Mount, Variable
from claudebox.tables.secrets import looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.host.records import Host
    from claudebox.settings.records import NameRequest, Policy


# The sandbox is what the first asks for; the second would need a login that stays outside.
_ANSWERS = b'{"skipDangerousModePermissionPrompt": true, "disableRemoteControl": true}\n'
_KEY_TAIL = 20  # how much of a key the client remembers to know it again


def plan_mounts(policy: Policy, host: Host, held: str) -> Iterable[Mount]:
    """Bind the client alone, at a place that no host has, with the state of this project and the login.

    `held` is the credential that the broker holds, or nothing.
    """
    yield from _program(host)
    home = f"{host.home}/{CLAUDE.directory}"
    yield Mount(home, "bind", "conversations and settings of this project", host.instance.claude, role="state")
    if held:
        yield Mount(f"{CLAUDE.login}/store", "dir", "no login is kept inside", mode=0o755, role="state")
    elif host.agent.login.known:
        store = f"{host.instance.login}/store"
        reason = f"a short-lived token of the login of {host.agent.login.source}"
        yield Mount(f"{CLAUDE.login}/store", "ro-bind", reason, store, role="state")
    else:
        yield Mount(CLAUDE.login, "bind", "for a login made inside", host.instance.own_login, role="state")
    brought = dict(_inherited(policy, host))
    for name, real in brought.items():
        yield Mount(f"{home}/{name}", "ro-bind", "yours, from the host's ~/.claude", real, role="client")
    yield from _text_rows(brought, policy, host)
    for path, real in host.agent.managed:
        yield Mount(path, "ro-bind", "settings that the machine's administrator manages", real, role="client")
    if any(request.name == CLAUDE.servers for request in policy.inherit):
        if not host.agent.mcp_servers:
            raise ClaudeboxError("`--set inherit=mcp`: no MCP server of the host's ~/.claude.json can come in")
        reason = "your MCP servers, without their secrets"
        yield Mount(CLAUDE.servers_file, "file", reason, content=host.agent.mcp_servers, mode=0o644, role="client")
    if policy.program != "client" or CLAUDE.printing.isdisjoint(policy.words):  # one that prints asks nothing
        path = f"{CLAUDE.managed}/managed-settings.d/claudebox.json"
        reason = "answers the client's warning about permissions"
        yield Mount(path, "file", reason, content=_ANSWERS, mode=0o644, role="client")


def _program(host: Host) -> Iterable[Mount]:
    client = host.agent.client
    if client is None:
        return
    if client.path.startswith("/nix/store/") and host.system.store:
        yield Mount(CLAUDE.program, "symlink", "the client", client.path, role="client")
    else:
        yield Mount(CLAUDE.program, "ro-bind", "the client", client.path, role="client")


def command(policy: Policy, host: Host, arguments: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the agent's command line, with `arguments` of claudebox's own."""
    brings = host.agent.mcp_servers and policy.words[:1] != (CLAUDE.servers,)
    servers = (f"--mcp-config={CLAUDE.servers_file}",) if brings else ()
    return (CLAUDE.program, *CLAUDE.always, *arguments, *servers, *policy.words)


def lists_servers(policy: Policy) -> bool:
    """Whether the agent only shows or changes its list of MCP servers, and does no work in the project."""
    client = policy.program == "client" and not policy.command
    return client and policy.words[:1] == (CLAUDE.servers,) and policy.words[1:2] in {(w,) for w in CLAUDE.server_lists}


def notes(host: Host) -> Iterable[str]:
    """Say if this client is newer than any that was tried."""
    if host.agent.client is not None and host.agent.client.version > CLAUDE.tried:
        newer, tried = (".".join(map(str, version)) for version in (host.agent.client.version, CLAUDE.tried))
        yield f"claude {newer} is newer than {tried}, the newest that was tried with this claudebox"


def mountpoints(policy: Policy, host: Host) -> tuple[tuple[str, bool], ...]:
    """Return the names that must exist in the client's directory, and whether each is a directory."""
    kinds = {name: directory for name, _, directory in host.agent.parts}
    return tuple((name, kinds[name]) for name, _ in _inherited(policy, host))


def _inherited(policy: Policy, host: Host) -> Iterable[tuple[str, str]]:
    present = {name: real for name, real, _ in host.agent.parts if name not in CLAUDE.not_inherited}
    if policy.shared_home:
        yield from ((name, real) for name, real in sorted(present.items()) if not find_exposed(real, host))
        return
    for request in policy.inherit:
        if request.name == CLAUDE.servers:
            continue
        if request.name not in present:
            if request.name in TEXTS and not request.origin.startswith("-"):  # an answer for all that will be there
                continue
            raise ClaudeboxError(f"`{request.origin}`: there is no `{request.name}` in the host's ~/.claude")
        if exposed := find_exposed(present[request.name], host):
            raise ClaudeboxError(
                f"`{request.origin}`: ~/.claude/{request.name} leads to {present[request.name]}, which would expose "
                f"{exposed}",
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
    home, asked = f"{host.home}/{CLAUDE.directory}", {request.dest for request in policy.mounts}
    for place in texts.secret:
        path = place.rpartition(":")[0]
        if path.partition("/")[0] in brought and path not in dict(texts.links):
            yield Mount(f"{home}/{path}", "mask", "it seems to hold a secret", role="masked")
    for real in dict.fromkeys(real for path, real in texts.links if path.partition("/")[0] in brought):
        if real not in asked and not find_exposed(real, host) and not f"{real}/".startswith(f"{host.workdir.real}/"):
            yield Mount(real, "ro-bind", "a link in the host's ~/.claude leads here", real, role="client")


def find_exposed(real: str, host: Host) -> str:
    """Return the hidden place that a part of the agent's directory would show by where its links lead."""
    own = _real_directory(host)
    for hidden in host.places.hidden:
        place = hidden.fact.real
        inside = real[len(own) + 1 :].partition("/")[0] if place == own and real.startswith(f"{own}/") else ""
        if inside and inside not in CLAUDE.not_inherited:
            continue
        if f"{real}/".startswith(f"{place}/") or f"{place}/".startswith(f"{real}/"):
            return hidden.fact.path
    return ""


def _real_directory(host: Host) -> str:
    """Return where the host's own directory of the agent really is."""
    path = f"{host.home}/{CLAUDE.directory}"
    return next((row.fact.real for row in host.places.hidden if row.fact.path == path), path)


def warnings(host: Host) -> Iterable[str]:
    """Name what of the user's own texts does not come along, and why."""
    texts = host.agent.texts
    if texts is None:
        return
    for place in texts.secret:
        yield f"~/.claude/{place} looks like a secret: the file stays out"
    for place in texts.oversized:
        how = "" if "/" in place else f"; `--set inherit={place}` brings it all the same"
        yield f"~/.claude/{place} is more than texts and stays out{how}"
    for place, real in texts.links:
        if exposed := find_exposed(real, host):
            yield f"~/.claude/{place} leads to {real} and stays out: it would expose {exposed}"


def describe_missing_login(policy: Policy, host: Host) -> str:
    """Return how to log in, if the agent would start without any login."""
    named = {request.name for request in policy.names} | {constant.name for constant in policy.constants}
    credentials = {*policy.agent.upstream.credentials, *(variable for variable, *_ in policy.agent.upstream.clouds)}
    settings = policy.shared_home or any(request.name == "settings.json" for request in policy.inherit)
    if (
        policy.program != "client" or policy.command or policy.agent is not CLAUDE or settings
        or host.credential or host.agent.login.known or host.agent.login.path
        or credentials & named or (policy.words[:1] and policy.words[0] in CLAUDE.subcommands)
    ):  # fmt: skip
        return ""
    return "not logged in: run `claude` outside and `/login` there (it stays outside), or `/login` inside"


def plan_variables(host: Host, held: str, words: tuple[str, ...] = ()) -> Iterable[Variable]:
    """Return the variables that make the client feel at home."""
    if words[:1] == ("doctor",):  # or it advises to edit ~/.bashrc; no agent runs then (SAND-10)
        path = f"{plan_environment.search_path(host)}:{host.home}/.local/bin"
        yield Variable("PATH", path, "claudebox", "programs, and where the client looks for its own")
    rows = [
        ("CLAUDE_CONFIG_DIR", f"{host.home}/.claude", "keeps all of the client's state in one directory"),
        ("CLAUDE_SECURESTORAGE_CONFIG_DIR", f"{CLAUDE.login}/store", "keeps the login apart from the state"),
        ("CLAUDE_CODE_DISABLE_AGENT_VIEW", "1", "sessions in the background are claudebox's: `--detach`"),
        ("DISABLE_AUTOUPDATER", "1", "the client is read-only inside"),
        ("DISABLE_INSTALLATION_CHECKS", "1", "the client is not where its installer put it"),
    ]
    if host.uid == 0:
        rows.append(("IS_SANDBOX", "1", "the client refuses root outside of a sandbox"))
    for name, value, reason in rows:
        yield Variable(name, value, "claudebox", reason)
    if held:
        return
    for name in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"):
        if name in host.environ:
            value = host.environ[name]
            yield Variable(name, value, "host", "the client's key", looks_secret(name, value))


def key_tail(variables: Iterable[Variable]) -> str:
    """Return the part of the key by which the client knows that its use was approved."""
    return next((row.value[-_KEY_TAIL:] for row in variables if row.name == "ANTHROPIC_API_KEY"), "")
