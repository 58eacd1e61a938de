"""What every launch must know of all agents; written by scripts/generate from their rows: do not edit."""

from __future__ import annotations

NAMES: tuple[str, ...] = ("claude", "aider", "codex", "copilot", "gemini", "opencode", "pi", "qwen")

# In the project: what some agent of the host executes or obeys, and why.
PROTECTED: tuple[tuple[str, str], ...] = (
    (".aider.conf.yml", "aider runs the test commands named here"),
    (".codex", "codex starts servers and runs hooks named here"),
    (".agents", "agents load skills and plugins from here"),
    (".github/copilot", "copilot takes its settings from here"),
    (".github/extensions", "copilot runs extensions from here"),
    (".github/hooks", "copilot runs hooks from here"),
    (".github/lsp.json", "copilot starts these servers"),
    (".github/mcp.json", "copilot starts these servers"),
    (".gemini", "gemini starts servers and runs hooks named here"),
    (".opencode", "opencode loads plugins and tools from here"),
    ("opencode.json", "opencode loads plugins and starts servers named here"),
    ("opencode.jsonc", "opencode loads plugins and starts servers named here"),
    ("tui.json", "opencode loads plugins named here"),
    ("tui.jsonc", "opencode loads plugins named here"),
    (".pi", "pi runs extensions and packages named here"),
    (".qwen", "qwen starts servers and runs hooks named here"),
)

# In the home: where they keep logins and conversations.
HIDDEN: tuple[tuple[str, str], ...] = (
    (".claude", "the host's own Claude state and login"),
    (".claude.json", "the host's own Claude state"),
    (".claude/.credentials.json", "a login of claude"),
    (".aider", "aider's keys and caches"),
    (".aider.conf.yml", "aider's settings, which may hold keys"),
    (".codex", "Codex's login and conversations"),
    (".codex/auth.json", "a login of codex"),
    (".copilot", "Copilot's login and conversations"),
    (".config/github-copilot", "Copilot's login in editors"),
    (".copilot/config.json", "a login of copilot"),
    (".gemini", "Gemini's login and conversations"),
    (".gemini/oauth_creds.json", "a login of gemini"),
    (".gemini/.env", "a login of gemini"),
    (".local/share/opencode", "opencode's logins and conversations"),
    (".config/opencode", "opencode's configuration, which may hold keys"),
    (".local/share/opencode/auth.json", "a login of opencode"),
    (".pi", "Pi's logins and conversations"),
    (".pi/agent/auth.json", "a login of pi"),
    (".qwen", "Qwen Code's login and conversations"),
    (".qwen/.env", "a login of qwen"),
)

# Variables with the addresses that keys are sent to: no project sets them.
ADDRESSES: frozenset[str] = frozenset((
    "ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL", "CODE_ASSIST_ENDPOINT", "COPILOT_API_URL",
    "COPILOT_PROVIDER_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "OPENAI_API_BASE", "OPENAI_BASE_URL"
))  # fmt: skip
