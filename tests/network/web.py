"""A web server of the small internet: files over HTTP and HTTPS, and what was asked for in a log.

usage: web.py DIRECTORY CERTIFICATE KEY LOG. The directory has one directory per host name.
"""

from __future__ import annotations

import http.server
import json
import os
import socket
import ssl
import sys
import threading

DIRECTORY, CERTIFICATE, KEY, LOG = sys.argv[1:5]


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves what lies below the name of the host that was asked for."""

    protocol_version = "HTTP/1.1"

    def translate_path(self, path: str) -> str:
        host = (self.headers.get("Host") or "").partition(":")[0]
        self.directory = os.path.join(DIRECTORY, os.path.basename(host))
        with open(LOG, "a", encoding="utf-8") as file:
            server_name = getattr(self.connection, "asked_for", "")
            file.write(json.dumps([host, server_name, self.requestline, dict(self.headers)]) + "\n")
        return super().translate_path(path)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = f"{len(self.rfile.read(length))} bytes".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """Listens on both families."""

    address_family = socket.AF_INET6
    daemon_threads = True
    allow_reuse_port = True  # servers of other tests have addresses of their own in this place

    def handle_error(self, *_words: object) -> None:
        pass


def main() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)

    def remember(channel: ssl.SSLObject, name: str, _context: ssl.SSLContext) -> None:
        channel.asked_for = name  # type: ignore[attr-defined]

    context.sni_callback = remember
    plain, secure = Server(("::", 80), Files), Server(("::", 443), Files)
    secure.socket = context.wrap_socket(secure.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=plain.serve_forever, daemon=True).start()
    print("listening", flush=True)  # noqa: T201
    secure.serve_forever()


main()
