"""Git over HTTPS from inside: one host, through a helper of the sandbox's own, and nothing of the host's."""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import shlex
import ssl
import subprocess
import threading
from functools import partial
from pathlib import Path

import pytest

TOKEN = "ghp_CANARY'\"$x"
CLONE = "git -c http.sslVerify=false clone -q https://{}/repository.git clone && cat clone/file"


class ProtectedPath(http.server.SimpleHTTPRequestHandler):
    """Serves a repository to whoever knows the token, and remembers what it was given."""

    seen: list[str]

    def do_GET(self) -> None:
        given = self.headers.get("authorization", "")
        self.seen.append(given)
        wanted = base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()
        if given == f"Basic {wanted}":
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("www-authenticate", 'Basic realm="x"')
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def repository(tmp_path):
    """Return a bare repository that can be fetched as plain files."""
    bare = tmp_path / "repository.git"
    work = tmp_path / "work"
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q", str(work)], check=True)
    (work / "file").write_text("content of the repository\n")
    subprocess.run([*git, "-C", str(work), "add", "."], check=True)
    subprocess.run([*git, "-C", str(work), "commit", "-qm", "x"], check=True)
    subprocess.run([*git, "clone", "-q", "--bare", str(work), str(bare)], check=True)
    subprocess.run([*git, "-C", str(bare), "update-server-info"], check=True)
    return tmp_path


@contextlib.contextmanager
def server(repository, *, name="localhost"):
    """Serve the repository over TLS on loopback, and yield the port and what was given."""
    key, certificate = repository / "key.pem", repository / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate),
         "-days", "1", "-subj", f"/CN={name}"],
        check=True, capture_output=True,
    )  # fmt: skip
    seen: list[str] = []
    handler = type("Handler", (ProtectedPath,), {"seen": seen})
    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(repository)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener.socket = context.wrap_socket(listener.socket, server_side=True)
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    try:
        yield listener.server_address[1], seen
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


def configure(box, port, token="env:THE_TOKEN"):
    text = f'[git_credential]\nhost = "localhost:{port}"\ntoken = "{token}"\n'
    box.write(f"{box.home}/.claudebox/config.toml", text)


def test_git_inside_logs_in_to_the_named_host_and_to_no_other(box, repository):
    # proves SEC-03
    box.environ |= {"THE_TOKEN": TOKEN, "GIT_TERMINAL_PROMPT": "0"}
    prompt = ("--env", "GIT_TERMINAL_PROMPT=0")
    with server(repository) as (port, seen), server(repository) as (other, seen_by_other):
        refused = box.sh(CLONE.format(f"localhost:{port}"), flags=prompt)  # control: it does need the token
        assert refused.returncode != 0
        configure(box, port)

        result = box.sh(CLONE.format(f"localhost:{port}"), flags=prompt)

        assert result.stdout == "content of the repository\n", result.stderr
        assert any("Basic" in given for given in seen)
        elsewhere = box.sh(f"mkdir again; cd again; {CLONE.format(f'localhost:{other}')}", flags=prompt)
        assert elsewhere.returncode != 0
        assert set(seen_by_other) == {""}
        # Nor does the helper itself answer for another host, whoever asks it.
        asked = box.sh(
            "printf 'protocol=https\\nhost=example.org\\n\\n' | /run/claudebox/git-credential get; "
            f"printf 'protocol=http\\nhost=localhost:{port}\\n\\n' | /run/claudebox/git-credential get; "
            f"printf 'protocol=https\\nhost=localhost:{port}\\n\\n' | /run/claudebox/git-credential get"
        )
        assert asked.stdout == f"username=x-access-token\npassword={TOKEN}\n"


def test_the_helpers_and_tokens_of_the_host_stay_out(user_box, repository):
    # proves SEC-03, GIT-02
    answer = f"#!/bin/sh\nprintf '%s\\n' username=x-access-token password={shlex.quote(TOKEN)}\n"
    user_box.write(f"{user_box.base}/helper", answer, mode=0o755)
    user_box.write(f"{user_box.home}/.gitconfig", f"[credential]\n\thelper = {user_box.base}/helper\n")
    user_box.write(f"{user_box.home}/.git-credentials", "https://x:CANARY@localhost\n")
    flags = ("--env", "GIT_TERMINAL_PROMPT=0", "--mount-ro", f"{user_box.base}/helper")
    with server(repository) as (port, _):
        probe = f"printf 'protocol=https\\nhost=localhost:{port}\\n\\n' | git credential fill"
        outside = user_box.host("sh", "-c", probe, env={"GIT_TERMINAL_PROMPT": "0"})
        assert "password=ghp_CANARY" in outside.stdout

        for text in (None, port):
            if text:
                configure(user_box, "9")
            inside = user_box.sh(probe, flags=flags, env={"THE_TOKEN": "other"})
            assert "CANARY" not in inside.stdout


def test_a_command_yields_the_token_and_runs_outside_of_the_project(user_box, repository):
    # proves SEC-03, E01, E02
    script = f"#!/bin/sh\npwd >>{user_box.home}/ran\nprintf '%s\\n' {shlex.quote(TOKEN)}\n"
    user_box.write(f"{user_box.base}/bin/give-token", script, mode=0o755)
    user_box.write("give-token", "#!/bin/sh\ntouch /tmp/never\necho wrong\n", mode=0o755)
    user_box.environ["PATH"] = f".:{user_box.project}:{user_box.base}/bin:/usr/bin:/bin"
    with server(repository) as (port, _):
        configure(user_box, port, token="command:give-token --quiet")
        result = user_box.sh(CLONE.format(f"localhost:{port}"))
        assert result.stdout == "content of the repository\n", result.stderr
    assert Path(user_box.home, "ran").read_text() == "/\n"

    shown = user_box.claudebox("--dry-run", "--exec", "--", "true")
    assert shown.returncode == 0
    assert "CANARY" not in shown.stdout + shown.stderr
    assert Path(user_box.home, "ran").read_text() == "/\n", "a dry run runs nothing"


def test_a_token_is_never_printed_and_a_missing_one_is_told(user_box):
    # proves SEC-03, B13
    configure(user_box, "443")
    missing = user_box.sh("test ! -e /run/claudebox/git-credential")
    assert missing.returncode == 0
    assert "env:THE_TOKEN is not set, git inside cannot log in" in missing.stderr
    for flags in (("--dry-run",), ("--explain",), ("--explain", "--json"), ("-y",)):
        result = user_box.claudebox(*flags, "--exec", "--", "true", env={"THE_TOKEN": "ghp_CANARY"})
        assert result.returncode == 0, result.stderr
        assert "CANARY" not in result.stdout + result.stderr
    failing = user_box.write(f"{user_box.base}/bin/fails", "#!/bin/sh\necho CANARY >&2; exit 3\n", mode=0o755)
    configure(user_box, "443", token=f"command:{failing}")
    refused = user_box.sh("true")
    assert refused.returncode == 125
    assert "gave no token (status 3)" in refused.stderr
    assert "CANARY" not in refused.stderr
    assert os.path.exists(failing)
