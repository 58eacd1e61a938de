"""What Nix itself does, without claudebox: the reasons for its policy, and the positive controls of its tests."""

from __future__ import annotations

import json
import os
import re

import pytest
from tests.nix import probes
from tests.nix.conftest import ROOT


def test_the_package_set_offers_what_tests_ask_for(multi_user):
    hello = multi_user.build("hello")
    result = multi_user.run("build", "--no-link", f"{multi_user.packages}#broken", check=False)

    assert re.fullmatch(r"/nix/store/[a-z0-9]{32}-hello-2\.12", hello)
    assert os.access(multi_user.real(f"{hello}/bin/hello"), os.X_OK)
    assert result.returncode == 1
    assert "on purpose" in result.stderr
    unfree = multi_user.run("build", "--no-link", f"{multi_user.packages}#unfree", check=False)
    assert "unfree license" in unfree.stderr
    assert not multi_user.built("slow")
    assert multi_user.built("hello")


@pytest.mark.parametrize("sandbox", ["true", "false"])
def test_an_ordinary_user_can_run_a_daemon_of_his_own(daemons, ordinary_account, sandbox):
    daemon = daemons(ordinary_account, sandbox=sandbox)

    assert os.stat(daemon.real(daemon.build("first"))).st_uid == ordinary_account.uid


def test_a_shell_of_the_set_can_be_entered(multi_user):
    shown = json.loads(multi_user.run("print-dev-env", "--json", multi_user.packages).stdout)

    assert shown["variables"]["FROM_SHELL"]["value"] == "a value with blanks"


def test_a_trusted_user_has_programs_run_as_root(trusted_box):
    """The positive control of the relay."""
    # proves G01
    argv, witness = probes.post_build_hook(trusted_box, trusted_box.daemon)

    result = trusted_box.host(*argv)

    assert result.returncode == 0, result.stderr
    assert probes.owner(witness) == 0


def test_an_untrusted_user_has_not(nix_box):
    # proves G01
    argv, witness = probes.post_build_hook(nix_box, nix_box.daemon)

    result = nix_box.host(*argv)

    assert result.returncode == 0, result.stderr
    assert not os.path.exists(witness)


def test_root_is_untrusted_where_the_configuration_says_so(daemons, nix_boxes):
    box = nix_boxes(daemons(trusted=("nobody",)), ROOT)
    argv, witness = probes.post_build_hook(box, box.daemon)

    result = box.host(*argv)

    assert result.returncode == 0, result.stderr
    assert not os.path.exists(witness)


def test_a_build_whose_result_is_known_reaches_the_hosts_loopback(nix_box, listener):
    """The positive control of the tiers without a network."""
    # proves G03
    ordinary = probes.build(nix_box, nix_box.daemon, f"$b wget -O $out http://127.0.0.1:{listener.port}/ordinary")
    known = probes.fixed_output(nix_box, nix_box.daemon, listener, "by-a-builder")

    refused = nix_box.host(*ordinary)
    result = nix_box.host(*known)
    fetched = nix_box.host(*probes.fetch(nix_box, listener, "by-the-daemon"))

    assert refused.returncode != 0
    assert result.returncode == 0, result.stderr
    assert fetched.returncode == 0, fetched.stderr
    assert listener.seen == ["/by-a-builder", "/by-the-daemon"]


def test_the_newer_one_tells_whether_it_trusts(daemons, ordinary_account):
    # proves G01
    for trusted, expected in (("root",), 0), (("root", "claudebox-test"), 1):
        daemon = daemons(trusted=trusted)
        told = json.loads(daemon.run("store", "info", "--json", account=ordinary_account).stdout)
        assert told["trusted"] == expected


def test_a_daemon_that_was_started_again_has_the_same_store(ordinary_account, daemons):
    daemon = daemons(ordinary_account)
    hello = daemon.build("hello")

    daemon.restart()

    assert daemon.build("hello") == hello


@pytest.mark.parametrize("sandbox", ["true", "false"])
def test_a_builder_without_a_sandbox_reads_the_host(machine_boxes, sandbox):
    # proves G02
    box = machine_boxes(sandbox)
    canary = box.write(f"{box.base}/canary", "of the host")
    nix = box.daemon.nix.directory

    result = box.host(
        *probes.read_host_file(box, box.daemon, canary), env={"PATH": f"{nix}:/usr/bin:/bin", "NIX_REMOTE": "daemon"}
    )

    assert (result.returncode == 0) == (sandbox == "false"), result.stderr
    if sandbox == "false":
        assert box.host("cat", result.stdout.strip()).stdout == "of the host"
