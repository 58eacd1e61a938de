"""`allow_addresses`: what a user opens is reached, what must stay closed is not, and what was refused is named."""

from __future__ import annotations

import json
from pathlib import Path

from tests.network import topology
from tests.network.conftest import PYTHON
from tests.network.test_reach import INET, PLACES
from tests.network.topology import PORT

OPENED = (f"10.1.2.3:{PORT}", "192.168.77.0/24", "100.64.0.0/10", "fd77::/64", f"[2001:db8:77::50]:{PORT}")
REACHED = (
    ("10.1.2.3", "lan"), ("192.168.77.50", "lan"), (topology.RESOLVER4, "lan"), ("100.64.7.1", "tailnet"),
    (topology.RESOLVER6, "lan"), ("2001:db8:77::50", "lan"), (topology.INTERNET4, "internet"),
)  # fmt: skip
# In a network that was opened, or beside one: this machine, metadata, other addresses, other forms of opened ones.
CLOSED = (
    topology.HOST_LAN4, topology.HOST_LAN6, "100.64.7.2", "100.100.100.200", "172.16.9.9", "169.254.169.254",
    "fd00:ec2::254", "64:ff9b::192.168.77.50", "2001:db8:77::1", topology.HOST_PUBLIC6,
)  # fmt: skip


def flags(*addresses: str) -> tuple[str, ...]:
    return tuple(word for address in addresses for word in ("--set", f"allow_addresses={address}"))


def test_exactly_what_is_opened_can_be_reached_in_tier_inet(netbox):
    # proves NET-04, NET-05
    targets = [["tcp", address, PORT] for address in (*(address for address, _ in REACHED), *CLOSED)]
    others = [["tcp", "10.1.2.3", PORT + 1], ["udp", "192.168.77.50", PORT], ["udp", "172.16.9.9", PORT]]
    control = netbox.probe(targets, flags=None)
    assert {answer for answer, _ in control} <= PLACES, "what the host cannot reach proves nothing"
    script = netbox.write("probe.py", (Path(__file__).with_name("probe.py")).read_text())

    result = netbox.run(PYTHON, script, json.dumps([*targets, *others]), "--wait", flags=(*INET, *flags(*OPENED)))

    answers = [answer for answer, _ in json.loads(result.stdout)]
    assert answers[: len(REACHED)] == [place for _, place in REACHED]
    refused = dict(zip(CLOSED, answers[len(REACHED) :], strict=False))
    assert not set(refused.values()) & PLACES, refused
    assert answers[-3:] == ["ECONNREFUSED", "lan", "EPERM"]
    (line,) = (line for line in result.stderr.splitlines() if "denied: " in line)
    assert f"10.1.2.3:{PORT + 1}" in line
    assert f"--set allow_host_port={PORT}" in line
    assert "169.254.169.254" not in line.partition("to permit")[2]
    log = netbox.host(netbox.program, "denied").stdout
    for place in (f"172.16.9.9:{PORT}", f"{topology.HOST_LAN4}:{PORT}", f"169.254.169.254:{PORT}"):
        assert place in log
    assert "to permit it at the next start: `" in log.splitlines()[-1]
    assert f"--set allow_addresses=172.16.9.9:{PORT}" in log.splitlines()[-1]


def test_what_claudebox_tries_itself_is_not_named(user_netbox):
    # proves NET-05
    quiet = user_netbox.run("true", flags=INET)
    assert quiet.returncode == 0, quiet.stderr
    assert "denied" not in quiet.stderr
    assert "198.18.0.1" not in user_netbox.host(user_netbox.program, "log", "denied").stdout

    # The same address, at another port than the one that claudebox tries.
    send = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('198.18.0.1', 10))"
    wanted = user_netbox.run(PYTHON, "-c", send, flags=INET)
    assert "Operation not permitted" in wanted.stderr
    assert "denied: 198.18.0.1:10; to permit" in wanted.stderr


def test_a_listed_name_may_lead_to_what_is_opened(plain_netbox):
    # proves NET-04
    names = ("inner.example", "metadata.example", "host.example")
    allow = ("--network", "allow", *(word for name in names for word in ("--allow-domain", f"{name}:{PORT}")))
    targets = [["connect", name, PORT] for name in names]

    closed = plain_netbox.probe(targets, flags=allow, wait=False)
    opened = plain_netbox.probe(targets, flags=(*allow, *flags("192.168.77.50", "198.51.100.0/24")), wait=False)
    elsewhere = plain_netbox.probe(targets, flags=(*allow, *flags(f"192.168.77.50:{PORT + 1}")), wait=False)

    assert [answer for answer, _ in closed] == ["403", "403", "403"]
    assert [answer for answer, _ in opened] == ["lan", "403", "403"]
    assert [answer for answer, _ in elsewhere] == ["403", "403", "403"]
