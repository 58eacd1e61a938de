"""Single ports: the host's inside (`allow_host_port`), and the sandbox's outside (`--publish`)."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys

import pytest
from tests.network import processes, topology
from tests.network.conftest import PYTHON
from tests.network.topology import PORT, wait_until

TIERS = ("inet", "none")
ECHO = """
import hashlib, socket, sys, threading
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
def answer(channel):
    with channel:
        digest = hashlib.sha256()
        while piece := channel.recv(1 << 16):
            digest.update(piece)
        channel.sendall(b"x" * 3000000 + digest.hexdigest().encode())
with socket.create_server((sys.argv[1], int(sys.argv[2])), family=family) as server:
    print("listening", flush=True)
    while True:
        threading.Thread(target=answer, args=server.accept()[:1], daemon=True).start()
"""
SEND = """
import socket, sys
results = []
for address in sys.argv[2:]:
    with socket.create_connection((address, int(sys.argv[1])), timeout=20) as channel:
        for _ in range(400):
            channel.sendall(bytes(range(256)) * 256)
        channel.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := channel.recv(1 << 16):
            answer += piece
    results.append(f"{len(answer)} {answer[-64:].decode()}")
print("\\n".join(results))
"""
SENT = f"3000064 {hashlib.sha256(bytes(range(256)) * 256 * 400).hexdigest()}"


def echo(world, place, address, port):
    process = world.start(place, sys.executable, "-c", ECHO, address, str(port))
    assert process.stdout.readline() == "listening\n"
    return process


def end(process):
    process.kill()
    process.wait()


@pytest.mark.parametrize("tier", TIERS)
def test_exactly_one_port_of_the_host_is_open(box_in_world, tier):
    # proves NET-01
    box = box_in_world
    targets = [["tcp", "127.0.0.1", PORT], ["tcp", "::1", PORT]]
    others = [["tcp", "127.0.0.1", PORT + 1], ["tcp", topology.HOST_LAN4, PORT], ["tcp", topology.HOST_PUBLIC6, PORT],
              ["tcp", "192.168.77.50", PORT], ["tcp", "10.0.2.2", PORT]]  # fmt: skip
    with_it = ("--network", tier, "--set", f"allow_host_port={PORT}")
    without = box.probe(targets, flags=("--network", tier), wait=tier == "inet")
    assert [answer for answer, _ in without] == ["ECONNREFUSED", "ECONNREFUSED"]

    result = box.probe([*targets, *others], flags=with_it, wait=tier == "inet")

    assert [answer for answer, _ in result[:2]] == ["host", "host"]
    assert not {answer for answer, _ in result[2:]} & set(topology.PLACES)
    shown = box.claudebox("--explain", *with_it, "--exec", "--", "true").stdout
    assert f"reachable inside: localhost of this machine, port {PORT}" in shown


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_bytes_pass_unchanged_and_each_side_can_finish_first(plain_netbox, world, address):
    script = plain_netbox.write("send.py", SEND)
    server = echo(world, "host", address, 7002)
    try:
        result = plain_netbox.run(
            PYTHON, script, "7002", "127.0.0.1", "::1", flags=("--network", "none", "--set", "allow_host_port=7002")
        )
    finally:
        end(server)
    assert result.stdout.splitlines() == [SENT, SENT], result.stderr


def test_a_port_where_nobody_listens_fails_at_once(plain_netbox):
    result = plain_netbox.probe(
        [["tcp", "127.0.0.1", 7009]], flags=("--network", "none", "--set", "allow_host_port=7009"), wait=False
    )[0]

    assert result[0] in ("ECONNRESET", "")
    assert float(result[1]) < 1


def test_many_connections_at_once_are_served(plain_netbox):
    targets = [["tcp", "127.0.0.1", PORT]] * 300

    results = plain_netbox.probe(targets, flags=("--network", "none", "--set", f"allow_host_port={PORT}"), wait=False)

    assert [answer for answer, _ in results] == ["host"] * 300


@pytest.mark.parametrize("tier", TIERS)
def test_a_published_server_is_reachable_from_the_hosts_loopback_only(box_in_world, world, tier):
    box = box_in_world
    port = 3000
    script = box.write("echo.py", ECHO)
    send = box.write("send.py", SEND)
    flags = ("--network", tier, "--publish", str(port))
    assert box.probe([["tcp", "127.0.0.1", port]], flags=None)[0][0] == "ECONNREFUSED"

    with box.start(PYTHON, script, "127.0.0.1", str(port), flags=flags) as process:
        assert process.stdout.readline() == "listening\n", process.stderr.read()
        result = box.host(PYTHON, send, str(port), "127.0.0.1", "::1")
        assert result.stdout.splitlines() == [SENT, SENT], result.stderr
        assert box.probe([["tcp", topology.HOST_LAN4, port]], flags=None)[0][0] == "ECONNREFUSED"
        found = processes.descendants(process.pid)
        process.terminate()
        process.wait(15)
        assert "reachable from this machine: port 3000" in process.stderr.read()
    assert wait_until(lambda: not any(map(processes.alive, found)))
    assert box.probe([["tcp", "127.0.0.1", port]], flags=None)[0][0] == "ECONNREFUSED"


def test_relays_end_with_a_launcher_that_is_killed(plain_netbox):
    flags = ("--network", "inet", "--publish", "3001", "--set", f"allow_host_port={PORT}")
    with plain_netbox.start("sleep", "1000", flags=flags) as process:
        assert wait_until(lambda: any(line.startswith("sleep") for line in processes.descendants(process.pid).values()))
        found = processes.descendants(process.pid)
        relays = [line for line in found.values() if "bin/claudebox" in line]
        assert len(relays) == 3  # the netns holder and a relay for each direction
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert wait_until(lambda: not any(map(processes.alive, found)), 3)


def test_another_port_is_taken_where_one_is_taken_unless_it_was_named(plain_netbox):
    free = plain_netbox.sh("true", flags=("--network", "none", "--publish", str(PORT)))
    result = plain_netbox.sh("touch ran", flags=("--network", "none", "--publish", f"{PORT}:3000"))

    assert free.returncode == 0
    assert f"port {PORT} is taken: port {PORT} of the session is at http://localhost:" in free.stderr
    assert result.returncode == 125
    assert f"port {PORT} of this machine cannot be opened: Address already in use" in result.stderr
    assert not os.path.exists(f"{plain_netbox.project}/ran")


def test_a_port_that_only_root_may_open_is_told(plain_netbox):
    result = plain_netbox.run("true", flags=("--network", "none", "--publish", "80"))

    assert result.returncode == 125
    assert "you may not open port 80" in result.stderr


@pytest.mark.parametrize(("flags", "said"), [
    (("--set", "allow_host_port=80"), "has no effect with `--network full`"),
    (("--publish", "80"), "has no effect with `--network full`"),
    (("--network", "none", "--publish", "0"), "a port from 1 to 65535, not `0`"),
    (("--network", "none", "--publish", "3000:"), "`HOST:PORT` with two of them"),
    (("--network", "none", "--publish", "65536"), "a port from 1 to 65535, not `65536`"),
    (("--network", "none", "--set", "allow_host_port=http"), "a port from 1 to 65535, not `http`"),
    (("--network", "none", "--set", "allow_host_port=-1"), "a port from 1 to 65535, not `-1`"),
    (("--network", "none", "--set", "allow_host_port=99999999999999999999"), "a port from 1 to 65535"),
    (("--network", "none", "--set", "allow_host_port=٣"), "a port from 1 to 65535"),
    (("--network", "none", "--set", "allow_host_port=80", "--publish", "80"), "cannot be both"),
])  # fmt: skip
def test_ports_that_make_no_sense_are_refused(user_box, flags, said):
    result = user_box.run("true", flags=flags)

    assert result.returncode == 125
    assert said in result.stderr


def test_the_plan_shows_ports_and_rules_with_their_reasons(plain_netbox):
    flags = ("--network", "inet", "--set", "allow_host_port=5432", "--publish", "3000")
    shown = json.loads(plain_netbox.claudebox("--explain", "--json", *flags, "--exec", "--", "true").stdout)

    assert shown["link"]["host_ports"] == [5432]
    assert shown["link"]["published"] == [{"host": 3000, "inside": 3000}]
    assert all(row["reason"] for row in shown["link"]["barred"])
    assert {"192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10"} <= {row["prefix"] for row in shown["link"]["barred"]}
    inside = plain_netbox.run("cat", "/run/claudebox/SANDBOX.md", flags=flags).stdout
    assert "Port 5432 at 127.0.0.1 and ::1 is the host's" in inside
    assert "connections there are refused at once" in inside
