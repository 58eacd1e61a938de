"""What the sandbox's terminal costs, in turns: 50 MB of output, the echo of a key, and a launch.

    bench/terminal [--rounds N] [PROGRAM...]

Each PROGRAM is a `bin/claudebox` to compare, this one unless others are named; the same is done without a sandbox.
"""

from __future__ import annotations

import argparse
import os
import pty
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

OWN = str(Path(__file__).resolve().parent.parent / "bin/claudebox")
SIZE = 50_000_000
ECHO = "import os, tty\ntty.setraw(0)\nos.write(1, b'ready')\nwhile (key := os.read(0, 1)) != b'q': os.write(1, key)\n"
KEYS = 200


def run(argv: list[str], *, keys: int = 0) -> tuple[float, float, float]:
    """Run a program at a terminal; return wall and processor time in seconds, and the median echo of so many keys."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.monotonic()
    process, master = pty.fork()
    if process == 0:
        os.execv(argv[0], argv)
    shown, times = b"", []
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        shown = (shown + piece)[-16:]
        if keys and b"ready" in shown:
            times = [_echo(master) for _ in range(keys)]
            os.write(master, b"q")
            keys = 0
    os.waitpid(process, 0)
    os.close(master)
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, spent, statistics.median(times) if times else 0.0


def _echo(master: int) -> float:
    begun = time.monotonic()
    os.write(master, b"x")
    while b"x" not in os.read(master, 100):
        pass
    return time.monotonic() - begun


def main() -> None:
    """Print one row for each program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("programs", nargs="*", default=[OWN])
    given = parser.parse_args()
    base = tempfile.mkdtemp(prefix="claudebox-bench-")
    os.makedirs(f"{base}/home")
    os.makedirs(f"{base}/project")
    os.environ["HOME"] = f"{base}/home"
    os.chdir(f"{base}/project")
    Path("big").write_bytes((b"x" * 79 + b"\n") * (SIZE // 80))
    Path("echo.py").write_text(ECHO, encoding="ascii")
    tasks = (("/bin/cat", "big"), (sys.executable, "-IS", "echo.py"), ("/bin/true",))
    rows = {"no sandbox": (), **{program: (program, "-y", "--quiet", "--exec", "--") for program in given.programs}}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in rows}
    for number in range(given.rounds + 1):
        for name, before in rows.items():
            output, echo, launch = (run([*before, *task], keys=KEYS if "echo.py" in task else 0) for task in tasks)
            if number:  # the first makes the state of the project
                found[name].append((output[1], echo[2] * 1e6, launch[0] * 1e3, launch[1] * 1e3))
    print("cat 50 MB: CPU s   echo µs   launch ms   launch CPU ms")
    for name, results in found.items():
        median = [statistics.median(column) for column in zip(*results, strict=True)]
        print(f"{median[0]:16.2f} {median[1]:9.0f} {median[2]:11.1f} {median[3]:15.1f}   {name}")


if __name__ == "__main__":
    main()
