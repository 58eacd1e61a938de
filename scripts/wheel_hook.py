"""What the build of a wheel adds: the modules of a launch in one file."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface[Any]):
    """Puts `claudebox/amalgamation.py` into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the file, unless the build is an editable one, which runs the modules themselves."""
        if version == "editable":
            return
        path = os.path.join(self.root, "scripts", "amalgamate.py")
        spec = importlib.util.spec_from_file_location("amalgamate", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        descriptor, made = tempfile.mkstemp(suffix=".py")
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(module.amalgamate())
        build_data["force_include"][made] = "claudebox/amalgamation.py"
        self._made = made

    def finalize(self, version: str, _build_data: dict[str, Any], _artifact_path: str) -> None:
        """Remove what was made for the build."""
        if version != "editable":
            os.unlink(self._made)
