"""Managers of git hooks work inside, with the real packages; what they write inside never reaches the host.

`scripts/hooks` installs them.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.conftest import Box, need
from tests.support import repositories

pytestmark = pytest.mark.sandbox

INSTALLED = "/var/cache/claudebox-tests/hooks"
NPMRC = "offline=true\nfund=false\naudit=false\nupdate-notifier=false\nloglevel=error\n"
NPM_CI = "npm ci --cache .npm >/dev/null"  # inside, a variable names another cache
HOOK = "! grep -q 'x = =' *.js"
LIST_HOOKS = "ls .git/hooks | sed /sample/d"
TRY_BOTH = (  # a commit that the hook lets pass, and one that it refuses
    "echo 'let x = 1' >>good$$.js; git add good$$.js; git commit -qm good && echo passed; echo 'let x = = 1' >bad.js; "
    "git add bad.js; git commit -qm bad || echo refused; git rm -qf bad.js; "
)


@pytest.fixture(name="project")
def make_project(user_box: Box) -> repositories.Checkout:
    """Make a repository in a box that can install without a network."""
    need(os.path.exists(f"{INSTALLED}/installed"), "managers of git hooks: run `scripts/hooks`")
    checkout = repositories.make(user_box)
    user_box.write(".npmrc", NPMRC)
    user_box.write(".gitignore", "node_modules\n.npm\n")
    return checkout


def depend(checkout: repositories.Checkout, *packages: str, **more: object) -> None:
    """Make the project depend on some of the packages that are installed, and commit that."""
    box = checkout.box
    manifest, lock = (json.loads(Path(INSTALLED, "npm", f"package{name}.json").read_text()) for name in ("", "-lock"))
    chosen = {name: manifest["dependencies"][name] for name in packages}
    rows = {name.removeprefix("node_modules/"): row for name, row in lock["packages"].items() if name}
    wanted, waiting = {}, list(packages)
    while waiting:
        name = waiting.pop()
        for path in [path for path in rows if path not in wanted and f"{path}/".startswith(f"{name}/")]:
            wanted[path] = rows[path]
            waiting += [*rows[path].get("dependencies", ()), *rows[path].get("optionalDependencies", ())]
    locked = {"": {"name": "x", "dependencies": chosen}} | {f"node_modules/{name}": row for name, row in wanted.items()}
    box.write("package.json", json.dumps({"name": "x", "dependencies": chosen, **more}))
    box.write("package-lock.json", json.dumps({**lock, "name": "x", "packages": locked}))
    shutil.copytree(f"{INSTALLED}/npm/cache/_cacache", f"{box.project}/.npm/_cacache")
    for directory, _, files in os.walk(f"{box.project}/.npm"):
        for name in (".", *files):
            os.chown(f"{directory}/{name}", box.account.uid, box.account.gid)
    checkout.sh("git add .; git commit -qm packages")


def read_files(directory: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(directory).iterdir()}


@pytest.mark.slow
def test_lint_staged_works(project):
    # proves TOOL-04
    depend(project, "husky", "lint-staged", scripts={"prepare": "husky"}, **{"lint-staged": {"*.js": "node --check"}})
    project.sh(f"{NPM_CI}; echo npx lint-staged >.husky/pre-commit; git add .; git commit -qm hooks")
    result = project.box.sh(f"{NPM_CI} && echo installed; {TRY_BOTH}")
    assert result.stdout == "installed\npassed\nrefused\n", result.stdout + result.stderr


def test_husky_works_and_hooks_that_an_agent_writes_never_reach_the_host(project):
    # proves TOOL-04, SEC-04, D01, D23, NEW-D1
    box = project.box
    depend(project, "husky", scripts={"prepare": "husky"})
    box.write(".husky/pre-commit", f"{HOOK}\n")
    project.sh(f"{NPM_CI}; git add .; git commit -qm hooks")
    before = read_files(f"{box.project}/.husky/_")
    attack = f"for hook in pre-commit post-index-change; do printf '#!/bin/sh\\ntouch {project.mark}\\n' "
    attack += ">.husky/_/$hook; chmod +x .husky/_/$hook; done; ls .husky/_/post-index-change"

    again = "npm install --cache .npm >/dev/null && echo again; "
    result = box.sh(f"{NPM_CI} && echo installed; {again}{TRY_BOTH}mv .husky x || echo stays; {attack}")

    words = ("installed", "again", "passed", "refused", "stays", ".husky/_/post-index-change")
    assert result.stdout.splitlines() == list(words), result.stdout + result.stderr
    assert read_files(f"{box.project}/.husky/_") == before
    assert not project.use_git()
    assert "good" in project.sh("git log --format=%s")
    # The next session: husky's own are those of the host again, and what else was made inside is there.
    project.sh("rm .husky/_/pre-push")
    again = box.sh(
        "touch x.js; git add x.js; ls .husky/_/post-index-change; ls .husky/_/pre-push; cat .husky/_/pre-commit"
    )
    assert again.stdout == f".husky/_/post-index-change\n{before['pre-commit']}", again.stdout + again.stderr
    assert not project.use_git()
    # The positive control: with `--allow git-config` it is the host's own.
    assert box.sh(attack, flags=("--allow", "git-config")).returncode == 0
    assert project.use_git()


def test_husky_works_in_a_clone_that_never_had_it(project):
    # proves TOOL-04, SEC-04
    box = project.box
    depend(project, "husky", scripts={"prepare": "husky"})
    box.write(".husky/pre-commit", f"{HOOK}\n")
    project.sh("git add .; git commit -qm hooks")

    first = box.sh(f"{NPM_CI} && echo installed")
    assert first.stdout == "installed\n", first.stderr
    assert os.listdir(f"{box.project}/.husky") == ["pre-commit"]
    assert "hookspath" not in project.sh("git config --list")

    second = box.sh(TRY_BOTH)
    assert second.stdout == "passed\nrefused\n", second.stdout + second.stderr
    assert os.listdir(f"{box.project}/.husky") == ["pre-commit"]


def test_husky_8_keeps_committed_hooks_beside_what_it_writes(project):
    # proves TOOL-04, SEC-04
    box = project.box
    depend(project, "husky-8", scripts={"prepare": "husky install"})
    project.sh(NPM_CI)
    box.write(".husky/pre-commit", f'#!/usr/bin/env sh\n. "$(dirname -- "$0")/_/husky.sh"\n{HOOK}\n', mode=0o755)
    project.sh("git add .; git commit -qm hooks")
    before = read_files(f"{box.project}/.husky/_")

    result = box.sh(
        f"{NPM_CI} && echo installed; {TRY_BOTH} echo evil >.husky/_/husky.sh; "
        "(echo evil >.husky/pre-commit) 2>/dev/null || echo closed"
    )
    assert result.stdout == "installed\npassed\nrefused\nclosed\n", result.stdout + result.stderr
    assert read_files(f"{box.project}/.husky/_") == before


def test_pre_commit_and_lefthook_install_hooks_that_stay_inside(project):
    # proves TOOL-04, SEC-04, D01, NEW-D7
    box = project.box
    depend(project, "lefthook")
    box.environ["PATH"] = f"{INSTALLED}/pre-commit/bin:/usr/bin:/bin"
    local = {"id": "x", "name": "x", "language": "system", "entry": f"sh -c {json.dumps(HOOK)}"}
    box.write(
        ".pre-commit-config.yaml",
        json.dumps({"repos": [{"repo": "local", "hooks": [{**local, "pass_filenames": False}]}]}),
    )
    box.write("lefthook.yml", json.dumps({"pre-push": {"commands": {"x": {"run": "true"}}}}))
    box.write(".git/hooks/post-merge", "#!/bin/sh\n", mode=0o755)
    project.sh("git add .; git commit -qm hooks")

    first = box.sh(f"{NPM_CI} && pre-commit install >/dev/null && npx lefthook install >/dev/null; {TRY_BOTH}")
    assert first.stdout == "passed\nrefused\n", first.stdout + first.stderr
    assert project.sh(LIST_HOOKS) == "post-merge\n"

    project.sh("rm .git/hooks/post-merge")
    second = box.sh(f"{LIST_HOOKS}; {TRY_BOTH}")
    assert second.stdout == "pre-commit\npre-push\nprepare-commit-msg\npassed\nrefused\n", second.stdout + second.stderr
    assert project.sh(LIST_HOOKS) == ""
