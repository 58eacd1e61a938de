"""aider, as a row."""

from __future__ import annotations

from claudebox.agent.record import AgentKind, Upstream

AIDER = AgentKind(
    name="aider",
    title="aider",
    install="uv tool install --python 3.12 aider-chat",
    package="aider-chat",
    places=("~/.local/bin/aider",),
    least=(0, 80, 0),
    tried=(0, 86, 2),
    always=(
        "--yes-always", "--no-check-update", "--no-show-release-notes", "--analytics-disable",
        "--chat-history-file", "{home}/.aider/chat.history.md", "--input-history-file", "{home}/.aider/input.history",
        "--read", "/run/claudebox/SANDBOX.md",
    ),
    printing=frozenset(("-m", "--msg", "--message", "-f", "--message-file")),
    task=("--no-pretty", "--no-stream", "--message-file", "/dev/stdin"),
    resume=("--restore-chat-history",),
    directory=".aider",
    state=((".aider", "home/.aider"),),
    transcripts="home/.aider/chat.history.md",
    protected=((".aider.conf.yml", "aider runs the test commands named here"),),
    hidden=((".aider", "aider's keys and caches"), (".aider.conf.yml", "aider's settings, which may hold keys")),
    env=(("LITELLM_LOCAL_MODEL_COST_MAP", "True", "prices are not fetched at every start"),),
    keys=("OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
    passed=(("AIDER_MODEL", "the model", ""), ("AIDER_WEAK_MODEL", "the model for small things", "")),
    upstreams=(
        Upstream(
            name="openai",
            keys=("OPENAI_API_KEY",),
            official="https://api.openai.com/v1",
            base_url="OPENAI_API_BASE",
            # The project's `.env` would replace variables; what stands in options counts more.
            env=(("OPENAI_API_KEY", "{placeholder}"), ("AIDER_OPENAI_API_KEY", "{placeholder}")),
            args=("--set-env", "OPENAI_API_BASE={url}", "--set-env", "OPENAI_BASE_URL={url}"),
            paths=(("POST", "/chat/completions"), ("POST", "/responses"), ("GET", "/models")),
            usage="chat",
            files=("~/.env:OPENAI_API_KEY",),
        ),
        Upstream(
            name="anthropic",
            keys=("ANTHROPIC_API_KEY",),
            official="https://api.anthropic.com",
            base_url="ANTHROPIC_API_BASE",
            header="x-api-key",
            prefix="",
            env=(("ANTHROPIC_API_KEY", "{placeholder}"), ("AIDER_ANTHROPIC_API_KEY", "{placeholder}")),
            args=("--set-env", "ANTHROPIC_API_BASE={url}", "--set-env", "ANTHROPIC_BASE_URL={url}"),
            paths=(("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens")),
            fields=("anthropic-*",),
            usage="anthropic",
            files=("~/.env:ANTHROPIC_API_KEY",),
        ),
    ),
)  # fmt: skip
