"""GitHub's Copilot CLI, as a row."""

from __future__ import annotations

from claudebox.agent.record import AgentKind, Upstream

_TOKENS = ("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN")
_FILES = ("~/.copilot/config.json:authTokens.*.token",)  # where there is no keyring
_BEGINNING = "gho_"  # it takes a classic token for no token at all

COPILOT = AgentKind(
    name="copilot",
    title="Copilot CLI",
    install="npm install -g @github/copilot",
    package="@github/copilot",
    places=("~/.local/bin/copilot", "~/.npm-global/bin/copilot", "~/.volta/bin/copilot", "~/.bun/bin/copilot"),
    least=(1, 0, 20),
    tried=(1, 0, 102),
    always=("--allow-all",),
    printing=frozenset(("-p", "--prompt")),
    subcommands=frozenset((
        "app", "completion", "config", "help", "init", "instruction", "login", "lsp", "mcp", "memories", "plugin",
        "sandbox", "sessions", "skill", "update", "version", "workflow",
    )),
    unarmed=frozenset((
        "app", "completion", "config", "help", "instruction", "lsp", "mcp", "memories", "plugin", "sessions", "skill",
        "version", "workflow",
    )),
    not_inside={
        "login": ("a login stays outside", "log in on the host, or set COPILOT_GITHUB_TOKEN there"),
        "sandbox": ("sandboxes do not nest", "leave it out: this session is in a sandbox"),
        "update": ("the program inside is the host's own, read-only", "run it on the host"),
    },
    task=("--output-format", "json"),
    said="data.content",
    resume=("--continue",),
    directory=".copilot",
    state=((".copilot", "home/.copilot"),),
    transcripts="home/.copilot/session-state/*/events.jsonl",
    instructions=".copilot/copilot-instructions.md",
    protected=(
        (".github/copilot", "copilot takes its settings from here"),
        (".github/extensions", "copilot runs extensions from here"),
        (".github/hooks", "copilot runs hooks from here"),
        (".github/lsp.json", "copilot starts these servers"),
        (".github/mcp.json", "copilot starts these servers"),
        (".mcp.json", "copilot starts these servers"),
    ),
    hidden=(
        (".copilot", "Copilot's login and conversations"),
        (".config/github-copilot", "Copilot's login in editors"),
    ),
    env=(
        ("COPILOT_ALLOW_ALL", "true", "trusts the project: the sandbox is the boundary"),
        ("COPILOT_AUTO_UPDATE", "false", "the program is read-only inside"),
    ),
    keys=("COPILOT_PROVIDER_API_KEY", "COPILOT_GITHUB_TOKEN"),
    passed=(
        ("COPILOT_MODEL", "the model", ""),
        ("COPILOT_PROVIDER_TYPE", "the kind of the provider", ""),
        ("COPILOT_PROVIDER_WIRE_API", "how the provider is asked", ""),
        ("COPILOT_PROVIDER_MODEL_ID", "the model of the provider", ""),
        ("COPILOT_PROVIDER_WIRE_MODEL", "the name of the model", ""),
    ),
    upstreams=(
        Upstream(
            name="provider",
            keys=("COPILOT_PROVIDER_API_KEY",),
            official="https://api.openai.com/v1",
            base_url="COPILOT_PROVIDER_BASE_URL",
            env=(
                ("COPILOT_PROVIDER_API_KEY", "{placeholder}"),
                ("COPILOT_PROVIDER_BASE_URL", "{url}"),
            ),
            paths=(("POST", "/responses"), ("POST", "/chat/completions"), ("GET", "/models")),
            fields=("openai-beta", "openai-intent"),
            usage="responses",
        ),
        Upstream(
            name="copilot",
            keys=_TOKENS,
            files=_FILES,
            official="https://api.githubcopilot.com",
            base_url="COPILOT_API_URL",
            placeholder=_BEGINNING,
            env=(("COPILOT_GITHUB_TOKEN", "{placeholder}"), ("COPILOT_API_URL", "{url}")),
            paths=(
                ("POST", "/responses"),
                ("POST", "/chat/completions"),
                ("POST", "/v1/messages"),
                ("POST", "/models/session"),
                ("GET", "/models"),
                ("GET", "/models/*"),
            ),
            fields=("anthropic-*", "copilot-*", "editor-plugin-version", "editor-version", "openai-intent", "x-agent-*",
                    "x-client-*", "x-github-api-version", "x-initiator", "x-interaction-*"),
            usage="responses",
        ),
        Upstream(  # what the account may use
            name="github",
            keys=_TOKENS,
            files=_FILES,
            official="https://api.github.com",
            placeholder=_BEGINNING,
            env=(("COPILOT_DEBUG_GITHUB_API_URL", "{url}"),),
            paths=(("GET", "/copilot_internal/user"), ("GET", "/copilot_internal/managed_settings")),
            fields=("x-github-api-version",),
            queries=("client_id", "client_version", "copilot_runtime_version"),
        ),
    ),
)  # fmt: skip
