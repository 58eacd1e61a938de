"""Google's Gemini CLI, as a row."""

from __future__ import annotations

from claudebox.agent.record import AgentKind, LoginFile, Seed, Upstream

_MODEL = "/v1beta/models/*"


def _select(kind: str) -> Seed:
    return Seed(".gemini/settings.json", f'{{"security": {{"auth": {{"selectedType": "{kind}"}}}}}}')


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
        "--sandbox": ("sandboxes do not nest", "leave it out: this session is in a sandbox"),
        "-s": ("sandboxes do not nest", "leave it out: this session is in a sandbox"),
    },
    task=("--output-format", "json"),
    said="response",
    resume=("--resume", "latest"),
    directory=".gemini",
    state=((".gemini", "home/.gemini"),),
    seeds=(
        Seed(
            ".gemini/settings.json",
            """{"security": {"folderTrust": {"enabled": false}},
            "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false},
            "privacy": {"usageStatisticsEnabled": false}}""",
        ),
    ),
    transcripts="home/.gemini/tmp/*/chats/session-*",
    instructions=".gemini/GEMINI.md",
    protected=((".gemini", "gemini starts servers and runs hooks named here"),),
    hidden=((".gemini", "Gemini's login and conversations"),),
    env=(
        ("GEMINI_CLI_NO_RELAUNCH", "true", "one process instead of two"),
        ("GEMINI_SANDBOX", "false", "sandboxes do not nest"),
    ),
    keys=("GEMINI_API_KEY",),
    passed=(
        ("GEMINI_MODEL", "the model", ""),
        ("GOOGLE_CLOUD_PROJECT", "the project that pays for a login of an organisation", ""),
    ),
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
            queries=("alt=sse", "pageSize", "pageToken"),
            key_query="key",
            usage="gemini",
            files=("~/.gemini/.env:GEMINI_API_KEY", "~/.env:GEMINI_API_KEY"),
            seeds=(_select("gemini-api-key"),),
        ),
        Upstream(
            name="code-assist",
            keys=(),
            official="https://cloudcode-pa.googleapis.com",
            base_url="CODE_ASSIST_ENDPOINT",
            env=(
                ("GOOGLE_CLOUD_ACCESS_TOKEN", "{placeholder}"),
                ("GOOGLE_GENAI_USE_GCA", "true"),
                ("CODE_ASSIST_ENDPOINT", "{url}"),
            ),
            paths=(
                ("POST", "/v1internal:generateContent"),
                ("POST", "/v1internal:streamGenerateContent"),
                ("POST", "/v1internal:countTokens"),
                ("POST", "/v1internal:loadCodeAssist"),
                ("POST", "/v1internal:fetchAdminControls"),
                ("POST", "/v1internal:listExperiments"),
                ("POST", "/v1internal:retrieveUserQuota"),
            ),
            fields=("x-gemini-*", "x-goog-api-client"),
            queries=("alt=sse",),
            usage="gemini",
            login=LoginFile(
                path="~/.gemini/oauth_creds.json",
                access="access_token",
                refresh="refresh_token",
                expires="expiry_date",
                url="https://oauth2.googleapis.com/token",
                # Of the installed program, where it is no secret: RFC 8252, section 8.5.
                client="681255809395-oo8ft2oprdrnp9e3aqf6av3hmdib135j.apps.googleusercontent.com",
                secret="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",  # noqa: S106
                form=True,
                again="run `gemini` there and log in",
                more=(("id_token", "id_token"),),
            ),
            seeds=(_select("oauth-personal"),),
        ),
    ),
)
