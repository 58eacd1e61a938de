"""Commits that change what git of the host obeys by the user's own configuration: they come under another name."""

from __future__ import annotations

from tests.git.test_gitlinks import has_mark
from tests.git.test_hostile import MARK
from tests.git.test_session import make_repository, sh

HOST = (
    "mkdir .husky tools; printf '#!/bin/sh\\ncat\\n' >tools/clean.sh; chmod +x tools/clean.sh; echo '*.dat filter=x' "
    ">.gitattributes; echo '[color]' >.gitcfg; echo 1 >b.dat; echo '#!/bin/sh' >.husky/post-checkout; "
    "chmod +x .husky/*; git config core.hooksPath .husky; git config filter.x.clean ./tools/clean.sh; "
    "git config filter.x.smudge ./tools/clean.sh; git config include.path ../.gitcfg; "
    "mkdir way; touch way/x q.z; echo '*.z filter=z' >>.gitattributes; "
    "git config filter.z.clean way/../tools/clean.sh; git config filter.z.smudge later/run.sh; "
    "git add .; git commit -qm host; "
    "git branch other; git branch good; git branch theirs; git checkout -q theirs; echo '# theirs' >>.gitcfg; "
    "git commit -qam theirs; git checkout -q main"
)
# How the agent changes one of them, on a branch that is checked out elsewhere.
CHANGES = {
    ".husky/post-checkout": "printf '#!/bin/sh\\n{evil}\\n' >.husky/post-checkout",
    "tools/clean.sh": "printf '#!/bin/sh\\n{evil}\\ncat\\n' >tools/clean.sh; echo 2 >b.dat",
    ".gitcfg": "printf '[core]\\n fsmonitor = {evil};:\\n' >.gitcfg",
    "way": "mkdir -p y/z y/tools; touch y/z/keep; git rm -qr way; ln -s y/z way; echo >>q.z; "
    "printf '#!/bin/sh\\n{evil}\\ncat\\n' >y/tools/clean.sh; chmod +x y/tools/clean.sh",
    "later/run.sh": "mkdir later; printf '#!/bin/sh\\n{evil}\\ncat\\n' >later/run.sh; chmod +x later/run.sh; "
    "echo >>q.z",
    ".husky": "mkdir x; mv .husky/* x; rmdir .husky; printf '#!/bin/sh\\n{evil}\\n' >x/post-checkout; ln -s x .husky",
}
STAGE = (
    "b=$(printf '[core]\\n fsmonitor = {evil};:\\n' | git hash-object -w --stdin); "
    "git update-index --cacheinfo 100644,$b,.gitcfg"
)


def test_a_branch_that_changes_what_git_obeys_arrives_under_another_name(user_box):
    # proves GIT-03, D01, D02, D04
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    sh(box, HOST)
    made = {f"new{number}": script.format(evil=evil) for number, script in enumerate(CHANGES.values())}
    made["other"] = made["new0"]
    work = "".join(
        f"git branch {name} || true; git worktree add -q /tmp/{name} {name}; "
        f"(cd /tmp/{name}; {script}; git add -A; git commit -qm {name});\n"
        for name, script in made.items()
    )
    fine = (
        "git worktree add -q /tmp/good good; cd /tmp/good; echo 3 >b.dat; mkdir .vscode; echo 1 "
        ">.vscode/tasks.json; git add -fA . .vscode; git commit -qm fine; git merge -q theirs -m merge; "
        "git switch -q theirs; git switch -qc mine; "
        "git commit -q --allow-empty -m mine; git tag bad new0; "
    )

    result = box.sh(f"set -e\n{work}{fine}")

    assert result.returncode == 0, result.stderr
    before = sh(box, "git rev-parse theirs~1").strip()
    names = sh(box, "git for-each-ref --format='%(refname:short)' refs/heads refs/tags").split()
    arrived = [name for name in names if name.startswith("claudebox/")]
    assert sorted(name.rpartition("/")[2] for name in arrived) == sorted(made), names
    assert not {"good", "main", "mine", "other", "theirs"} - set(names)
    assert "bad" not in names
    early = [name for name in made if name in names]  # as they were before anything was committed
    assert all(sh(box, f"git rev-parse {name}").strip() == before for name in early), result.stderr
    assert all(f"changes `{path}" in result.stderr for path in CHANGES), result.stderr
    assert "`good` changes what tools of the host obey: `.vscode/tasks.json`" in result.stderr, result.stderr
    assert sh(box, "git log -1 --format=%s good; git log -1 --format=%s mine") == "merge\nmine\n"
    assert not has_mark(box, "for b in other good mine main; do git checkout -q $b; git status; done; git stash")
    # One that has arrived is taken for the agent's still, and HEAD is not led there.
    again = box.sh(f"git symbolic-ref HEAD refs/heads/{arrived[-1]}; git update-ref refs/heads/good {arrived[0]}")
    assert again.returncode == 0, again.stderr
    assert sh(box, "git branch --show-current; git log -1 --format=%s good") == "main\nmerge\n"
    for name in arrived:  # the positive control
        assert has_mark(box, f"git checkout -q {name}; git status; git checkout -qf main; git checkout -q {name}"), name
        sh(box, "git -c core.hooksPath=/dev/null -c core.fsmonitor= checkout -qf main")


def test_what_is_staged_or_committed_by_plumbing_stays_inside(user_box):
    # proves GIT-03, D01
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    sh(box, HOST)
    stage = STAGE.format(evil=evil)
    use = "git restore . || git checkout .; git status; git stash; git status; git reset -q --hard; git status"
    for script in (
        stage,
        f"git reset -q; {stage}; git commit -qm innocent; git checkout -q --detach; git reset -q HEAD~1 -- .gitcfg",
        f"git checkout -q main; git reset -q --soft theirs~1; {stage}; git commit -qm innocent",
    ):
        result = box.sh(script)
        assert "`.gitcfg`, which is read-only inside" in result.stderr, result.stderr
        assert sh(box, "git log -1 --format=%s; git branch --show-current; git diff --cached --stat") == "host\nmain\n"
        assert not has_mark(box, use)
    sh(box, "git merge -q $(git for-each-ref --format='%(refname)' refs/heads/claudebox | tail -1)")
    assert has_mark(box, "git status")  # the positive control
    more = box.sh("git log -1 --format=%s; echo more >>a; git commit -qm more a")
    assert "read-only inside" not in more.stderr, more.stderr
    assert sh(box, "git log -1 --format=%s") == "more\n"


def test_what_a_submodule_or_another_worktree_obeys_comes_under_another_name(box):
    """In a submodule by its own configuration; in a worktree, what an absolute path leads to in the main checkout."""
    # proves GIT-03, D01, D08, D10
    make_repository(box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    sh(box, "mkdir hk; echo '#!/bin/sh' >hk/post-checkout; chmod +x hk/post-checkout; git add hk; git commit -qm hk; "
       "git clone -q . ../lib; git submodule --quiet add ../lib lib; git commit -qm lib; "
       "git -C lib config core.hooksPath hk; git config core.hooksPath $PWD/hk; "
       "git worktree add -q ../tree -b feature")  # fmt: skip
    change = (
        f"b=$(printf '#!/bin/sh\\n{evil}\\n' | git hash-object -w --stdin); "
        "git update-index --cacheinfo 100755,$b,hk/post-checkout; git commit -qm innocent"
    )
    main, box.project = box.project, f"{box.base}/tree"

    inner = box.sh(f"cd lib; {change}", cwd=main)
    outer = box.sh(f"{change}; git branch more")
    box.project = main

    assert "main changes `hk/post-checkout`, which is read-only inside: it arrived as" in inner.stderr, inner.stderr
    assert "feature changes `hk/post-checkout`, which is read-only inside: it arrived as" in outer.stderr, outer.stderr
    use = "git stash; git checkout -q -b n; git merge -q {0} || true; git checkout -q -b m"
    assert sh(box, "git log -1 --format=%s feature; git -C lib log -1 --format=%s main") == "lib\nhk\n"
    assert not has_mark(box, use.format("feature"))
    assert not has_mark(box, f"cd lib; {use.format('main')}")
    arrived = "$(git for-each-ref --format='%(refname)' refs/heads/claudebox | head -1)"
    again = "git merge -q {0}; git checkout -q -b {1}"
    assert has_mark(box, again.format(arrived, "x"))  # the positive control
    assert has_mark(box, f"cd lib; {again.format(arrived, 'x')}")
