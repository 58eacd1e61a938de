"""Tier `allow`: names that were listed, and nothing else, by every way that a program can take."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import cast

from tests.network import processes, topology
from tests.network.conftest import PYTHON
from tests.network.test_ports import end
from tests.network.test_reach import DATAGRAMS, PLACES
from tests.network.topology import PORT, wait_until
from tests.support.baking import bake

WAYS = ("tcp", "connect")
LISTED = ("public.example", "*.public.example", "four.example", "six.example", "dead-six.example")
# Listed too, and yet not reachable: of these names it is the address that is refused.
NEAR = ("rebound.example", "metadata.example", "loopback.example", "mixed.example", "mapped.example", "host.example")


def allow(*names: str, port: int = PORT) -> tuple[str, ...]:
    return ("--network", "allow", *(word for name in names for word in ("--allow-domain", f"{name}:{port}")))


Target = list[object]


def test_allow_leads_to_the_names_that_are_listed_and_nowhere_else(box_in_world):
    # proves NET-T, NET-03, F02, F03, F04, F06, F14
    box = box_in_world
    names = ("public.example", "www.public.example", "four.example", "six.example", "dead-six.example")
    reached: list[Target] = [[way, name, PORT] for way in WAYS for name in names]
    unlisted: list[Target] = [[way, "other.example", PORT] for way in WAYS]
    near: list[Target] = [[way, name, PORT] for way in WAYS for name in NEAR]
    direct: list[Target] = [["tcp", "127.0.0.1", PORT], ["tcp", "::1", PORT]]
    direct += [["tcp", address, PORT] for address, _, _ in (*topology.OPEN, *topology.CLOSED)]
    direct += cast("list[Target]", DATAGRAMS)
    plain: list[Target] = [["tcp", target[1], PORT] for target in (*reached, *unlisted, *near)]
    plain = [target for target in plain if target[1] != "dead-six.example"]
    control = box.probe([*plain, *direct], flags=None)
    answered = {answer for answer, _ in control}
    assert answered <= PLACES, "every target must be reachable from the host, or its refusal proves nothing"

    results = box.probe([*reached, *unlisted, *near, *direct], flags=allow(*LISTED, *NEAR), wait=False)

    assert [answer for answer, _ in results[: len(reached)]] == ["internet"] * len(reached)
    refused = list(zip([*unlisted, *near, *direct], results[len(reached) :], strict=True))
    # Inside, 198.18.0.0/15 stands for names: what answers there is a listed one, never the laboratory of the host.
    lent = (["tcp", "198.18.0.9", PORT], "internet")
    assert [row for row in refused if row[1][0] in PLACES and (row[0], row[1][0]) != lent] == []
    assert [row for row in refused if float(row[1][1]) > 1] == []  # at once, not by time-out
    answers: dict[tuple[object, ...], str] = {tuple(target): answer for target, (answer, _) in refused}
    assert answers["connect", "other.example", PORT] == "403"
    assert answers["connect", "rebound.example", PORT] == "403"
    assert answers["connect", "metadata.example", PORT] == "403"


SPELLINGS = (
    "203.0.113.80", "3405803856", "0xcb.0.0x71.0x50", "0313.0.0161.0120", "[2001:db8:1::80]", "::ffff:203.0.113.80",
    "[::1]", "127.0.0.1", "127.1", "2130706433", "localhost", "public.example\0", "public.example\0.other.example",
    "other.example\0.public.example", "other.example#public.example", "other.example%00public.example",
    "public.example@other.example", "other.example/public.example", "public.example.other.example", "xpublic.example",
    "\uff50ublic.example", "public。example",
    "a" * 64 + ".public.example", ("a." * 130)[:230] + ".public.example", "", ".",
    "-x.public.example", "*.public.example", "public.example..", " public.example",
)  # fmt: skip


def test_no_spelling_leads_elsewhere(plain_netbox):
    # proves NET-03, F05
    good = ["public.example", "PUBLIC.Example", "public.example.", "WWW.public.example"]
    targets = [["connect", name, PORT] for name in (*good, *SPELLINGS)]

    results = plain_netbox.probe(targets, flags=allow("public.example", "*.public.example"), wait=False)

    found = {name: answer for (_, name, _), (answer, _) in zip(targets, results, strict=True)}
    assert {found[name] for name in good} == {"internet"}
    for name in SPELLINGS:
        assert found[name] in ("403", "400", "nothing", "ECONNRESET"), name


def test_only_ports_that_are_listed_are_open(plain_netbox):
    # proves NET-03
    targets = [[way, "public.example", port] for way in WAYS for port in (PORT, PORT + 1, 443, 22)]

    results = plain_netbox.probe(targets, flags=allow("public.example"), wait=False)

    answers = [answer for answer, _ in results]
    assert answers[::4] == ["internet"] * 2
    assert answers[4:] == ["internet", "403", "403", "403"]
    assert not set(answers[1:4]) & PLACES


def test_an_answer_that_changes_is_never_followed_to_the_lan(plain_netbox):
    # proves F14
    seen = {answer for answer, _ in plain_netbox.probe([["tcp", "flipping.example", PORT]] * 8, flags=None)}
    assert seen == {"internet", "lan"}
    script = plain_netbox.write("flip.py", FLIP)

    result = plain_netbox.run(PYTHON, script, str(PORT), flags=allow("flipping.example"))

    answers = result.stdout.split()
    assert len(answers) == 40, result.stderr
    assert set(answers) <= {"internet", "403"}


FLIP = """
import socket, sys
for _ in range(40):
    with socket.create_connection(("127.0.0.1", 3128), timeout=5) as channel:
        channel.sendall(f"CONNECT flipping.example:{sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
        reply = b""
        while not reply.endswith(b"\\r\\n\\r\\n"):
            reply += channel.recv(1)
        print(channel.recv(64).decode().strip() if b" 200 " in reply else reply.split(b" ")[1].decode())
"""


def test_names_are_answered_inside_and_only_those_listed(plain_netbox):
    # proves F13
    targets = [["lookup", "public.example", 80], ["lookup", "other.example", 80],
               ["lookup", "rebound.corp.example", 80], ["lookup", "localhost", 80]]  # fmt: skip
    results = plain_netbox.probe(targets, flags=allow("public.example"), wait=False)

    assert results[0][0].startswith("198.18.0.")
    assert "not known" in results[1][0]
    assert "not known" in results[2][0]
    assert "127.0.0.1" in results[3][0]
    assert max(float(seconds) for _, seconds in results) < 1
    assert plain_netbox.run("cat", "/etc/resolv.conf", flags=allow("public.example")).stdout == "nameserver 127.0.0.1\n"


def test_the_way_out_cannot_be_changed_from_inside(plain_netbox):
    # proves F08
    attempts = ("nft flush ruleset", "nft list ruleset", "ip route del 198.18.0.0/15 table local",
                "ip link add dummy0 type dummy", "nsenter --target 1 --net true", "ip link set lo down")  # fmt: skip
    nested = " ".join(f"unshare -Ur {attempt};" for attempt in attempts)
    probe = plain_netbox.write("probe.py", Path(__file__).with_name("probe.py").read_text())
    targets = json.dumps([["tcp", "public.example", PORT], ["tcp", topology.INTERNET4, PORT]])
    script = f"PATH=$PATH:/usr/sbin; {'; '.join(attempts)}; {nested} {PYTHON} {probe} '{targets}'"

    result = plain_netbox.sh(script, flags=(*allow("public.example"), "--set", "allow_userns=true"))

    assert [answer for answer, _ in json.loads(result.stdout)] == ["internet", "ENETUNREACH"], result.stderr
    refusals = [line for line in result.stderr.lower().splitlines() if line.endswith(("ted", "denied"))]
    assert len(refusals) == 2 * len(attempts), result.stderr


def test_rules_hold_before_anything_runs(plain_netbox):
    # proves F09
    script = "import os; os.write(1, open('/proc/net/fib_trie', 'rb').read()); os.write(1, b'end')"
    result = plain_netbox.run(PYTHON, "-c", script, flags=allow("public.example"))

    assert "198.18.0.0\n        /15 host LOCAL" in result.stdout
    devices = plain_netbox.sh("cat /proc/net/dev", flags=allow("public.example")).stdout
    assert {line.split(":")[0].strip() for line in devices.splitlines()[2:]} <= {"lo", "sit0", "tunl0", "ip6tnl0"}


def test_single_ports_work_beside_it(plain_netbox):
    # proves NET-03
    flags = (*allow("public.example"), "--set", f"allow_host_port={PORT}")
    targets = [["tcp", "127.0.0.1", PORT], ["tcp", "public.example", PORT], ["connect", "127.0.0.1", PORT],
               ["connect", "localhost", PORT]]  # fmt: skip

    results = plain_netbox.probe(targets, flags=flags, wait=False)

    assert [answer for answer, _ in results] == ["host", "internet", "403", "403"]


def broker_of(process: subprocess.Popen[str]) -> dict[int, str]:
    return {number: line for number, line in processes.descendants(process.pid).items() if "broker" in line}


def test_nothing_outlives_the_launcher(plain_netbox):
    with plain_netbox.start("sleep", "1000", flags=allow("public.example")) as process:
        assert wait_until(lambda: any(line.startswith("sleep") for line in processes.descendants(process.pid).values()))
        assert wait_until(lambda: broker_of(process))
        found = processes.descendants(process.pid)
        process.kill()
        process.wait(15)
    assert wait_until(lambda: not any(map(processes.alive, found)), 3)


def test_a_broker_that_dies_takes_the_way_out_and_nothing_else(plain_netbox):
    # proves NET-03
    with plain_netbox.asking(allow("public.example")) as ask:
        assert ask("tcp", "public.example") == "internet"
        (number,) = broker_of(ask.process)
        os.kill(number, signal.SIGKILL)
        assert wait_until(lambda: not processes.alive(number))

        assert ask("connect", "public.example") in ("ECONNREFUSED", "ECONNRESET")
        assert ask("tcp", "public.example") not in PLACES
        assert "the broker ended during the session" in ask.end()


def test_what_becomes_the_hosts_own_during_a_session_is_refused(plain_netbox, world):
    # proves F04
    world.address("tailnet", "lo", "192.0.2.50/32")
    world.ip("host", "route", "add", "192.0.2.0/24", "via", "100.64.7.1")
    world.ip("tailnet", "route", "add", "192.168.77.0/24", "via", "100.64.7.2")
    try:
        with plain_netbox.asking(allow("roaming.example")) as ask:
            assert ask("connect", "roaming.example") == "tailnet"
            world.address("host", "tail0", "192.0.2.1/24")
            assert wait_until(lambda: ask("connect", "roaming.example") == "403", 2)
    finally:
        for words in (
            ("host", "addr", "del", "192.0.2.1/24", "dev", "tail0"),
            ("host", "route", "del", "192.0.2.0/24"),
            ("tailnet", "addr", "del", "192.0.2.50/32", "dev", "lo"),
            ("tailnet", "route", "del", "192.168.77.0/24"),
        ):
            subprocess.run(["ip", "-n", world.name(words[0]), *words[1:]], check=False, capture_output=True)


def test_a_name_that_does_not_answer_is_not_taken_for_a_forbidden_one(plain_netbox):
    start = time.monotonic()
    result = plain_netbox.sh(
        "curl -s -w ' %{http_code}' http://public.example:7009/; curl -s -w ' %{http_code}' http://missing.example/",
        flags=("--network", "allow", "--allow-domain", "public.example:7009", "--allow-domain", "missing.example"),
    )

    assert "no connection to port 7009" in result.stdout
    assert "`missing.example` cannot be resolved" in result.stdout
    assert result.stdout.count(" 502") == 2
    assert time.monotonic() - start < 10


def test_a_kernel_that_cannot_redirect_leaves_the_proxy_and_says_so(plain_netbox, checkout):
    # proves NET-03
    copy = bake(checkout, {})
    rules = Path(copy, "src/claudebox/network/nftables.py")
    rules.write_text(rules.read_text().replace('"redir"', '"nosuch"'))  # the kernel itself refuses it
    plain_netbox.program = f"{copy}/bin/claudebox"
    targets = [["connect", "public.example", PORT], ["tcp", "public.example", PORT], ["connect", "other.example", PORT],
               ["tcp", topology.INTERNET4, PORT]]  # fmt: skip
    script = plain_netbox.write("probe.py", Path(__file__).with_name("probe.py").read_text())

    result = plain_netbox.run(PYTHON, script, json.dumps(targets), flags=allow("public.example"))

    answers = json.loads(result.stdout)
    assert [answer for answer, _ in answers][::2] == ["internet", "403"]
    assert not {answer for answer, _ in answers[1::2]} & PLACES
    assert max(float(seconds) for _, seconds in answers) < 1
    assert "only programs that honour HTTPS_PROXY reach the domains that are listed" in result.stderr


SPEAKER = """
import socket
with socket.create_server(("203.0.113.80", 7022)) as server:
    print("listening", flush=True)
    channel = server.accept()[0]
    channel.sendall(b"SSH-2.0-claudebox\\r\\n")
    print(channel.recv(64), flush=True)
    channel.close()
"""


def test_ssh_reaches_a_listed_port_without_being_configured(plain_netbox, world):
    # proves NET-03
    server = world.start("internet", PYTHON, "-c", SPEAKER)
    assert server.stdout is not None
    assert server.stdout.readline() == "listening\n"
    command = "ssh -o BatchMode=yes -o ConnectTimeout=5 -p PORT public.example true"
    flags = allow("public.example", port=7022)
    try:
        refused = plain_netbox.sh(command.replace("PORT", "7023"), flags=flags)
        assert "Connection" in refused.stderr
        plain_netbox.sh(command.replace("PORT", "7022"), flags=flags)
        assert "SSH-2.0-OpenSSH" in server.stdout.readline()
    finally:
        end(server)


def test_what_is_shown_and_told_is_what_is_listed(plain_netbox):
    # proves NET-T, NET-03, AWARE-02
    flags = ("--network", "allow", "--allow-domain", "public.example", "--allow-domain", "github")
    shown = json.loads(plain_netbox.claudebox("--explain", "--json", *flags, "--exec", "--", "true").stdout)
    rows = {row["name"]: row["origin"] for row in shown["link"]["domains"]}
    assert rows["public.example"] == "--allow-domain"
    assert rows["github.com"] == "--allow-domain, group github"
    assert "reachable: api.github.com, because of --allow-domain, group github" in shown["protections"]

    result = plain_netbox.run("cat", "/run/claudebox/SANDBOX.md", flags=flags)

    assert "allow (by --network): only the domains that are listed" in result.stderr
    assert "domains: public.example, github.com" in result.stderr
    assert "You reach these domains and nothing else: `public.example`, `github.com`" in result.stdout
    dry = plain_netbox.claudebox("--dry-run", *flags, "--exec", "--", "true")
    assert dry.returncode == 0
    assert "--setenv HTTPS_PROXY http://127.0.0.1:3128" in dry.stdout


def test_the_variables_of_the_way_out_cannot_be_replaced(plain_netbox):
    elsewhere = "http://192.168.77.1:1"
    result = plain_netbox.run("true", flags=(*allow("public.example"), "--env", f"HTTPS_PROXY={elsewhere}"))
    assert result.returncode == 125, result.stderr
    flags = (*allow("public.example"), "--env", "https_proxy")  # what is wanted by that is there, and stays as it is
    inside = plain_netbox.run("env", flags=flags, env={"https_proxy": elsewhere}).stdout
    assert elsewhere not in inside
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        assert f"\n{name}=http://127.0.0.1:3128\n" in f"\n{inside}"
        assert f"\n{name.lower()}=http://127.0.0.1:3128\n" in f"\n{inside}"
    assert "socks" not in inside


def test_files_define_groups_and_projects_ask(plain_netbox):
    # proves EXT-01, E05
    defaults = 'network = "allow"\nallow_domains = ["work"]\n[domains.work]\nhosts = ["public.example:8000"]\n'
    plain_netbox.write(f"{plain_netbox.home}/.claudebox/config.toml", defaults)
    os.chmod(f"{plain_netbox.home}/.claudebox", 0o700)
    plain_netbox.write(".claudebox.toml", 'network = "none"\nallow_domains = ["four.example:8000"]\n')
    targets = [["connect", "public.example", PORT], ["connect", "four.example", PORT]]

    results = plain_netbox.probe(targets, flags=("--network", "allow"), wait=False)

    assert [answer for answer, _ in results] == ["internet", "403"]  # what widens was not approved
    tightened = plain_netbox.run("true")
    assert "  network  none" in tightened.stderr
    assert "allow_domains: + four.example:8000" in tightened.stderr


RUDE = """
import os, random, socket, struct, sys, threading
WORDS = (
    b"CONNECT other.example:8000 HTTP/1.1\\r\\n\\r\\n", b"CONNECT public.example:8000 HTTP/1.1\\r\\n\\r\\n",
    b"CONNECT pub", b"\\5\\1\\0\\5\\1\\0\\3\\x0epublic.example\\x1f\\x40", b"\\5\\1", os.urandom(64),
    b"GET http://public.example:8000/ HTTP/1.1\\r\\n\\r\\n",
    b"\\x16\\3\\1\\2\\0\\1", b"GET / HTTP/1.1\\r\\nHost: public.example\\r\\n\\r\\n", b"",
)
def call(index):
    try:
        where = ("public.example", 8000) if index % 3 == 0 else ("127.0.0.1", (3128, 3129, 53)[index % 5 % 3])
        with socket.create_connection(where, timeout=5) as channel:
            channel.sendall(WORDS[index % len(WORDS)])
            if index % 2:
                channel.settimeout(0.2)
                channel.recv(1 << 16)
            if index % 4 == 0:  # leave with a reset
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
for line in sys.stdin:
    threads = [threading.Thread(target=call, args=(index,)) for index in range(int(line))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print("done", flush=True)
"""


def test_rude_callers_leave_nothing_behind(plain_netbox):
    # proves NET-03
    script = plain_netbox.write("rude.py", RUDE)
    with plain_netbox.start(PYTHON, script, flags=allow("public.example"), stdin=subprocess.PIPE) as process:

        def be_rude(count: int) -> None:
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

        be_rude(30)
        (number,) = broker_of(process)
        held = f"/proc/{number}/fd"
        assert wait_until(lambda: len(os.listdir(held)) < 40)
        before = len(os.listdir(held))
        be_rude(300)
        assert wait_until(lambda: len(os.listdir(held)) <= before + 2)
        process.stdin.close()
        assert process.wait(15) == 0
        assert "broker" not in process.stderr.read()


def test_the_user_can_let_a_domain_into_the_session_that_runs(plain_netbox):
    # proves NET-07
    box = plain_netbox

    def admit(*words: str) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = box.host(box.program, "allow", *words)
        return done

    nobody = admit(f"other.example:{PORT}")
    assert (nobody.returncode, "no session of tier `allow` runs" in nobody.stderr) == (125, True)
    flags = (*allow("public.example"),)
    with box.asking(flags) as ask:
        assert [ask("connect", "public.example"), ask("connect", "other.example")] == ["internet", "403"]
        refused = admit("127.0.0.1")
        assert refused.returncode == 125
        assert ask("connect", "other.example") == "403"

        opened = admit(f"other.example:{PORT}", f"rebound.example:{PORT}")

        assert opened.returncode == 0, opened.stderr
        assert [ask(way, "other.example") for way in ("connect", "tcp")] == ["internet"] * 2
        assert ask("connect", "rebound.example") == "403"  # what is near stays closed
        assert ask("connect", "four.example") == "403"
        visible = box.run("sh", "-c", "ls -d /run/user/*/claudebox* /tmp/claudebox*", flags=flags)
        assert "control" not in visible.stdout  # nothing inside can do the same
    assert "permitted by the user: other.example" in box.host(box.program, "log", "all").stdout
