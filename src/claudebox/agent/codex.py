"""OpenAI's Codex, as a row."""

from __future__ import annotations

from claudebox.agent.record import AgentKind, LoginFile, Upstream

_LOGIN = ("a login stays outside", "log in on the host, or set OPENAI_API_KEY there")

CODEX = AgentKind(
    name="codex",
    title="Codex",
    install="npm install -g @openai/codex",
    package="@openai/codex",
    places=("~/.local/bin/codex", "~/.npm-global/bin/codex", "~/.volta/bin/codex", "~/.bun/bin/codex"),
    least=(0, 150, 0),
    tried=(0, 169, 0),
    # Its own sandbox cannot be made in this one.
    always=(
        "--dangerously-bypass-approvals-and-sandbox", "-c", "check_for_update_on_startup=false",
        "-c", "analytics.enabled=false",  # or each end waits five seconds where it cannot be reached
        "-c", 'projects={"{workdir}"={trust_level="trusted"}}',
    ),
    printing=frozenset(("exec", "e", "review")),
    subcommands=frozenset((
        "a", "app-server", "apply", "archive", "cloud", "completion", "debug", "delete", "doctor", "e", "exec",
        "exec-server", "features", "fork", "help", "login", "logout", "mcp", "plugin", "queue", "resume", "review",
        "sandbox", "unarchive", "update",
    )),
    not_inside={
        "login": _LOGIN,
        "logout": _LOGIN,
        "sandbox": ("sandboxes do not nest", "`claudebox --exec` runs a command in this one"),
        "update": ("the program inside is the host's own, read-only", "run it on the host"),
    },
    task=("exec", "--json", "--skip-git-repo-check", "-"),
    said="item.text",
    resume=("resume", "{id}"),
    directory=".codex",
    state=((".codex", "home/.codex"),),
    transcripts="home/.codex/sessions/*/*/*/rollout-*.jsonl",
    instructions=".codex/AGENTS.md",
    protected=(
        (".codex", "codex starts servers and runs hooks named here"),
        (".agents", "agents load skills and plugins from here"),
    ),
    hidden=((".codex", "Codex's login and conversations"),),
    keys=("OPENAI_API_KEY", "CODEX_API_KEY"),
    upstreams=(
        Upstream(
            name="openai",
            keys=("CODEX_API_KEY", "OPENAI_API_KEY"),
            official="https://api.openai.com/v1",
            base_url="OPENAI_BASE_URL",
            headers=(("OPENAI_ORGANIZATION", "openai-organization"), ("OPENAI_PROJECT", "openai-project")),
            env=(("OPENAI_API_KEY", "{placeholder}"),),
            # The provider that it has by itself begins with a WebSocket and reads no variable.
            args=(
                "-c", 'model_provider="claudebox"', "-c",
                'model_providers.claudebox={name="OpenAI",base_url="{url}",env_key="OPENAI_API_KEY"}',
            ),
            paths=(("POST", "/responses"), ("POST", "/responses/compact"), ("GET", "/models")),
            fields=("conversation_id", "openai-beta", "originator", "session-id", "session_id", "thread-id", "version",
                    "x-client-request-id", "x-codex-*", "x-openai-memgen-request", "x-openai-subagent"),
            queries=("client_version",),
            usage="responses",
            files=("~/.codex/auth.json:OPENAI_API_KEY",),
            login=LoginFile(  # of ChatGPT
                path="~/.codex/auth.json",
                access="tokens.access_token",
                refresh="tokens.refresh_token",
                url="https://auth.openai.com/oauth/token",
                client="app_EMoamEEZ73f0CkXaXp7hrann",
                again="run `codex login` there",
                renewed="last_refresh",
                more=(("id_token", "tokens.id_token"),),
                headers=(("tokens.account_id", "chatgpt-account-id"),),
                official="https://chatgpt.com/backend-api/codex",
                locks=("{directory}/auth.lock",),
                write_lock="{path}.lock",
                flock=True,
            ),
        ),
    ),
)  # fmt: skip
