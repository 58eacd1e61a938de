"""What Claude Code needs: its program, its variables, its arguments, its state.

Everything that rests on undocumented behaviour of the client stands in this file, named; `pytest -m client` says what
changed when a new version breaks one of these.
"""

from __future__ import annotations

from claudebox.agent.claude import CLAUDE
from claudebox.base.errors import ClaudeboxError
from claudebox.plan import environment as plan_environment
from claudebox.plan.records import Mount, Variable
from claudebox.tables.secrets import looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from claudebox.host.records import Host
    from claudebox.settings.records import Policy


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
    for name, real in _inherited(policy, host):
        yield Mount(f"{home}/{name}", "ro-bind", "yours, from the host's ~/.claude", real, role="client")
    for path, real in host.agent.managed:
        yield Mount(path, "ro-bind", "settings that the machine's administrator manages", real, role="client")
    if any(request.name == CLAUDE.servers for request in policy.inherit):
        if not host.agent.mcp_servers:
            raise ClaudeboxError("`--inherit mcp`: no MCP server of the host's ~/.claude.json can come in")
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
        yield from sorted(present.items())
        return
    for request in policy.inherit:
        if request.name == CLAUDE.servers:
            continue
        if request.name not in present:
            raise ClaudeboxError(f"`{request.origin}`: there is no `{request.name}` in the host's ~/.claude")
        yield request.name, present[request.name]


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
