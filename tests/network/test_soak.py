"""A hostile sandbox does everything at once, while an honest program in it goes on; CLAUDEBOX_SOAK: for how long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.network.conftest import PYTHON
from tests.network.processes import descendants
from tests.network.test_secrets import certificates, vault  # noqa: F401 - fixtures

from claudebox.report.log import human

pytestmark = pytest.mark.slow

SECONDS = int(os.environ.get("CLAUDEBOX_SOAK", "12"))
MOST_MEMORY = 256  # MiB: the figure of docs/design.md
PLACE = "203.0.113.80"

# The model, which says a word ten times a second and bills at the end; and a server that counts what it is sent.
SERVERS = """
import json, os, socket, sys, threading, time
seconds, place, counted = float(sys.argv[1]), sys.argv[2], [0]
def event(kind, **parts):
    return f"event: {kind}\\ndata: {json.dumps({'type': kind, **parts})}\\n\\n".encode()
def model(channel):
    data = b""
    while b"\\r\\n\\r\\n" not in data:
        piece = channel.recv(4096)
        if not piece:
            return
        data += piece
    chunk = lambda data: channel.sendall(b"%x\\r\\n%s\\r\\n" % (len(data), data))
    channel.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n")
    usage = {"input_tokens": 1000, "output_tokens": 1}
    chunk(event("message_start", message={"model": "claude-opus-4-20250514", "usage": usage}))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        chunk(event("content_block_delta", index=0, delta={"type": "text_delta", "text": "word "}))
        time.sleep(0.1)
    chunk(event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2000}))
    chunk(event("message_stop"))
    channel.sendall(b"0\\r\\n\\r\\n")
    channel.close()
def sink(channel):
    try:
        while piece := channel.recv(65536):
            counted[0] += len(piece)
            channel.sendall(b".")
    except OSError:
        pass
    channel.close()
def serve(port, handler):
    listener = socket.create_server((place, port), backlog=512)
    while True:
        threading.Thread(target=handler, args=listener.accept()[:1], daemon=True).start()
for port, handler in ((8080, model), (9000, sink)):
    threading.Thread(target=serve, args=(port, handler), daemon=True).start()
time.sleep(0.3)
print("listening", flush=True)
sys.stdin.readline()
time.sleep(1)
print(counted[0], flush=True)
"""

HONEST = """
import faulthandler, json, os, socket, subprocess, sys, threading, time
seconds = float(sys.argv[1])
faulthandler.dump_traceback_later(seconds * 2 + 75, exit=True)  # whoever waits by then is named
def tunnel(name, port):
    channel = socket.create_connection(("127.0.0.1", 3128), timeout=30)
    channel.sendall(f"CONNECT {name}:{port} HTTP/1.1\\r\\n\\r\\n".encode())
    reply = b""
    while not reply.endswith(b"\\r\\n\\r\\n"):
        piece = channel.recv(1)
        assert piece, (name, reply)
        reply += piece
    assert b" 200 " in reply, reply
    return channel
gaps = {"stream": 0.0, "tunnel": 0.0}
late = 0.0  # by how much the machine itself lets a sleeper wait
words = 0
begun = {"stream": threading.Event(), "tunnel": threading.Event()}
def stream():
    global words
    key = os.environ["ANTHROPIC_API_KEY"]
    channel = socket.socket(socket.AF_UNIX)
    channel.settimeout(60)
    channel.connect("/run/claudebox/api.sock")
    body = b'{"model": "claude-opus-4-20250514", "max_tokens": 4000, "stream": true, "messages": []}'
    channel.sendall(f"POST /v1/messages HTTP/1.1\\r\\nhost: x\\r\\nx-api-key: {key}\\r\\n"
                    f"content-length: {len(body)}\\r\\n\\r\\n".encode() + body)
    data = channel.recv(65536)
    assert b" 200 " in data, data
    begun["stream"].set()
    last = time.monotonic()
    while b"message_stop" not in data:
        piece = channel.recv(65536)
        assert piece, data
        data = data[-20:] + piece
        now = time.monotonic()
        gaps["stream"], last = max(gaps["stream"], now - last), now
        words += data.count(b"word")
def pings():
    global late
    channel = tunnel("public.example", 9000)
    begun["tunnel"].set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        asked = time.monotonic()
        channel.sendall(b"\\0ping")
        assert channel.recv(1), "the tunnel has ended"
        answered = time.monotonic()
        gaps["tunnel"] = max(gaps["tunnel"], answered - asked)
        time.sleep(0.1)
        late = max(late, time.monotonic() - answered - 0.1)
    channel.close()
threads = [threading.Thread(target=one) for one in (stream, pings)]
for thread in threads:
    thread.start()
for name, event in begun.items():
    assert event.wait(60), f"no {name}"
print("begun", flush=True)
hostile = subprocess.Popen([sys.executable, "hostile.py", str(seconds - 2)], stdout=subprocess.PIPE, text=True)
for thread in threads:
    thread.join()
done = hostile.communicate(timeout=60)[0]
print(json.dumps({"gaps": gaps, "late": late, "words": words, "hostile": json.loads(done)}), flush=True)
sys.stdin.readline()
"""

HOSTILE = """
import collections, json, os, random, resource, socket, ssl, sys, threading, time
end = time.monotonic() + float(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
done = collections.Counter()
context = ssl._create_unverified_context()
def unix():
    channel = socket.socket(socket.AF_UNIX)
    channel.settimeout(2)
    channel.connect("/run/claudebox/api.sock")
    return channel
def tcp():
    return socket.create_connection(("127.0.0.1", 3128), timeout=2)
def hold(connect, word, most):
    held = collections.deque()
    while time.monotonic() < end:
        try:
            held.append(connect())
            held[-1].sendall(word)
            done[connect.__name__] += 1
        except OSError:
            time.sleep(0.01)
        while len(held) > most:
            held.popleft().close()
        time.sleep(0.0005)
def secret():
    channel = socket.create_connection(("vault.example", 443), timeout=2)
    return context.wrap_socket(channel, server_hostname="vault.example")
def ask(name):
    with tcp() as channel:
        channel.settimeout(20)
        channel.sendall(f"CONNECT {name} HTTP/1.1\\r\\n\\r\\n".encode())
        return channel.recv(100)
def denied():
    ask(f"{random.random()}.evil.example:443")
    ask("evil.example:443")
def silent():
    ask(f"n{random.randrange(1 << 30)}.silent.example:9000")
def upload():
    channel = tcp()
    channel.sendall(b"CONNECT public.example:9000 HTTP/1.1\\r\\n\\r\\n")
    channel.settimeout(20)
    if b" 200 " in channel.recv(100):
        channel.sendall(bytes(300_000))
        channel.shutdown(socket.SHUT_WR)
        while channel.recv(4096):
            pass
    channel.close()
def api():
    with unix() as channel:
        channel.sendall(b"GET /nothing HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
        channel.recv(100)
def slow():
    with unix() as channel:
        for byte in b"GET /nothing HTTP/1.1\\r\\nhost: x\\r\\nx: y":
            channel.sendall(bytes([byte]))
            time.sleep(0.2)
def names():
    channel = socket.socket(type=socket.SOCK_DGRAM)
    for _ in range(200):
        name = b"\\x08%08x\\x04evil\\x07example\\0" % random.randrange(1 << 32)
        channel.sendto(b"\\x12\\x34\\x01\\0\\0\\1\\0\\0\\0\\0\\0\\0" + name + b"\\0\\1\\0\\1", ("127.0.0.1", 53))
    time.sleep(0.01)
def repeat(act):
    while time.monotonic() < end:
        try:
            act()
            done[act.__name__] += 1
        except OSError:
            time.sleep(0.01)
        time.sleep(0.001)
acts = (denied, upload, api, names, *(silent,) * 24, *(slow,) * 8)
threads = [threading.Thread(target=repeat, args=(act,)) for act in acts]
threads += [threading.Thread(target=hold, args=words) for words in (
    (unix, b"GET /v1", 3000), (tcp, b"CONNECT pub", 3000), (secret, b"GET / HT", 1500), (secret, b"", 1500))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(done), flush=True)
os._exit(0)
"""


def figures(process: int) -> dict[str, int]:
    """Return what a process takes: memory in MiB, the most that it ever took, descriptors, threads."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    numbers = {name: int(lines[key].split()[0]) for name, key in (("now", "VmRSS"), ("most", "VmHWM"))}
    return {
        "memory": numbers["now"] >> 10, "most": numbers["most"] >> 10, "threads": int(lines["Threads"]),
        "descriptors": len(os.listdir(f"/proc/{process}/fd")),
    }  # fmt: skip


@pytest.mark.timeout(SECONDS * 3 + 120)
def test_an_honest_program_goes_on_while_everything_is_attacked_and_the_log_is_true(plain_netbox, world, vault):  # noqa: F811
    # proves BROKER-01, NEW-N2, NEW-N3, NEW-N7
    box = plain_netbox
    servers = world.start("internet", sys.executable, "-c", SERVERS, str(SECONDS), PLACE, stdin=subprocess.PIPE)
    assert servers.stdout.readline() == "listening\n"
    vault.equip(box, tier="allow")
    config = Path(box.home, ".claudebox/config.toml")
    domains = 'allow_domains = ["public.example:9000", "*.silent.example:9000", "vault.example"]\n'
    config.write_text(domains + config.read_text())
    box.environ |= {"ANTHROPIC_API_KEY": "sk-of-a-test", "ANTHROPIC_BASE_URL": f"http://{PLACE}:8080"}
    box.write("hostile.py", HOSTILE)
    script = box.write("honest.py", HONEST)
    with box.start(PYTHON, script, str(SECONDS), flags=("--set", "receipt=always"), stdin=subprocess.PIPE) as process:
        limit = threading.Timer(SECONDS * 3 + 100, process.kill)  # whoever reads below meets an end, and says what came
        limit.daemon = True
        limit.start()
        assert process.stdout.readline() == "begun\n", process.stderr.read()
        (broker,) = (one for one, line in descendants(process.pid).items() if "main.main" in line)
        before = figures(broker)
        said = process.stdout.readline()
        assert said, process.stderr.read()
        told = json.loads(said)
        wanted = {"descriptors": before["descriptors"] + 40, "threads": before["threads"] + 32}
        after = figures(broker)
        process.stdin.close()
        shown = process.stderr.read()
        assert process.wait(60) == 0, shown
        limit.cancel()
    servers.stdin.close()
    counted = int(servers.stdout.readline())
    servers.wait(10)

    assert max(told["gaps"].values()) < 1.0 + 4 * told["late"], (told, shown)  # the stream passes four processes
    assert told["words"] > SECONDS * 5, (told, shown)
    assert all(told["hostile"].get(name, 0) for name in ("unix", "tcp", "secret", "denied", "upload", "api", "names"))
    assert after["most"] < MOST_MEMORY
    assert {name: after[name] <= most for name, most in wanted.items()} == dict.fromkeys(wanted, True), after
    log = [json.loads(line) for line in box.host(box.program, "log", "--json").stdout.splitlines()]
    rows = [row for row in log if row["kind"] == "decision" and row["port"] == 9000 and row["host"] == "public.example"]
    up = sum(row["up"] for row in rows)
    assert up == counted
    assert f"public.example:9000 ({sum(row['verdict'] == 'allowed' for row in rows)} times; {human(up)} up" in shown
    (account,) = (row for row in log if row["kind"] == "broker")
    for name in ("up", "down"):
        assert account[name] == sum(row[name] for row in log if row["kind"] == "decision")
    assert account["denied"] == sum(row.get("count", 1) for row in log if row.get("verdict") == "denied")
    assert (account["answers"], account["input"], account["output"]) == (1, 1000, 2000)
    assert "missing" not in shown
