"""In a network of its own: answer every name with 127.0.0.1, listen on every port of every address, and run a program.

Standard input: JSON with `argv` and `key`. Standard output: what was heard.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "src")]
from tests.support.certificates import TestAuthority  # noqa: E402 - found by the line above
from tests.support.scripted import Scripted  # noqa: E402

from claudebox.agent.claude import UPSTREAM  # noqa: E402

PORT, NAMES = 9999, 9953
RULES = """
table ip ears {{
  chain out {{
    type nat hook output priority -100;
    tcp dport {{ {model}, {port} }} accept
    tcp dport 1-65535 redirect to :{port}
    udp dport 53 redirect to :{names}
  }}
}}
"""
HEARD: list[tuple[str, str]] = []  # the name that TLS was asked for, and what was said


def run(*argv: str, text: str = "") -> None:
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    subprocess.run(argv, input=text, text=True, check=True, capture_output=True, env=environ)


def listen(server: socket.socket) -> None:
    while True:
        threading.Thread(target=hear, args=(server.accept()[0],), daemon=True).start()


def hear(channel: socket.socket) -> None:
    """Take everything that comes, out of TLS if it is in TLS, and answer so that more comes."""
    name = ""
    try:
        with channel:
            channel.settimeout(10)
            secure = channel.recv(1, socket.MSG_PEEK) == b"\x16"
            with AUTHORITY.accept(channel) if secure else channel as stream:
                name = getattr(stream, "asked_for", "")
                entry = len(HEARD)
                HEARD.append((name, ""))
                stream.settimeout(1)
                while piece := stream.recv(1 << 16):
                    HEARD[entry] = name, HEARD[entry][1] + piece.decode("latin-1")
                    if piece.endswith((b"\r\n\r\n", b"CANARY-CONTROL", b"}")):
                        stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    except OSError:
        return


class Authority:
    """Answers in the name of whoever is asked for, with certificates that the host of this test trusts."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._authority = directory, TestAuthority()
        self.bundle = directory / "authority.pem"
        self.bundle.write_bytes(self._authority.certificate)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self._authority.issue(directory / "nobody", "nobody.example"))
        self._context.sni_callback = self._become  # type: ignore[assignment]

    def accept(self, channel: socket.socket) -> ssl.SSLSocket:
        return self._context.wrap_socket(channel, server_side=True)

    def _become(self, connection: ssl.SSLSocket, name: str | None, _context: ssl.SSLContext) -> None:
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(self._authority.issue(self._directory / f"{threading.get_ident()}.pem", name or "nobody"))
        connection.context = own
        connection.asked_for = name or ""  # type: ignore[attr-defined]


def resolve(server: socket.socket) -> None:
    """Answer every question for an address with 127.0.0.1."""
    while True:
        question, caller = server.recvfrom(4096)
        end = question.index(b"\0", 12) + 5
        kind = question[end - 4 : end - 2]
        answer = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4\x7f\0\0\1" if kind == b"\0\1" else b""
        head = question[:2] + b"\x81\x80\0\1" + (b"\0\1" if answer else b"\0\0") + b"\0\0\0\0"
        server.sendto(head + question[12:end] + answer, caller)


def main() -> None:
    given = json.load(sys.stdin)
    run("ip", "link", "set", "lo", "up")
    run("ip", "route", "add", "local", "default", "dev", "lo")
    run("mount", "-t", "tmpfs", "none", "/mnt")
    for name, content in (("resolv.conf", "nameserver 127.0.0.1\n"), ("nsswitch.conf", "hosts: files dns\n")):
        with open(f"/mnt/{name}", "w", encoding="ascii") as file:
            file.write(content)
        run("mount", "--bind", f"/mnt/{name}", os.path.realpath(f"/etc/{name}"))
    script = {"conversations": [{"prompt": "CANARY-OF", "steps": [{"say": "an answer of the model"}]}]}
    with Scripted(script, key=given["key"]) as model:
        run("nft", "-f", "-", text=RULES.format(model=model.port, port=PORT, names=NAMES))
        names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names.bind(("0.0.0.0", NAMES))
        for action, server in ((listen, socket.create_server(("0.0.0.0", PORT), backlog=64)), (resolve, names)):
            threading.Thread(target=action, args=(server,), daemon=True).start()
        urllib.request.urlopen(f"{UPSTREAM.nowhere}/v1/messages", b"CANARY-CONTROL", timeout=10).close()
        secure = ssl.create_default_context(cafile=AUTHORITY.bundle)
        secure.verify_flags &= ~ssl.VERIFY_X509_STRICT
        urllib.request.urlopen("https://secure.example/", b"CANARY-CONTROL", timeout=10, context=secure).close()
        limit = time.monotonic() + 10  # a head is answered before its body has come
        while time.monotonic() < limit and not all("CANARY-CONTROL" in text for _, text in HEARD):
            time.sleep(0.01)
        control, HEARD[:] = [*HEARD], []
        os.environ |= {"ANTHROPIC_BASE_URL": model.url, "SSL_CERT_FILE": str(AUTHORITY.bundle)}
        result = subprocess.run(given["argv"], capture_output=True, text=True, timeout=90, check=False)
    told = {"control": control, "status": result.returncode, "answer": result.stdout, "errors": result.stderr}
    print(json.dumps({**told, "heard": HEARD}))  # noqa: T201


with tempfile.TemporaryDirectory() as place:
    os.chmod(place, 0o755)
    AUTHORITY = Authority(Path(place))
    main()
