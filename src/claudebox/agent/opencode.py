"""opencode, as a row."""

from __future__ import annotations

from claudebox.agent.record import AgentKind, Upstream

# Variables of ours lead to the addresses, because its configuration is one document for all providers.
_CONFIG = """{"permission": "allow", "autoupdate": false, "share": "disabled", "provider": {\
"openai": {"options": {"baseURL": "{env:CLAUDEBOX_OPENAI_URL}"}}, \
"anthropic": {"options": {"baseURL": "{env:CLAUDEBOX_ANTHROPIC_URL}"}}, \
"google": {"options": {"baseURL": "{env:CLAUDEBOX_GOOGLE_URL}"}}}}"""
_STATE = (".local/share/opencode", ".local/state/opencode", ".config/opencode")

OPENCODE = AgentKind(
    name="opencode",
    title="opencode",
    install="npm install -g opencode-ai",
    package="opencode-ai",
    places=("~/.opencode/bin/opencode", "~/.local/bin/opencode", "~/.npm-global/bin/opencode", "~/.bun/bin/opencode"),
    native=("opencode-linux-{machine}/bin/opencode", "opencode-linux-{machine}-baseline/bin/opencode"),
    least=(1, 3, 2),
    tried=(1, 18, 33),
    printing=frozenset(("run",)),
    subcommands=frozenset((
        "acp", "agent", "attach", "auth", "completion", "db", "debug", "export", "github", "import", "mcp", "models",
        "plug", "plugin", "pr", "providers", "run", "serve", "session", "stats", "uninstall", "upgrade", "web",
    )),
    not_inside={
        "upgrade": ("the program inside is the host's own, read-only", "run it on the host"),
        "uninstall": ("the program inside is the host's own, read-only", "run it on the host"),
    },
    task=("run", "--format", "json"),
    said="part.text",
    resume=("--continue",),
    directory=".local/share/opencode",
    state=tuple((path, f"home/{path}") for path in _STATE),
    transcripts="home/.local/share/opencode/opencode.db*",
    instructions=".config/opencode/AGENTS.md",
    protected=(
        (".opencode", "opencode loads plugins and tools from here"),
        ("opencode.json", "opencode loads plugins and starts servers named here"),
        ("opencode.jsonc", "opencode loads plugins and starts servers named here"),
        ("tui.json", "opencode loads plugins named here"),
        ("tui.jsonc", "opencode loads plugins named here"),
    ),
    hidden=(
        (".local/share/opencode", "opencode's logins and conversations"),
        (".config/opencode", "opencode's configuration, which may hold keys"),
    ),
    env=(
        ("OPENCODE_CONFIG_CONTENT", _CONFIG, "every permission, no updates, and the way to the models"),
        ("OPENCODE_DISABLE_AUTOUPDATE", "1", "the program is read-only inside"),
    ),
    keys=("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"),
    upstreams=(
        Upstream(
            name="openai",
            keys=("OPENAI_API_KEY",),
            official="https://api.openai.com/v1",
            base_url="OPENAI_BASE_URL",
            env=(("OPENAI_API_KEY", "{placeholder}"), ("CLAUDEBOX_OPENAI_URL", "{url}")),
            paths=(("POST", "/responses"), ("POST", "/chat/completions"), ("GET", "/models")),
            fields=("openai-beta", "session_id"),
            usage="responses",
            files=("~/.local/share/opencode/auth.json:openai.key",),
        ),
        Upstream(
            name="anthropic",
            keys=("ANTHROPIC_API_KEY",),
            official="https://api.anthropic.com",
            base_url="ANTHROPIC_BASE_URL",
            header="x-api-key",
            prefix="",
            env=(("ANTHROPIC_API_KEY", "{placeholder}"), ("CLAUDEBOX_ANTHROPIC_URL", "{url}/v1")),
            paths=(("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"), ("GET", "/v1/models")),
            fields=("anthropic-*",),
            queries=("beta",),
            usage="anthropic",
            files=("~/.local/share/opencode/auth.json:anthropic.key",),
        ),
        Upstream(
            name="google",
            keys=("GOOGLE_GENERATIVE_AI_API_KEY", "GEMINI_API_KEY"),
            official="https://generativelanguage.googleapis.com/v1beta",
            header="x-goog-api-key",
            prefix="",
            env=(("GOOGLE_GENERATIVE_AI_API_KEY", "{placeholder}"), ("CLAUDEBOX_GOOGLE_URL", "{url}")),
            paths=(("POST", "/models/*:generateContent"), ("POST", "/models/*:streamGenerateContent")),
            queries=("alt=sse",),
            usage="gemini",
            files=("~/.local/share/opencode/auth.json:google.key",),
        ),
    ),
)  # fmt: skip
