"""Pi, as a row."""

from __future__ import annotations

from claudebox.agent.record import AgentKind, Seed, Upstream

# Where the broker holds a key, its provider is asked at the broker's address.
_EXTENSION = """export default (pi) => {
  for (const name of ["openai", "anthropic", "google"]) {
    const baseUrl = process.env[`CLAUDEBOX_${name.toUpperCase()}_URL`];
    if (baseUrl) pi.registerProvider(name, { baseUrl });
  }
};
"""
_KEPT = "~/.pi/agent/auth.json"

PI = AgentKind(
    name="pi",
    title="Pi",
    install="npm install -g @earendil-works/pi-coding-agent",
    package="@earendil-works/pi-coding-agent",
    places=("~/.local/bin/pi", "~/.npm-global/bin/pi", "~/.volta/bin/pi", "~/.bun/bin/pi"),
    least=(0, 74, 2),
    tried=(0, 87, 1),
    printing=frozenset(("-p", "--print")),
    subcommands=frozenset(("config", "install", "list", "remove", "uninstall", "update")),
    not_inside={"update": ("the program inside is the host's own, read-only", "run it on the host")},
    task=("-p",),
    resume=("--session", "{id}"),
    directory=".pi",
    state=((".pi", "home/.pi"),),
    seeds=(Seed(".pi/agent/extensions/claudebox.ts", _EXTENSION),),
    transcripts="home/.pi/agent/sessions/*/*.jsonl",
    instructions=".pi/agent/AGENTS.md",
    protected=((".pi", "pi runs extensions and packages named here"),),
    hidden=((".pi", "Pi's logins and conversations"),),
    env=(("PI_OFFLINE", "1", "no updates, no telemetry"),),
    keys=("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"),
    upstreams=(
        Upstream(
            name="openai",
            keys=("OPENAI_API_KEY",),
            official="https://api.openai.com/v1",
            base_url="OPENAI_BASE_URL",
            env=(("OPENAI_API_KEY", "{placeholder}"), ("CLAUDEBOX_OPENAI_URL", "{url}")),
            paths=(("POST", "/responses"), ("POST", "/chat/completions")),
            fields=("session_id", "x-client-request-id"),
            usage="responses",
            files=(f"{_KEPT}:openai.key",),
        ),
        Upstream(
            name="anthropic",
            keys=("ANTHROPIC_API_KEY",),
            official="https://api.anthropic.com",
            base_url="ANTHROPIC_BASE_URL",
            header="x-api-key",
            prefix="",
            env=(("ANTHROPIC_API_KEY", "{placeholder}"), ("CLAUDEBOX_ANTHROPIC_URL", "{url}")),
            paths=(("POST", "/v1/messages"),),
            fields=("anthropic-*",),
            queries=("beta",),
            usage="anthropic",
            files=(f"{_KEPT}:anthropic.key",),
        ),
        Upstream(
            name="google",
            keys=("GEMINI_API_KEY",),
            official="https://generativelanguage.googleapis.com/v1beta",
            header="x-goog-api-key",
            prefix="",
            env=(("GEMINI_API_KEY", "{placeholder}"), ("CLAUDEBOX_GOOGLE_URL", "{url}")),
            paths=(("POST", "/models/*:generateContent"), ("POST", "/models/*:streamGenerateContent")),
            queries=("alt=sse",),
            usage="gemini",
            files=(f"{_KEPT}:google.key",),
        ),
    ),
)
