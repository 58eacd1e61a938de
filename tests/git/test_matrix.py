"""Git's own commands do inside what they do outside: the same output and status, command by command."""

from __future__ import annotations

import os
import shutil

import pytest
from tests.conftest import Box, need
from tests.git.conftest import GITCONFIG

PRELUDE = """
export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000' GIT_PAGER=cat GIT_EDITOR=true
export LC_ALL=C GIT_MERGE_AUTOEDIT=no FILTER_BRANCH_SQUELCH_WARNING=1
t() { printf '== %s\\n' "$*"; "$@" 2>&1 </dev/null; printf -- '-> %d\\n' $?; }
w() { printf '%s\\n' "$2" >"$1"; }
"""
# One line each; `t` shows a command with its output and status.
COMMANDS = r"""
t git status
t git st
t git log --oneline --decorate --all
t git branch -a -vv
t git rev-parse HEAD --show-toplevel --git-dir --git-common-dir --is-inside-work-tree
t git ls-files -s
w one 1; t git add one; t git commit -m one
w one 2; t git diff; t git commit -am two; t git show --stat
t git checkout -b feature; w two 2; t git add two; t git commit -m feature
t git config branch.feature.description 'of the feature'
t git branch -m feature renamed; t git branch renamed-too; t git branch -d renamed-too
t git init -q --bare remote.git
t git remote add mine ./remote.git; t git remote -v; t git push -u mine renamed
t git fetch mine; t git remote prune mine
t git push mine --tags; t git ls-remote mine
t git checkout -; t git merge --no-ff -m merged renamed; t git log --graph --oneline
t git tag v1; t git tag -a v2 -m two; t git tag -l; t git describe --tags
w one 3; w untracked x; t git stash push -u; t git status -s; t git stash list; t git stash pop; t git status -s
t git clean -nd; t git clean -xfd -e remote.git -e .bare; t git checkout -- .; t git status -s
t git checkout -q -b left; w one left; t git commit -qam left; t git checkout -q -; w one right; t git commit -qam right
t git merge left; t git status -s; t git ls-files -u; t git merge --abort
t git cherry-pick left; t git cherry-pick --abort
t git merge -q -X ours left; t git revert --no-edit -m 1 HEAD; t git reset -q --hard HEAD~1
t git checkout -q -b topic HEAD~1; for n in a b c; do w "$n" "$n"; git add "$n"; git commit -qm "add $n"; done
t git rebase -q left; t git log --oneline -5
t env GIT_SEQUENCE_EDITOR='sed -i 2s/pick/squash/' git rebase -q -i HEAD~3; t git log --oneline -4
t git format-patch -1 --stdout; git format-patch -q -1 -o patches
t git reset -q --hard HEAD~1; t git am patches/*.patch
t git bisect start HEAD HEAD~2; t git bisect run true; t git bisect reset
t git notes add -m note HEAD; t git notes show; t git replace --list; t git reflog -3
t git blame one; t git grep -n left; t git shortlog -sn HEAD; t git rev-list --count --all; t git cat-file -t HEAD
t git mv one moved; t git rm -q --cached moved; t git reset -q --hard
git archive HEAD | tar t
t git bundle create b.bundle --all; t git bundle verify -q b.bundle
t git clone -q . inner; t git -C inner log --oneline -1; rm -rf inner
t git worktree add -q .wt/one left; t git -C .wt/one status
w .wt/one/x x; git -C .wt/one add x; t git -C .wt/one commit -qm inwt
t git worktree list; t git worktree move .wt/one .wt/two; t git worktree remove .wt/two; t git worktree prune
t git sparse-checkout set --cone patches; ls; t git sparse-checkout list; t git sparse-checkout disable; ls
t git submodule add -q ./remote.git sub; t git submodule status; t git commit -qm sub; t git -C sub log --oneline -1
t git submodule foreach git status -s; t git submodule deinit -f sub; t git submodule update --init
t git update-index --refresh; t git commit-graph write --reachable; t git pack-refs --all
t git repack -qad; t git repack -qadl
t git gc -q --prune=now; t git maintenance run --quiet; t git multi-pack-index write; t git fsck --no-dangling
t git switch -q --orphan fresh; w f f; t git add f; t git commit -qm fresh; t git checkout -q -; t git branch -D fresh
t git filter-branch -f --msg-filter cat HEAD~1..HEAD; t git update-ref -d refs/original/x
t git config user.name changed; t git var GIT_AUTHOR_IDENT; t git config --unset user.name
t git hash-object -w one two; t git write-tree; t git symbolic-ref HEAD; t git for-each-ref; t git diff --stat HEAD~2
w .gitignore '*.o'; w x.o x; t git check-ignore x.o; t git status -s
"""
BASE = """
git init -q; w one 0; mkdir -p d; for n in 1 2 3; do w d/f$n $n; done; git add -A; git commit -qm first
printf '%s\\n' remote.git .wt patches b.bundle >.git/info/exclude; git tag v0
"""
MOVED = "mv .git ../moved; echo 'gitdir: ../moved' >.git;"
LAYOUTS = {
    "plain": BASE,
    "linked worktree": f"{BASE} git worktree add -q ../tree -b tree; cd ../tree",
    "git directory elsewhere": f"{BASE} {MOVED} git config core.worktree $PWD",
    "git directory in the project": f"{BASE} mv .git .bare; echo 'gitdir: .bare' >.git;echo .bare >>.bare/info/exclude",
    "worktree of a bare repository": f"{BASE} git clone -q --bare . ../bare;"
    "git -C ../bare worktree add -q ../tree main; cd ../tree",
    "configuration per worktree, hooks": f"{BASE} git config extensions.worktreeConfig true;"
    "git sparse-checkout set --cone d; printf '#!/bin/sh\\necho hook $0 >&2\\n' >.git/hooks/pre-commit;"
    "chmod +x .git/hooks/pre-commit; git config pack.writeBitmaps true",
    "shallow": f"{BASE} git commit -q --allow-empty -m later; git clone -q --depth 1 file://$PWD ../shallow;"
    "rm -rf .git; mv ../shallow/.git .; git remote remove origin; git pack-refs --all; rm -rf .git/refs/remotes;"
    "git reset -q --hard",
    "sha256": f"export GIT_DEFAULT_HASH=sha256; {BASE}",
    "detached, packed, many refs": f"{BASE} seq 250 | sed 's:.*:create refs/heads/b& HEAD:' | git update-ref --stdin;"
    "git pack-refs --all; git update-ref refs/tags/loose HEAD; git checkout -q --detach",
    "many loose refs, split index, version 4": f"{BASE} git config index.version 4; git update-index --split-index;"
    "w d/f4 4; git add d; seq 250 | sed 's:.*:create refs/heads/dir/b& HEAD:' | git update-ref --stdin",
    "merge under way": f"{BASE} git checkout -q -b o; w one o; git commit -qam o; git checkout -q -; w one m;"
    "git commit -qam m; git merge -q o || true; git stash list",
    "rebase under way": f"{BASE} git checkout -q -b o; w one o; git commit -qam o; git checkout -q -; w one m;"
    "git commit -qam m; git rebase -q o || git status -s",
    "nothing committed": "git init -q; w one 1; git add one; echo remote.git >>.git/info/exclude",
}
MOST_DIFFERENT = ("linked worktree",)
FIRST = {
    "merge under way": "t git status; w one both; t git add one; t git commit -qm resolved; t git log --oneline",
    "sha256": "export GIT_DEFAULT_HASH=sha256",
    "rebase under way": "t git status; w one both; t git add one; t git rebase --continue; t git log --oneline --graph",
}


def prepare(box: Box, layout: str) -> str:
    """Make the repository and return where the commands run."""
    box.write(f"{box.home}/.gitconfig", GITCONFIG + "[alias]\n\tst = status -s\n")
    os.chown(box.base, box.account.uid, box.account.gid)
    result = box.host("sh", "-ec", f"{PRELUDE} {LAYOUTS[layout]}\npwd", env={"GIT_CONFIG_NOSYSTEM": "1"})
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


def parts(transcript: str) -> list[str]:
    return transcript.split("== ")[1:]


def test_commands_do_inside_what_they_do_outside(box):
    # proves GIT-02, GIT-03, GIT-04
    compare(box, "plain")


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout, marks=() if layout in MOST_DIFFERENT else pytest.mark.slow)
        for layout in LAYOUTS
        if layout != "plain"
    ],
)
def test_commands_do_inside_what_they_do_outside_in_every_layout(user_box, layout):
    # proves GIT-02, GIT-03, GIT-04
    compare(user_box, layout)


def compare(box: Box, layout: str) -> None:
    """Run the commands outside and inside, from the same beginning."""
    need(shutil.which("git"), "git")
    where = prepare(box, layout)
    names = [name for name in os.listdir(box.base) if name != "home"]
    script = f"{PRELUDE} {FIRST.get(layout, '')}\n{COMMANDS}"
    copy = f"mkdir saved; cp -a {' '.join(names)} saved"
    assert box.host("sh", "-ec", copy, cwd=box.base).returncode == 0
    outside = box.host("sh", "-c", script, cwd=where, env={"GIT_CONFIG_NOSYSTEM": "1"})
    assert box.host("sh", "-ec", f"rm -rf {' '.join(names)}; mv saved/* .", cwd=box.base).returncode == 0
    inside = box.sh(script, cwd=where)

    assert len(parts(outside.stdout)) > 100
    pairs = zip(parts(outside.stdout), parts(inside.stdout), strict=False)
    different = [f"outside: {one}inside: {other}" for one, other in pairs if one != other]
    assert not different, "\n".join(different[:4])
    assert inside.stdout == outside.stdout, inside.stderr
    report = box.host("git", "fsck", "--no-dangling", cwd=where)
    assert report.returncode == 0, report.stderr
