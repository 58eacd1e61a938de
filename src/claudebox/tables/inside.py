"""Fixed names of a sandbox: paths, ports and variables of claudebox's own, and variables that pass from the host."""

from __future__ import annotations

CA_BUNDLE_INSIDE = "/run/claudebox/ca-bundle.crt"
GIT_HELPER = "/run/claudebox/git-credential"
GIT_TOKEN_FILE = "/run/claudebox/git-token"  # noqa: S105 - a path

# Ports of the sandbox's loopback that the broker answers in tier `allow`.
PROXY_PORT, REDIRECTED_PORT, NAMES_PORT = 3128, 3129, 53
RESERVED_PORTS = frozenset((PROXY_PORT, REDIRECTED_PORT, NAMES_PORT))

# Passed from the host if set (SAND-03). Exact names only: a prefix would let somebody's token through (A13).
PASSED: tuple[tuple[str, str], ...] = (
    ("TERM", "the kind of terminal"),
    ("COLORTERM", "colours of the terminal"),
    ("NO_COLOR", "no colours wanted"),
    ("EDITOR", "the editor"),
    ("LANG", "language"),
    ("LC_ALL", "language"),
)

# Programs that keep their cache elsewhere than in ~/.cache, for which `~` stands here. Maven takes no variable for it.
CACHES: tuple[tuple[str, str], ...] = (
    ("npm_config_cache", "~/npm"),
    ("CARGO_HOME", "~/cargo"),
    ("GOMODCACHE", "~/go-mod"),
    ("GRADLE_USER_HOME", "~/gradle"),
    ("MAVEN_OPTS", "-Dmaven.repo.local=~/maven"),
    ("UV_LINK_MODE", "copy"),  # links cannot lead from a cache to the project: both are mounts
)
# And those that look there by themselves, for sandboxes that have something else in ~/.cache.
CACHES_BY_DEFAULT: tuple[tuple[str, str], ...] = (
    ("PIP_CACHE_DIR", "~/pip"),
    ("UV_CACHE_DIR", "~/uv"),
    ("GOCACHE", "~/go-build"),
    ("CCACHE_DIR", "~/ccache"),
    ("YARN_CACHE_FOLDER", "~/yarn"),
    ("PLAYWRIGHT_BROWSERS_PATH", "~/ms-playwright"),
)
CACHE_NAMES = frozenset(name for name, _ in (*CACHES, *CACHES_BY_DEFAULT))

# Where programs look for certificate authorities, besides the two above; set where a broker answers for hosts.
AUTHORITIES = (
    "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "CURL_CA_BUNDLE", "DENO_CERT", "GIT_SSL_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "HTTPLIB2_CA_CERTS", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE",
)  # fmt: skip

# These change which code programs load; they only ever act inside, but a user should know (D-03, A16).
LOADERS = frozenset((
    "BASH_ENV", "BROWSER", "DYLD_INSERT_LIBRARIES", "ENV", "GCONV_PATH", "GIT_EDITOR", "GIT_EXEC_PATH",
    "GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_SSH", "GIT_SSH_COMMAND", "JAVA_TOOL_OPTIONS", "LD_AUDIT",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "LOCPATH", "NODE_OPTIONS", "NODE_PATH", "PAGER", "PERL5DB", "PERL5LIB",
    "PERL5OPT", "PROMPT_COMMAND", "PYTHONHOME", "PYTHONINSPECT", "PYTHONPATH", "PYTHONSTARTUP", "RUBYLIB",
    "RUBYOPT", "VISUAL", "_JAVA_OPTIONS",
))  # fmt: skip

# Made here or by `client`: nobody sets them, because the sandbox itself rests on them.
MADE = frozenset((
    "CLAUDEBOX", "CLAUDE_CONFIG_DIR", "CLAUDE_SECURESTORAGE_CONFIG_DIR", "HOME", "LOGNAME", "NIX_SSL_CERT_FILE", "PATH",
    "SHELL", "SSL_CERT_FILE", "TMPDIR", "USER", "XDG_RUNTIME_DIR",
))  # fmt: skip

# With a broker these are made here; what a user wants by naming them, the broker does.
BROKERED = frozenset((
    "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_UNIX_SOCKET",
    "CLAUDE_CODE_OAUTH_TOKEN",
))  # fmt: skip
