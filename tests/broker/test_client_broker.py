"""The real client with nothing but a placeholder: it works as ever, and inside nobody finds the key (AUTH-01, I03)."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.agent.test_client_login import WEEK, log_in, read
from tests.conftest import every_case, wait_until
from tests.support.anthropic import Anthropic
from tests.support.client import bash, conversation, equip

KEY = "sk-real-key-0123456789-abcdefghij"
# Looks wherever a program inside can look. The word comes in two halves, or it would find itself.
_SEARCH = r"""
import array, os, re, socket, stat, sys
word = (sys.argv[1] + sys.argv[2]).encode()
seen = dict.fromkeys(("processes", "files", "memories", "sockets"), 0)
def told(where):
    print("FOUND", where)
def resident(process, first, last):
    # What is really there of a mapping: the client reserves gigabytes that it never touches.
    with open(f"/proc/{process}/pagemap", "rb", 0) as file:
        file.seek(first // 4096 * 8)
        pages = array.array("Q", file.read((last - first) // 4096 * 8))
    begin = None
    for number, page in enumerate(pages):
        if page >> 62 and begin is None: begin = number
        if not page >> 62 and begin is not None:
            yield first + begin * 4096, first + number * 4096
            begin = None
    if begin is not None: yield first + begin * 4096, first + len(pages) * 4096
for process in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline"):
        try: content = open(f"/proc/{process}/{name}", "rb").read()
        except OSError: continue
        seen["processes"] += 1
        if word in content: told(f"{name} of {process}")
    if int(process) == os.getpid(): continue
    try: maps, memory = open(f"/proc/{process}/maps").read(), open(f"/proc/{process}/mem", "rb", 0)
    except OSError: continue
    seen["memories"] += 1
    mappings = [(int(first, 16), int(last, 16)) for first, last in re.findall(r"(\w+)-(\w+) rw", maps)]
    for first, last in [part for mapping in mappings for part in resident(process, *mapping)]:
        while first < last:
            try:
                memory.seek(first)
                piece = memory.read(min(last - first, 1 << 24))
            except (OSError, ValueError, OverflowError): break
            if not piece: break
            if word in piece: told(f"memory of {process}")
            first += len(piece)
for place in ("/run", "/etc", "/tmp", "/dev/shm", os.environ["HOME"], os.getcwd()):
    for directory, _, names in os.walk(place):
        for name in names:
            path = os.path.join(directory, name)
            try: mode = os.lstat(path).st_mode
            except OSError: continue
            if stat.S_ISREG(mode):
                seen["files"] += 1
                try:
                    if word in open(path, "rb").read(): told(path)
                except OSError: pass
            elif stat.S_ISSOCK(mode):
                for request in (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"TRACE /v1/messages HTTP/1.1\r\nhost: x\r\n"
                        b"x-api-key: ssh-placeholder\r\n\r\n", b"POST /api/oauth/claude_cli/create_api_key HTTP/1.1\r\n"
                        b"host: x\r\nx-api-key: ssh-placeholder\r\ncontent-length: 0\r\n\r\n"):
                    with socket.socket(socket.AF_UNIX) as client:
                        client.settimeout(0.5)  # other sockets are the client's own, and silent
                        try:
                            client.connect(path); client.sendall(request)
                            if word in client.recv(65536): told(path)
                        except OSError: continue
                        seen["sockets"] += 1
print("LOOKED", seen)
"""


@pytest.fixture
def hosts(tmp_path):
    with Anthropic(str(tmp_path)) as running:
        yield running


def start(box, client, *words, env=None, flags=()):
    """Run claudebox in tier `none`, so that nothing but the broker can have reached the model."""
    equip(box, client)
    extra = {"CLAUDE_CODE_MAX_RETRIES": "0", **(env or {})}
    fixed = ("-y", "--network", "none", "--env", "CLAUDE_CODE_MAX_RETRIES")
    return box.claudebox(*fixed, *flags, *words, env=extra, timeout=120)


def search(box, word):
    box.write("search.py", _SEARCH)
    return bash(f"python3 search.py {word[: len(word) // 2]} {word[len(word) // 2 :]}")


@pytest.mark.accounts
@every_case("name", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"], as_root=1)
def test_a_whole_session_with_tools_and_the_key_is_nowhere_inside(box, model, real_client, name):
    # proves AUTH-01, I03, SAND-02, A01, A03
    path = f"{box.project}/greet.py"
    served = model(
        conversation(
            "work",
            {"tools": [{"name": "Write", "input": {"file_path": path, "content": "print('hello')\n"}}]},
            {
                "tools": [
                    {"name": "Edit", "input": {"file_path": path, "old_string": "hello", "new_string": "good day"}}
                ]
            },
            {"tools": [bash("python3 greet.py"), search(box, KEY)]},
            {"say": "{result}"},
        ),
        key=KEY,
        canaries={"key": KEY},
    )
    env = {"ANTHROPIC_BASE_URL": served.url, name: KEY}

    result = start(box, real_client, "-p", "do the work", env=env)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "good day" in served.results
    assert "FOUND" not in served.results
    assert "'sockets': 3" in served.results.replace('"', "'") or "'sockets': 6" in served.results
    assert {row["status"] for row in served.requests if row["method"] == "POST"} == {200}  # it demands the real key
    assert served.leaks == []
    assert KEY not in result.stdout + result.stderr
    assert f"{name} stays outside" in result.stderr


def test_the_search_finds_a_key_that_is_inside(user_box, model, real_client):
    """The positive control: the same search where the key enters because the user wants it."""
    served = model(conversation("work", {"tools": [search(user_box, KEY)]}, {"say": "{result}"}), key=KEY)
    env = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": KEY, "CLAUDE_CODE_MAX_RETRIES": "0"}
    equip(user_box, real_client)

    flags = ("--set", "auth=passthrough", "--env", "ANTHROPIC_BASE_URL", "--env", "CLAUDE_CODE_MAX_RETRIES")
    result = user_box.claudebox("-y", *flags, "-p", "do the work", env=env, timeout=120)

    assert result.returncode == 0, result.stderr
    assert "FOUND environ of" in served.results
    assert "FOUND memory of" in served.results


def test_without_the_real_key_the_model_does_not_answer(user_box, model, real_client):
    served = model(key=KEY)
    env = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": "another-key-of-somebody"}

    result = start(user_box, real_client, "-p", "hello", env=env)

    assert result.returncode == 1
    assert {row["status"] for row in served.requests if row["method"] == "POST"} == {401}


def test_a_login_is_used_and_nothing_of_it_is_inside(box, hosts, real_client):
    # proves AUTH-01, I01, I03
    certificate = box.write(f"{box.base}/authority.pem", Path(hosts.certificate).read_bytes())
    box.environ.update(HTTPS_PROXY=hosts.proxy, SSL_CERT_FILE=certificate)
    path = log_in(box, hosts.issue("host"), expires=WEEK)
    before = Path(path).read_bytes()

    result = start(box, real_client, "-p", "hello")
    box.write("search.py", _SEARCH)
    inside = {
        word: box.run("python3", "search.py", word[:6], word[6:], flags=("--network", "none"))
        for word in ("access-host", "refresh-host", "token-of-an-mcp-server")
    }

    assert (result.returncode, result.stdout.strip()) == (0, "hello from the hosts"), result.stderr
    assert hosts.messages == ["access-host"]
    assert Path(path).read_bytes() == before
    for search_result in inside.values():
        assert "LOOKED" in search_result.stdout, search_result.stderr
        assert "FOUND" not in search_result.stdout
    assert not os.path.exists(f"{box.home}/.claudebox/login/store/.credentials.json")


def test_a_login_that_ends_in_the_midst_of_a_session_is_renewed_outside(user_box, hosts, real_client):
    # proves AUTH-02, I01
    certificate = user_box.write(f"{user_box.base}/authority.pem", Path(hosts.certificate).read_bytes())
    user_box.environ.update(HTTPS_PROXY=hosts.proxy, SSL_CERT_FILE=certificate)
    path = log_in(user_box, hosts.issue("host"), expires=WEEK)
    equip(user_box, real_client)
    words = ["-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
    process = subprocess.Popen(
        [user_box.program, "-y", "--network", "none", *words],
        cwd=user_box.project, env=user_box.variables({"CLAUDE_CODE_MAX_RETRIES": "0"}), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8", **user_box.account.demotion,
    )  # fmt: skip

    def turn(text: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        row = {"type": "user", "message": {"role": "user", "content": text}}
        process.stdin.write(json.dumps(row) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if answer["type"] == "result":
                return str(answer["result"])
        raise AssertionError("it ended")

    try:
        assert turn("one") == "hello from the hosts"
        hosts.access.remove("access-host")
        assert turn("two") == "hello from the hosts"
        assert turn("three") == "hello from the hosts"
    finally:
        process.communicate(timeout=30)

    assert process.returncode == 0
    assert hosts.renewals == ["refresh-host"]
    assert hosts.messages[-1] == "access-renewed-1"
    assert read(path)["refreshToken"] == "refresh-renewed-1"


@pytest.mark.slow
def test_twenty_sandboxes_that_start_together_renew_a_login_at_its_end_once(user_box, hosts):
    # proves AUTH-02, I01
    certificate = user_box.write(f"{user_box.base}/authority.pem", Path(hosts.certificate).read_bytes())
    user_box.environ.update(HTTPS_PROXY=hosts.proxy, SSL_CERT_FILE=certificate)
    path = log_in(user_box, hosts.issue("host"), expires=-60)
    user_box.write(
        "ask.py",
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.settimeout(60)\ns.connect('/run/claudebox/api.sock')\n"
        "s.sendall(b'POST /v1/messages HTTP/1.1\\r\\nhost: x\\r\\nauthorization: Bearer ssh-placeholder\\r\\n'\n"
        "          b'content-length: 2\\r\\n\\r\\n{}')\nprint(s.recv(4096).split()[1].decode())\n",
    )
    one = f"{user_box.program} -y --network none --exec -- python3 ask.py"

    result = user_box.host("bash", "-c", f"for i in $(seq 20); do {one} & done; wait", timeout=180)

    assert result.stdout.split() == ["200"] * 20, result.stderr[-2000:]
    assert hosts.renewals == ["refresh-host"]
    assert read(path)["refreshToken"] == "refresh-renewed-1"


def test_the_client_behaves_as_it_does_on_the_host(user_box, tmp_path, real_client):
    """The same default model, tools and features, with a key and with a login."""
    seen: list[tuple[str, set[str]]] = []

    class Watching(Anthropic):
        def _decide(self, path, headers, body):
            if path.startswith("/v1/messages"):
                seen.append((json.loads(body)["model"], set(headers["anthropic-beta"].split(","))))
                if "x-api-key" in headers:
                    headers = {**headers, "authorization": f"Bearer {headers['x-api-key']}"}
            return super()._decide(path, headers, body)

    with Watching(str(tmp_path)) as hosts:
        certificate = user_box.write(f"{user_box.base}/authority.pem", Path(hosts.certificate).read_bytes())
        user_box.environ.update(HTTPS_PROXY=hosts.proxy, SSL_CERT_FILE=certificate)
        key, _ = hosts.issue("key-of-the-person")
        for env in ({"ANTHROPIC_API_KEY": key}, {}):
            if not env:
                log_in(user_box, hosts.issue("host"), expires=WEEK)
            state = {"IS_SANDBOX": "1", "DISABLE_AUTOUPDATER": "1", "CLAUDE_CONFIG_DIR": f"{user_box.home}/.claude"}
            argv = (real_client, "--dangerously-skip-permissions", "-p", "hello")
            outside = user_box.host(*argv, env={**env, **state}, timeout=120)
            inside = start(user_box, real_client, "-p", "hello", env=env)
            assert outside.stdout == inside.stdout == "hello from the hosts\n", inside.stderr

    for outside_seen, inside_seen in (seen[:2], seen[2:]):
        assert outside_seen[0] == inside_seen[0]
        assert len(outside_seen[1] - inside_seen[1]) <= 1  # one of the client's betas is not for sockets
        assert inside_seen[1] <= outside_seen[1]


def test_the_tui_asks_nothing_and_works_with_a_placeholder(user_box, model, real_client, terminal):
    # proves INST-02
    equip(user_box, real_client)
    served = model(key=KEY)
    screen = terminal(user_box, {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": KEY})

    screen.shell(user_box.program, "-y", "--network", "none")
    shown = screen.expect("bypass permissions on")
    screen.type("hello")
    screen.expect("You said: hello")

    for question in ("custom API key", "login method", "trust", "Unable to connect"):
        assert question not in shown


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_broker_that_dies_or_is_silent_is_told_and_the_sandbox_goes_on(user_box, model, number):
    # proves NEW-N2
    served = model(key=KEY)
    env = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": KEY}
    ask = "curl -s --unix-socket /run/claudebox/api.sock http://x/nothing >/dev/null"
    process = subprocess.Popen(
        [user_box.program, "-y", "--exec", "--", "sh", "-c", f"{ask}; echo started; read line; echo went on"],
        cwd=user_box.project, env=user_box.variables(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, encoding="utf-8", **user_box.account.demotion,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"

    def brokers() -> list[str]:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
        return [pid for pid in children if b"main.main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    wait_until(brokers, "the broker runs")
    (broker,) = brokers()
    os.kill(int(broker), number)
    time.sleep(0.2)
    output, errors = process.communicate("\n", timeout=30)

    assert (process.returncode, output) == (0, "went on\n"), errors
    assert ("the broker ended during the session" in errors) == (number == signal.SIGKILL)
    assert "broker ended without a summary" in errors.splitlines()[-1]
    assert "ended without a summary" in user_box.claudebox("log").stdout


def test_without_a_credential_there_is_no_broker(user_box):
    result = user_box.sh("ls -A /run/claudebox; env | grep -c ANTHROPIC")

    assert "api.sock" not in result.stdout
    assert result.stdout.endswith("\n0\n")
    assert "broker" not in result.stderr


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"ANTHROPIC_BASE_URL": "ftp://x"}, "ANTHROPIC_BASE_URL"),
        ({"ANTHROPIC_BASE_URL": "https://u:p@x"}, "ANTHROPIC_BASE_URL"),
    ],
)
def test_an_address_that_makes_no_sense_is_told(user_box, environ, problem):
    result = user_box.run("true", env={**environ, "ANTHROPIC_API_KEY": KEY})

    assert result.returncode == 125
    assert problem in result.stderr
    assert "u:p" not in result.stderr


_POST = """
import http.client, os, sys, urllib.parse
place = urllib.parse.urlsplit(sys.argv[1] if len(sys.argv) > 1 else os.environ["ANTHROPIC_BASE_URL"])
connection = http.client.HTTPConnection(place.hostname, place.port or 80, timeout=20)
try:
    connection.request("POST", "/v1/messages", body=b"the-conversation")
except OSError as error:
    print(type(error).__name__)
else:
    print(connection.getresponse().status)
"""


def test_a_client_that_ignores_the_brokers_socket_reaches_nothing(user_box, listener):
    # proves HOST-01, AUTH-01
    user_box.write("post.py", _POST)
    key = {"ANTHROPIC_API_KEY": KEY}
    control = user_box.run("python3", "post.py", f"http://localhost:{listener.port}", env=key)
    shown = user_box.run("sh", "-c", "echo $ANTHROPIC_BASE_URL", env=key)
    result = user_box.run("python3", "post.py", env=key)

    assert control.stdout == "200\n", control.stderr
    assert listener.received == [b"the-conversation"]
    assert shown.stdout == "http://claudebox.invalid\n"
    assert result.stdout == "gaierror\n", result.stderr
    assert listener.received == [b"the-conversation"]


@pytest.fixture
def listener():
    """Return a server on a port of the host's loopback, which remembers what was posted to it."""
    received: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_words):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield SimpleNamespace(port=server.server_address[1], received=received)
        server.shutdown()
        thread.join()


def test_headers_of_the_user_alone_reach_a_gateway(user_box, real_client, model):
    # proves AUTH-03
    served = model(conversation("hello", {"tools": [bash("env")]}, {"say": "THROUGH THE GATEWAY"}), key=KEY)
    equip(user_box, real_client)
    env = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_CUSTOM_HEADERS": f"x-api-key: {KEY}"}

    result = user_box.claudebox("-y", "-p", "hello", env=env, timeout=120)

    assert "THROUGH THE GATEWAY" in result.stdout, result.stdout + result.stderr
    assert KEY not in served.results


def test_the_client_stops_at_once_when_the_budget_is_spent(user_box, real_client, model):
    # proves COST-01, COST-02
    steps = ({"tools": [bash("touch made")]}, {"say": "NEVER SAID"})
    served = model(conversation("hello", *steps), key=KEY)
    equip(user_box, real_client)
    env = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": KEY}
    started = time.monotonic()

    result = user_box.claudebox(
        "-y", "--set", "tokens=1000", "--set", "receipt=always", "-p", "hello", env=env, timeout=120
    )
    told = user_box.claudebox("cost", env=env).stdout

    assert "the budget of this session, 1000 tokens, is spent" in result.stdout, result.stdout + result.stderr
    assert "NEVER SAID" not in result.stdout
    assert Path(user_box.project, "made").exists()  # the first answer did pass
    assert time.monotonic() - started < 60  # and the refusal was not tried again and again
    receipt = next(line for line in result.stderr.splitlines() if line.strip().startswith("model "))
    assert "tokens in" in receipt
    assert "of 1000 tokens" in receipt
    assert os.path.basename(user_box.project) in told.splitlines()[1]
