"""Commands of the real client do the same inside as outside."""

from __future__ import annotations

from tests.client.conftest import equip, real_client  # noqa: F401 - a fixture

STEPS = (("mcp", "add", "greet", "--", "/bin/echo", "hi"), ("mcp", "list"))


def test_mcp_servers_are_added_and_listed_as_outside(user_box, real_client):  # noqa: F811
    # proves TOOL-11
    equip(user_box, real_client)
    config = {"CLAUDE_CONFIG_DIR": f"{user_box.home}/.claude-outside", "DISABLE_AUTOUPDATER": "1"}
    outside = [user_box.host(real_client, *words, env=config) for words in STEPS]

    inside = [user_box.claudebox("-y", "--quiet", *words) for words in STEPS]

    assert [row.returncode for row in inside] == [row.returncode for row in outside] == [0, 0]
    assert "greet: /bin/echo hi" in inside[1].stdout
    for within, without in zip(inside, outside, strict=True):
        plain = without.stdout.replace(".claude-outside", ".claude")
        assert within.stdout.splitlines()[:1] == plain.splitlines()[:1], within.stderr
