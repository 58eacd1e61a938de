"""Where the tiers lead and where not. Every denial has its positive control: the host reaches the same place."""

from __future__ import annotations

import json
from pathlib import Path

from tests.network import topology
from tests.network.conftest import PYTHON

INET = ("--network", "inet")
PORT = topology.PORT
OPEN = [["tcp", address, PORT] for address, _, _ in topology.OPEN]
CLOSED = [["tcp", address, PORT] for address, _, _ in topology.CLOSED]
DATAGRAMS = [
    *(["udp", address, PORT] for address in ("192.168.77.50", "192.168.77.1", "fd77::1", "169.254.169.254")),
    *(["ping", address, 0] for address in ("192.168.77.50", "fd77::1", topology.HOST_LAN4, topology.HOST_PUBLIC6)),
]
# Unprivileged ways around routes, and other spellings of the same places (F05, facts about SO_BINDTODEVICE).
DETOURS = [
    ["bound", "192.168.77.50", PORT], ["bound", topology.HOST_LAN4, PORT], ["bound", "fd77::1", PORT],
    ["pktinfo", "192.168.77.50", PORT], ["tcp", "::ffff:192.168.77.50", PORT], ["tcp", "3232255282", PORT],
    ["tcp", "0300.0250.0115.0062", PORT], ["tcp", "0.0.0.0", PORT], ["tcp", "127.0.0.1", PORT], ["tcp", "::1", PORT],
    ["tcp", "rebound.example", PORT], ["tcp", "metadata.example", PORT], ["tcp", "loopback.example", PORT],
]  # fmt: skip
# What only an uplink makes: its own names for the host, and everybody on the link.
UPLINK_OWN = [
    ["tcp", "10.0.2.2", PORT], ["tcp", "10.0.2.3", PORT], ["tcp", "fd00::2", PORT], ["tcp", "fd00::3", PORT],
    ["udp", "224.0.0.251", 5353], ["udp", "ff02::fb%tap0", 5353], ["tcp", "fe80::2%tap0", PORT],
    ["source-routed", "192.168.77.50", PORT],
]  # fmt: skip
REFUSALS = ("ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "EACCES", "EPERM", "EINVAL", "ENOPROTOOPT")
PLACES = set(topology.PLACES) | {"echo"}


def test_inet_leads_to_the_internet_and_nowhere_else(netbox):
    # proves F20, NET-T, NET-01, NET-02, SAND-12, F01, F02, F03, F04, F05, F06, F07, F13, F14, F16, F21
    forbidden = [*CLOSED, *DATAGRAMS, *DETOURS]
    control = netbox.probe([*OPEN, *forbidden], flags=None)
    assert [answer for answer, _ in control[: len(OPEN)]] == [place for _, place, _ in topology.OPEN]
    unreached = [
        target for target, (answer, _) in zip(forbidden, control[len(OPEN) :], strict=True) if answer not in PLACES
    ]
    assert unreached == []

    names = [["lookup", "public.example", 80], ["tcp-lookup", "public.example", 80], ["udp", topology.INTERNET4, PORT],
             ["ping", topology.INTERNET4, 0]]  # fmt: skip
    results = netbox.probe([*OPEN, *names, *forbidden, *UPLINK_OWN], flags=INET)

    assert [answer for answer, _ in results[: len(OPEN)]] == ["internet"] * len(OPEN)
    assert [answer for answer, _ in results[len(OPEN) :][:4]] == [
        f"{topology.INTERNET6} {topology.INTERNET4}", topology.INTERNET4, "internet", "echo",
    ]  # fmt: skip
    denied = list(zip([*forbidden, *UPLINK_OWN], results[len(OPEN) + 4 :], strict=True))
    wrong = [(target, result) for target, result in denied if result[0] not in REFUSALS]
    assert wrong == []
    slow = [(target, result) for target, result in denied if float(result[1]) > 1]
    assert slow == []  # at once, not by time-out


def test_a_naive_uplink_leads_everywhere(plain_netbox):
    """The positive control of the uplink itself: without the rules all of it is open."""
    # proves F01, F02
    script = plain_netbox.write("naive.sh", NAIVE)
    closed = [target for target in CLOSED if ":" not in str(target[1])]
    probe = plain_netbox.write("probe.py", (Path(__file__).with_name("probe.py")).read_text())

    result = plain_netbox.host("sh", script, probe, json.dumps([*closed, ["tcp", "10.0.2.2", PORT]]))

    answers = [answer for answer, _ in json.loads(result.stdout)]
    assert set(answers) <= PLACES, result.stdout


NAIVE = """
mkfifo ready
unshare --user --map-root-user --net sh -c '
  echo $$ > pid; read word < ready; exec /usr/bin/python3 "$@"' naive "$@" &
inside=$!
while ! [ -s pid ]; do sleep 0.05; done
slirp4netns --configure --ready-fd=3 $(cat pid) tap0 3> up > /dev/null 2>&1 &
carrier=$!
while ! [ -s up ]; do sleep 0.05; done
echo go > ready
wait $inside
kill $carrier
"""


def test_the_resolver_may_speak_ipv6_only(user_netbox, world):
    # proves SAND-12
    world.resolver(topology.RESOLVER6)
    try:
        lookup = [["lookup", "public.example", 80]]
        assert user_netbox.probe(lookup, flags=None)[0][0] == f"{topology.INTERNET6} {topology.INTERNET4}"
        assert user_netbox.probe(lookup, flags=INET)[0][0] == f"{topology.INTERNET6} {topology.INTERNET4}"
    finally:
        world.resolver(topology.RESOLVER4)


def test_the_sandbox_does_not_learn_where_it_is_from_resolv_conf(plain_netbox):
    # proves F13
    host = plain_netbox.host("cat", "/etc/resolv.conf").stdout
    assert "corp.example" in host
    assert topology.RESOLVER4 in host

    inside = plain_netbox.run("cat", "/etc/resolv.conf", flags=INET).stdout

    assert inside == "nameserver 10.0.2.3\n"


def test_none_leads_nowhere(plain_netbox):
    # proves NET-T, F16
    targets = [*OPEN, *CLOSED, ["tcp", "127.0.0.1", PORT], ["lookup", "public.example", 80]]
    assert {answer for answer, _ in plain_netbox.probe(targets, flags=None)} >= {"internet", "lan", "host"}

    results = plain_netbox.probe(targets, flags=("--network", "none"), wait=False)

    assert not {answer for answer, _ in results} & PLACES


def test_full_is_the_network_of_the_host(plain_netbox):
    # proves NET-T, F18
    results = plain_netbox.probe([*OPEN, *CLOSED], flags=("--network", "full"))
    assert [answer for answer, _ in results] == [place for _, place, _ in (*topology.OPEN, *topology.CLOSED)]

    shown = plain_netbox.run("true", flags=("--network", "full")).stderr

    assert "network full" in shown


def test_rules_cannot_be_changed_from_inside(plain_netbox):
    # proves F08
    attempts = ("nft flush ruleset", "nft list ruleset", "ip route add 192.168.0.0/16 dev tap0",
                "ip link set tap0 down", "nsenter --target 1 --net true", "ip link set lo down")  # fmt: skip
    nested = " ".join(f"unshare -Ur {attempt};" for attempt in attempts)
    script = f"PATH=$PATH:/usr/sbin; {'; '.join(attempts)}; {nested} unshare -Urn ip link set lo up && echo own"
    probe = plain_netbox.write("probe.py", Path(__file__).with_name("probe.py").read_text())
    target = json.dumps([["tcp", "192.168.77.50", PORT], ["tcp", topology.INTERNET4, PORT]])

    result = plain_netbox.sh(f"{script}; {PYTHON} {probe} '{target}'", flags=(*INET, "--set", "allow_userns=true"))

    own, answers = result.stdout.splitlines()
    assert own == "own"  # a nested user namespace can be made, and rules its own network only
    assert [answer for answer, _ in json.loads(answers)] == ["ECONNREFUSED", "internet"]
    refusals = [line for line in result.stderr.lower().splitlines() if line.endswith(("ted", "denied"))]
    assert len(refusals) == 2 * len(attempts), result.stderr
