"""What git of the host runs because a link in its git directory leads there, or its configuration names it, cannot be
written inside; everything else can."""

from __future__ import annotations

import os

from tests.support import repositories

# Each line: how a program of the project is named, as keys of git's configuration.
NAMED = r"""
name filter.a.clean 'python3 t/a.py %f'; name credential.helper '!f() { ./t/b.sh; }; f'
name filter.e.clean 'bash<t/e.sh'; name filter.f.clean '${X:-t/f.sh}'; name filter.g.clean "t/'g'.sh"
name filter.h.clean 't/h.sh;t/i.sh'; name filter.l.clean '~/bin/l.sh'; name filter.m.clean 'sh -c "`cat ./t/m.sh`"'
name core.pager 'sh t/n'; name diff.o.textconv '$HOME/bin/o.sh'; name merge.p.driver "sh 't/p q.sh' %A"
name filter.lfs.clean 'git-lfs clean -- %f'; name filter.lfs.smudge 'git-lfs smudge --skip -- %f'
"""
FILES = "a.py b.sh e.sh f.sh g.sh h.sh i.sh l.sh m.sh n o.sh"
TRY = (
    "find . -name .git -prune -o -type f -print |"
    """while read -r f; do sh -c 'echo >>"$1"' - "$f" 2>/dev/null && echo "$f"; done"""
)


def test_programs_that_the_configuration_names_in_whatever_spelling_are_read_only(user_box):
    # proves SEC-04, D05
    checkout = repositories.make(user_box)
    checkout.sh(
        f"mkdir t; for f in {FILES} free.sh; do echo >t/$f; done; echo >'t/p q.sh'; ln -s $PWD/t ~/bin;"
        "for f in clean smudge git-lfs; do echo >$f; done;"
        f'name() {{ git config "$@"; }}; {NAMED}'
    )
    result = user_box.sh(TRY)

    free = {"./a", "./evil.sh", "./t/free.sh", "./clean", "./smudge", "./git-lfs", ""}
    assert set(result.stdout.split("\n")) == free, result.stderr


def test_what_links_of_a_git_directory_lead_to_is_read_only(user_box):
    # proves SEC-04, C20, D05, D08
    checkout = repositories.make(user_box)
    checkout.sh(
        "git init -q ../sub; git -C ../sub commit -q --allow-empty -m s; git submodule --quiet add ../sub lib;"
        "mkdir s hp inf; for f in one two three attributes free; do echo >s/$f; done; echo >hp/pre-push; echo >inf/x;"
        "ln -s ../../s/one .git/hooks/pre-commit; ln -s pre-commit .git/hooks/pre-push;"
        "ln -s ../s/two hp/post-checkout; ln -s ../s/missing hp/pre-commit; git config core.hooksPath hp;"
        "ln -s ../../../../s/three .git/modules/lib/hooks/pre-commit; ln -sf ../../s/attributes .git/info/attributes;"
        "mv .git/config conf; ln -s ../conf .git/config"
    )
    result = user_box.sh(f"echo >s/missing || :; {TRY}")

    writable = {"./a", "./evil.sh", "./.gitmodules", "./s/free", "./inf/x", ""}
    assert set(result.stdout.split("\n")) == writable, result.stderr


def test_programs_are_read_only_in_every_worktree_and_submodule_of_the_project(user_box):
    # proves SEC-04, D05, D08, D10, D14
    checkout = repositories.make(user_box)
    checkout.sh(
        "mkdir .husky t; for f in .husky/pre-commit t/clean.sh t/free; do echo >$f; done; git add .; git commit -qm h;"
        "git config core.hooksPath .husky; git config filter.x.clean ./t/clean.sh; git worktree add -q deep/er/tree;"
        "git worktree add -q .claude/worktrees/own;"
        "git init -q ../sub; mkdir ../sub/hk; echo >../sub/hk/pre-commit; git -C ../sub add .;"
        "git -C ../sub commit -qm s;"
        "git submodule --quiet add ../sub lib; git -C lib config core.hooksPath hk; echo >lib/free"
    )
    result = user_box.sh(TRY)

    free = ("a", "evil.sh", "t/free")
    writable = {f"./{place}{name}" for place in ("", "deep/er/tree/", ".claude/worktrees/own/") for name in free}
    assert set(result.stdout.split("\n")) == {*writable, "./.gitmodules", "./lib/free", ""}, result.stderr


def test_a_second_repository_is_protected_like_the_project(user_box):
    # proves SEC-04, D05, D08, EXT-02, C20
    checkout = repositories.make(user_box)
    checkout.sh(
        "mkdir pkg; for f in pkg/hook pkg/clean.sh pkg/conf pkg/free; do echo >$f; done; mkdir hooks;"
        "ln -s ../pkg/hook hooks/pre-commit; git config core.hooksPath hooks; git config filter.x.clean pkg/clean.sh;"
        "git config include.path ../pkg/conf; echo >hooks/pre-push"
    )
    second, user_box.project = user_box.project, f"{user_box.base}/other"
    checkout.sh(f"mkdir {user_box.project}", cwd=user_box.base)
    part = user_box.sh(f"cd {second}/pkg; {TRY}", flags=("--mount-rw", f"{second}/pkg"))
    whole = user_box.sh(
        f"cd {second}; {TRY}; git status --short; git commit -qm in a; mkdir .vscode .claude new; ls",
        flags=("--mount-rw", second),
    )

    assert part.stdout == "./free\n", part.stderr
    lines = whole.stdout.split("\n")
    assert {line for line in lines if line.startswith("./")} == {"./a", "./evil.sh", "./pkg/free"}, whole.stderr
    assert "new" in lines
    assert not [line for line in lines if ".vscode" in line]  # git inside does not see what stands for it
    assert sorted(os.listdir(second)) == [".git", "a", "evil.sh", "hooks", "new", "pkg"]
    assert "in" in checkout.sh("git log --format=%s", cwd=second).split(), whole.stderr


def test_a_repository_is_not_mounted_writable_at_another_place_nor_its_git_directory(user_box):
    # proves SEC-04, D05, EXT-02
    checkout = repositories.make(user_box)
    repository, user_box.project = user_box.project, f"{user_box.base}/other"
    checkout.sh("mkdir other plain holder project/part; git init -q holder/in", cwd=user_box.base)
    elsewhere = [f"{place}:/data" for place in (repository, f"{repository}/part", f"{user_box.base}/holder")]
    for mount in (*elsewhere, f"{repository}/.git", f"{repository}/.git/hooks"):
        refused = user_box.sh("true", flags=("--mount-rw", mount))
        assert refused.returncode == 125
        assert "mount it at its own place" in refused.stderr
    script = "echo >/data/x"
    assert user_box.sh(script, flags=("--mount-rw", f"{user_box.base}/plain:/data")).returncode == 0
    assert (
        user_box.sh(script, flags=("--mount-rw", f"{repository}:/data", "--set", "unsafe_mounts=true")).returncode == 0
    )
    assert user_box.sh("cat /data/a", flags=("--mount-ro", f"{repository}:/data")).stdout == "a\n"


def test_what_cannot_be_searched_for_repositories_is_mounted_at_its_own_place_only(user_box):
    # proves GIT-04
    data = user_box.mkdir(f"{user_box.base}/data/deep")
    user_box.write(f"{data}/x", "x")
    top = os.path.dirname(data)
    assert user_box.sh("true", flags=("--mount-rw", f"{top}:/data")).returncode == 0, "the control"
    os.chmod(data, 0)
    refused = user_box.sh("true", flags=("--mount-rw", f"{top}:/data"))
    assert refused.returncode == 125
    assert "was not searched for repositories" in refused.stderr
    assert user_box.sh("true", flags=("--mount-rw", top)).returncode == 0
    os.chmod(data, 0o755)


def test_a_path_that_goes_up_leads_where_the_kernel_says_and_its_way_stays(user_box):
    """Between a directory and `..` lies whatever the directory is: a link in its place leads elsewhere."""
    # proves SEC-04, C22, D05
    checkout = repositories.make(user_box)
    checkout.sh(
        "mkdir -p p/sub b/in hk real/deep n; ln -s real/deep l; ln -s l m; echo >real/hook.sh; echo >hk/pre-push;"
        "echo >conf; echo >n/free; git config core.hooksPath p/../hk; git config include.path ../b/in/../../conf;"
        "git config filter.x.clean m/../hook.sh; git config filter.y.clean ./gone/../hk/pre-push"
    )
    result = user_box.sh(
        f"{TRY}; for d in p b b/in hk real real/deep n; do mv $d moved 2>/dev/null && echo moved $d; done;"
        "ln -s n gone 2>/dev/null && echo made; rm -f l m"
    )

    assert {line for line in result.stdout.split("\n") if line.startswith("./")} == {"./a", "./evil.sh", "./n/free"}
    assert "moved n\n" in result.stdout
    assert [line for line in result.stdout.split("\n") if line.startswith("moved")] == ["moved n"], result.stderr
    assert "made" not in result.stdout
    for link in ("l", "m"):
        assert f"{user_box.project}/{link} is a link and cannot be protected" in result.stderr
