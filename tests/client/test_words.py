"""Words and flags of the real client: which go through, which are switched off, and how editors start it."""

from __future__ import annotations

from tests.client.conftest import equip

from claudebox.commands import near_misses


def test_flags_of_the_client_are_told_from_what_is_nearly_ours(real_client):
    # proves UX-09
    assert all(near_misses.defines(real_client, flag) for flag in ("--file", "--json-schema", "--print", "--channels"))
    assert not any(near_misses.defines(real_client, flag) for flag in ("--mount", "--dryrun", "--netwrok"))


def test_subcommands_of_the_client_take_flags_that_are_also_ours(user_box, real_client):
    # proves D-01
    equip(user_box, real_client)
    added = user_box.claudebox("-y", "mcp", "add", "tickets", "--env", "A=b", "--", "no-such-server", "--json")
    shown = user_box.claudebox("-y", "mcp", "get", "tickets")

    assert added.returncode == 0, added.stderr
    assert "Added stdio MCP server tickets with command: no-such-server --json" in added.stdout
    assert "A=b" in shown.stdout
