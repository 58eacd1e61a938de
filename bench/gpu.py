"""Compare a computation on a graphics processor outside and inside: `bench/gpu [ROUNDS]`, on a machine that has one."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PYTHON = shutil.which("python3") or sys.executable


def measure(project: str, *, inside: bool) -> dict[str, dict[str, object]]:
    """Run the probe once."""
    argv = [PYTHON, f"{project}/probe.py"]
    if inside:
        argv = [str(TOP / "bin/claudebox"), "-y", "--quiet", "--set", "gpu=true", "--exec", "--", *argv]
    result = subprocess.run(argv, cwd=project, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{'inside' if inside else 'outside'}: status {result.returncode}\n{result.stdout}{result.stderr}")
    answer: dict[str, dict[str, object]] = json.loads(result.stdout.splitlines()[-1])
    return answer


def main() -> None:
    """Measure in turn, and print the medians."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    base = tempfile.mkdtemp(prefix="claudebox-gpu-")
    project = f"{base}/project"
    os.mkdir(project)
    shutil.copy(TOP / "bench/gpu_probe.py", f"{project}/probe.py")
    try:
        pairs = [(measure(project, inside=False), measure(project, inside=True)) for _ in range(rounds)]
    finally:
        shutil.rmtree(base, ignore_errors=True)
    outside, within = pairs[0]
    sys.stdout.write(f"nvidia-smi -L outside {outside['nvidia-smi']}, inside {within['nvidia-smi']}\n")
    for way in ("driver", "torch"):
        if outside[way] is None:
            continue
        speeds = [[float(str(pair[side][way]["tflops"])) for pair in pairs] for side in (0, 1)]
        before, after = (statistics.median(side) for side in speeds)
        what = f"{outside[way]['by']} on {outside[way]['name']}"
        sys.stdout.write(f"{what}: outside {before:.1f}, inside {after:.1f} TFLOP/s, {after / before:.3f} of it\n")


if __name__ == "__main__":
    main()
