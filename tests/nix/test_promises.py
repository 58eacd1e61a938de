"""`--verify` where there is Nix: the daemon answers inside where the plan says so, and nowhere else."""

from __future__ import annotations

import json


def promise(box, *flags: str) -> dict[str, str]:
    """Return what became of the promise about the daemon, everything else being held."""
    result = box.claudebox("--verify", "--json", *flags)
    assert result.stdout, result.stderr
    rows = {row["promise"]: row for row in json.loads(result.stdout)["promises"]}
    found = rows.pop("nix_daemon")
    assert [row for row in rows.values() if row["status"] == "broken"] == []
    return {"status": found["status"], "detail": found["detail"]}


def test_the_promise_about_the_daemon_is_held_whether_it_is_inside_or_not(nix_boxes, daemons, ordinary_account):
    # proves NIXSEC-01, G01
    box = nix_boxes(daemons(trusted=("root", "claudebox-test")), ordinary_account)

    for flags in ((), ("--network", "none"), ("--set", "nix=daemon")):
        assert promise(box, *flags) == {"status": "held", "detail": ""}
