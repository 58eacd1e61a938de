"""Real engines, real hosts out of namespaces, the real client, one key at a gateway."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.conftest import REPOSITORY, need
from tests.many.fleet.conftest import NODES
from tests.many.fleet.hosts import EXAMPLES, IMAGE, KEY, LAYER

pytestmark = pytest.mark.slow

SCRATCH = "/var/tmp/claudebox-task-*"
GO = f"for each in {SCRATCH}/work; do touch $each/go; done"


def _work(cluster, name: str, example: str, *numbers: int, **keys: object) -> Path:
    """Return a directory of the submitter with task files and the example."""
    work = Path(cluster.shared, name)
    for part in ("tasks", "log", "results"):
        (work / part).mkdir(parents=True)
    for number in numbers:
        task = {"id": f"t{number}", "repo": "/shared/repo.git", "prompt": f"Write number {number}.", **keys}
        (work / f"tasks/t{number}.json").write_text(json.dumps(task))
    shutil.copy(EXAMPLES / example, work)
    subprocess.run(["chown", "-R", "4711:4711", work], check=True)
    return work


def _result(work: Path, number: int) -> Any:
    return json.loads((work / f"results/t{number}/result.json").read_text())


def _check(work: Path, *numbers: int) -> set[str]:
    """See that every result is whole and right; return the hosts that did the work."""
    hosts = set()
    for number in numbers:
        place = work / f"results/t{number}"
        result = _result(work, number)
        assert (result["status"], result["said"]) == ("done", f"Wrote {number}."), result
        assert f"+{number}\n" in (place / "work.patch").read_text()
        assert KEY.encode() not in b"".join(path.read_bytes() for path in place.iterdir())
        hosts.add(result["host"])
    return hosts


def _wait_for_agent(cluster, number: int, times: int = 1) -> None:
    """Wait until the model has had an agent begin with a task, so many times."""
    limit = time.monotonic() + 60
    while sum(answer["prompt"] == f"Write number {number}." for answer in cluster.model.answers) < times:
        assert time.monotonic() < limit, cluster.logs()
        time.sleep(0.1)


def _nothing_runs(cluster) -> None:
    for name in NODES:
        cluster.nodes[name].wait_for("sh", "-c", "! ps -u agent -o stat=,args= >&2")


def test_parallel_over_ssh_spreads_tasks_and_brings_results_back(cluster):
    # proves FLEET-05
    work = _work(cluster, "over-ssh", "parallel-ssh", 0, 1, 2, 3)
    cluster.nodes["gateway"].sh("cd /shared/over-ssh && ./parallel-ssh 1/one,1/two results tasks/*.json", timeout=180)

    assert _check(work, 0, 1, 2, 3) == {"one", "two"}


def test_a_task_of_a_host_that_is_switched_off_in_the_midst_is_done_on_another(cluster):
    # proves FLEET-05, FLEET-01
    work = _work(cluster, "dying", "parallel-ssh", 81)
    quickly = "PARALLEL_SSH='ssh -o ConnectTimeout=2 -o ServerAliveInterval=1 -o ServerAliveCountMax=2'"
    command = f"cd /shared/dying && {quickly} ./parallel-ssh 1/one,1/two results tasks/*.json"
    with ThreadPoolExecutor() as threads:
        running = threads.submit(cluster.nodes["gateway"].run, "sh", "-c", command, timeout=180)
        _wait_for_agent(cluster, 81)
        nodes = [cluster.nodes[name] for name in NODES]
        dead, other = sorted(nodes, key=lambda node: node.run("sh", "-c", f"ls -d {SCRATCH}").returncode)
        dead.kill()
        assert not (work / "results/t81").exists(), "half a result"
        _wait_for_agent(cluster, 81, times=2)
        other.sh(GO)
        done = running.result()
    dead.start_again()

    assert done.returncode == 0, done.stdout + done.stderr
    assert _check(work, 81) == {other.name}
    dead.wait_for("bash", "-c", f": </dev/tcp/{dead.name}/22")
    dead.sh(f"ls -d {SCRATCH}")  # was left there, and goes with the next task, whatever becomes of that
    refused = {"id": "refused", "repo": "/nowhere", "prompt": "Nothing."}
    (work / "refused.json").write_text(json.dumps(refused))
    assert dead.run("claudebox", "task", "/shared/dying/refused.json", "--result", "refused").returncode == 75
    assert dead.run("sh", "-c", f"ls -d {SCRATCH}").returncode, "nobody removed it"


def test_the_key_is_on_no_node_and_the_gateway_wants_a_certificate(cluster):
    # proves FLEET-06
    grep = ("grep", "-rlF", "--exclude-dir=opt", "--exclude-dir=usr", KEY)
    found = {name: subprocess.run([*grep, f"{node.base}/upper"], capture_output=True, check=False).stdout
             for name, node in cluster.nodes.items()}  # fmt: skip
    assert b"key.conf" in found.pop("gateway"), "the control"
    assert found == dict.fromkeys(NODES, b"")
    curl = ("curl", "-sS", "--cacert", "/etc/fleet/ca.pem", "-o", "/dev/null", "-w", "%{http_code}")
    node = cluster.nodes["one"]
    stranger = node.run(*curl, "https://gateway:8443/v1/models")
    assert stranger.stdout == "400", stranger.stderr + cluster.logs()
    proof = ("--cert", "/etc/fleet/node.pem", "--key", "/etc/fleet/node.key")
    assert node.run(*curl, *proof, "https://gateway:8443/v1/organizations").stdout == "403"
    assert node.run(*curl, *proof, "https://gateway:8443/api/hello").stdout == "200"


def test_slurm_runs_an_array_and_stores_no_environment(slurm):
    # proves FLEET-05, FLEET-02
    work = _work(slurm, "slurm", "slurm.sbatch", 6, 7, 60)
    submit = "cd /shared/slurm && CANARY=of-the-submitter sbatch --array=1-3 --parsable"
    done = slurm.nodes["gateway"].run("sh", "-c", f"{submit} --wait slurm.sbatch", timeout=180)

    assert done.returncode == 1, done.stdout + done.stderr + slurm.logs()  # the highest of all statuses
    _check(work, 6, 7)
    assert _result(work, 60)["retry"] is False
    spool = f"{slurm.nodes['gateway'].base}/upper/var/spool/slurmctld"
    found = subprocess.run(["grep", "-rl", "of-the-submitter", spool], capture_output=True, check=False)
    assert found.stdout == b"", "the submitter's environment is on the controller's disk"


def test_slurm_cancels_a_task_and_nothing_stays(slurm):
    # proves FLEET-02
    work = _work(slurm, "slurm-cancelled", "slurm.sbatch", 82)
    controller = slurm.nodes["gateway"]
    job = controller.sh("cd /shared/slurm-cancelled && sbatch --array=1 --parsable slurm.sbatch").stdout.strip()
    _wait_for_agent(slurm, 82)
    controller.sh(f"scancel {job}")
    controller.wait_for("test", "-e", "/shared/slurm-cancelled/results/t82/result.json")

    assert _result(work, 82)["status"] == "cancelled", slurm.logs()
    assert (work / "results/t82/transcript.jsonl").exists()
    _nothing_runs(slurm)


def test_condor_runs_tasks_copies_results_and_stores_no_environment(condor):
    # proves FLEET-05, FLEET-02
    work = _work(condor, "condor", "condor.sub", 10, 11, 70, 60)
    submit = "cd /shared/condor && CANARY=of-the-submitter condor_submit condor.sub"
    condor.nodes["gateway"].sh(f"{submit} && condor_wait -wait 90 log/fleet.log", timeout=120)

    _check(work, 10, 11, 70)
    events = (work / "log/fleet.log").read_text()
    assert events.count("Job executing on host") == 5, "the one that was refused twice, all others once: " + events
    assert _result(work, 60)["retry"] is False
    spool = f"{condor.nodes['gateway'].base}/upper/var/lib/condor/spool"
    found = subprocess.run(["grep", "-rl", "of-the-submitter", spool], capture_output=True, check=False)
    assert found.stdout == b"", "the submitter's environment is on the controller's disk"
    assert subprocess.run(["grep", "-rq", "t10.json", spool], check=False).returncode == 0, "the control"


def test_condor_cancels_a_task_and_nothing_stays(condor):
    # proves FLEET-02
    work = _work(condor, "condor-cancelled", "condor.sub", 80)
    controller = condor.nodes["gateway"]
    controller.sh("cd /shared/condor-cancelled && condor_submit condor.sub")
    _wait_for_agent(condor, 80)
    controller.sh("condor_rm agent")
    controller.wait_for("sh", "-c", '[ -z "$(condor_q -allusers -af ClusterId)" ]')

    _nothing_runs(condor)
    assert json.loads((work / "log/t80.out").read_text())["status"] == "cancelled"
    assert list((work / "results").iterdir()) == []


def test_a_job_of_kubernetes_runs_in_the_shipped_image(cluster):
    # proves FLEET-05, HOST-13
    need(os.path.exists(f"{LAYER}/opt/podman/bin/netavark") and os.path.exists(IMAGE), "podman 5 and a base for images")
    place = Path(cluster.shared, "podman")
    (place / "context").mkdir(parents=True)
    files = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    copy = ("cp", "--parents", "--no-dereference", "--target-directory", str(place / "context"))
    subprocess.run(["xargs", "-0", *copy], input=files, cwd=REPOSITORY, check=True)
    task = {"id": "fix-typo-17", "repo": "git://gateway/repo.git", "prompt": "Write number 20."}
    pairs = {name: Path(cluster.shared, "node", name).read_bytes() for name in ("ca.pem", "node.pem", "node.key")}
    _document(place / "task.yaml", "ConfigMap", "fix-typo-17", {"task.json": json.dumps(task)})
    _document(place / "secret.yaml", "Secret", "fleet-node", {n: b64encode(p).decode() for n, p in pairs.items()})
    shutil.copy(EXAMPLES / "job.yaml", place)
    shutil.copy(Path(__file__).parent / "podman.sh", place)
    _link(IMAGE, place / "image.tar")
    cluster.nodes["gateway"].sh("git daemon --base-path=/shared --export-all --detach /shared/repo.git")
    script = "exec unshare --mount --propagation private sh /shared/podman/podman.sh /shared/podman/image.tar"
    done = cluster.nodes["one"].sh(f"cd /shared/podman/context && {script}", account="root", timeout=240)

    printed = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    result = place / "root/volumes/results/_data/fix-typo-17"
    assert json.loads((result / "result.json").read_text()) == printed
    assert (printed["status"], printed["said"], printed["host"]) == ("done", "Wrote 20.", "fix-typo-17-pod")
    assert "+20\n" in (result / "work.patch").read_text()


def _link(source: str, target: Path) -> None:
    """Link a large file, or copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def _document(path: Path, kind: str, name: str, data: dict[str, str]) -> None:
    path.write_text(json.dumps({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "data": data}))


@pytest.mark.parametrize("folder", ["containers", "fleet"])
def test_a_job_keeps_to_the_strict_schema(folder):
    # proves FLEET-05
    document = yaml.safe_load((EXAMPLES.parent / folder / "job.yaml").read_text())
    for version in ("1.33", "1.37"):
        kubernetes_validate.validate(document, version, strict=True)
    document["spec"]["template"]["spec"]["hostUser"] = False
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, "1.33", strict=True)
