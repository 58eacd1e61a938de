"""Qwen Code, as a row."""

from __future__ import annotations

from claudebox.agent.record import AgentKind, Seed, Upstream

QWEN = AgentKind(
    name="qwen",
    title="Qwen Code",
    install="npm install -g @qwen-code/qwen-code",
    package="@qwen-code/qwen-code",
    places=("~/.local/bin/qwen", "~/.npm-global/bin/qwen", "~/.volta/bin/qwen", "~/.bun/bin/qwen"),
    least=(0, 10, 1),
    tried=(0, 15, 10),
    always=("--yolo",),
    printing=frozenset(("-p", "--prompt")),
    subcommands=frozenset(("auth", "channel", "extensions", "hook", "hooks", "mcp", "review")),
    unarmed=frozenset(("auth", "channel", "extensions", "hook", "hooks", "mcp", "review")),
    not_inside={
        "auth": ("a login stays outside", "set OPENAI_API_KEY on the host"),
        "--sandbox": ("sandboxes do not nest", "leave it out: this session is in a sandbox"),
        "-s": ("sandboxes do not nest", "leave it out: this session is in a sandbox"),
    },
    task=("--output-format", "json"),
    said="result",
    resume=("--resume", "{id}"),
    directory=".qwen",
    state=((".qwen", "home/.qwen"),),
    seeds=(
        Seed(
            ".qwen/settings.json",
            # It would ask a proxy for loopback, too. In tier `allow` the kernel leads its connections there.
            """{"security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": false}},
            "general": {"enableAutoUpdate": false, "disableAutoUpdate": true}, "proxy": " ",
            "privacy": {"usageStatisticsEnabled": false}}""",
        ),
    ),
    transcripts="home/.qwen/projects/*/chats/*.jsonl",
    instructions=".qwen/QWEN.md",
    protected=((".qwen", "qwen starts servers and runs hooks named here"),),
    hidden=((".qwen", "Qwen Code's login and conversations"),),
    env=(("QWEN_SANDBOX", "false", "sandboxes do not nest"),),
    keys=("OPENAI_API_KEY",),
    passed=(("OPENAI_MODEL", "the model", ""), ("QWEN_MODEL", "the model", "")),
    upstreams=(
        Upstream(
            name="openai",
            keys=("OPENAI_API_KEY",),
            official="https://api.openai.com/v1",
            base_url="OPENAI_BASE_URL",
            env=(("OPENAI_API_KEY", "{placeholder}"), ("OPENAI_BASE_URL", "{url}")),
            paths=(("POST", "/chat/completions"), ("GET", "/models")),
            fields=("x-dashscope-*",),
            usage="chat",
            files=("~/.qwen/.env:OPENAI_API_KEY", "~/.env:OPENAI_API_KEY"),
        ),
    ),
)
