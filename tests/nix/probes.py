"""What an agent would try with the daemon: each probe is an argv that works on the host and, if allowed, inside.

They rest on files of the project, which has the same name on both sides, and on the seed in the store.
"""

from __future__ import annotations

import http.server
import os
import threading
import uuid
from hashlib import sha256
from typing import TYPE_CHECKING

from tests.nix.daemon import SYSTEM

if TYPE_CHECKING:
    from tests.conftest import Box
    from tests.nix.daemon import Daemon

_FEATURES = ("--extra-experimental-features", "nix-command flakes")


def expression(daemon: Daemon, commands: str, extra: str = "") -> str:
    """Return a derivation that was never built before."""
    seed = daemon.seed
    return f"""
      derivation {{
        name = "probe-{uuid.uuid4().hex}";
        system = "{SYSTEM}";
        builder = (builtins.storePath {seed}) + "/busybox";
        args = [ "sh" "-euc" "{commands}" ];
        {extra}
      }}
    """


def build(box: Box, daemon: Daemon, commands: str, extra: str = "") -> tuple[str, ...]:
    """Return what builds a new derivation; `$b` is busybox."""
    file = box.write(f"probe-{uuid.uuid4().hex}.nix", expression(daemon, f"b={daemon.seed}/busybox; {commands}", extra))
    return ("nix-build", "--no-out-link", file)


def post_build_hook(box: Box, daemon: Daemon) -> tuple[tuple[str, ...], str]:
    """Return what asks the daemon to run a program of the project as root, and the file that shows whose it was."""
    witness = f"{box.project}/witness-{uuid.uuid4().hex}"
    hook = box.write("hook.sh", f"#!/bin/sh\nid -u > {witness}\n", mode=0o755)
    return (*build(box, daemon, "$b touch $out"), "--option", "post-build-hook", hook), witness


def read_host_file(box: Box, daemon: Daemon, path: str) -> tuple[str, ...]:
    """Return what builds a derivation that holds a file of the host, if the builder has no sandbox."""
    return build(box, daemon, f"$b cat {path} > $out")


class Listener:
    """An HTTP server on the host's loopback that remembers what it was asked for."""

    CONTENT = b"from the loopback of the host\n"

    def __init__(self) -> None:
        seen: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(Listener.CONTENT)))
                self.end_headers()
                self.wfile.write(Listener.CONTENT)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                pass

        self.seen = seen
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def fixed_output(box: Box, daemon: Daemon, listener: Listener, secret: str) -> tuple[str, ...]:
    """Return what makes the daemon carry a word to the host's loopback in a build whose result is known before."""
    digest = sha256(Listener.CONTENT).hexdigest()
    extra = f'outputHashMode = "flat"; outputHashAlgo = "sha256"; outputHash = "{digest}";'
    return build(box, daemon, f"$b wget -q -O $out http://127.0.0.1:{listener.port}/{secret}", extra)


def fetch(box: Box, listener: Listener, secret: str) -> tuple[str, ...]:
    """Return the same with the fetcher that is built into the daemon."""
    expr = f"""
      derivation {{
        name = "probe-{uuid.uuid4().hex}"; system = "builtin"; builder = "builtin:fetchurl";
        url = "http://127.0.0.1:{listener.port}/{secret}"; preferLocalBuild = true;
        outputHashMode = "flat"; outputHashAlgo = "sha256";
        outputHash = "{sha256(Listener.CONTENT).hexdigest()}";
      }}
    """
    return ("nix-build", "--no-out-link", box.write(f"fetch-{uuid.uuid4().hex}.nix", expr))


def owner(path: str) -> int | None:
    """Return whose file it is, or None if there is none."""
    return os.stat(path).st_uid if os.path.exists(path) else None
