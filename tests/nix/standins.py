"""flake.nix with other inputs: a small stand-in for nixpkgs, so that it is built for real without a network."""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import REPOSITORY
from tests.nix.daemon import SYSTEM

if TYPE_CHECKING:
    from tests.nix.daemon import Daemon

_LIBRARIES = (
    "_pytest", "_hypothesis*", "attr", "attrs", "execnet*", "hypothesis*", "iniconfig*", "packaging*", "pluggy*",
    "py.py", "pygments", "pytest*", "sortedcontainers", "xdist",
)  # fmt: skip
_HERE = Path(__file__).parent


class StandIn:
    """Inputs of the flake in the store of a daemon, and what was built with them."""

    def __init__(self, daemon: Daemon, packages: dict[str, str]) -> None:
        self.daemon = daemon
        self.nixpkgs = f"{daemon.base}/standin"
        self.index = f"{daemon.base}/index"
        self._built: dict[str, str] = {}
        shutil.copytree(_HERE / "standin", self.nixpkgs)
        shutil.copytree(_HERE / "index", self.index)
        programs = {**packages, "seed": self._seed(), "claude-code": self._client()}
        programs["python-for-tests"] = self._python(packages["python3"])
        programs["pythonName"] = os.path.basename(os.path.realpath("/usr/bin/python3"))
        Path(f"{self.nixpkgs}/programs.json").write_text(json.dumps(programs))

    def _seed(self) -> str:
        """Return busybox with its names, for building, and a static bash."""
        place = f"{self.daemon.base}/seed"
        shutil.copytree(f"{self.daemon.base}/packages/seed", place)
        os.mkdir(f"{place}/applets")
        listed = subprocess.run([f"{place}/busybox", "--list"], capture_output=True, text=True, check=True).stdout
        for applet in listed.split():
            os.symlink("../busybox", f"{place}/applets/{applet}")
        return self.daemon.add(place, "seed-with-applets")

    def _client(self) -> str:
        place = f"{self.daemon.base}/client"
        os.makedirs(f"{place}/bin")
        script = Path(f"{place}/bin/claude")
        script.write_text(f"#!{self.daemon.build('bash')}/bin/bash\necho bundled client\n")
        script.chmod(0o755)
        return self.daemon.add(place, "claude-code-1")

    def _python(self, python: str) -> str:
        """Return an interpreter with the libraries of the suite, as this very process has them."""
        place = f"{self.daemon.base}/python-for-tests"
        os.makedirs(f"{place}/bin")
        os.mkdir(f"{place}/site")
        for found in (path for entry in sys.path for name in _LIBRARIES for path in glob.glob(f"{entry}/{name}")):
            target = f"{place}/site/{os.path.basename(found)}"
            if os.path.isdir(found):
                shutil.copytree(found, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
            else:
                shutil.copy(found, target)
        script = Path(f"{place}/bin/python3")
        script.write_text(
            f"#!{self.daemon.build('bash')}/bin/bash\n"
            "PYTHONPATH=${BASH_SOURCE%/bin/*}/site exec "
            f'{python}/bin/python3 "$@"\n'
        )
        script.chmod(0o755)
        return self.daemon.add(place, "python-for-tests")

    def flake(self, command: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of nix on the flake of this repository with these inputs."""
        return self.daemon.run(*command.split(), *self.inputs, *words, check=check)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the options that put these inputs in the place of the flake's own."""
        nixpkgs = ("--override-input", "nixpkgs", f"path:{self.nixpkgs}")
        index = ("--override-input", "nix-index-database", f"path:{self.index}")
        return ("--impure", "--no-write-lock-file", *nixpkgs, *index)

    @property
    def source(self) -> str:
        """Return a copy of what the repository tracks, as a flake in git sees it."""
        place = f"{self.daemon.base}/source"
        if not os.path.exists(place):
            listed = subprocess.run(
                ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                cwd=REPOSITORY, capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            for name in filter(None, listed.split("\0")):
                if (REPOSITORY / name).is_file():
                    os.makedirs(os.path.dirname(f"{place}/{name}"), exist_ok=True)
                    shutil.copy2(REPOSITORY / name, f"{place}/{name}")
        return place

    def package(self, name: str) -> str:
        """Build a package of the flake and return its path."""
        if name not in self._built:
            result = self.flake("build", "--no-link", "--json", f"path:{self.source}#packages.{SYSTEM}.{name}")
            self._built[name] = json.loads(result.stdout)[0]["outputs"]["out"]
        return self._built[name]
