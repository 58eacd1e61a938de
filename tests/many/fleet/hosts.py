"""A fleet in namespaces: a switch, and hosts that are overlays over this machine's root, with daemons unpacked."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import REPOSITORY, install_libraries
from tests.support.certificates import TestAuthority

if TYPE_CHECKING:
    from tests.support.scripted import Scripted

LAYER = "/var/cache/claudebox-tests/fleet"  # scripts/setup unpacks sshd, rsync, nginx, Slurm, HTCondor and podman there
IMAGE = "/var/cache/claudebox-tests/image.tar"  # and makes this, of what the Containerfile begins with
KEY = "sk-ant-api03-only-the-gateway-has-this-key-of-the-fleet"
EXAMPLES = REPOSITORY / "docs/examples/fleet"
USER = "agent"
_ENTER = r"""
set -eu
mount -t overlay overlay -o "lowerdir=/,upperdir=$BASE/upper,workdir=$BASE/work" "$BASE/merged"
cd "$BASE/merged"
hostname "$NODE"
mkdir -p proc sys dev tmp run old shared var/tmp etc/fleet
cp "$SHARED/hosts" etc/hosts
mount -t proc proc proc; mount --rbind /sys sys
mount -t tmpfs -o mode=755 tmpfs dev
for d in null zero full random urandom tty; do touch dev/$d; mount --bind /dev/$d dev/$d; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts; ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd; ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
mount -t tmpfs -o mode=1777 tmpfs dev/shm; mount -t tmpfs -o mode=755 tmpfs run; mount -t tmpfs -o mode=1777 tmpfs tmp
mount --bind "$SHARED" shared
mkdir -p run/sshd run/munge run/lock
pivot_root . old
umount -l /old
sed -i '/^\(agent\|sshd\|munge\|slurm\|condor\):/d' /etc/passwd /etc/shadow /etc/group
echo "agent:x:4711:4711::/home/agent:/bin/sh" >>/etc/passwd; echo "agent:*:19000:0:99999:7:::" >>/etc/shadow
echo "agent:x:4711:" >>/etc/group
n=4712; for u in sshd munge slurm condor; do
  echo "$u:x:$n:$n::/run:/bin/sh" >>/etc/passwd; echo "$u:*:19000:0:99999:7:::" >>/etc/shadow
  echo "$u:x:$n:" >>/etc/group
  n=$((n + 1)); done
rm -rf /home/agent; mkdir -p /home/agent/.ssh; cp /shared/ssh/* /home/agent/.ssh/
cp /shared/node/* /etc/fleet/; chown -R agent: /home/agent /etc/fleet
chmod 700 /home/agent/.ssh; chmod 600 /home/agent/.ssh/*
mkdir -p /etc/munge /var/lib/munge /var/log/munge /var/spool/slurmctld /var/spool/slurmd
cp /shared/munge.key /etc/munge/munge.key
chown -R munge: /etc/munge /var/lib/munge /var/log/munge /run/munge
chmod 400 /etc/munge/munge.key; chmod 700 /etc/munge
chown slurm: /var/spool/slurmctld
mkdir -p /etc/slurm; cp /shared/slurm.conf /etc/slurm/
for d in slurmctld slurmd slurmstepd; do [ ! -e /usr/sbin/$d-wlm ] || ln -sf $d-wlm /usr/sbin/$d; done
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb sh -c "$START"
"""


class Node:
    """One host of the fleet."""

    def __init__(self, fleet: Fleet, name: str, start: str) -> None:
        self.name, self._fleet = name, fleet
        self.base = f"{fleet.base}/{name}"
        for part in ("upper", "work", "merged"):
            os.makedirs(f"{self.base}/{part}")
        for layer in (LAYER, fleet.layer):  # layers beside the root would lie in it, which overlayfs refuses
            linked = subprocess.run(["cp", "-al", f"{layer}/.", f"{self.base}/upper"], check=False, capture_output=True)
            if linked.returncode:  # another file system
                subprocess.run(["cp", "-a", f"{layer}/.", f"{self.base}/upper"], check=True)
        self._variables = {
            **os.environ, "NODE": name, "BASE": self.base, "SHARED": fleet.shared,
            "START": f"{start}\nwhile :; do sleep 1000 & wait; done",
        }  # fmt: skip
        self._process = self._boot()

    def _boot(self) -> subprocess.Popen[bytes]:
        self._network("up")
        words = (
            "nsenter", f"--net=/run/netns/{self._fleet.namespace(self.name)}", "unshare", "--mount", "--pid", "--uts",
            "--ipc", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", _ENTER,
        )  # fmt: skip
        with open(f"{self._fleet.base}/{self.name}.log", "ab") as log:
            return subprocess.Popen(words, env=self._variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _network(self, state: str) -> None:
        subprocess.run(["ip", "-n", self._fleet.namespace(self.name), "link", "set", "eth0", state], check=True)

    def run(self, *words: str, account: str = USER, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a program on the node."""
        enter = ("nsenter", "--target", self._first(), "--mount", "--pid", "--uts", "--ipc", "--net", "--root", "--wd")
        switch = ("env", "-i", "PATH=/opt/condor/bin:/usr/local/bin:/usr/sbin:/usr/bin:/bin", "su", account, "-c")
        script = f"cd; HOME=$(getent passwd {account} | cut -d: -f6); export HOME; exec {shlex.join(words)}"
        return subprocess.run(
            [*enter, *switch, script], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=timeout,
            check=False,
        )  # fmt: skip

    def sh(self, script: str, *, account: str = USER, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a line of shell on the node, which must succeed."""
        done = self.run("sh", "-c", script, account=account, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr + self._fleet.logs()
        return done

    def _first(self) -> str:
        return Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()[0]

    def wait_for(self, *words: str, limit: float = 30) -> None:
        """Wait until a program succeeds there."""
        end = time.monotonic() + limit
        while True:
            with contextlib.suppress(IndexError, OSError):
                done = self.run(*words, account="root")
                if done.returncode == 0:
                    return
            assert time.monotonic() < end, done.stderr + self._fleet.logs()
            time.sleep(0.2)

    def kill(self) -> None:
        """Pull the plug: the network first, so that nothing says goodbye, then the first process."""
        self._network("down")
        self._process.kill()
        self._process.wait()

    def start_again(self) -> None:
        """Put the plug back in: the disk is as it was."""
        self._process = self._boot()


class Fleet:
    """Hosts on one switch, and a directory that they share."""

    model: Scripted  # behind the gateway

    def __init__(self, base: str, layer: str) -> None:
        self.base, self.layer = base, layer
        self.shared = f"{base}/shared"
        self.nodes: dict[str, Node] = {}
        self._prefix = f"cb{os.getpid()}"
        self._names: list[str] = []

    def namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def connect(self, *names: str) -> None:
        """Make the switch and a port for each host."""
        switch = self.namespace("switch")
        lines = [f"netns add {switch}", f"-n {switch} link add br0 type bridge", f"-n {switch} link set br0 up"]
        for number, name in enumerate(names, 1):
            own = self.namespace(name)
            lines += [
                f"netns add {own}", f"-n {own} link set lo up",
                f"link add eth0 netns {own} type veth peer name p{number} netns {switch}",
                f"-n {switch} link set p{number} master br0 up", f"-n {own} addr add 10.77.0.{number}/24 dev eth0",
                f"-n {own} link set eth0 up",
            ]  # fmt: skip
        for line in lines:
            subprocess.run(["ip", *line.split()], check=True)
            if line.startswith("netns add"):
                self._names.append(line.split()[-1])
        hosts = "".join(f"10.77.0.{number} {name}\n" for number, name in enumerate(names, 1))
        Path(self.shared, "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")

    def start(self, name: str, command: str) -> Node:
        self.nodes[name] = Node(self, name, command)
        return self.nodes[name]

    def logs(self) -> str:
        """Return what the daemons said last."""
        paths = [*Path(self.base).glob("*.log"), *Path(self.shared).glob("*.log")]
        return "".join(f"\n{path.name}:\n{path.read_text(errors='replace')[-1500:]}" for path in paths)

    def end(self) -> None:
        for node in self.nodes.values():
            node.kill()
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def furnish(fleet: Fleet, client: str) -> None:
    """Give the hosts claudebox, the client, keys for ssh, a certificate each, and a repository to work on."""
    shared = Path(fleet.shared)
    for part in ("ssh", "node", "gateway"):
        (shared / part).mkdir(parents=True)
    os.chmod(fleet.shared, 0o1777)
    install = [str(REPOSITORY / "scripts/install"), "--prefix", "/usr/local", "--without-libraries"]
    subprocess.run(install, env={**os.environ, "DESTDIR": fleet.layer}, check=True, stdout=subprocess.DEVNULL)
    library = f"{fleet.layer}/usr/local/lib/claudebox"
    install_libraries(f"{fleet.base}/libraries")
    shutil.copytree(f"{fleet.base}/libraries", library, dirs_exist_ok=True, symlinks=False)
    place = f"{fleet.layer}/usr/local/bin/claude"
    try:
        os.link(client, place)
    except OSError:
        shutil.copy2(client, place)
    authority, node_authority = TestAuthority("authority of gateways"), TestAuthority("authority of nodes")
    (shared / "gateway/nodes.pem").write_bytes(node_authority.certificate)
    pair = authority.issue(shared / "gateway/gateway.pem", "gateway")
    shutil.copy(pair, shared / "gateway/gateway.key")
    (shared / "gateway/key.conf").write_text(f'proxy_set_header x-api-key "{KEY}";\n')
    (shared / "gateway/upstream.conf").write_text("proxy_pass http://unix:/shared/model.sock;\n")
    shutil.copy(EXAMPLES / "gateway/nginx.conf", shared / "gateway/nginx.conf")
    (shared / "node/ca.pem").write_bytes(authority.certificate)
    pair = node_authority.issue(shared / "node/node.pem", "node")
    shutil.copy(pair, shared / "node/node.key")
    shutil.copy(EXAMPLES / "node.env", shared / "node/node.env")
    ssh_keygen = shutil.which("ssh-keygen") or f"{LAYER}/usr/bin/ssh-keygen"
    for name in ("ssh/id_ed25519", "host_key"):
        subprocess.run([ssh_keygen, "-q", "-t", "ed25519", "-N", "", "-f", shared / name], check=True)
    shutil.copy(shared / "ssh/id_ed25519.pub", shared / "ssh/authorized_keys")
    (shared / "ssh/config").write_text("StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n")
    for name in ("slurm.conf", "condor.conf"):
        shutil.copy(Path(__file__).parent / name, shared)
    (shared / "munge.key").write_bytes(os.urandom(128))
    repository = shared / "repo"
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run([*git, "init", "-q", "-b", "main", repository], check=True)
    subprocess.run([*git, "-C", repository, "commit", "-q", "--allow-empty", "-m", "Begin"], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", repository, shared / "repo.git"], check=True)
    subprocess.run(["chown", "-R", "4711:4711", shared / "repo.git"], check=True)
