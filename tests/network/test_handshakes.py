"""Tier `allow` and the handshakes of real servers: no greeting leads to another server than the one that is listed.

The servers know OpenSSL, Go and Java. Each wants a second greeting of every client, and writes down which server every
greeting asks for. The attacks are first tried from the host, where they must succeed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.conftest import need
from tests.network.conftest import PYTHON
from tests.support.certificates import TestAuthority

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.network.topology import World

pytestmark = pytest.mark.slow

HERE = Path(__file__).with_name("servers")
ADDRESSES = {"openssl": "203.0.113.85", "go": "203.0.113.86", "java": "203.0.113.87"}
PORTS = (443, 8443)
OTHER = "other.example"
HOSTS = [f"{name}.example{port}" for name in ADDRESSES for port in ("", ":8443")]
FLAGS = ("--network", "allow", *(word for host in HOSTS for word in ("--allow-domain", host)))


class Servers:
    """The three servers, and which names they were asked for."""

    def __init__(self, authority: TestAuthority, log: Path) -> None:
        self.authority, self._log = authority, log

    def asked(self) -> list[str]:
        """Return what was asked for since the last look, once the servers have had time to write it down."""
        time.sleep(0.3)
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        self._log.unlink(missing_ok=True)
        return lines


@pytest.fixture(scope="module")
def servers(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    for tool, package in (("go", "golang-go"), ("javac", "default-jdk-headless"), ("openssl", "openssl")):
        need(shutil.which(tool), package)
    directory = tmp_path_factory.mktemp("servers")
    authority = TestAuthority()
    pair = authority.issue(directory / "pair.pem", *(f"{name}.example" for name in ADDRESSES), OTHER)
    store, log = str(directory / "store.p12"), directory / "log"
    built = str(directory / "server")
    environ = {**os.environ, "HOME": str(directory), "GOCACHE": str(directory / "cache"), "GO111MODULE": "off"}
    for words in (
        ("openssl", "pkcs12", "-export", "-in", pair, "-inkey", pair, "-out", store, "-passout", "pass:password"),
        ("go", "build", "-o", built, HERE / "server.go"),
        ("javac", "-d", directory, HERE / "Server.java"),
    ):
        subprocess.run([*map(str, words)], check=True, capture_output=True, env=environ)
    started = []
    for name, program in {
        "openssl": (sys.executable, str(HERE / "openssl_server.py"), str(pair), str(pair), str(log)),
        "go": (built, str(pair), str(pair), str(log)),
        "java": ("java", "-Xmx64m", "-cp", str(directory), "Server", store, str(log)),
    }.items():
        world.address("internet", "transit", f"{ADDRESSES[name]}/24")
        started.append(world.start("internet", *program, *(f"{ADDRESSES[name]}:{port}" for port in PORTS)))
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
    yield Servers(authority, log)
    for process in started:
        process.kill()
        process.wait()
    for address in ADDRESSES.values():
        world.ip("internet", "addr", "del", f"{address}/24", "dev", "transit")


def extension(kind: int, content: bytes) -> bytes:
    return kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content


def sized(content: bytes, width: int = 2) -> bytes:
    return len(content).to_bytes(width, "big") + content


def hello(name: str, *, group: int = 0x1D, versions: tuple[int, ...] = (0x0304,)) -> bytes:
    """Return a ClientHello for a server, as a record; the key is for X25519, or for P-384."""
    if group == 0x18:
        public = ec.generate_private_key(ec.SECP384R1()).public_key()
        share = public.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    else:
        share = bytes(range(32))
    body = b"\3\3" + bytes(range(32)) + sized(bytes(range(32)), 1)
    body += sized(bytes.fromhex("130113021303c02cc02bc030c02f")) + b"\1\0"
    body += sized(
        extension(0, sized(b"\0" + sized(name.encode())))
        + extension(10, sized(b"\0\x1d\0\x18"))
        + extension(11, b"\1\0")
        + extension(13, sized(bytes.fromhex("040305030603080408050806")))
        + extension(43, sized(b"".join(version.to_bytes(2, "big") for version in versions), 1))
        + extension(45, b"\1\1")
        + extension(51, sized(group.to_bytes(2, "big") + sized(share)))
    )
    message = b"\1" + sized(body, 3)
    return b"\x16\3\1" + sized(message)


ALERT, CCS = bytes.fromhex("1503010002015a"), bytes.fromhex("140303000101")
SSL2 = bytes.fromhex("802e0103010015000000100000050000040000090000640000620000080000030000060000ff") + bytes(range(16))


def attacks(name: str) -> dict[str, list[bytes]]:
    """Return what is said in turn; after each part the server is heard."""
    first, second = hello(name), hello(OTHER, group=0x18)
    split = second[5:]
    pieces = b"".join(b"\x16\3\3" + sized(split[at : at + 40]) for at in range(0, len(split), 40))
    empty = bytes.fromhex("1703030000")
    return {
        "another name in the second greeting": [first, CCS + second],
        "the same in small records": [first, CCS + pieces],
        "the same after early data": [first, CCS + bytes.fromhex("1703030010") + bytes(16) + second],
        "the same at once": [first + CCS + second],
        "the same after an alert": [first, ALERT + second],
        "a warning in front": [ALERT + hello(OTHER)],
        "warnings in front": [ALERT * 3 + hello(OTHER)],
        "a change of cipher in front": [CCS + hello(OTHER)],
        "empty data in front": [empty + hello(OTHER)],
        "a second greeting behind the first": [b"\x16\3\1" + sized(first[5:] + second[5:])],
        "two greetings of TLS 1.2": [hello(name, versions=(0x0303,)), hello(OTHER, versions=(0x0303,))],
        "a greeting of SSL 2": [SSL2],
        "SSL 2, then another name": [SSL2, hello(OTHER)],
    }  # fmt: skip


ATTACK = """
import json, socket, sys
def open_way(way, host, port):
    if way == "name":
        return socket.create_connection((host, port), timeout=5)
    channel = socket.create_connection(("127.0.0.1", 3128), timeout=5)
    if way == "connect":
        channel.sendall(f"CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\n".encode())
        reply = b""
        while not reply.endswith(b"\\r\\n\\r\\n"):
            reply += channel.recv(1)
    else:
        channel.sendall(b"\\5\\1\\0")
        channel.recv(2)
        channel.sendall(b"\\5\\1\\0\\3" + bytes((len(host),)) + host.encode() + port.to_bytes(2, "big"))
        channel.recv(10)
    return channel
for way, host, port, parts in json.load(open(sys.argv[1])):
    try:
        with open_way(way, host, port) as channel:
            channel.settimeout(1.5)
            for part in parts:
                channel.sendall(bytes.fromhex(part))
                said = channel.recv(65536)
            print(way, host, port, said[:7].hex() or "end")
    except OSError as error:
        print(way, host, port, type(error).__name__)
"""


def plan(ways: tuple[str, ...], ports: tuple[int, ...]) -> list[tuple[str, str, int, list[str]]]:
    return [
        (way, f"{name}.example", port, [part.hex() for part in parts])
        for name in ADDRESSES
        for parts in attacks(f"{name}.example").values()
        for way in ways
        for port in ports
    ]


def test_no_greeting_leads_to_another_server(plain_netbox, servers):
    # proves K02, K03, NET-03, OLD-B2
    box = plain_netbox
    script = box.write("attack.py", ATTACK)
    servers.asked()
    # The control: without the gateway each server is led astray by at least one of them.
    result = box.host(PYTHON, script, box.write("plan.json", json.dumps(plan(("name",), (443,)))))
    control = set(servers.asked())
    assert {f"{name} {OTHER}" for name in ADDRESSES} <= control, result.stdout

    box.write("plan.json", json.dumps(plan(("connect", "name"), PORTS)))
    result = box.run(PYTHON, script, f"{box.project}/plan.json", flags=FLAGS)

    assert len(result.stdout.splitlines()) == len(plan(("connect", "name"), PORTS)), result.stderr
    asked = servers.asked()
    assert [line for line in asked if line.endswith(OTHER)] == []
    assert {f"{name} {name}.example" for name in ADDRESSES} <= set(asked)
    rules = {json.loads(line).get("rule") for line in box.claudebox("log", "--json").stdout.splitlines()}
    assert {"other-server-name"} <= rules


HONEST = """
import socket, ssl, sys
exec(open("attack.py").read().partition("for way, host")[0])
context = ssl.create_default_context(cafile="ca.pem")
context.verify_flags &= ~ssl.VERIFY_X509_STRICT
for way in ("connect", "name"):
    for host in ("openssl.example", "go.example", "java.example"):
        for port in (443, 8443):
            with context.wrap_socket(open_way(way, host, port), server_hostname=host) as channel:
                channel.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
                version, answer = channel.version(), b""
                while piece := channel.recv(4096):
                    answer += piece
                print(way, port, version, answer.rpartition(b"\\r\\n")[2].decode())
"""


def test_a_second_greeting_that_a_server_wants_gets_through(plain_netbox, servers):
    # proves K02
    box = plain_netbox
    box.write("attack.py", ATTACK)
    box.write("ca.pem", servers.authority.certificate)
    servers.asked()

    result = box.run(PYTHON, box.write("honest.py", HONEST), flags=FLAGS)

    assert result.stdout.splitlines() == [
        f"{way} {port} TLSv1.3 {name}" for way in ("connect", "name") for name in ADDRESSES for port in PORTS
    ], result.stderr
