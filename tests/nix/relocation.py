"""Debian's own programs as packages of a store: each names its loader and libraries there, as those of nixpkgs do.

So a machine without /usr can be built where no binary cache can be reached, and its programs are real ones.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import need

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.nix.daemon import Daemon

# Which programs a package has; those that this machine lacks are left out, and so is a package without any.
PROGRAMS = {
    "bubblewrap": ("bwrap",),
    "coreutils": (
        "base64", "basename", "cat", "chmod", "cp", "cut", "date", "dirname", "echo", "env", "false", "head", "id",
        "install", "ln", "ls", "mkdir", "mktemp", "mv", "nproc", "printf", "pwd", "readlink", "realpath", "rm",
        "sha256sum", "sleep", "sort", "stat", "tail", "tee", "test", "touch", "tr", "true", "uname", "wc",
    ),
    "curl": ("curl",),
    "git": ("git",),
    "jq": ("jq",),
    "passt": ("pasta",),
    "ripgrep": ("rg",),
    "slirp4netns": ("slirp4netns",),
}  # fmt: skip
APPLETS = {
    "fd": (), "nodejs": (), "comma": (),
    "findutils": ("find", "xargs"), "gawk": ("awk",), "gnugrep": ("grep",), "gnused": ("sed",), "gnutar": ("tar",),
    "gzip": ("gzip",), "less": ("less",),
}  # fmt: skip
# Of the broker, as this very process would import them.
_LIBRARIES = {"cryptography": ("cryptography", "cffi", "_cffi_backend*", "pycparser")}
# What libc loads by itself, and its parts of former times, which the client asks for.
_BESIDE = ("libnss_dns.so.2", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")
_LOADER = re.compile(r"ld-linux-[\w-]+\.so\.\d")


class Relocation:
    """Packages of the programs on this machine, added to the store of a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        need(shutil.which("patchelf"), "patchelf")
        self._daemon = daemon
        self._place = tempfile.mkdtemp(prefix="packages-", dir=daemon.base)
        self.packages: dict[str, str] = {}
        self._python = os.path.realpath("/usr/bin/python3")
        present = {name: [path for tool in tools if (path := shutil.which(tool))] for name, tools in PROGRAMS.items()}
        extensions = glob.glob(f"/usr/lib/{os.path.basename(self._python)}/lib-dynload/*.so")
        extensions += [
            str(path)
            for names in _LIBRARIES.values()
            for found in _imported(names)
            for path in ([Path(found)] if found.endswith(".so") else Path(found).rglob("*.so"))
        ]
        everything = [path for paths in present.values() for path in paths]
        self.packages["glibc"] = self._libraries("glibc", [*everything, self._python, *extensions])
        for name, paths in present.items():
            self._program(name, paths, self.packages["glibc"])
        self._interpreter()
        self._nix()
        for name, applets in APPLETS.items():
            self._applets(name, applets)
        self.python = os.path.basename(self._python)
        shutil.rmtree(self._place)

    def _directory(self, name: str) -> str:
        path = f"{self._place}/{name}"
        os.makedirs(path)
        return path

    def _add(self, name: str) -> str:
        for directory, names, files in os.walk(f"{self._place}/{name}"):
            for entry in (*names, *files):
                if not os.path.islink(f"{directory}/{entry}"):
                    os.chmod(f"{directory}/{entry}", os.stat(f"{directory}/{entry}").st_mode | 0o444)
        path = self._daemon.add(f"{self._place}/{name}", name)
        self.packages[name] = path
        return path

    def _libraries(self, name: str, programs: Iterable[str], prefix: Sequence[str] = ("ldd",)) -> str:
        target = self._directory(f"{name}/lib")
        listed = subprocess.run([*prefix, *programs], capture_output=True, text=True, check=True).stdout
        for path in set(re.findall(r"(/\S+) \(0x", listed)):
            shutil.copy(path, target)
            for other in _BESIDE if os.path.basename(path) == "libc.so.6" else ():
                shutil.copy(f"{os.path.dirname(path)}/{other}", target)
        return self._add(name)

    def _patch(self, program: str, libraries: str) -> None:
        loader = next(name for name in os.listdir(self._daemon.real(f"{libraries}/lib")) if _LOADER.fullmatch(name))
        # One after the other, in this order: at once, patchelf 0.18 makes segments of Python 3.13 that overlap.
        for words in (
            ["--force-rpath", "--set-rpath", f"{libraries}/lib"],
            ["--set-interpreter", f"{libraries}/lib/{loader}"],
        ):
            subprocess.run(["patchelf", *words, program], check=True)

    def _program(self, name: str, paths: Iterable[str], libraries: str) -> None:
        target = self._directory(f"{name}/bin")
        for path in paths:
            copy = f"{target}/{os.path.basename(path)}"
            shutil.copy(os.path.realpath(path), copy)
            self._patch(copy, libraries)
        self._add(name)

    def _interpreter(self) -> None:
        version = os.path.basename(self._python)
        target = self._directory("python3/bin")
        shutil.copy(self._python, f"{target}/{version}")
        self._patch(f"{target}/{version}", self.packages["glibc"])
        os.symlink(version, f"{target}/python3")
        unwanted = ("__pycache__", "test", "tests", "dist-packages", "config-*", "idlelib", "lib2to3", "pydoc_data")
        shutil.copytree(
            f"/usr/lib/{version}", f"{self._place}/python3/lib/{version}", symlinks=False,
            ignore=shutil.ignore_patterns(*unwanted), ignore_dangling_symlinks=True,
        )  # fmt: skip
        self._add("python3")
        for module, names in _LIBRARIES.items():
            site = self._directory(f"{module}/lib/{version}/site-packages")
            for found in _imported(names):
                if os.path.isdir(found):
                    target = f"{site}/{os.path.basename(found)}"
                    shutil.copytree(found, target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(found, site)
            self._add(module)

    def _nix(self) -> None:
        directory = self._daemon.nix.directory
        program, prefix = "/usr/bin/nix", ["ldd"]
        if directory != "/usr/bin":  # an unpacked one: its wrapper tells the loader and where the libraries are
            loader, _, libraries, _, _, program = Path(f"{directory}/nix").read_text().split()[2:8]
            prefix = [loader, "--library-path", libraries, "--list"]
        libraries = self._libraries("nix-libraries", [program], prefix)
        self._program("nix", [program], libraries)
        target = self._directory("nix-names/bin")
        for name in ("nix", "nix-build", "nix-daemon", "nix-instantiate", "nix-shell", "nix-store"):
            os.symlink(f"{self.packages['nix']}/bin/nix", f"{target}/{name}")
        self.packages["nix"] = self._add("nix-names")

    def _applets(self, name: str, applets: Iterable[str]) -> None:
        target = self._directory(f"{name}/bin")
        for applet in applets:
            os.symlink(f"{self._daemon.seed}/busybox", f"{target}/{applet}")
        self._add(name)


def _imported(names: Iterable[str]) -> list[str]:
    return [path for name in names for entry in sys.path if entry for path in sorted(glob.glob(f"{entry}/{name}"))]
