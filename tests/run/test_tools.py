"""The tools of a developer work inside as they do outside: compilers, interpreters, names, networks, certificates."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from tests.conftest import need
from tests.support.sandbox import PYTHON

HELLO = '#include <stdio.h>\nint main(void) { printf("compiled %s\\n", __FILE__); return 0; }\n'
MAKEFILE = "hello: hello.c\n\t$(CC) -o $@ $<\n"


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "8")
        self.end_headers()
        self.wfile.write(b"answered")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def server(certificate: str = ""):
    """Serve HTTP, or HTTPS with a certificate, on loopback of the host; yield the port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as listening:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(f"{certificate}/server.pem", f"{certificate}/server.key")
            listening.socket = context.wrap_socket(listening.socket, server_side=True)
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield listening.server_address[1]
        finally:
            listening.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Make an authority of the test and a certificate of `localhost` by it."""
    need(shutil.which("openssl"), "openssl")
    directory = str(tmp_path_factory.mktemp("certificates"))
    with open(f"{directory}/extensions", "w", encoding="utf-8") as file:
        file.write("subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # which Python 3.13 and newer want of an authority
    new = ("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj")
    for words in (
        (*new, "/CN=authority", "-x509", *usage, "-days", "2", "-keyout", "ca.key", "-out", "ca.pem"),
        (*new, "/CN=localhost", "-keyout", "server.key", "-out", "server.csr"),
        ("openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
         "-days", "2", "-extfile", "extensions", "-out", "server.pem"),
    ):  # fmt: skip
        subprocess.run(words, cwd=directory, check=True, capture_output=True)
    return directory


def test_a_program_can_be_compiled_and_run(box):
    # proves SAND-06, SAND-11
    need(shutil.which("gcc") and shutil.which("make"), "C compiler and make")
    box.write("hello.c", HELLO)
    box.write("Makefile", MAKEFILE)

    result = box.sh("make -s && ./hello && cc -o /tmp/there hello.c && /tmp/there && gcc -static -o s hello.c && ./s")

    assert result.stdout == "compiled hello.c\n" * 3, result.stderr
    assert os.access(f"{box.project}/hello", os.X_OK)


def test_names_languages_and_times_are_known(box):
    # proves SAND-12, SAND-06
    script = (
        "getent hosts localhost | head -1; getent passwd root | cut -d: -f1; getent services https/tcp | cut -d' ' -f1;"
        "getent hosts claudebox | head -1; locale charmap; date +%Z; tput -T xterm colors;"
        "readlink -e /usr/bin/awk >/dev/null && echo alternatives; id -un"
    )

    result = box.sh(script, env={"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"})
    zone = box.host("date", "+%Z").stdout.strip()

    lines = result.stdout.splitlines()
    assert lines[0].split()[1] == "localhost"
    assert lines[1:3] == ["root", "https"]
    assert "claudebox" in lines[3]
    assert lines[4:6] == ["UTF-8", zone]
    assert "alternatives" in lines


def test_loopback_of_the_host_answers_in_tier_full_and_not_in_tier_none(box):
    # proves NET-T, F18, SAND-12
    with server() as port:
        address = f"http://127.0.0.1:{port}/"
        control = box.host("curl", "-sS", "--max-time", "10", address)
        full = box.run("curl", "-sS", "--max-time", "10", address, flags=("--network", "full"))
        named = box.run("curl", "-sS", "--max-time", "10", f"http://localhost:{port}/")
        none = box.run("curl", "-sS", "--max-time", "10", address, flags=("--network", "none"))

    assert control.stdout == "answered"
    assert full.stdout == named.stdout == "answered", full.stderr
    assert "its loopback services" in full.stderr  # the audit says it out loud
    assert none.stdout == ""
    assert none.returncode == 7  # refused


def test_loopback_of_the_sandbox_works_in_tier_none(box):
    # proves NET-T, F16
    script = (
        "import socket, threading\n"
        "for family, address in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):\n"
        "    server = socket.create_server((address, 0), family=family)\n"
        "    threading.Thread(target=lambda: server.accept()[0].send(b'own')).start()\n"
        "    print(socket.create_connection(server.getsockname()[:2]).recv(9).decode())\n"
        "print(sorted(name for _, name in socket.if_nameindex()))\n"
        "try: socket.create_connection(('203.0.113.1', 80), 2)\n"
        "except OSError as error: print(type(error).__name__, error.errno)\n"
    )

    result = box.run(PYTHON, "-c", script, flags=("--network", "none"))

    assert result.stdout.splitlines() == ["own", "own", "['lo']", "OSError 101"], result.stderr


def test_name_servers_of_the_host_are_known_where_there_is_a_network(box):
    # proves SAND-12
    with open("/etc/resolv.conf", encoding="utf-8") as file:
        servers = [line.strip() for line in file if line.startswith("nameserver")]

    full = box.run("cat", "/etc/resolv.conf")
    none = box.run("cat", "/etc/resolv.conf", flags=("--network", "none"))

    assert [line for line in full.stdout.splitlines() if line.startswith("nameserver")] == servers
    assert none.stdout == ""


def test_an_authority_named_by_a_variable_is_trusted_by_every_tool(box, certificates):
    # proves SAND-13
    authority = f"{box.base}/authority.pem"
    shutil.copy(f"{certificates}/ca.pem", authority)
    os.chmod(authority, 0o644)
    line = Path(authority).read_text(encoding="ascii").splitlines()[1]
    fetch = "import urllib.request; print(urllib.request.urlopen('{url}').read().decode())"
    with server(certificates) as port:
        url = f"https://localhost:{port}/"
        script = (
            f'curl -sS --max-time 10 {url}; echo; {PYTHON} -c "{fetch.format(url=url)}"; echo $SSL_CERT_FILE;'
            f"cmp $SSL_CERT_FILE $NIX_SSL_CERT_FILE && grep -cxF '{line}' $SSL_CERT_FILE"
        )
        trusted = box.sh(script, env={"SSL_CERT_FILE": authority})
        nix = box.sh(f"curl -sS --max-time 10 {url}", env={"NIX_SSL_CERT_FILE": authority})
        untrusted = box.sh(f"curl -sS --max-time 10 {url}")
        control = box.host("curl", "-sS", "--cacert", authority, "--max-time", "10", url)

    assert control.stdout == "answered"
    assert trusted.stdout.split() == ["answered", "answered", "/run/claudebox/ca-bundle.crt", "1"], trusted.stderr
    assert nix.stdout == "answered", nix.stderr
    assert untrusted.returncode == 60  # curl knows no such authority


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "NIX_SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "SSL_CERT_DIR"])
def test_of_a_file_that_a_variable_names_only_certificates_enter(box, certificates, name):
    # proves SAND-13, SAND-09
    key = box.write(f"{box.home}/.ssh/id", "-----BEGIN PRIVATE KEY-----\nCANARY\n-----END PRIVATE KEY-----\n")
    mixed = box.write(f"{box.base}/mixed/all.pem", Path(key).read_bytes() + Path(certificates, "ca.pem").read_bytes())
    line = Path(certificates, "ca.pem").read_text(encoding="ascii").splitlines()[1]
    script = "cat /run/claudebox/*.crt /etc/ssl/certs/ca-certificates.crt"

    for path in (key, mixed):
        result = box.sh(script, env={name: os.path.dirname(path) if name == "SSL_CERT_DIR" else path})
        assert "BEGIN CERTIFICATE" in result.stdout, result.stderr
        assert "CANARY" not in result.stdout
        assert (line in result.stdout) == (path == mixed), "the positive control"


def test_the_authorities_of_the_host_are_there(box):
    # proves SAND-13
    script = (
        "count='import ssl; print(len(ssl.create_default_context().get_ca_certs()))'; grep -c BEGIN $SSL_CERT_FILE;"
        'python3 -c "$count"; env -u SSL_CERT_FILE -u NIX_SSL_CERT_FILE python3 -c "$count"'
    )

    result = box.sh(script)

    bundle, loaded, plain = (int(word) for word in result.stdout.split())
    assert bundle > 50
    assert loaded > 50
    assert plain > 50


def test_standard_streams_pass_through(box):
    # proves SAND-14
    result = box.run("sh", "-c", "tr a-z A-Z; echo problem >&2; exit 3", input="hello\n")

    assert result.stdout == "HELLO\n"
    assert result.stderr.endswith("problem\n")
    assert result.returncode == 3


def test_large_output_and_binary_input_arrive_whole(box):
    # proves SAND-14
    content = bytes(range(256)) * 4096
    result = subprocess.run(
        [box.program, "-y", "--exec", "--", "cat"], input=content, cwd=box.project, env=box.variables(),
        capture_output=True, check=True, timeout=60, **box.account.demotion,
    )  # fmt: skip

    assert result.stdout == content
