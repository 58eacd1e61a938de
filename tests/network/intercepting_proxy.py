"""A company's proxy: wants a password, ends TLS with certificates of its own authority, and reads everything.

usage: intercepting_proxy.py ADDRESS PORT AUTHORITY LOGIN LOG [MODEL]
AUTHORITY is a file with the key and the certificate of the authority; LOGIN is `name:password`. Where MODEL is given,
a place that speaks plain HTTP, it stands for every server.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import os
import select
import socket
import ssl
import sys
import tempfile
import threading
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

ADDRESS, PORT, AUTHORITY, LOGIN, LOG = sys.argv[1:6]
PEM = Path(AUTHORITY).read_bytes()
KEY = serialization.load_pem_private_key(PEM, None)
CERTIFICATE = x509.load_pem_x509_certificate(PEM[PEM.index(b"-----BEGIN CERTIFICATE") :])
MODEL = sys.argv[6] if len(sys.argv) > 6 else ""
WANTED = "Basic " + base64.b64encode(LOGIN.encode()).decode()
_contexts: dict[str, ssl.SSLContext] = {}


def note(text: str) -> None:
    with open(LOG, "a", encoding="utf-8") as file:
        file.write(text + "\n")


def context_for(host: str) -> ssl.SSLContext:
    if host not in _contexts:
        key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(CERTIFICATE.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .sign(KEY, hashes.SHA256())  # type: ignore[arg-type]
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with tempfile.NamedTemporaryFile() as file:
            file.write(private + made.public_bytes(serialization.Encoding.PEM))
            file.flush()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(file.name)
        _contexts[host] = context
    return _contexts[host]


def head_of(channel: socket.socket) -> str:
    data = b""
    while not data.endswith(b"\r\n\r\n") and (piece := channel.recv(1)):
        data += piece
    return data.decode("latin-1")


def serve(caller: socket.socket) -> None:
    head = head_of(caller)
    method, _, rest = head.partition(" ")
    target = rest.partition(" ")[0]
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n"))}
    if fields.get("proxy-authorization") != WANTED:
        note(f"407 {method} {target} {fields.get('proxy-authorization', '')}")
        caller.sendall(
            b"HTTP/1.1 407 Who are you\r\nProxy-Authenticate: Basic realm=x\r\n"
            b"Content-Length: 0\r\nConnection: close\r\n\r\n"
        )
        return
    note(f"{method} {target}")
    if method != "CONNECT":
        caller.sendall(b"HTTP/1.1 400 Only CONNECT\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        return
    host, _, port = target.rpartition(":")
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    place = MODEL.rpartition(":") if MODEL else (host, ":", port)
    with socket.create_connection((place[0], int(place[2])), timeout=10) as plain:
        caller.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        if port == "80":
            carry(caller, plain)
            return
        with context_for(host).wrap_socket(caller, server_side=True) as near:
            note(f"read {host}")
            carry(near, plain if MODEL else unverified.wrap_socket(plain, server_hostname=host))


def carry(near: socket.socket, far: socket.socket) -> None:
    while True:
        for source, sink in ((near, far), (far, near)):
            pending = isinstance(source, ssl.SSLSocket) and source.pending()
            if pending or select.select([source], [], [], 0.05)[0]:
                piece = source.recv(1 << 16)
                if not piece:
                    return
                sink.sendall(piece)


def attend(caller: socket.socket) -> None:
    with caller, contextlib.suppress(OSError, ValueError):
        serve(caller)


with socket.create_server((ADDRESS, int(PORT)), backlog=64) as server:
    os.write(1, b"listening\n" if PORT != "0" else b"%d\n" % server.getsockname()[1])
    while True:
        threading.Thread(target=attend, args=(server.accept()[0],), daemon=True).start()
