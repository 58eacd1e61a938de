"""The real client behind a company's proxy that wants a password and ends TLS: with the broker, and without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.support.certificates import TestAuthority
from tests.support.client import bash, conversation, equip

PROXY = str(Path(__file__).with_name("intercepting_proxy.py"))
KEY = "sk-real-key-0123456789-abcdefghij"


@pytest.mark.parametrize("auth", ["broker", "passthrough"])
def test_the_client_reaches_the_model_through_a_proxy_that_ends_tls(user_box, real_client, model, tmp_path, auth):
    # proves NET-06, AUTH-01
    box, authority = user_box, TestAuthority("company")
    key = authority._key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "authority.pem").write_bytes(key + authority.certificate)
    certificate = box.write(f"{box.home}/company.pem", authority.certificate.decode())
    scripted = model(conversation("hello", {"tools": [bash("env")]}, {"say": "DONE BEHIND THE PROXY"}), key=KEY)
    place = scripted.url.removeprefix("http://")
    words = [
        sys.executable,
        PROXY,
        "127.0.0.1",
        "0",
        tmp_path / "authority.pem",
        "me:pass-word",
        tmp_path / "log",
        place,
    ]
    equip(box, real_client)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            env = {"ANTHROPIC_API_KEY": KEY, "HTTPS_PROXY": f"http://me:pass-word@127.0.0.1:{port}",
                   "NODE_EXTRA_CA_CERTS": certificate, "CLAUDE_CODE_MAX_RETRIES": "0"}  # fmt: skip
            result = box.claudebox("-y", "--set", f"auth={auth}", "-p", "hello", env=env, timeout=120)
        finally:
            process.kill()

    assert "DONE BEHIND THE PROXY" in result.stdout, result.stdout + result.stderr
    seen = (tmp_path / "log").read_text()
    assert "CONNECT api.anthropic.com:443" in seen
    assert "read api.anthropic.com" in seen
    assert "HTTPS_PROXY=" in scripted.results
    assert "pass-word" not in scripted.results
