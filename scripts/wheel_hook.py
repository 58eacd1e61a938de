"""What the build of a wheel adds: the modules of a launch in few files."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface[Any]):
    """Puts what `scripts/amalgamate.py` makes into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the files, unless the build is an editable one, which runs the modules themselves."""
        if version == "editable":
            return
        path = os.path.join(self.root, "scripts", "amalgamate.py")
        spec = importlib.util.spec_from_file_location("amalgamate", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._made = tempfile.mkdtemp()
        for name, text in module.amalgamate().items():
            path = os.path.join(self._made, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            build_data["force_include"][path] = f"claudebox/{name}"

    def finalize(self, version: str, _build_data: dict[str, Any], _artifact_path: str) -> None:
        """Remove what was made for the build."""
        if version != "editable":
            shutil.rmtree(self._made)
