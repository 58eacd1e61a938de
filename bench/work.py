"""Compare the time of ordinary work outside and inside: npm install, pip install, a C build, find over many files.

`bench/work [ROUNDS [NAME...]]`: in pairs of random order, after one pair that fills the caches of both sides. The shell
that does the work times it: by the clock, and by the processor, which is what counts on a machine that others use.
The rest of a session is shown apart: its start, and the looks at the project at both ends.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
FILES, DIRECTORIES, SOURCES = 50_000, 500, 120
LIMIT = 1.15
PACKAGES = '{"dependencies": {"eslint": "8.57.1", "express": "4.21.2"}}'
WORK = {
    "npm install": ("rm -rf node_modules; npm install --silent --no-audit --no-fund --prefer-offline", "node_modules"),
    "pip install": ("rm -rf v; python3 -m venv v; v/bin/pip install -q requests==2.32.3 flask==3.0.3", "v/bin/flask"),
    "C build": (f"make -s clean && make -s -j2 SOURCES={SOURCES}", "program"),
    "find": (f"find tree -newer Makefile | wc -l | grep -qx {FILES + DIRECTORIES + 1}", "tree"),
}  # fmt: skip
MAKEFILE = """\
NUMBERS := $(shell seq $(SOURCES))
all: program
program: $(NUMBERS:%=f%.o) main.o
\tgcc -o $@ $^
%.o: %.c
\tgcc -O1 -c -o $@ $<
clean:
\trm -f *.o program
"""


def prepare(project: str) -> None:
    """Make the project: a package file, C sources, and a tree of many files."""
    os.mkdir(project)
    Path(project, "package.json").write_text(PACKAGES)
    Path(project, "Makefile").write_text(MAKEFILE)
    os.utime(f"{project}/Makefile", (0, 0))
    for number in range(1, SOURCES + 1):
        body = f'#include <stdio.h>\nint f{number}(void) {{ return printf("%d", {number}); }}\n'
        Path(project, f"f{number}.c").write_text(body)
    calls = "".join(f"int f{number}(void);\n" for number in range(1, SOURCES + 1))
    Path(project, "main.c").write_text(f"{calls}int main(void) {{ return f1() == 0; }}\n")
    for number in range(DIRECTORIES):
        os.makedirs(f"{project}/tree/{number}")
        for other in range(FILES // DIRECTORIES):
            Path(project, f"tree/{number}/{other}").touch()


@dataclass(frozen=True)
class Times:
    """Seconds of one run: of the work by the clock and by the processor, and of all of it."""

    work: float
    processor: float
    whole: float


def run(project: str, home: str, script: str, *, inside: bool) -> Times:
    """Run it once and return its seconds."""
    argv = ["bash", "-c", f"TIMEFORMAT='spent %R %U %S'; time {{ {script}; }}"]
    if inside:
        argv = [str(TOP / "bin/claudebox"), "-y", "--quiet", "--exec", "--", *argv]
    environ = {**os.environ, "HOME": home}
    started = time.perf_counter()
    result = subprocess.run(argv, cwd=project, env=environ, capture_output=True, text=True, check=False)
    whole = time.perf_counter() - started
    spent = re.search(r"^spent ([\d.]+) ([\d.]+) ([\d.]+)$", result.stderr, re.MULTILINE)
    if result.returncode or not spent:
        sys.exit(f"{script}: status {result.returncode} {'inside' if inside else 'outside'}\n{result.stderr}")
    clock, user, system = map(float, spent.groups())
    return Times(clock, user + system, whole)


def report(name: str, outside: list[Times], inside: list[Times]) -> str:
    """Return one line: medians, and what a session costs besides."""

    def median(rows: list[Times], which: str) -> float:
        return statistics.median(float(getattr(row, which)) for row in rows)

    ratios = []
    for which in ("work", "processor"):
        without, within = median(outside, which), median(inside, which)
        ratios.append(f"{without:6.2f} s, inside {within:6.2f} s: {within / max(without, 0.01):.2f}")
    over = median(inside, "processor") > LIMIT * median(outside, "processor")
    besides = median(inside, "whole") - median(inside, "work")
    return (
        f"{name:<12} clock outside {ratios[0]}; processor outside {ratios[1]}{f', over {LIMIT}' if over else ''}; "
        f"the session besides {besides:.2f} s\n"
    )


def main() -> None:
    """Measure each in turn and print the medians."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    base = tempfile.mkdtemp(prefix="claudebox-work-")
    project, home = f"{base}/project", f"{base}/home"
    os.mkdir(home, 0o700)
    prepare(project)
    try:
        for name, (script, made) in WORK.items():
            if sys.argv[2:] and name not in sys.argv[2:]:
                continue
            times: dict[bool, list[Times]] = {False: [], True: []}
            for number in range(rounds + 1):
                for inside in random.sample((False, True), 2):
                    spent = run(project, home, script, inside=inside)
                    assert os.path.exists(f"{project}/{made}")
                    times[inside] += [spent] if number else []
            sys.stdout.write(report(name, times[False], times[True]))
            sys.stdout.flush()
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
