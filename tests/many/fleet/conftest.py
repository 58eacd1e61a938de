"""A fleet for the tests of this folder: a gateway that holds the key, two nodes, and the engines on top of them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import need
from tests.many.fleet.hosts import KEY, LAYER, Fleet, furnish
from tests.support import client as clients
from tests.support.client import bash
from tests.support.scripted import Scripted

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = ("one", "two")
# Tasks by number: what the model has the agent do.
WAITING = range(80, 90)  # until there is a file `go`
LIMITED = range(70, 80)  # as often as one run asks, the model says that it is too much
BROKE = range(60, 70)  # nothing is left to pay with
_SSHD = (
    "/usr/sbin/sshd -D -e -o UsePAM=no -o StrictModes=no -o PidFile=none -o HostKey=/shared/host_key -p 22"
    " -f /dev/null >/dev/null 2>&1 &"
)
_GATEWAY = (
    "mkdir -p /etc/gateway; cp /shared/gateway/* /etc/gateway; rm -r /shared/gateway;"
    " nginx -c /etc/gateway/nginx.conf &"
)
_CONDOR = r"""
set -eu
mkdir -p /etc/condor /var/lib/condor
cd /var/lib/condor; mkdir -p log lock run spool execute; chown condor: log lock run spool; chmod 1777 execute
{ cat /shared/condor.conf; echo "DAEMON_LIST = MASTER $1"; } >/etc/condor/condor_config
echo password-of-the-pool >/run/pool
condor_store_cred add -c -i /run/pool >/dev/null
condor_master
"""
real_client = clients.real_client


def _conversation(number: int) -> dict[str, Any]:
    work: dict[str, Any] = bash(f"echo {number} >number && git add . && git commit -qm 'Number {number}'")
    if number in WAITING:
        work["input"]["command"] = f"until [ -e go ]; do sleep 0.1; done; rm go; {work['input']['command']}"
    steps: list[dict[str, Any]] = [{"tools": [work]}, {"say": f"Wrote {number}."}]
    if number in LIMITED:
        steps[0]["error"] = {"status": 429, "times": 4}  # the client asks four times in one run
    if number in BROKE:
        steps[0]["error"] = {"status": 400, "message": "Your credit balance is too low"}
    return {"prompt": f"Write number {number}[.]", "steps": steps}


@pytest.fixture(scope="module")
def cluster(real_client: str) -> Iterator[Fleet]:
    """Start the gateway with the model behind it, and two nodes."""
    need(os.getuid() == 0, "root, for hosts in namespaces")
    need(os.path.exists(f"{LAYER}/usr/sbin/nginx"), f"daemons for a fleet in {LAYER}: run scripts/setup --test")
    base = tempfile.mkdtemp(prefix="claudebox-fleet-", dir="/var/tmp")
    os.chmod(base, 0o755)
    fleet = Fleet(base, f"{base}/layer")
    conversations = [_conversation(number) for number in range(90)]
    try:
        furnish(fleet, real_client)
        fleet.connect("gateway", *NODES)
        with Scripted({"conversations": conversations}, key=KEY, socket=f"{fleet.shared}/model.sock") as model:
            os.chmod(f"{fleet.shared}/model.sock", 0o777)  # the gateway's workers have an account of their own
            fleet.model = model
            fleet.start("gateway", f"{_GATEWAY} {_SSHD}")
            for name in NODES:
                fleet.start(name, _SSHD)
            for name, node in fleet.nodes.items():
                node.wait_for("bash", "-c", f": </dev/tcp/{name}/22")
            fleet.nodes["gateway"].wait_for("bash", "-c", ": </dev/tcp/gateway/8443")
            yield fleet
    finally:
        fleet.end()
        subprocess.run(["rm", "-rf", "--one-file-system", base], check=False)


@pytest.fixture(scope="module")
def slurm(cluster: Fleet) -> Fleet:
    """Start Slurm on the hosts: the controller beside the gateway, and a daemon on each node."""
    need(os.path.exists(f"{LAYER}/usr/sbin/slurmctld-wlm"), "Slurm")
    munge = "su -s /bin/sh munge -c /usr/sbin/munged"
    controller = "setsid su -s /bin/sh slurm -c 'exec slurmctld -D -i' >/shared/slurmctld.log 2>&1 &"
    daemon = "setsid slurmd -D >/shared/slurmd-$(hostname).log 2>&1 &"
    for name, node in cluster.nodes.items():
        node.sh(f"{munge}; {controller if name == 'gateway' else daemon}", account="root")
    cluster.nodes["gateway"].wait_for("sh", "-c", "sinfo -h -o %t | grep -qx idle && ! sinfo -h -o %t | grep -qvx idle")
    return cluster


@pytest.fixture(scope="module")
def condor(cluster: Fleet) -> Fleet:
    """Start HTCondor on the hosts: the queue and the matchmaker beside the gateway, and a daemon on each node."""
    need(os.path.exists(f"{LAYER}/opt/condor/bin/condor_master"), "HTCondor")
    for name, node in cluster.nodes.items():
        role = "COLLECTOR NEGOTIATOR SCHEDD" if name == "gateway" else "STARTD"
        started = node.run("sh", "-c", _CONDOR, "sh", role, account="root")
        assert started.returncode == 0, started.stderr
    cluster.nodes["gateway"].wait_for("sh", "-c", "[ $(condor_status -af Name | wc -l) = 2 ]", limit=60)
    return cluster
