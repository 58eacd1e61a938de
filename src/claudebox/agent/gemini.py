"""Google's Gemini CLI, as a row."""

from __future__ import annotations

from claudebox.agent.record import AgentKind, Seed, Upstream

_MODEL = "/v1beta/models/*"

GEMINI = AgentKind(
    name="gemini",
    title="Gemini CLI",
    install="npm install -g @google/gemini-cli",
    package="@google/gemini-cli",
    places=("~/.local/bin/gemini", "~/.npm-global/bin/gemini", "~/.volta/bin/gemini", "~/.bun/bin/gemini"),
    least=(0, 40, 0),
    tried=(0, 61, 0),
    always=("--yolo", "--skip-trust"),
    printing=frozenset(("-p", "--prompt")),
    subcommands=frozenset(("extension", "extensions", "gemma", "hook", "hooks", "mcp", "skill", "skills")),
    unarmed=frozenset(("extension", "extensions", "gemma", "hook", "hooks", "mcp", "skill", "skills")),
    not_inside={
        "--sandbox": ("its own sandbox cannot be made in this one", "leave it out: this is one"),
        "-s": ("its own sandbox cannot be made in this one", "leave it out: this is one"),
    },
    task=("--output-format", "json"),
    resume=("--resume", "latest"),
    directory=".gemini",
    state=((".gemini", "home/.gemini"),),
    seeds=(
        Seed(
            ".gemini/settings.json",
            """{"security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
            "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false}}""",
        ),
    ),
    transcripts="home/.gemini/tmp/*/chats/session-*",
    instructions=".gemini/GEMINI.md",
    protected=((".gemini", "gemini starts servers and runs hooks that stand here"),),
    hidden=((".gemini", "Gemini's login and conversations"),),
    env=(
        ("GEMINI_CLI_NO_RELAUNCH", "true", "one process instead of two"),
        ("GEMINI_SANDBOX", "false", "its own sandbox cannot be made in this one"),
    ),
    keys=("GEMINI_API_KEY",),
    passed=(("GEMINI_MODEL", "the model", ""),),
    upstreams=(
        Upstream(
            name="gemini",
            keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            official="https://generativelanguage.googleapis.com",
            base_url="GOOGLE_GEMINI_BASE_URL",
            header="x-goog-api-key",
            prefix="",
            env=(("GEMINI_API_KEY", "{placeholder}"), ("GOOGLE_GEMINI_BASE_URL", "{url}")),
            paths=(
                ("POST", f"{_MODEL}:generateContent"),
                ("POST", f"{_MODEL}:streamGenerateContent"),
                ("POST", f"{_MODEL}:countTokens"),
                ("GET", "/v1beta/models"),
                ("GET", _MODEL),
            ),
            fields=("x-gemini-*", "x-goog-api-client"),
            queries=("alt", "pageSize", "pageToken"),
            key_query="key",
            usage="gemini",
        ),
    ),
)
