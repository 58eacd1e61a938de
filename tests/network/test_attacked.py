"""A broker under attack, with real servers: behind a company's proxy, and by everything at once."""

from __future__ import annotations

import json
import sys

import pytest
from tests.network.conftest import PYTHON
from tests.network.test_reach import INET
from tests.network.topology import HOST_LAN4, PORT

# A proxy in the LAN that leads everywhere, and writes down everything that it is sent.
PROXY = """
import json, socket, threading
def pipe(one, other):
    try:
        while piece := one.recv(65536):
            other.sendall(piece)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass
def serve(channel):
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        head += channel.recv(1)
    if head.startswith(b"CONNECT "):
        name, _, port = head.split(b" ")[1].decode().rpartition(":")
        place = "192.168.77.50" if name == "inner.example" else "203.0.113.80"
        far = socket.create_connection((place, int(port)))
        channel.sendall(b"HTTP/1.1 200 fine\\r\\n\\r\\n")
        threading.Thread(target=pipe, args=(channel, far), daemon=True).start()
        pipe(far, channel)
        return
    channel.settimeout(1)
    data = head
    try:
        while piece := channel.recv(65536):
            data += piece
    except TimeoutError:
        pass
    print(json.dumps(data.decode("latin-1")), flush=True)
    channel.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
    channel.close()
with socket.create_server(("192.168.77.1", 8889), backlog=512) as server:
    print("listening", flush=True)
    while True:
        threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
"""


@pytest.fixture
def proxied(plain_netbox, world):
    """Return a box on a host with such a proxy, and what the proxy has said."""
    process = world.start("lan", sys.executable, "-c", PROXY)
    assert process.stdout.readline() == "listening\n"
    plain_netbox.environ |= {"HTTPS_PROXY": "http://192.168.77.1:8889"}
    yield plain_netbox, process
    process.kill()
    process.wait()


BUSY = """
import socket, sys, time
def ask(name):
    channel = socket.create_connection(("127.0.0.1", 3128), timeout=40)
    channel.sendall(f"CONNECT {name}:8000 HTTP/1.1\\r\\n\\r\\n".encode())
    return channel
def answer(channel):
    reply = b""
    while not reply.endswith(b"\\r\\n\\r\\n"):
        reply += channel.recv(1)
    return channel.recv(64).decode().strip() if b" 200 " in reply else reply.split(b" ")[1].decode()
print(*(answer(ask(name)) for name in ("public.example", "unknown.example", "inner.example")))
silent = [ask(f"name{number}.silent.example") for number in range(int(sys.argv[1]))]
time.sleep(0.3)
print(answer(ask("inner.example")))
print(*{answer(channel) for channel in silent})
"""


NAMES = ("public.example", "unknown.example", "inner.example", "*.silent.example")


@pytest.mark.parametrize("tier", [INET, ("--network", "allow", *(f"--allow-domain={name}:8000" for name in NAMES))])
@pytest.mark.parametrize("names", [24, pytest.param(60, marks=pytest.mark.slow)])
def test_a_busy_resolver_does_not_open_the_lan_through_the_proxy_of_the_host(proxied, world, tier, names):
    # proves NEW-N1
    box, _ = proxied
    world.resolver("192.168.77.1", options="timeout:1 attempts:1")
    try:
        result = box.run(PYTHON, box.write("busy.py", BUSY), str(names), flags=tier)
    finally:
        world.resolver("192.168.77.1")

    first, near, silent = result.stdout.splitlines()
    assert first.split() == ["internet", "internet", "403"], result.stderr  # a name that does not exist is the proxy's
    assert near in ("403", "502")
    assert silent == "502"  # no answer is not an answer


EXTRA = "GET http://inner.example/secret HTTP/1.1\r\nHost: inner.example\r\nConnection: close\r\n\r\n"
REQUESTS = {
    "nothing": ("", "", ""),
    "a length": ("Content-Length: 30000\r\n", "x" * 30_000, "x" * 30_000),
    "chunks": ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\nx: y\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n"),
    "chunks, expected": (
        "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n", "5\r\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n",
    ),
}  # fmt: skip
MORE = """
import json, re, socket
for head, body, extra in json.load(open("requests.json")):
    with socket.create_connection(("127.0.0.1", 3128), timeout=20) as channel:
        channel.sendall(f"POST http://four.example/page HTTP/1.1\\r\\nHost: four.example\\r\\n{head}\\r\\n".encode())
        channel.sendall((body + extra).encode())
        answer = b""
        while piece := channel.recv(4096):
            answer += piece
        print(*re.findall("HTTP/1.1 (...)", answer.decode()))
"""


def test_exactly_the_declared_request_reaches_the_proxy_of_the_host(proxied):
    # proves NEW-N6
    box, process = proxied
    box.write("requests.json", json.dumps([[head, body, EXTRA] for head, body, _ in REQUESTS.values()]))

    result = box.run(PYTHON, box.write("more.py", MORE), flags=("--network", "allow", "--allow-domain", "four.example"))

    assert result.stdout.split("\n")[:-1] == ["200 403", "200 403", "200 403", "100 200 403"], result.stderr
    for name, (_, _, wanted) in REQUESTS.items():
        head, _, body = json.loads(process.stdout.readline()).partition("\r\n\r\n")
        assert head.startswith("POST http://four.example/page HTTP/1.1\r\n"), name
        assert body == wanted, name


def test_an_address_of_the_host_is_not_called_one_of_the_lan(user_netbox):
    # proves NEW-N11
    connect = f"import socket; socket.create_connection(('{HOST_LAN4}', {PORT}), 5)"
    result = user_netbox.run(PYTHON, "-c", connect, flags=INET)

    (line,) = (line for line in result.stderr.splitlines() if "denied: " in line)
    assert f"--set allow_host_port={PORT}" in line
    assert "--set allow_addresses" not in line
