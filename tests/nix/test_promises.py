"""`--verify` where there is Nix: what was promised about the daemon is tried from inside."""

from __future__ import annotations

import json
import os

import pytest
from tests.nix.conftest import ROOT


def promise(box, *flags: str) -> dict[str, str]:
    """Return what became of the promise about the daemon, everything else being held."""
    result = box.claudebox("--verify", "--json", *flags)
    assert result.stdout, result.stderr
    rows = {row["promise"]: row for row in json.loads(result.stdout)["promises"]}
    found = rows.pop("nix_daemon")
    assert [row for row in rows.values() if row["status"] == "broken"] == []
    return {"status": found["status"], "detail": found["detail"]}


def test_a_trusted_user_is_seen_not_to_be_trusted_inside(nix_boxes, daemons, ordinary_account):
    # proves NIXSEC-01, G01
    box = nix_boxes(daemons("2.26", trusted=("root", "claudebox-test")), ordinary_account)

    assert promise(box) == {"status": "held", "detail": ""}
    assert promise(box, "--network", "none") == {"status": "held", "detail": ""}
    told = promise(box, "--set", "nix=daemon")
    assert (told["status"], "you gave the sandbox the daemon" in told["detail"]) == ("untestable", True)


@pytest.mark.parametrize("who", ["root", "user"])
def test_a_sandbox_of_an_untrusted_user_is_not_trusted(nix_boxes, daemons, ordinary_account, who):
    # proves NIXSEC-01, G01
    box = nix_boxes(daemons("2.26", trusted=("nobody",)), ROOT if who == "root" else ordinary_account)

    assert promise(box)["status"] == "held"


def test_an_old_daemon_does_not_tell(nix_box):
    expected = "untestable" if nix_box.daemon.nix.version == "2.8" else "held"

    assert promise(nix_box)["status"] == expected


def test_the_probe_sees_trust_where_there_is_some(nix_boxes, daemons, ordinary_account):
    """The positive control: the same probe outside, against the same daemon at its usual place."""
    # proves G01
    box = nix_boxes(daemons("2.26", trusted=("root", "claudebox-test")), ordinary_account)
    source = os.path.join(os.path.dirname(os.path.dirname(box.program)), "src/claudebox/commands/verify/probe.py")
    script = (
        f"import runpy, socket; probe = runpy.run_path({source!r}); client = socket.socket(socket.AF_UNIX); "
        f"client.connect({box.daemon.socket!r}); print(probe['_trust'](client.makefile('rwb')))"
    )

    direct = box.host("/usr/bin/python3", "-IS", "-c", script)

    assert direct.stdout == "1\n", direct.stderr
    other = daemons("2.26")
    untrusted = box.host("/usr/bin/python3", "-IS", "-c", script.replace(box.daemon.socket, other.socket))
    assert untrusted.stdout == "2\n", untrusted.stderr
