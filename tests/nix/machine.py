"""A machine with /nix at its own place, in a mount namespace: with an ordinary /usr, or without one as NixOS."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.conftest import Account
    from tests.nix.daemon import Daemon

_ENTER = Path(__file__).with_name("enter.py")
# Becomes the first process of the namespace; what it prints says that all is mounted.
_BUILD = """
set -eu
view=$1 nix=$2 socket=$3 busybox=$4; shift 4
mount -t tmpfs tmpfs "$view"
chmod 755 "$view"
mkdir "$view/nix"
mount --bind "$nix" "$view/nix"
mkdir -p "$view/nix/var/nix/daemon-socket"
mount --bind "$socket" "$view/nix/var/nix/daemon-socket"
for directory in "$@"; do
  mkdir -p "$view${directory#*=}"
  mount --rbind "${directory%%=*}" "$view${directory#*=}"
done
for link in bin lib lib64 sbin; do
  case " $* " in *" /usr=/usr "*) cp -a "/$link" "$view/$link" ;; esac
done
[ ! -d "$view/skeleton" ] || cp -a "$view/skeleton/." "$view"
cd "$view"
hash -r
pivot_root . .
$busybox umount -l . # of the store: nothing else need be here any more
echo ready
exec $busybox cat
"""
_ORDINARY = ("/usr", "/etc", "/var", "/opt", "/home", "/root", "/run", "/srv", "/mnt")
_EVERYWHERE = ("/proc", "/dev", "/sys", "/tmp")


class Machine:
    """A mount namespace in which the store of a daemon is /nix/store, and its socket is where clients look for it."""

    def __init__(self, daemon: Daemon, packages: dict[str, str] | None = None) -> None:
        """Build it with the /usr of this machine, or, with packages, out of nothing but those."""
        self.daemon = daemon
        self.usr = packages is None
        view = f"{daemon.base}/view"
        os.makedirs(view, exist_ok=True)
        rows = [f"{path}={path}" for path in (*_EVERYWHERE, *(_ORDINARY if self.usr else ())) if os.path.isdir(path)]
        if packages is not None:
            rows.append(f"{self._skeleton(packages)}=/skeleton")
        words = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _BUILD, "sh"]
        self._holder = subprocess.Popen(
            [*words, view, f"{daemon.base}/root/nix", f"{daemon.base}/socket", f"{daemon.seed}/busybox", *rows],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"

    def _skeleton(self, packages: dict[str, str]) -> str:
        """Write what NixOS has besides the store: /etc, /run/current-system, /bin/sh and /usr/bin/env."""
        base = f"{self.daemon.base}/skeleton"
        shutil.rmtree(base, ignore_errors=True)
        for directory in ("bin", "etc/ssl/certs", "home", "root", "run/current-system/sw/bin", "usr/bin", "var"):
            os.makedirs(f"{base}/{directory}")
        for name in ("passwd", "group", "hosts", "resolv.conf", "protocols", "services"):
            if os.path.exists(f"/etc/{name}"):
                shutil.copy(f"/etc/{name}", f"{base}/etc/{name}")
        self._certificates(base)
        bash = self.daemon.build("bash")
        os.symlink(f"{bash}/bin/sh", f"{base}/bin/sh")
        os.symlink(f"{packages['coreutils']}/bin/env", f"{base}/usr/bin/env")
        for package in (*packages.values(), bash):
            programs = self.daemon.real(f"{package}/bin")
            for name in os.listdir(programs) if os.path.isdir(programs) else ():
                link = f"{base}/run/current-system/sw/bin/{name}"
                if not os.path.lexists(link):
                    os.symlink(f"{package}/bin/{name}", link)
        return base

    def _certificates(self, base: str) -> None:
        """Make directories of /etc whose files are links to links into the store."""
        os.makedirs(f"{base}/static/ssl/certs")
        bundle = "/etc/ssl/certs/ca-certificates.crt"
        if os.path.exists(bundle):
            shutil.copy(bundle, f"{base}/static/ssl/certs/ca-certificates.crt")
        os.symlink(self.daemon.add(f"{base}/static", "etc"), f"{base}/etc/static")
        for name in ("ca-bundle.crt", "ca-certificates.crt"):
            os.symlink("/etc/static/ssl/certs/ca-certificates.crt", f"{base}/etc/ssl/certs/{name}")
        shutil.rmtree(f"{base}/static")

    @property
    def search_path(self) -> str:
        return "/usr/local/bin:/usr/bin:/bin" if self.usr else "/run/current-system/sw/bin"

    def enter(self, account: Account, directory: str = "/") -> Sequence[str]:
        """Return the words that run a program on this machine."""
        holder = str(self._holder.pid)
        return ("/usr/bin/python3", "-IS", str(_ENTER), holder, str(account.uid), str(account.gid), directory)

    def remove(self) -> None:
        self._holder.kill()
        self._holder.communicate()
