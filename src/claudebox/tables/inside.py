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

FIRST = b"\xc6\x12\x00\x02"  # the two in front of it are for our own trial
POOL = (1 << 17) - 4
