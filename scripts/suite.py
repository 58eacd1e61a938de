"""Run the tests: as `scripts/test` calls it, with a table at the end and the names of those that flicker.

What failed is run once more, by itself. A test that passes then is flaky: it is named, and more than two are a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

from scripts.trace import find_marks, read_ids  # noqa: E402

MAY_FLICKER = 2
WORKERS = "8"  # more than a small machine has cores: much of the time goes by in waiting
SELECTIONS = {"test": "not slow", "rest": "slow or property"}


class Outcome(NamedTuple):
    """How one test ended."""

    passed: bool
    skipped: bool
    seconds: float  # of a worker, set-up included
    cpu: float  # that it and its programs have computed


def main() -> int:
    """Run what is asked for, as this account and with `sudo` what only root can."""
    parser = argparse.ArgumentParser("scripts/test", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", choices=SELECTIONS, default="test")
    parser.add_argument("--python", default=str(TOP / ".venv/bin/python"))
    options, words = parser.parse_known_args()
    pytest = [options.python, "-Im", "pytest"]
    selection = "" if words else SELECTIONS[options.part]
    parts = [(pytest, selection)]
    if os.getuid() and not words:
        parts = [(pytest, _both(selection, "not root"))]
        if _may_become_root():
            parts.append(
                (["sudo", "--preserve-env=CI", "PYTHONDONTWRITEBYTECODE=1", *pytest], _both(selection, "root"))
            )
        else:
            print("test: without `sudo`, tests that only root can run are left out", file=sys.stderr)
    if options.part == "rest":
        os.environ.setdefault("CLAUDEBOX_TEST_EXAMPLES", "200")
    outcomes: dict[str, Outcome] = {}
    flaky: list[str] = []
    worst = 0
    for python, marks in parts:
        status = _run(python, marks, words, outcomes, flaky)
        worst = worst or status
    _print_table(outcomes)
    if not words:
        _print_unproved(outcomes)
    for name in flaky:
        print(f"flaky: {name}: failed beside others and passed alone")
    if len(flaky) > MAY_FLICKER:
        print(f"test: {len(flaky)} tests are flaky, more than {MAY_FLICKER}", file=sys.stderr)
    return worst or (1 if len(flaky) > MAY_FLICKER else 0)


def _both(one: str, other: str) -> str:
    return f"({one}) and {other}" if one else other


def _may_become_root() -> bool:
    words = ["sudo", "true"] if sys.stdin.isatty() else ["sudo", "-n", "true"]
    try:
        return subprocess.run(words, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _run(python: list[str], marks: str, words: list[str], outcomes: dict[str, Outcome], flaky: list[str]) -> int:
    """Run tests and repeat what failed; return the status of pytest that counts."""
    with tempfile.TemporaryDirectory(prefix="claudebox-suite-") as directory:
        first, second = Path(directory, "first"), Path(directory, "second")
        cache = ["-o", f"cache_dir={directory}/cache"]
        chosen = ["-m", marks] if marks else []
        status = subprocess.run(
            [*python, "-q", "-n", WORKERS, *cache, f"--outcomes={first}", *chosen, *words], cwd=TOP, check=False
        ).returncode
        seen = _read(first)
        outcomes.update(seen)
        if status != 1:
            return 0 if status == 5 and not words else status  # 5: there was nothing to run
        print("test: running what failed again, by itself", file=sys.stderr)
        alone = ["-n", "0", "--last-failed", "--last-failed-no-failures", "none", f"--outcomes={second}"]
        status = subprocess.run([*python, "-q", *cache, *alone, *chosen, *words], cwd=TOP, check=False).returncode
        again = _read(second)
        outcomes.update(again)
        flaky += sorted(name for name, outcome in again.items() if outcome.passed and not seen[name].passed)
        return status


def _read(file: Path) -> dict[str, Outcome]:
    """Return the outcomes that tests/conftest.py has written, a line for each phase of a test."""
    found: dict[str, Outcome] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        row = json.loads(line)
        before = found.get(row["test"], Outcome(passed=True, skipped=False, seconds=0.0, cpu=0.0))
        found[row["test"]] = Outcome(
            before.passed and row["outcome"] != "failed",
            before.skipped or row["outcome"] == "skipped",
            before.seconds + row["seconds"],
            before.cpu + row["cpu"],
        )
    return found


def _proofs() -> dict[str, set[str]]:
    """Return what each test proves, by its name without parameters."""
    proofs: dict[str, set[str]] = defaultdict(set)
    for mark in find_marks():
        proofs[f"{mark.file}::{mark.test}"].add(mark.id)
    return proofs


def _print_table(outcomes: dict[str, Outcome]) -> None:
    """Print promises, tests and seconds by feature."""
    proofs = _proofs()
    rows: dict[str, list[tuple[set[str], Outcome]]] = defaultdict(list)
    for name, outcome in outcomes.items():
        if not outcome.skipped:
            place = name.partition("::")[0].split("/")
            proved = proofs[name.partition("[")[0]] if outcome.passed else set()
            rows[place[1] if len(place) > 2 else "repository"].append((proved, outcome))
    print(f"\n{'feature':<12}{'promises':>9}{'tests':>8}{'seconds':>9}{'computed':>10}")
    everything = [row for group in rows.values() for row in group]
    for feature, group in (*sorted(rows.items()), ("all", everything)):
        promises = set[str]().union(*(proved for proved, _ in group))
        seconds, cpu = (sum(getattr(outcome, kind) for _, outcome in group) for kind in ("seconds", "cpu"))
        print(f"{feature:<12}{len(promises):>9}{len(group):>8}{seconds:>9.0f}{cpu:>10.0f}")
    skipped = sum(outcome.skipped for outcome in outcomes.values())
    if skipped:
        print(f"{skipped} tests were skipped: this machine lacks something for each")


def _print_unproved(outcomes: dict[str, Outcome]) -> None:
    proofs = _proofs()
    ran = (name for name, outcome in outcomes.items() if outcome.passed and not outcome.skipped)
    proved = set[str]().union(*(proofs[name.partition("[")[0]] for name in ran))
    left = [name for section in read_ids().values() for name in section if name not in proved]
    if left:
        print(f"not proved by these tests: {' '.join(left)}")


if __name__ == "__main__":
    sys.exit(main())
