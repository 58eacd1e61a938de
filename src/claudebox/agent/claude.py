"""Names of Claude Code: its paths inside, its variables, its addresses; much of it is undocumented.

`tests/client` says what changed when a new version breaks one of these.
"""

from __future__ import annotations

from claudebox.tables.inside import CLIENT_DIRECTORY

PROGRAM = f"{CLIENT_DIRECTORY}/claude"
LEAST = (2, 1, 113)  # the first that does not run on Node; older ones ignore the broker's socket, and ask questions
TRIED = (2, 1, 325)  # the newest that was tried: that of requirements/client
RESUME_HINT = b"Resume this session with:"  # then its own name, which starts nothing in a sandbox
ALWAYS = ("--dangerously-skip-permissions",)  # the sandbox is the permission layer (UX-06)

# Words that the client takes for something else than a prompt: what comes after one of them is the client's (D-01).
SUBCOMMANDS = frozenset((
    "auth", "auto-mode", "doctor", "gateway", "import", "install", "mcp", "plugin", "plugins", "purge",
    "remote-control", "setup-token", "ultrareview", "update", "upgrade",
))  # fmt: skip

# Words of the client that cannot work inside: why, and what to do instead.
_READ_ONLY = ("the client inside is the host's own, read-only", "run it on the host: the next session has the new one")
_REMOTE = (
    "Remote Control needs your login itself, which stays outside",
    "start `claudebox --detach` and come back to it with `claudebox --attach`, over SSH if need be",
)
NOT_INSIDE = {
    "update": _READ_ONLY, "upgrade": _READ_ONLY, "install": _READ_ONLY, "remote-control": _REMOTE,
    "--remote-control": _REMOTE, "--rc": _REMOTE,
}  # fmt: skip
# After `mcp`: what looks at the list of servers or changes it, and does no work in the project.
MCP_LISTING = frozenset(
    ("add", "add-from-claude-desktop", "add-json", "get", "list", "remove", "reset-project-choices")
)
MCP, MCP_FILE = "mcp", "/run/claudebox/mcp.json"  # `--inherit mcp`: servers of the user's own configuration

LOGIN_INSIDE = "/run/claudebox/login"  # a directory around the store, because the client locks it from outside
TOKENS = "claudeAiOauth"  # the part of the client's credentials that is its own login
OAUTH_TOKEN_URL = "https://platform.claude.com/v1/oauth/token"  # noqa: S105 - an address
OAUTH_CLIENT = "9d1c250a-e61b-44d9-88ed-5944d1962f5e"  # the client's public name at that address
# Credentials in the environment, in the order in which the client prefers them; a login comes after them.
CREDENTIALS = ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN")
BASE_URL = "ANTHROPIC_BASE_URL"
# What else identifies the user to a gateway: a certificate of their own, and headers, one per line.
CLIENT_CERTIFICATE = "CLAUDE_CODE_CLIENT_CERT"
CUSTOM_HEADERS = "ANTHROPIC_CUSTOM_HEADERS"
# Where the client asks somebody else than Anthropic's API, by requests that it signs itself or with keys of its own:
# the variable that says so, who it is, and what else must enter.
CLOUDS: tuple[tuple[str, str, str], ...] = (
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
)
OFFICIAL = "https://api.anthropic.com"
API_HOST = "api.anthropic.com"
FIRST_PARTY = "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"  # or it leaves features out, as for anybody's gateway
API_SOCKET = "/run/claudebox/api.sock"  # ANTHROPIC_UNIX_SOCKET: all requests to the model go there
# The client's own word for a credential that somebody else puts in: with it, organisation policies are asked for at the
# socket too. With that socket it takes no login from a file, but what these variables tell of one.
PLACEHOLDER = "ssh-placeholder"
LOGIN_TRAITS = (
    ("subscriptionType", "CLAUDE_CODE_SUBSCRIPTION_TYPE"),
    ("rateLimitTier", "CLAUDE_CODE_RATE_LIMIT_TIER"),
    ("scopes", "CLAUDE_CODE_OAUTH_SCOPES"),
)
# Its words for sessions in the background, which its own service cannot keep in a sandbox that ends, and what takes
# their place. Those without a dash are its verbs; with its agent view off they would go to the model as prompts.
BACKGROUND_WORDS = {
    "--bg": "--detach", "--background": "--detach", "--tmux": "--detach", "-w": "--new", "--worktree": "--new",
    "agents": "--sessions", "attach": "--attach", "logs": "--attach", "respawn": "--attach", "rm": "--drop",
    "stop": "--stop", "kill": "--stop",
}  # fmt: skip
TRANSCRIPTS = "projects"  # in the client's directory: one directory per working directory, one file per conversation
# What the client believes the model's address to be while it talks to the broker's socket. It cannot resolve (RFC 6761)
# and nobody can listen there: a client that ignores the socket reaches nothing, least of all a port of this machine.
NOWHERE = "http://claudebox.invalid"
PRINT = frozenset(("-p", "--print"))  # asks for an answer without a conversation; a managed file costs that 20 ms
MANAGED = "/etc/claude-code"  # settings of the machine's administrator; read first, changed by nobody

# State, caches and logins of the host's client: never brought in, whatever is inherited.
NOT_INHERITED = frozenset((
    ".claude.json", ".config.json", ".credentials.json", ".credentials", "backups", "cache", "debug", "downloads",
    "file-history", "history.jsonl", "ide", "local", "paste-cache", "plans", "projects", "remote-settings.json",
    "session-env", "sessions", "shell-snapshots", "shell_snapshots", "statsig", "stats-cache.json", "tasks",
    "telemetry", "todos", "usage-data",
))  # fmt: skip
