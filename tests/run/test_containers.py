"""claudebox inside containers: real ones of podman over a layer of this machine, and what it says of the others."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY, need
from tests.support.sandbox import PYTHON

from claudebox.host import remedies

EXAMPLES = REPOSITORY / "docs/examples/containers"
UNMASK = ("--security-opt", "unmask=ALL")
OURS = ("--security-opt", f"seccomp={EXAMPLES / 'seccomp.json'}")
LEAST = ("--cap-drop=ALL", "--security-opt", "no-new-privileges")
# As docker's own filter does: no namespaces for anybody.
NO_NAMESPACES = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [
        {"names": ["unshare", "mount", "pivot_root", "setns"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
        {"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1,
         "args": [{"index": 0, "value": 0x10000000, "valueTwo": 0x10000000, "op": "SCMP_CMP_MASKED_EQ"}]},
    ],
}  # fmt: skip
DIRECTORIES = ("home", "project")
INSIDE = "echo ran as $(id -u) in $(hostname)"


class Podman:
    """Runs claudebox in containers whose root is a layer over this machine: no image, nothing is left."""

    def __init__(self, base: str, checkout: str) -> None:
        self.base, self.program = base, f"{checkout}/bin/claudebox"
        for name, uid in (
            ("root", 0),
            ("run", 0),
            *((f"{name}-{uid}", uid) for name in DIRECTORIES for uid in (0, 1000)),
        ):
            os.makedirs(f"{base}/{name}")
            os.chown(f"{base}/{name}", uid, uid)
        Path(base, "storage.conf").write_text(
            f'[storage]\ndriver="vfs"\nrunroot="{base}/run"\ngraphroot="{base}/root"\n'
        )

    def run(
        self, *flags: str, command: tuple[str, ...] = (), uid: int = 1000, program: str = ""
    ) -> subprocess.CompletedProcess[str]:
        # A machine with the first version of cgroups would do for nobody; an empty hierarchy of the second does.
        mounted = 'mount -t cgroup2 none /sys/fs/cgroup; exec podman --cgroup-manager cgroupfs --runtime crun "$@"'
        words = (
            "run", "--rm", "--cgroups=disabled", "--network=none", "--log-driver=none", *flags, f"--user={uid}:{uid}",
            "--env", f"HOME={self.base}/home-{uid}", "-w", f"{self.base}/project-{uid}",
            "-v", f"{self.base}:{self.base}", "--rootfs", "/:O", program or self.program,
            *(command or ("-y", "--network", "none", "--exec", "--", "sh", "-c", INSIDE)),
        )  # fmt: skip
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CONTAINERS_STORAGE_CONF": f"{self.base}/storage.conf"}
        return subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-ec", mounted, "sh", *words],
            env=environ, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def podman(checkout):
    need(os.getuid() == 0, "privileges of root")
    need(shutil.which("podman") and shutil.which("crun"), "podman and crun")
    with tempfile.TemporaryDirectory(prefix="claudebox-podman-", ignore_cleanup_errors=True) as base:
        os.chmod(base, 0o755)
        made = Podman(base, checkout)
        control = made.run(*UNMASK, "--security-opt", "seccomp=unconfined")
        need(control.returncode == 0, f"podman that runs containers: {control.stderr[-300:]}")
        yield made


# Root needs CAP_SETFCAP to map itself, which engines give by default; a user needs nothing.
@pytest.mark.parametrize(("uid", "flags"), [(0, ()), (1000, LEAST)])
def test_podman_needs_one_flag_and_the_error_names_it(podman, uid, flags):
    # proves HOST-13
    refused = podman.run(*flags, uid=uid)
    assert refused.returncode == 125
    assert "error: /proc " in refused.stderr  # where it cannot be written, or not be mounted
    assert "start this container (podman) with `--security-opt unmask=ALL`;" in refused.stderr
    started = podman.run(*flags, *UNMASK, uid=uid)

    assert started.returncode == 0, started.stderr
    assert started.stdout.startswith(f"ran as {uid} in ")
    # podman's own filter forbids to set a host name: that is no reason not to start.
    assert not started.stdout.endswith("claudebox\n")
    assert "the name of this machine is visible inside" in started.stderr


@pytest.mark.parametrize(("uid", "flags"), [(0, ()), (1000, LEAST)])
def test_the_shipped_filter_permits_a_sandbox_with_a_name_of_its_own(podman, uid, flags):
    # proves HOST-13
    started = podman.run(*flags, *UNMASK, *OURS, uid=uid)

    assert (started.returncode, started.stdout) == (0, f"ran as {uid} in claudebox\n"), started.stderr
    assert "the name of this machine" not in started.stderr


def test_the_containerfile_installs_claudebox_for_its_user(podman):
    # proves HOST-13
    text = (EXAMPLES / "Containerfile").read_text().replace("\\\n", "")
    (install,) = re.findall(r"^RUN (.*scripts/install.*)$", text, re.MULTILINE)
    assert "USER agent" in text
    script = (
        f"cp -r /checkout /tmp/claudebox && {install} && cd /home/agent && mkdir project && chown agent project && "
        "cd project && exec setpriv --reuid=agent --regid=agent --clear-groups --inh-caps=-all "
        f"env HOME=/home/agent claudebox -y --network none --exec -- sh -c '{INSIDE}'"
    )
    flags = (*UNMASK, *OURS, "-v", f"{REPOSITORY}:/checkout:ro")
    result = podman.run(*flags, command=("-ec", script), uid=0, program="/bin/sh")

    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"ran as [1-9]\d* in claudebox\n", result.stdout.splitlines(keepends=True)[-1])


def test_a_filter_that_forbids_namespaces_is_named(podman):
    # proves HOST-13
    path = Path(podman.base, "like-docker.json")
    path.write_text(json.dumps(NO_NAMESPACES))
    refused = podman.run("--security-opt", f"seccomp={path}")

    assert refused.returncode == 125
    assert "the user namespace could not be made" in refused.stderr
    assert "`--security-opt seccomp=seccomp.json`" in refused.stderr
    assert "and `--security-opt unmask=ALL`" in refused.stderr  # which would come next


def test_check_says_that_it_is_in_a_container(podman):
    # proves HOST-13, HOST-10
    Path(podman.base, "bin").mkdir()
    client = Path(podman.base, "bin/claude")
    client.write_text("#!/bin/sh\n")
    client.chmod(0o755)
    flags = (*LEAST, *UNMASK, "--env", f"PATH={podman.base}/bin:/usr/bin:/bin")
    check = podman.run(*flags, command=("--check", "--json", "--network", "none"))
    findings = {row["name"]: row for row in json.loads(check.stdout)["findings"]}
    assert check.returncode == 0, check.stdout
    assert findings["container"]["detail"] == "running in podman; system calls are filtered"
    assert podman.run(*LEAST, command=("--check", "--network", "none")).returncode == 1


@pytest.mark.root
@pytest.mark.parametrize("what", ["true", "kill -9 -1", "(sleep 100 &) ; true"])
def test_nothing_dead_is_left_to_a_first_process_that_reaps_nobody(user_box, what):
    # proves HOST-13, E12
    first = user_box.write(
        f"{user_box.base}/first.py",
        "import os, sys\n"
        "child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)\n"
        "os.waitpid(child, 0)\n"
        "print(sorted(open(f'/proc/{name}/comm').read() for name in os.listdir('/proc') if name.isdigit()))\n",
    )
    words = (user_box.program, "-y", "--exec", "--", "sh", "-c", what)
    result = user_box.host(
        "unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", PYTHON, first, *words
    )

    assert result.stdout == "['python3\\n']\n", result.stderr


def test_the_filter_is_what_it_says():
    # proves HOST-13
    document = json.loads((EXAMPLES / "seccomp.json").read_text())
    rules = document["syscalls"]
    allowed = {
        name for rule in rules if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule for name in rule["names"]
    }
    needed = (
        "clone clone3 unshare setns mount umount2 pivot_root sethostname seccomp prctl landlock_restrict_self "
        "memfd_create pidfd_open ptrace prlimit64 close_range"
    )
    refused = (
        "bpf kexec_load init_module finit_module delete_module reboot settimeofday keyctl add_key request_key syslog "
        "acct perf_event_open open_by_handle_at io_uring_setup userfaultfd swapon clock_settime iopl ioperm"
    )

    assert document["defaultAction"] == "SCMP_ACT_ERRNO"
    assert set(needed.split()) <= allowed
    assert not set(refused.split()) & allowed


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("podman", ["unmask=ALL", "seccomp=seccomp.json", "apparmor=unconfined"]),
        ("docker", ["systempaths=unconfined", "seccomp=seccomp.json", "apparmor=unconfined"]),
        ("kubernetes", ["procMount: Unmasked", "hostUsers: false", "Localhost", "appArmorProfile"]),
        ("lxc", ["security.nesting=true", "lxc.apparmor.profile"]),
        ("container", ["unmask=ALL", "systempaths=unconfined", "outside of it"]),
        ("", ["unmask=ALL", "systempaths=unconfined", "outside of it"]),
    ],
)
def test_every_engine_has_its_remedy(monkeypatch, kind, words):
    # proves HOST-13
    monkeypatch.setattr(remedies, "find_container", lambda: kind)
    monkeypatch.setattr(remedies, "find_lacks", lambda: ("unmask", "permit", "unconfine"))
    symptoms = ["pivot_root: Operation not permitted", "Creating new namespace failed: Operation not permitted"]
    for said in symptoms if kind else symptoms[:1]:
        hint = remedies.explain(f"bwrap: {said}").hint
        assert [word for word in words if word not in hint] == []
    mounting = remedies.explain("bwrap: Can't mount proc on /newroot/proc: Operation not permitted").hint
    assert words[0] in mounting


def test_the_documented_flags_are_those_that_are_named_and_tried():
    # proves HOST-13
    text = (REPOSITORY / "docs/platforms.md").read_text()
    for kind in ("podman", "docker", "kubernetes", "lxc"):
        for word in re.findall(r"`([^`]+)`", remedies.describe_container_remedy(kind, "unmask")):
            assert word in text
    assert "procMount: Unmasked" in (EXAMPLES / "job.yaml").read_text()
