"""Put the AppArmor profile for bwrap in force, or take it away again; everything is shown before it is done."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from claudebox.host import remedies
from claudebox.host.programs import find_bwrap

ADMIN = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


def run(commands: list[tuple[str, ...]], text: str, path: str) -> int:
    """Write the profile if there is one to write, and run the commands, all as root."""
    root = () if os.getuid() == 0 else ("sudo",)
    steps = [((*root, "tee", path), text)] if text else []
    steps += [((*root, *words), "") for words in commands]
    for words, given in steps:
        result = subprocess.run(
            words, input=given, stdout=subprocess.DEVNULL, text=True, check=False, env={**os.environ, "PATH": ADMIN}
        )
        if result.returncode:
            print(f"apparmor: error: `{shlex.join(words)}` failed with status {result.returncode}", file=sys.stderr)
            if text:
                subprocess.run((*root, "rm", "-f", path), check=False)
            return 1
    return 0


def confirmed(question: str, *, yes: bool) -> bool:
    """Return whether the user agrees."""
    if yes:
        return True
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def main() -> int:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(prog="scripts/apparmor", description=__doc__)
    parser.add_argument("--show", action="store_true", help="show what would be done")
    parser.add_argument("--remove", action="store_true", help="take claudebox's own profile away")
    parser.add_argument("-y", "--yes", action="store_true", help="ask nothing")
    given = parser.parse_args()
    if given.remove:
        if not os.path.lexists(remedies.OWN):
            print(f"there is no {remedies.OWN}")
            return 0
        print(f"apparmor_parser -R {remedies.OWN}\nrm {remedies.OWN}")
        commands = [("apparmor_parser", "-R", remedies.OWN), ("rm", remedies.OWN)]
        if given.show:
            return 0
        return run(commands, "", "") if confirmed("Remove it?", yes=given.yes) else 130
    bwrap = find_bwrap(tuple(ADMIN.split(":")))
    if bwrap.problem is not None:
        print(f"apparmor: error: {bwrap.problem.message}; {bwrap.problem.hint}", file=sys.stderr)
        return 1
    if not remedies.is_restricted():
        print("this machine does not restrict user namespaces with AppArmor: nothing to do")
        return 0
    remedy = remedies.find_remedy(bwrap.path)
    if remedy is None:
        print(f"apparmor: error: {remedies.describe_remedy(bwrap.path)}", file=sys.stderr)
        return 1
    if remedy.text:
        print(f"{remedy.path}:\n\n{remedy.text}")
    print("\n".join(shlex.join(words) for words in remedy.commands))
    if given.show:
        return 0
    return run([*remedy.commands], remedy.text, remedy.path) if confirmed("Do this?", yes=given.yes) else 130


if __name__ == "__main__":
    sys.exit(main())
