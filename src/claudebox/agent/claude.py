"""Everything special about Claude Code, as a row; much of it is undocumented.

`pytest -m client` says what changed when a new version breaks one of these.
"""

from __future__ import annotations

from claudebox.agent.record import AgentKind, Extras, LoginFile, ModelService, Seed, Upstream

_READ_ONLY = ("the client inside is the host's own, read-only", "run it on the host: the next session has the new one")
_REMOTE = (
    "Remote Control needs your login itself, which stays outside",
    "start `claudebox --detach` and come back to it with `claudebox attach`, over SSH if need be",
)
_BACKGROUND = "its sessions in the background would end with the sandbox"
_MANAGED = "/etc/claude-code"

# What of the API passes: other paths issue credentials or show files and batches of other projects.
API = Upstream(
    name="model_api",
    keys=("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"),
    official="https://api.anthropic.com",
    paths=(
        ("POST", "/v1/messages"),
        ("POST", "/v1/messages/count_tokens"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/*"),
        ("GET", "/api/hello"),
        ("GET", "/api/claude_code/policy_limits"),
        ("GET", "/api/claude_code/settings"),
    ),
    fields=("sec-fetch-mode", "x-app", "anthropic-*", "x-anthropic-*", "x-claude-*"),
    queries=("after_id", "before_id", "beta", "limit"),
    usage="anthropic",
)

LOGIN = LoginFile(
    path="~/.claude/.credentials.json",
    access="claudeAiOauth.accessToken",
    refresh="claudeAiOauth.refreshToken",
    expires="claudeAiOauth.expiresAt",
    url="https://platform.claude.com/v1/oauth/token",
    client="9d1c250a-e61b-44d9-88ed-5944d1962f5e",  # public
    again="run `claude` there and `/login`",
    # In the client's order.
    locks=("{directory}/.oauth_refresh.lock", "{directory}.lock"),
    write_lock="{directory}/.storage-write.lock",
)

UPSTREAM = ModelService(
    host="api.anthropic.com",
    api=API,
    official=API.official,
    base_url="ANTHROPIC_BASE_URL",
    credentials=API.keys,
    login_variable="CLAUDE_CODE_OAUTH_TOKEN",
    certificate=("CLAUDE_CODE_CLIENT_CERT", "CLAUDE_CODE_CLIENT_KEY", "CLAUDE_CODE_CLIENT_KEY_PASSPHRASE"),
    headers="ANTHROPIC_CUSTOM_HEADERS",
    # Requests to these are signed by the client itself, or carry other keys.
    clouds=(
        ("CLAUDE_CODE_USE_BEDROCK", "Amazon Bedrock", "AWS_REGION and AWS_BEARER_TOKEN_BEDROCK"),
        ("CLAUDE_CODE_USE_MANTLE", "Amazon Bedrock", "AWS_REGION and AWS_BEARER_TOKEN_BEDROCK"),
        ("CLAUDE_CODE_USE_ANTHROPIC_AWS", "Claude Platform on AWS", "AWS_REGION and ANTHROPIC_AWS_API_KEY"),
        ("CLAUDE_CODE_USE_VERTEX", "Google Vertex AI", "CLOUD_ML_REGION, ANTHROPIC_VERTEX_PROJECT_ID and a credential"),
        (
            "CLAUDE_CODE_USE_ANTHROPIC_GOOGLE_CLOUD",
            "Claude Platform on Google Cloud",
            "a region, a project and a credential",
        ),
        ("CLAUDE_CODE_USE_FOUNDRY", "Microsoft Foundry", "ANTHROPIC_FOUNDRY_RESOURCE and ANTHROPIC_FOUNDRY_API_KEY"),
    ),
    login=LOGIN,
    login_traits=(
        ("claudeAiOauth.subscriptionType", "CLAUDE_CODE_SUBSCRIPTION_TYPE"),
        ("claudeAiOauth.rateLimitTier", "CLAUDE_CODE_RATE_LIMIT_TIER"),
        ("claudeAiOauth.scopes", "CLAUDE_CODE_OAUTH_SCOPES"),
    ),
    account="claude/.claude.json:oauthAccount.emailAddress",
    socket="/run/claudebox/api.sock",
    socket_variable="ANTHROPIC_UNIX_SOCKET",  # all requests to the model go there, and no login is read from a file
    # The client's own word for a credential that somebody else puts in: with it, organisation policies are asked
    # for at the socket too.
    placeholder="ssh-placeholder",
    # It cannot resolve (RFC 6761): a client that ignores the socket reaches nothing.
    nowhere="http://claudebox.invalid",
    first_party="_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL",  # or it leaves features out, as for any gateway
)  # fmt: skip

EXTRAS = Extras(
    background={"--bg": "--detach", "--background": "--detach", "--tmux": "--detach"},
    own_search=frozenset(("doctor",)),  # or it advises to edit ~/.bashrc
    servers="mcp",
    server_lists=frozenset(
        ("add", "add-from-claude-desktop", "add-json", "get", "list", "remove", "reset-project-choices")
    ),
    servers_home=".claude.json",
    servers_file="/run/claudebox/mcp.json",
    resume_hint=b"Resume this session with:",
    # The sandbox is what the first asks for; the second would need a login that stays outside.
    answers=(
        (
            f"{_MANAGED}/managed-settings.d/claudebox.json",
            '{"skipDangerousModePermissionPrompt": true, "disableRemoteControl": true}\n',
        ),
    ),
    login="/run/claudebox/login",  # around the store, because the client locks it from outside
    statuses="claude/sessions",
    managed=_MANAGED,
    not_inherited=frozenset((
        ".claude.json", ".config.json", ".credentials.json", ".credentials", "backups", "cache", "debug", "downloads",
        "file-history", "history.jsonl", "ide", "local", "paste-cache", "plans", "projects", "remote-settings.json",
        "session-env", "sessions", "shell-snapshots", "shell_snapshots", "statsig", "stats-cache.json", "tasks",
        "telemetry", "todos", "usage-data",
    )),
    texts=("CLAUDE.md", "agents", "commands", "output-styles", "rules", "skills"),
    env_of_root=(("IS_SANDBOX", "1", "the client refuses root outside of a sandbox"),),
)  # fmt: skip

CLAUDE = AgentKind(
    name="claude",
    title="Claude Code",
    install="npm install -g @anthropic-ai/claude-code",
    package="@anthropic-ai/claude-code",
    places=(
        "~/.local/bin/claude",
        "~/.claude/local/claude",
        "~/.npm-global/bin/claude",
        "~/.bun/bin/claude",
        "~/.volta/bin/claude",
        "~/.local/share/mise/shims/claude",
        "~/.asdf/shims/claude",
        "~/.nix-profile/bin/claude",
        "/usr/local/bin/claude",
        "/usr/bin/claude",
        "/home/linuxbrew/.linuxbrew/bin/claude",
    ),
    least=(2, 1, 113),  # the first that does not run on Node; older ones ignore the broker's socket, and ask questions
    tried=(2, 1, 325),  # that of requirements/client
    native=(
        "@anthropic-ai/claude-code-linux-{machine}/claude",
        "@anthropic-ai/claude-code-linux-{machine}-musl/claude",
    ),
    interpreted=False,
    always=("--dangerously-skip-permissions",),  # the sandbox is the permission layer (UX-06)
    printing=frozenset(("-p", "--print")),
    subcommands=frozenset((
        "auth", "auto-mode", "doctor", "gateway", "import", "install", "mcp", "plugin", "plugins", "purge",
        "remote-control", "setup-token", "ultrareview", "update", "upgrade",
    )),
    not_inside={
        "update": _READ_ONLY, "upgrade": _READ_ONLY, "install": _READ_ONLY, "remote-control": _REMOTE,
        "--remote-control": _REMOTE, "--rc": _REMOTE,
        # With its agent view off, these would go to the model as prompts.
        "agents": (_BACKGROUND, "`claudebox sessions`"), "logs": (_BACKGROUND, "`claudebox attach`"),
        "respawn": (_BACKGROUND, "`claudebox attach`"), "rm": (_BACKGROUND, "`claudebox drop`"),
        "kill": (_BACKGROUND, "`claudebox stop`"),
    },
    task=("-p", "--output-format", "json"),
    task_env=(("CLAUDE_CODE_MAX_RETRIES", "3"),),  # or it retries for many minutes; engines and `tries` retry better
    said="result",
    resume=("--resume", "{id}"),
    directory=".claude",
    state=((".claude", "claude"),),
    seeds=(
        Seed(
            ".claude/.claude.json",
            """{"hasCompletedOnboarding": true, "projects": {"{workdir}": {"hasTrustDialogAccepted": true}},
            "customApiKeyResponses": {"approved": ["{key}"]}}""",
            lock=".claude.json.lock",
        ),
    ),
    transcripts="claude/projects/*/*.jsonl",
    instructions=f"{_MANAGED}/CLAUDE.md",
    protected=((".claude", "the host's own claude runs hooks and commands from here"),),
    hidden=(
        (".claude", "the host's own Claude state and login"),
        (".claude.json", "the host's own Claude state"),
    ),
    env=(
        ("CLAUDE_CONFIG_DIR", "{home}/.claude", "keeps all of the client's state in one directory"),
        ("CLAUDE_SECURESTORAGE_CONFIG_DIR", "/run/claudebox/login/store", "keeps the login apart from the state"),
        ("CLAUDE_CODE_DISABLE_AGENT_VIEW", "1", "sessions in the background are claudebox's: `--detach`"),
        ("DISABLE_AUTOUPDATER", "1", "the client is read-only inside"),
        ("DISABLE_INSTALLATION_CHECKS", "1", "the client is not where its installer put it"),
    ),
    keys=("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"),
    # Which model, how much, how long; none of them holds a secret.
    passed=(
        ("ANTHROPIC_MODEL", "the model", ""),
        ("ANTHROPIC_SMALL_FAST_MODEL", "the model for small things", ""),
        ("ANTHROPIC_DEFAULT_OPUS_MODEL", "the model of this alias", ""),
        ("ANTHROPIC_DEFAULT_SONNET_MODEL", "the model of this alias", ""),
        ("ANTHROPIC_DEFAULT_HAIKU_MODEL", "the model of this alias", ""),
        ("CLAUDE_CODE_SUBAGENT_MODEL", "the model of subagents", ""),
        ("CLAUDE_CODE_EFFORT_LEVEL", "how much the model thinks", ""),
        ("MAX_THINKING_TOKENS", "how much the model thinks", "number"),
        ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "how much the model answers", "number"),
        ("MAX_MCP_OUTPUT_TOKENS", "the longest answer of an MCP server", "number"),
        ("CLAUDE_CODE_FILE_READ_MAX_OUTPUT_TOKENS", "how much of a file is read at once", "number"),
        ("CLAUDE_CODE_AUTO_COMPACT_WINDOW", "when a conversation is compacted", "number"),
        ("BASH_DEFAULT_TIMEOUT_MS", "how long a command may take", "number"),
        ("BASH_MAX_TIMEOUT_MS", "how long a command may take", "number"),
        ("BASH_MAX_OUTPUT_LENGTH", "how much of a command's output is read", "number"),
        ("MCP_TIMEOUT", "how long an MCP server may take to start", "number"),
        ("MCP_TOOL_TIMEOUT", "how long an MCP server may take to answer", "number"),
        ("API_TIMEOUT_MS", "how long the model may take to answer", "number"),
        ("CLAUDE_CODE_MAX_RETRIES", "retries of requests to the model", "number"),
        ("CLAUDE_CODE_ENTRYPOINT", "what started the client: an editor, for example", ""),
        ("CLAUDE_CODE_DISABLE_TERMINAL_TITLE", "no terminal title wanted", ""),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "only traffic for the model wanted", ""),
        ("DISABLE_TELEMETRY", "no telemetry wanted", ""),
        ("DISABLE_ERROR_REPORTING", "no error reports wanted", ""),
        ("DISABLE_COST_WARNINGS", "no cost warnings wanted", ""),
        ("DISABLE_PROMPT_CACHING", "no prompt caching wanted", ""),
        ("DISABLE_AUTO_COMPACT", "no compaction wanted", ""),
    ),
    upstream=UPSTREAM,
    extras=EXTRAS,
)  # fmt: skip
