"""The kernel's keyrings are in no namespace: without a filter, keys of the login can be read from any sandbox."""

from __future__ import annotations

import uuid

import pytest
from tests.support.sandbox import PYTHON

NAIVE = ("/usr/bin/bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--")


@pytest.fixture
def keys(box, probe):
    """Return what starts a program that inherits a session keyring with a key, the user's keyring having another."""
    script = probe(box, "keyrings.py")
    prefix = f"claudebox-{uuid.uuid4().hex}"

    def start(*argv: str):
        return box.host(PYTHON, script, "put", prefix, *argv)

    yield start, (PYTHON, script, "get", prefix), prefix
    box.host(PYTHON, script, "clear", prefix)


def test_keys_of_session_and_user_cannot_be_read(box, keys):
    # proves A08, A09
    start, get, prefix = keys

    control = start(*NAIVE, *get)
    inside = start(box.program, "-y", "--exec", "--", *get)

    assert control.stdout.splitlines() == [f"read {prefix}-session-secret", f"read {prefix}-user-secret", "done"]
    assert inside.stdout.splitlines() == ["done"], inside.stderr


def test_lists_of_keys_are_masked(box, keys):
    # proves A09
    start, _, prefix = keys
    script = "cat /proc/keys /proc/key-users"

    control = start(*NAIVE, "sh", "-c", script)
    inside = start(box.program, "-y", "--exec", "--", "sh", "-c", script)

    assert prefix in control.stdout
    assert inside.stdout == ""
    assert inside.stderr.count("Permission denied") == 2


def test_keyctl_itself_is_denied(user_box):
    # proves A08
    inside = user_box.run("keyctl", "show")
    control = user_box.host("keyctl", "show")

    assert control.returncode == 0
    assert inside.returncode != 0
    assert "not permitted" in inside.stderr
