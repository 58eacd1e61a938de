"""Tier `allow` with the programs that people use: each reaches a listed name without being configured, and no other."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.conftest import need
from tests.network.conftest import PYTHON

NAMES = ("public.example", "www.public.example", "other.example", "four.example", "rebound.example")
ALLOW = ("--network", "allow", "--allow-domain", "public.example")
SERVER = str(Path(__file__).with_name("web.py"))


@dataclass
class Web:
    """The web server, and what it has seen."""

    certificate: str
    directory: Path
    log: Path

    def seen(self) -> list[list[str]]:
        """Return host, server name and first line of every request since the last look."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]


def make_certificate(directory: Path) -> None:
    """Write a certificate for all names of the test, which is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "claudebox test")])
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in NAMES]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    certificate = builder.sign(key, hashes.SHA256())
    (directory / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (directory / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def fill(root: Path) -> None:
    """Write what the programs ask for: a page, a repository, an index for each package manager."""
    for name in NAMES:
        (root / name).mkdir(parents=True)
        (root / name / "page").write_text(f"page of {name}\n")
    site = root / "public.example"
    (site / "large").write_bytes(bytes(range(256)) * 40000)
    work = root / "work"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q", work], check=True)
    (work / "file").write_text("cloned\n")
    subprocess.run([*git, "-C", work, "add", "file"], check=True)
    subprocess.run([*git, "-C", work, "commit", "-qm", "x"], check=True)
    subprocess.run([*git, "clone", "-q", "--bare", work, site / "repo.git"], check=True)
    subprocess.run([*git, "-C", site / "repo.git", "update-server-info"], check=True)

    (site / "simple/pkg").mkdir(parents=True)
    with zipfile.ZipFile(site / "simple/pkg/pkg-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pkg.py", "print('from the wheel')\n")
        wheel.writestr("pkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n")
        wheel.writestr("pkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("pkg-1.0.dist-info/RECORD", "")
    (site / "simple/pkg/index.html").write_text('<a href="pkg-1.0-py3-none-any.whl">pkg-1.0-py3-none-any.whl</a>')

    package = root / "package"
    package.mkdir()
    (package / "package.json").write_text('{"name": "pkg", "version": "1.0.0"}')
    (site / "npm").mkdir()
    with tarfile.open(site / "npm/pkg-1.0.0.tgz", "w:gz") as archive:
        archive.add(package, "package")
    digest = hashlib.sha1((site / "npm/pkg-1.0.0.tgz").read_bytes()).hexdigest()
    dist = {"tarball": "https://public.example/npm/pkg-1.0.0.tgz", "shasum": digest}
    version = {"name": "pkg", "version": "1.0.0", "dist": dist}
    (site / "npm/pkg").write_text(
        json.dumps({"name": "pkg", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}})
    )

    crate = root / "crate/pkg-1.0.0"
    (crate / "src").mkdir(parents=True)
    (crate / "Cargo.toml").write_text('[package]\nname = "pkg"\nversion = "1.0.0"\nedition = "2021"\n')
    (crate / "src/lib.rs").write_text("")
    (site / "index/3/p").mkdir(parents=True)
    with tarfile.open(site / "pkg.crate", "w:gz") as archive:
        archive.add(crate, "pkg-1.0.0")
    checksum = hashlib.sha256((site / "pkg.crate").read_bytes()).hexdigest()
    (site / "index/config.json").write_text('{"dl": "https://public.example/pkg.crate?{crate}-{version}"}')
    row = {"name": "pkg", "vers": "1.0.0", "deps": [], "cksum": checksum, "features": {}, "yanked": False}
    (site / "index/3/p/pkg").write_text(json.dumps(row) + "\n")


@pytest.fixture(scope="module")  # other tests have servers at the same port
def web(world, tmp_path_factory):
    root = tmp_path_factory.mktemp("web")
    make_certificate(root)
    fill(root / "sites")
    log = root / "log"
    process = world.start(
        "internet", sys.executable, SERVER, str(root / "sites"), str(root / "certificate.pem"), str(root / "key.pem"),
        str(log),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    yield Web(str(root / "certificate.pem"), root / "sites", log)
    process.kill()
    process.wait()


@pytest.fixture
def webbox(plain_netbox, web):
    """Return a box that trusts the small internet's certificate, outside and inside."""
    web.seen()
    authority = plain_netbox.write("ca.pem", Path(web.certificate).read_bytes())
    plain_netbox.environ["SSL_CERT_FILE"] = authority
    return plain_netbox


def trusted(box) -> tuple[str, ...]:
    names = ("GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO", "PIP_CERT", "CURL_CA_BUNDLE")
    return tuple(word for name in names for word in ("--env", f"{name}={box.project}/ca.pem"))


RAW = """
import socket, ssl, sys
context = ssl.create_default_context(cafile="ca.pem")
with socket.create_connection((sys.argv[1], 443), timeout=5) as plain:
    with context.wrap_socket(plain, server_hostname=sys.argv[1]) as channel:
        channel.sendall(f"GET /page HTTP/1.1\\r\\nHost: {sys.argv[1]}\\r\\nConnection: close\\r\\n\\r\\n".encode())
        while piece := channel.recv(4096):
            sys.stdout.write(piece.decode())
"""
NODE = """
const host = process.argv[1];
fetch(`https://${host}/page`).then(answer => answer.text()).then(text => {
  console.log("fetch", text);
  require("https").get(`https://${host}/page`, answer => answer.on("data", data => console.log("https", String(data))))
    .on("error", error => { console.log("refused", error.code); process.exit(3); });
}, error => { console.log("refused", error.cause && error.cause.code); process.exit(3); });
"""
# What is run for a name that is listed, what it prints then, and what tells that another name was refused.
PROGRAMS = {
    "curl": ("curl -sS --max-time 10 https://HOST/page", "page of HOST", "403"),
    "curl without the proxy": ("curl -sS --max-time 10 --noproxy '*' https://HOST/page", "page of HOST", "resolve"),
    "curl by plain HTTP": ("curl -sS --max-time 10 http://HOST/page", "page of HOST", "not among the names"),
    "wget": ("wget -T 10 -t 1 -q -O - --ca-certificate=ca.pem https://HOST/page", "page of HOST", ""),
    "urllib": (
        'python3 -c "import urllib.request as r; print(r.urlopen(\\"https://HOST/page\\", timeout=10).read())"',
        "page of HOST", "403",
    ),
    "raw sockets": ("env -i /usr/bin/python3 raw.py HOST", "page of HOST", "not known"),
    "git": ("rm -rf cloned; git clone -q https://HOST/repo.git cloned && cat cloned/file", "cloned", "403"),
    "node": ("node node.js HOST", "page of HOST", "refused ENOTFOUND"),
}  # fmt: skip
MANAGERS = {
    "pip": (
        "python3 -m pip --retries 0 install -q --target t -i https://HOST/simple pkg && python3 t/pkg.py",
        "from the wheel", "No matching distribution",
    ),
    "npm": (
        "npm i --silent --fetch-retries=0 --registry=https://HOST/npm --cafile=ca.pem pkg; cat node_modules/pkg/*",
        '"version": "1.0.0"', "",
    ),
    "cargo": (
        "CARGO_REGISTRIES_OURS_INDEX=sparse+https://HOST/index/ CARGO_NET_RETRY=0 RUST/bin/cargo fetch && echo fetched",
        "fetched", "403",
    ),
}  # fmt: skip


def test_programs_reach_a_listed_name_without_being_configured(webbox, web):
    # proves NET-03, F13
    webbox.write("raw.py", RAW)
    webbox.write("node.js", NODE.replace("process.argv[1]", "process.argv[2]"))
    script = "".join(
        f"echo '== {name} {host}'; {{ {command.replace('HOST', host)}; }} 2>&1\n"
        for name, (command, _, _) in PROGRAMS.items()
        for host in ("public.example", "other.example")
    )
    result = webbox.sh(script, flags=(*ALLOW, *trusted(webbox)))

    answers = dict(part.split("\n", 1) for part in result.stdout.split("== ")[1:])
    for name, (command, printed, refusal) in PROGRAMS.items():
        need(os.path.exists(f"/usr/bin/{command.split()[0].removesuffix(';')}") or name == "git", name)
        good, bad = answers[f"{name} public.example"], answers[f"{name} other.example"]
        assert printed.replace("HOST", "public.example") in good, good
        assert printed.replace("HOST", "other.example") not in bad
        assert refusal in bad, bad
    assert {host for host, *_ in web.seen()} == {"public.example"}


@pytest.mark.slow
@pytest.mark.parametrize("client", MANAGERS)
def test_a_package_manager_reaches_a_listed_name_without_being_configured(webbox, web, client):
    # proves NET-03, F13
    command, printed, refusal = MANAGERS[client]
    tools: tuple[str, ...] = ()
    if client == "cargo":
        place, tools = rust(webbox)
        command = command.replace("RUST", place)
    elif client == "pip":
        found = subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False)
        need(found.returncode == 0, "pip for the system's Python")
    else:
        need(os.path.exists(f"/usr/bin/{client}"), client)
    flags = (*ALLOW, *trusted(webbox), *tools)

    good = webbox.sh(command.replace("HOST", "public.example"), flags=flags)
    assert printed in good.stdout, good.stdout + good.stderr
    assert {host for host, *_ in web.seen()} == {"public.example"}
    for leftover in ("t", "node_modules", "Cargo.lock"):
        shutil.rmtree(f"{webbox.project}/{leftover}", ignore_errors=True)

    bad = webbox.sh(command.replace("HOST", "other.example"), flags=flags)
    assert printed not in bad.stdout
    assert refusal in bad.stdout + bad.stderr
    assert web.seen() == []


def rust(box) -> tuple[str, tuple[str, ...]]:
    """Write a project that needs a crate; return where a cargo lies, and the flags that bring it in."""
    box.write("Cargo.toml", '[package]\nname="x"\nversion="0.1.0"\nedition="2021"\n[dependencies]\n'
                            'pkg = { version = "1", registry = "ours" }\n')  # fmt: skip
    box.write("src/lib.rs", "")
    if os.path.exists("/usr/bin/cargo"):
        told = subprocess.run(["/usr/bin/cargo", "--version"], capture_output=True, text=True, check=True).stdout
        if int(told.split()[1].split(".")[1]) >= 68:  # from there on it knows indexes without git
            return "/usr", ()
    toolchains = sorted(Path.home().glob(".rustup/toolchains/*/bin/cargo"))
    need(toolchains, "cargo 1.68 or newer")
    target = Path(box.base, "rust")
    shutil.copytree(toolchains[0].parent.parent, target, symlinks=True,
                    ignore=shutil.ignore_patterns("share", "rustlib"))  # fmt: skip
    subprocess.run(["chown", "-R", f"{box.account.uid}:{box.account.gid}", target], check=True)
    return str(target), ("--mount-ro", str(target), "--env", f"RUSTC={target}/bin/rustc")


FRONTING = """
import socket, ssl, sys
context = ssl.create_default_context(cafile="ca.pem")
context.check_hostname = False
def ask(way, name):
    if way == "proxy":
        plain = socket.create_connection(("127.0.0.1", 3128), timeout=5)
        plain.sendall(b"CONNECT public.example:443 HTTP/1.1\\r\\n\\r\\n")
        reply = b""
        while not reply.endswith(b"\\r\\n\\r\\n"):
            reply += plain.recv(1)
    else:
        plain = socket.create_connection(("public.example", 443), timeout=5)
    with plain:
        try:
            with context.wrap_socket(plain, server_hostname=name) as channel:
                channel.sendall(b"GET /page HTTP/1.1\\r\\nHost: public.example\\r\\nConnection: close\\r\\n\\r\\n")
                return channel.recv(4096).split(b" ")[1].decode()
        except (ssl.SSLError, OSError) as error:
            return getattr(error, "reason", None) or type(error).__name__
for way in ("proxy", "name"):
    for name in ("public.example", "PUBLIC.example", "other.example", None):
        print(way, name, ask(way, name))
"""


def test_tls_for_another_server_is_refused(webbox, web):
    # proves NET-03
    result = webbox.run(PYTHON, webbox.write("fronting.py", FRONTING), flags=ALLOW)

    assert result.stdout.splitlines() == [
        f"{way} {name} {'200' if name and name.lower() == 'public.example' else 'TLSV1_ALERT_ACCESS_DENIED'}"
        for way in ("proxy", "name")
        for name in ("public.example", "PUBLIC.example", "other.example", None)
    ], result.stderr
    assert {name for _, name, *_ in web.seen()} <= {"public.example", "PUBLIC.example"}


PLAIN = """
import socket
def ask(where, data):
    with socket.create_connection(where, timeout=5) as channel:
        channel.sendall(data)
        answer = b""
        while piece := channel.recv(4096):
            answer += piece
        return answer.split(b" ", 2)[1].decode() if answer else "nothing"
proxy, name = ("127.0.0.1", 3128), ("public.example", 80)
tail = b"\\r\\nConnection: close\\r\\n\\r\\n"
for where, data in (
    (name, b"GET /page HTTP/1.1\\r\\nHost: public.example" + tail),
    (name, b"GET /page HTTP/1.1\\r\\nHost: other.example" + tail),
    (name, b"\\r\\nGET /page HTTP/1.1\\r\\nHost: other.example" + tail),
    (name, b"GET http://other.example/page HTTP/1.1\\r\\nHost: public.example" + tail),
    (name, b"GET /page HTTP/1.1\\r\\nHost: public.example\\r\\nHost: other.example" + tail),
    (name, b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n"),
    (name, b"WHATEVER /page HTTP/1.1\\r\\nHost: other.example" + tail),
    (proxy, b"GET http://public.example/page HTTP/1.1\\r\\nHost: other.example" + tail),
    (proxy, b"GET http://other.example/page HTTP/1.1\\r\\nHost: public.example" + tail),
    (proxy, b"GET http://public.example@other.example/page HTTP/1.1" + tail),
    (proxy, b"GET /page HTTP/1.1\\r\\nHost: public.example" + tail),
    (proxy, b"GET https://public.example/page HTTP/1.1\\r\\nHost: public.example" + tail),
    (proxy, b"GET http://public.example/page HTTP/1.1\\r\\nHost: public.example\\r\\n\\r\\n"
     b"GET http://other.example/page HTTP/1.1\\r\\nHost: other.example" + tail),
    (proxy, b"CONNECT public.example:80 HTTP/1.1\\r\\n\\r\\nGET /page HTTP/1.1\\r\\nHost: other.example" + tail),
):
    print(ask(where, data))
"""


def test_plain_http_for_another_host_is_refused(webbox, web):
    # proves NET-03
    result = webbox.run(PYTHON, webbox.write("plain.py", PLAIN), flags=ALLOW)

    wanted = ["200", "403", "403", "400", "400", "400", "403", "200", "403", "400", "400", "400", "200", "200"]
    assert result.stdout.split() == wanted, result.stderr  # the last is the proxy's own 200; what follows is refused
    seen = web.seen()
    assert {host for host, *_ in seen} == {"public.example"}


def test_large_bodies_pass_both_ways(webbox, web):
    digest = hashlib.sha256((web.directory / "public.example/large").read_bytes()).hexdigest()
    script = (
        "curl -sS http://public.example/large | tee large | sha256sum; "
        "curl -sS https://public.example/large | sha256sum; "
        "curl -sS --noproxy '*' http://public.example/large | sha256sum; "
        "for url in http://public.example/ https://public.example/; do curl -sS --data-binary @large $url; done"
    )
    result = webbox.sh(script, flags=(*ALLOW, *trusted(webbox)))

    assert result.stdout.split() == [digest, "-"] * 3 + ["10240000", "bytes10240000", "bytes"], result.stderr


def test_a_refusal_says_what_to_do(webbox):
    # proves NET-03
    result = webbox.sh("curl -s -w '%{http_code}' http://other.example/page", flags=ALLOW)

    assert "`other.example` is not among the names that can be reached from here" in result.stdout
    assert "Permitted are: public.example." in result.stdout
    assert "`claudebox --allow-domain other.example`" in result.stdout
    assert result.stdout.endswith("403")


UPSTREAM = """
import base64, socket, sys, threading
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
    print(head.split(b"\\r\\n")[0].decode(), b"Basic " + base64.b64encode(b"me:pass word") in head, flush=True)
    if head.startswith(b"CONNECT "):
        far = socket.create_connection(("203.0.113.80", int(head.split(b" ")[1].rpartition(b":")[2])))
        channel.sendall(b"HTTP/1.1 200 fine\\r\\n\\r\\n")
    else:
        far = socket.create_connection(("203.0.113.80", 80))
        far.sendall(head.replace(b"http://four.example", b""))
    threading.Thread(target=pipe, args=(channel, far), daemon=True).start()
    pipe(far, channel)
with socket.create_server(("192.168.77.1", 8888)) as server:
    print("listening", flush=True)
    while True:
        threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
"""


REPEATING = """
import socket, threading
def serve(channel):
    data = b""
    while b"\\r\\n\\r\\n" not in data:
        data += channel.recv(4096)
    print(data.decode(), flush=True)
    line = data.replace(b"\\r\\n", b" ")
    channel.sendall(b"HTTP/1.1 407 " + line + b"\\r\\nX: " + line + b"\\r\\nConnection: close\\r\\n\\r\\n" + data)
    channel.close()
server = socket.create_server(("192.168.77.1", 8888))
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=server.accept()[:1]).start()
"""


def test_the_proxy_of_the_host_is_used_and_its_password_stays_outside(webbox, world, web):
    # proves NET-03, SAND-02, K08
    process = world.start("lan", sys.executable, "-c", UPSTREAM)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    webbox.environ |= {"HTTPS_PROXY": "http://me:pass%20word@192.168.77.1:8888", "NO_PROXY": "public.example,x"}
    names = ("four.example", "public.example", "rebound.example")
    flags = ("--network", "allow", *(word for name in names for word in ("--allow-domain", name)), *trusted(webbox))
    try:
        result = webbox.sh(
            "curl -sS https://four.example/page; curl -sS http://four.example/page; "
            "curl -sS --noproxy '*' http://four.example/page; "
            "curl -sS https://public.example/page; curl -s http://rebound.example/; "
            "env; cat /proc/*/environ /run/claudebox/SANDBOX.md",
            flags=flags,
        )
    finally:
        process.kill()
        process.wait()

    assert result.stdout.count("page of four.example") == 3, result.stderr
    assert "page of public.example" in result.stdout
    assert "`rebound.example` points at" in result.stdout
    encoded = base64.b64encode(b"me:pass word").decode()
    assert not [text for text in ("pass word", "pass%20word", encoded) if text in result.stdout + result.stderr]
    assert "through the proxy of this machine, 192.168.77.1:8888" in result.stderr
    asked = process.stdout.read().splitlines()
    plain = "CONNECT four.example:80 HTTP/1.1 True"
    assert asked == ["CONNECT four.example:443 HTTP/1.1 True", plain, plain]


def test_a_proxy_of_the_host_without_a_password_is_asked_for_plain_urls(webbox, world, web):
    # proves NET-03
    process = world.start("lan", sys.executable, "-c", UPSTREAM)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    webbox.environ |= {"HTTPS_PROXY": "http://192.168.77.1:8888"}
    flags = ("--network", "allow", "--allow-domain", "four.example", *trusted(webbox))
    try:
        result = webbox.sh("curl -sS http://four.example/page; curl -sS https://four.example/page", flags=flags)
    finally:
        process.kill()
        process.wait()

    assert result.stdout.count("page of four.example") == 2, result.stderr
    assert process.stdout.read().splitlines() == [
        "GET http://four.example/page HTTP/1.1 False", "CONNECT four.example:443 HTTP/1.1 False",
    ]  # fmt: skip


def test_what_a_proxy_of_the_host_repeats_is_not_passed_on(webbox, world, web):
    """It repeats what it was sent, in its status line, a field and the body, as error pages and TRACE do."""
    # proves K08, OLD-B7
    process = world.start("lan", sys.executable, "-c", REPEATING)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    webbox.environ |= {"HTTPS_PROXY": "http://me:pass%20word@192.168.77.1:8888"}
    flags = ("--network", "allow", "--allow-domain", "four.example", *trusted(webbox))
    try:
        result = webbox.sh(
            "for way in '' '--noproxy *'; do "
            "curl -sS -i $way http://four.example/page; curl -sS -i $way -X TRACE http://four.example/page; "
            "curl -sS -i $way https://four.example/page; done",
            flags=flags,
        )
    finally:
        process.kill()
        process.wait()

    assert "status 407" in result.stdout
    assert base64.b64encode(b"me:pass word") in process.stdout.read().encode(), "the control: it did get the password"
    for form in ("pass word", "cGFzcyB3b3Jk", base64.b64encode(b"me:pass word").decode()):
        assert form not in result.stdout + result.stderr


def test_a_proxy_of_the_host_that_is_not_http_is_said_not_to_be_used(webbox):
    webbox.environ["HTTPS_PROXY"] = "socks5h://me:hunter2@192.168.77.1:1080"
    result = webbox.sh("curl -sS https://public.example/page", flags=(*ALLOW, *trusted(webbox)))

    assert "names a socks5h proxy, and is not used" in result.stderr
    assert "page of public.example" in result.stdout
    assert "hunter2" not in result.stderr
