"""Try versions of the client: take each from npm, run tests/agent/test_versions.py with it, print a table.

Programs are kept in .local/clients while they are tried, and after that with `--keep`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "src"))
from claudebox.agent.claude import CLAUDE  # noqa: E402

CACHE = TOP / ".local/clients"
PACKAGE = f"@anthropic-ai/claude-code-linux-{'arm64' if os.uname().machine == 'aarch64' else 'x64'}"
TESTS = TOP / "tests/agent/test_versions.py"
COLUMNS = {
    "broker -p": "without_a_terminal[{}-broker]",
    "broker TUI": "at_a_terminal_and_answers[{}-broker]",
    "passthrough -p": "without_a_terminal[{}-passthrough]",
    "passthrough TUI": "at_a_terminal_and_answers[{}-passthrough]",
    "nothing astray": "but_to_the_broker[{}]",
}
SAMPLE = 8  # versions that are tried where none are named


def numbers(version: str) -> tuple[int, ...]:
    """Return a version so that it can be compared."""
    return tuple(int(part) for part in version.split("."))


def known_versions() -> list[str]:
    """Return what npm has from the least on, in order."""
    answer = subprocess.run(["npm", "view", PACKAGE, "versions", "--json"], capture_output=True, text=True, check=True)
    plain = [version for version in json.loads(answer.stdout) if re.fullmatch(r"\d+\.\d+\.\d+", version)]
    return sorted((version for version in plain if numbers(version) >= CLAUDE.least), key=numbers)


def take(version: str) -> Path:
    """Return the program of a version, brought from npm if it is not here."""
    place = CACHE / version
    program = place / "claude"
    if not program.is_file():
        place.mkdir(parents=True, exist_ok=True)
        pack = ["npm", "pack", "--silent", "--pack-destination", str(place), f"{PACKAGE}@{version}"]
        subprocess.run(pack, check=True, capture_output=True)
        (archive,) = place.glob("*.tgz")
        unpack = ["tar", "-xzf", str(archive), "-C", str(place), "--strip-components=1", "package/claude"]
        subprocess.run(unpack, check=True)
        archive.unlink()
        program.chmod(0o755)
    return program


def try_version(version: str) -> dict[str, str]:
    """Return what came of each way of using it."""
    environ = {**os.environ, "CLAUDEBOX_TEST_CLIENTS": str(take(version))}
    command = [sys.executable, "-Im", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider", str(TESTS)]
    said = subprocess.run(command, env=environ, cwd=TOP, capture_output=True, text=True, check=False).stdout
    words = {"PASSED": "ok", "FAILED": "FAILED", "ERROR": "FAILED", "SKIPPED": "skipped"}

    def result(pattern: str) -> str:
        found = re.search(rf"^(\w+) \S*{re.escape(pattern.format(version))}", said, re.MULTILINE)
        return words.get(found[1], "?") if found else "?"

    return {column: result(pattern) for column, pattern in COLUMNS.items()}


def main() -> int:
    """Try them all, and say whether all of them work."""
    parser = argparse.ArgumentParser(prog="scripts/clients", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("version", nargs="*", help="versions to try; some between the least and the newest by default")
    parser.add_argument("--every", action="store_true", help="try every version that npm has")
    parser.add_argument("--keep", action="store_true", help="keep the programs in .local/clients")
    given = parser.parse_args()
    versions = given.version or known_versions()
    if not given.version and not given.every:
        last = len(versions) - 1
        versions = [versions[last * index // (SAMPLE - 1)] for index in range(SAMPLE)]
    print(f"| {'version':<9} | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}", flush=True)
    good = True
    for version in versions:
        row = try_version(version)
        good = good and set(row.values()) == {"ok"}
        cells = " | ".join(f"{row[column]:<{len(column)}}" for column in COLUMNS)
        print(f"| {version:<9} | {cells} |", flush=True)
        if not given.keep:
            shutil.rmtree(CACHE / version)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
