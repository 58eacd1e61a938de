"""Real engines, real hosts out of namespaces, the real client, one key at a gateway."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.client.conftest import bash
from tests.conftest import need
from tests.fleet.conftest import EXAMPLES, KEY, LAYER

from claudebox.demo.model_process import ModelProcess

SSHD = (
    "/usr/sbin/sshd -D -e -o UsePAM=no -o StrictModes=no -o PidFile=none -o HostKey=/shared/host_key -p 22"
    " -f /dev/null >/dev/null 2>&1 &"
)
GATEWAY = (
    "mkdir -p /etc/gateway; cp /shared/gateway/* /etc/gateway; rm -r /shared/gateway;"
    " nginx -c /etc/gateway/nginx.conf &"
)


def _conversation(number: int) -> dict[str, object]:
    if number == 8:  # cancelled meanwhile
        return {"prompt": "Write number 8.", "steps": [{"tools": [bash("sleep 300")]}, {"say": "never"}]}
    steps = [{"tools": [bash(f"echo {number} >number && git add . && git commit -qm 'Number {number}'")]}]
    return {"prompt": f"Write number {number}.", "steps": [*steps, {"say": f"Wrote {number}."}]}


@pytest.fixture(scope="module")
def cluster(fleet):
    """Start a controller with the gateway, two nodes, and the model behind the gateway."""
    fleet.connect("gateway", "one", "two")
    with ModelProcess(
        {"conversations": [_conversation(number) for number in range(12)]}, key=KEY, socket=f"{fleet.shared}/model.sock"
    ) as model:
        os.chmod(f"{fleet.shared}/model.sock", 0o777)  # the gateway's workers have an account of their own
        fleet.start("gateway", f"{GATEWAY} {SSHD}")
        for name in ("one", "two"):
            fleet.start(name, SSHD)
        for name in ("gateway", "one", "two"):
            fleet.nodes[name].wait_for("bash", "-c", f": </dev/tcp/{name}/22")
        fleet.nodes["gateway"].wait_for("bash", "-c", ": </dev/tcp/gateway/8443")
        fleet.model = model
        yield fleet


def _tasks(directory: Path, *numbers: int, **keys: object) -> None:
    directory.mkdir()
    for number in numbers:
        task = {"id": f"t{number}", "repo": "/shared/repo.git", "prompt": f"Write number {number}.", **keys}
        (directory / f"t{number}.json").write_text(json.dumps(task))
    subprocess.run(["chown", "-R", "4711:4711", directory], check=True)


def _check(results: Path, *numbers: int) -> set[str]:
    """See that every result is whole and right; return the hosts that did the work."""
    hosts = set()
    for number in numbers:
        place = results / f"t{number}"
        result = json.loads((place / "result.json").read_text())
        assert (result["status"], result["said"]) == ("done", f"Wrote {number}."), result
        assert f"+{number}\n" in (place / "work.patch").read_text()
        assert KEY.encode() not in b"".join(path.read_bytes() for path in place.iterdir())
        hosts.add(result["host"])
    return hosts


def test_parallel_over_ssh_spreads_tasks_and_brings_results_back(cluster):
    # proves FLEET-05
    work = Path(cluster.shared, "ssh-work")
    work.mkdir()
    _tasks(work / "tasks", 0, 1, 2, 3)
    shutil.copy(EXAMPLES / "parallel-ssh", work)
    subprocess.run(["chown", "-R", "4711:4711", work], check=True)
    command = "cd /shared/ssh-work && ./parallel-ssh 1/one,1/two results tasks/*.json"
    done = cluster.nodes["gateway"].run("sh", "-c", command, timeout=180)

    assert done.returncode == 0, done.stdout + done.stderr
    assert _check(work / "results", 0, 1, 2, 3) == {"one", "two"}


def test_a_task_of_a_host_that_dies_is_done_on_another(cluster):
    # proves FLEET-05
    work = Path(cluster.shared, "dying")
    work.mkdir()
    _tasks(work / "tasks", 4, 5)
    shutil.copy(EXAMPLES / "parallel-ssh", work)
    subprocess.run(["chown", "-R", "4711:4711", work], check=True)
    command = "cd /shared/dying && ./parallel-ssh 1/one,1/nobody results tasks/*.json"
    done = cluster.nodes["gateway"].run("sh", "-c", command, timeout=180)

    assert done.returncode == 0, done.stdout + done.stderr
    assert _check(work / "results", 4, 5) == {"one"}


def test_the_key_is_on_no_node_and_the_gateway_wants_a_certificate(cluster):
    # proves FLEET-06
    for name in ("one", "two"):
        found = subprocess.run(
            ["grep", "-rlF", KEY, f"{cluster.nodes[name].base}/upper"], capture_output=True, check=False
        )
        assert found.stdout == b"", f"{name} has the key"
    control = subprocess.run(
        ["grep", "-rlF", KEY, f"{cluster.nodes['gateway'].base}/upper"], capture_output=True, check=False
    )
    assert b"key.conf" in control.stdout
    curl = ("curl", "-sS", "--cacert", "/etc/fleet/ca.pem", "-o", "/dev/null", "-w", "%{http_code}")
    node = cluster.nodes["one"]
    stranger = node.run(*curl, "https://gateway:8443/v1/models")
    assert stranger.stdout == "400", stranger.stderr + cluster.logs()
    proof = ("--cert", "/etc/fleet/node.pem", "--key", "/etc/fleet/node.key")
    assert node.run(*curl, *proof, "https://gateway:8443/v1/organizations").stdout == "403"
    assert node.run(*curl, *proof, "https://gateway:8443/api/hello").stdout != "400"


@pytest.fixture(scope="module")
def slurm(cluster):
    """Start Slurm on the hosts: the controller beside the gateway, and a daemon on each node."""
    need(os.path.exists(f"{LAYER}/usr/sbin/slurmctld-wlm"), "Slurm")
    munge = "su -s /bin/sh munge -c /usr/sbin/munged"
    controller = "setsid su -s /bin/sh slurm -c 'exec slurmctld -D -i' >/shared/slurmctld.log 2>&1 &"
    daemon = "setsid slurmd -D >/shared/slurmd-$(hostname).log 2>&1 &"
    for name, start in (("gateway", controller), ("one", daemon), ("two", daemon)):
        started = cluster.nodes[name].run("sh", "-c", f"{munge}; {start}", account="root")
        assert started.returncode == 0, started.stderr
    cluster.nodes["gateway"].wait_for("sh", "-c", "sinfo -h -o %t | grep -qx idle && ! sinfo -h -o %t | grep -qvx idle")
    return cluster


def _submit(cluster, name: str, *numbers: int, **keys: object) -> tuple[Path, str]:
    work = Path(cluster.shared, name)
    for part in ("log", "results"):
        (work / part).mkdir(parents=True)
    _tasks(work / "tasks", *numbers, **keys)
    shutil.copy(EXAMPLES / "slurm.sbatch", work)
    subprocess.run(["chown", "-R", "4711:4711", work], check=True)
    return work, f"cd /shared/{name} && CANARY=of-the-submitter sbatch --array=1-{len(numbers)} --parsable"


def test_slurm_runs_an_array_and_stores_no_environment(slurm):
    # proves FLEET-05
    work, submit = _submit(slurm, "slurm-work", 6, 7)
    done = slurm.nodes["gateway"].run("sh", "-c", f"{submit} --wait slurm.sbatch", timeout=180)

    assert done.returncode == 0, done.stdout + done.stderr + slurm.logs()
    _check(work / "results", 6, 7)
    spool = f"{slurm.nodes['gateway'].base}/upper/var/spool/slurmctld"
    found = subprocess.run(["grep", "-rl", "of-the-submitter", spool], capture_output=True, check=False)
    assert found.stdout == b"", "the submitter's environment is on the controller's disk"


def test_slurm_cancels_a_task_and_nothing_stays(slurm):
    # proves FLEET-02
    work, submit = _submit(slurm, "slurm-cancelled", 8)
    controller = slurm.nodes["gateway"]
    job = controller.run("sh", "-c", f"{submit} slurm.sbatch").stdout.strip()
    assert job.isdigit()
    served = len(slurm.model.requests)
    limit = time.monotonic() + 60
    while len(slurm.model.requests) == served and time.monotonic() < limit:
        time.sleep(0.1)
    assert controller.run("scancel", job).returncode == 0
    result = work / "results/t8/result.json"
    while not result.exists() and time.monotonic() < limit:
        time.sleep(0.2)

    assert json.loads(result.read_text())["status"] == "cancelled", slurm.logs()
    for name in ("one", "two"):
        slurm.nodes[name].wait_for("sh", "-c", "! ps -u agent -o stat=,args= >&2")
