"""Run every test of the real agents, and write versions, results and the date to docs/agents.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "src"))
from claudebox.agent import kinds  # noqa: E402
from claudebox.agent.facts import find_client, spell_version  # noqa: E402

INSTALLED = "/var/cache/claudebox-tests/agents"
PATH = (f"{INSTALLED}/agents/node_modules/.bin", f"{INSTALLED}/agents/aider/bin",
        f"{INSTALLED}/agents-more/node_modules/.bin", "/usr/local/bin", "/usr/bin", "/bin")  # fmt: skip
TESTS = "tests/agent/test_real_agents.py"
COLUMNS = {  # what a column of the table tells, and the beginning of the names of its tests
    "task, key outside, undo": "an_agent_works_with_its_key_outside",
    "none, allow, inet, full": "an_agent_works_in_every_tier",
    "conversation, budget": "an_agent_goes_on",
    "`task`, `new`": "an_agent_does_a_task",
    "screen": "an_agent_with_its_screen",
}


def main() -> int:
    """Try them all; 1 if something does not work."""
    command = [sys.executable, "-Im", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider", "-n", "2", TESTS]
    said = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False).stdout
    text = "# Written by `scripts/agents --record`; `scripts/generate` makes the table of platforms.md of it.\n"
    good = True
    for name in kinds.NAMES:
        if name == kinds.USUAL:  # has tests of its own
            continue
        version = spell_version(find_client(kinds.find_kind(name), "/nowhere", PATH, "/nowhere").version)
        text += f'\n[[agent]]\nname = "{name}"\nversion = "{version}"\ndate = "{time.strftime("%Y-%m-%d")}"\n'
        for column, test in COLUMNS.items():
            found = re.findall(rf"^(PASSED|FAILED|ERROR|SKIPPED) \S*test_{test}\S*\[{name}\b", said, re.MULTILINE)
            result = "-" if not found else "ok" if set(found) == {"PASSED"} else "not ok"
            good = good and result != "not ok"
            text += f'"{column}" = "{result}"\n'
    (TOP / "docs/agents.toml").write_text(text, encoding="utf-8")
    subprocess.run([str(TOP / "scripts/generate")], check=True)
    print(said.splitlines()[-1])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
