"""A server over TLS, by OpenSSL, that writes down which server each greeting asks for.

Arguments: certificate, key, log, then addresses.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading

CERTIFICATE, KEY, LOG, *ADDRESSES = sys.argv[1:]


def note(_channel: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
    with open(LOG, "a", encoding="utf-8") as file:
        file.write(f"openssl {name or ''}\n")


def serve(context: ssl.SSLContext, plain: socket.socket) -> None:
    with contextlib.suppress(OSError), plain, context.wrap_socket(plain, server_side=True) as channel:
        channel.recv(4096)
        channel.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nopenssl")


def listen(context: ssl.SSLContext, listener: socket.socket) -> None:
    while True:
        plain, _ = listener.accept()
        threading.Thread(target=serve, args=(context, plain), daemon=True).start()


def main() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    context.set_ecdh_curve("secp384r1")  # clients offer another one at first
    context.sni_callback = note
    for place in ADDRESSES:
        host, _, port = place.partition(":")
        listener = socket.create_server((host, int(port)), reuse_port=True)
        threading.Thread(target=listen, args=(context, listener), daemon=True).start()
    print("listening", flush=True)  # noqa: T201
    threading.Event().wait()


main()
