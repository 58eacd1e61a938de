"""Fixed names of a sandbox: paths, ports and variables of claudebox's own, and variables that pass from the host."""

from __future__ import annotations

GATE = "/run/claudebox/gate"  # what waits there for the launcher's word: src/gate/gate.c
CA_BUNDLE_INSIDE = "/run/claudebox/ca-bundle.crt"
NAMED_AUTHORITIES_INSIDE = "/run/claudebox/named-authorities.crt"
GIT_HELPER = "/run/claudebox/git-credential"
GIT_TOKEN_FILE = "/run/claudebox/git-token"  # noqa: S105 - a path

# Ports of the sandbox's loopback that the broker answers in tier `allow`.
PROXY_PORT, REDIRECTED_PORT, NAMES_PORT = 3128, 3129, 53
RESERVED_PORTS = frozenset((PROXY_PORT, REDIRECTED_PORT, NAMES_PORT))
MODEL_PORT = 3141  # and those that follow: where the broker answers for models, if not at a socket
BYTECODE = "PYTHONPYCACHEPREFIX"
CLIENT_DIRECTORY = "/run/claudebox/bin"

# Preferences that pass from the host if they are set (SAND-03): name, reason, rule. Exact names only, since a prefix
# would let somebody's token through (A13); and none whose value looks like a secret or breaks its rule. `number`:
# digits alone; `program`: the first word is a program of the system; `path`: a path that is inside; `index`: addresses
# that say where, and nothing that could be a login or a token.
PASSED: tuple[tuple[str, str, str], ...] = (
    ("TERM", "the kind of terminal", ""),
    ("COLORTERM", "colours of the terminal", ""),
    ("TERM_PROGRAM", "the name of the terminal, which some programs adapt to", ""),
    ("TERM_PROGRAM_VERSION", "its version", ""),
    ("NO_COLOR", "no colours wanted", ""),
    ("FORCE_COLOR", "colours wanted in any case", ""),
    ("CLICOLOR", "colours wanted", ""),
    ("CLICOLOR_FORCE", "colours wanted in any case", ""),
    ("EDITOR", "the editor", ""),
    ("PAGER", "the pager", "program"),
    ("LESS", "how the pager behaves", ""),
    ("TZ", "the time zone", ""),
    ("LANG", "language", ""),
    ("LANGUAGE", "languages, in the order of preference", ""),
    ("LOCALE_ARCHIVE", "where the C library finds languages, on machines with Nix", "path"),
    *((f"LC_{part}", "language", "") for part in (
        "ADDRESS", "ALL", "COLLATE", "CTYPE", "IDENTIFICATION", "MEASUREMENT", "MESSAGES", "MONETARY", "NAME",
        "NUMERIC", "PAPER", "TELEPHONE", "TIME",
    )),
    # Where packages come from; files with the same settings (.npmrc, pip.conf) stay out, since tokens stand there.
    *((name, "where packages come from", "index") for name in (
        "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "npm_config_registry",
        "NPM_CONFIG_REGISTRY", "YARN_NPM_REGISTRY_SERVER", "GOPROXY", "GOPRIVATE", "GONOPROXY", "GONOSUMDB",
    )),
    ("DO_NOT_TRACK", "no telemetry wanted", ""),
)  # fmt: skip

# What every shell makes anew, here and there; nobody misses it.
MADE_BY_SHELLS = frozenset(("OLDPWD", "PWD", "SHLVL", "_"))

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
# Made here, but a user may let in their own.
YIELDING = frozenset(("GOFLAGS", BYTECODE, *(name for name, _ in (*CACHES, *CACHES_BY_DEFAULT))))

# Where programs look for certificate authorities, besides the two above; set where a broker answers for hosts.
AUTHORITIES = (
    "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "CURL_CA_BUNDLE", "DENO_CERT", "GIT_SSL_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "HTTPLIB2_CA_CERTS", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE",
)  # fmt: skip
# Those of programs that read such a file beside authorities of their own, at each start: 20 ms for a whole bundle.
ADDED_AUTHORITIES = ("DENO_CERT", "NODE_EXTRA_CA_CERTS")
NPM_AUTHORITIES = "npm_config_cafile"
# Variables of the host that say what another says.
SAME_AUTHORITIES = {
    "NIX_SSL_CERT_FILE": "SSL_CERT_FILE",
    "GIT_SSL_CAPATH": "GIT_SSL_CAINFO",
    NPM_AUTHORITIES: NPM_AUTHORITIES,
    NPM_AUTHORITIES.upper(): NPM_AUTHORITIES,
}

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
