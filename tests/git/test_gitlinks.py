"""Gitlinks, whose directories git of the host enters: it never finds a `.git` there that the agent made."""

from __future__ import annotations

import os

import pytest
from tests.conftest import is_disarmed
from tests.git.conftest import until
from tests.git.test_hostile import MARK, marked
from tests.git.test_session import make_repository, sh, start

USE = "git status; git diff; git reset -q; git status"
NEST = "git init -q {place}; git -C {place} commit -q --allow-empty -m n; git -C {place} config core.fsmonitor {evil}; "
# How the agent takes the rights away that a look needs and git of the host does not.
SHAPES = (
    "chmod 0111 {around}",
    "chmod 0111 {place}",
    "chmod 0311 {place} {around}",
    "chmod 0555 {place}",
    "chmod 0600 {place}",
    "chmod 0 {around}",
    "mv {place}/.git {place}/real; echo 'gitdir: real' >{place}/.git; chmod 0311 {place}",
)


@pytest.fixture
def evil(pair):
    """Return the attacker's program, which leaves a mark on the host."""
    return pair.box.write(f"{pair.box.base}/evil.sh", f"#!/bin/sh\ntouch {pair.box.home}/{MARK}\n", mode=0o755)


def test_a_directory_without_rights_hides_no_repository(pair, evil):
    # proves GIT-03, D10, D11
    places = {f"d{number}/n": shape.format(place=f"d{number}/n", around=f"d{number}")
              for number, shape in enumerate(SHAPES)}  # fmt: skip
    made = "".join(NEST.format(place=place, evil=evil) for place in places)
    pair.agent(f"{made} git add .; git commit -qm gitlink; {'; '.join(places.values())}")

    result = pair.bring_back(final=True)

    assert [note.partition("/.git`")[0] for note in result.notes] == [f"`{place}" for place in places]
    assert pair.host("git log -1 --format=%s") == "gitlink\n"
    pair.host("chmod 755 d*; chmod 755 d*/n")
    assert not marked(pair, USE)
    for place in places:  # the positive control
        if os.path.lexists(f"{pair.project}/{place}/.git.claudebox"):
            pair.host(f"mv {place}/.git.claudebox {place}/.git")
        else:
            pair.host(f"cd {place}/.git; mv config was; cp config.claudebox config")
        assert marked(pair, USE)
        pair.host(f"cd {place}; test -d .git && mv .git/was .git/config || rm .git")


@pytest.mark.root
def test_what_cannot_be_examined_does_not_come_back(pair, evil):
    # proves GIT-03, D10, D11
    pair.agent(NEST.format(place="d/n", evil=evil) + "git add d; git commit -qm gitlink; git switch -qc other")
    os.chown(f"{pair.project}/d/n", 0, 0)
    os.chmod(f"{pair.project}/d/n", 0o711)

    result = pair.bring_back(final=True)

    closed = bool(pair.box.account.uid)  # nothing is closed to root
    assert [row[0] for row in result.refused] == (["refs/heads/main", "refs/heads/other"] if closed else [])
    assert ("not examined" if closed else "put aside") in result.notes[0]
    assert pair.host("git log -1 --format=%s") == ("first\n" if closed else "gitlink\n")
    assert not marked(pair, USE)


def test_a_path_that_leads_out_of_the_work_tree_renames_nothing(pair):
    # proves GIT-03, D10
    pair.host("git init -q ../precious")
    pair.agent(
        "oid=$(git rev-parse HEAD); link() { python3 -c \"import sys,os; os.write(1, sys.argv[1].encode()+b'\\0'"
        '+bytes.fromhex(sys.argv[2]))" "$1" $2 | git hash-object -t tree -w --literally --stdin; }; '
        'inner=$(link "160000 precious" $oid); tree=$(link "40000 .." $inner); '
        "git update-ref refs/heads/bad $(git commit-tree -m bad $tree)"
    )

    result = pair.bring_back(final=True)

    assert [row[0] for row in result.refused] == ["refs/heads/bad"]
    assert os.path.isdir(f"{pair.box.base}/precious/.git")


def test_no_repository_is_made_where_the_directory_of_a_submodule_is_missing(user_box):
    """A gitlink of an index, with nothing around it, and a file in the place of another; while the session runs."""
    # proves GIT-03, D10, D11
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    places = ("x/n", "x/y/n", "f/n", "g", ".vscode/n", "h/n")
    rows = "; ".join(f"git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),{place}" for place in places)
    sh(box, f"{rows}; git commit -qm links; echo f >f; echo g >g; mkdir h; chmod 0555 h")
    plant = "".join(
        f"t={place.split('/')[0]}; chmod 755 $t; rm -rf $t; mv $t moved{number}; mkdir -p {place}; "
        + NEST.format(place=place, evil=evil)
        for number, place in enumerate(places)
    )
    with start(box, f"set +e; {plant} echo work >x/work; touch planted; sleep 3"):
        until(lambda: os.path.exists(f"{box.project}/planted"))
        assert not has_mark(box, USE)
    assert not has_mark(box, USE)
    assert sh(box, "chmod 755 h; cat x/work f g; ls -a | grep -c vscode || true") == "work\nf\ng\n0\n"
    assert not any(os.path.lexists(f"{box.project}/{place}") for place in ("x/n", "x/y"))
    for place in places:  # the positive control
        sh(box, f"rm -rf {place.split('/')[0]}; mkdir -p {place}; " + NEST.format(place=place, evil=evil))
        assert has_mark(box, USE)
        sh(box, f"rm -rf {place}")


def test_a_repository_in_the_place_of_a_link_is_renamed_at_the_end(user_box):
    """Nothing can be mounted on a link around a submodule, and nothing happens in the git directory."""
    # proves GIT-03, D10, D11
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    sh(box, "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),x/n; git commit -qm l; ln -s nowhere x")

    result = box.sh(f"rm x; mkdir x; {NEST.format(place='x/n', evil=evil)} chmod 0111 x")

    assert is_disarmed(result.stderr, "x/n/.git")
    assert not has_mark(box, USE)
    sh(box, "chmod 755 x; cd x/n/.git; mv config.claudebox config")
    assert has_mark(box, USE)  # the positive control


def has_mark(box, script):
    path = f"{box.home}/{MARK}"
    if os.path.exists(path):
        os.unlink(path)
    box.host("sh", "-c", script)
    return os.path.exists(path)


def test_a_worktree_comes_back_without_a_repository_of_the_agent(user_box):
    # proves GIT-03, GIT-04, D10, D11
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    nest = NEST.format(place="w1/s", evil=evil)
    use = f"cd w1; {USE}"
    first = box.sh(f"git worktree add -qb w1 w1; {nest} cd w1; git add s; git commit -qm s; sleep 2; chmod 0111 s")
    assert is_disarmed(first.stderr, "w1/s/.git")
    assert sh(box, "git -C w1 log -1 --format=%s") == "s\n"
    assert not has_mark(box, use)
    sh(box, "chmod 755 w1/s")
    box.sh(f"{nest} rm -rf w1/s; {nest} mv w1 w2; {nest} true")
    assert not has_mark(box, use)
    sh(box, f"rm -rf w1/s; {nest}")
    assert has_mark(box, use)  # the positive control


def test_a_switch_to_a_branch_with_a_submodule_stages_nothing(pair):
    # proves GIT-03
    pair.host(
        "git switch -qc feature; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),lib; "
        "printf '[submodule \"lib\"]\\n\\tpath = lib\\n\\turl = ./lib\\n' >.gitmodules; git add .gitmodules; "
        "git commit -qm lib; git switch -q main; rm -rf lib"
    )
    pair.set_up()
    pair.agent("git checkout -q feature")

    early = pair.bring_back()
    assert pair.host("git branch --show-current; git diff --cached --name-status") == "main\n"
    late = pair.bring_back(final=True)

    assert pair.host("git branch --show-current; git status --porcelain") == "feature\n"
    assert not [*early.refused, *late.refused, *late.notes]


def test_the_work_of_another_session_is_nobodys_own(user_box):
    """A session that may write settings keeps nothing that was armed when it began beside the one that armed it."""
    # proves NEW-E14, END-01, GIT-03
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    sh(box, "printf '/x\n/mine\n/up\n/b\n/go\n/armed\n' >.gitignore; git init -q mine; "
       "git -C mine config alias.s '!true'")  # fmt: skip
    wait = "for i in $(seq 600); do test -e {} && break; sleep 0.1; done"
    arm = "cp x/.git/config armed; touch b; {}; cp armed x/.git/config; git -C mine config user.name b"
    with start(box, f"{NEST.format(place='x', evil=evil)} touch up; {wait.format('b')}") as one:
        until(lambda: os.path.exists(f"{box.project}/up"))
        with start(box, arm.format(wait.format("go")), "--allow", "git-config") as other:
            one.communicate()
            assert not has_mark(box, "cd x; git status")
            sh(box, "touch go")
            other.communicate()
    assert os.path.exists(f"{box.project}/armed")
    assert not has_mark(box, "cd x; git status")
    assert sh(box, "git -C mine config alias.s; git -C mine config user.name") == "!true\nb\n"  # this is the user's
    sh(box, "cp armed x/.git/config")
    assert has_mark(box, "cd x; git status")  # the positive control


# Everything in a nested repository that git of the host would run, by the name of the directory that it is planted in.
NESTED = {
    "lib": "git -C lib config core.fsmonitor {evil}",
    "staged": "git -C staged config core.fsmonitor {evil}; chmod 0311 staged/.git",
    "deep/er/lib": "git -C deep/er/lib config include.path ../../conf; "
    "printf '[core]\\nfsmonitor={evil}\\n' >deep/er/conf",
    "hooked": "printf '#!/bin/sh\\n{evil}\\n' >hooked/.git/hooks/post-index-change; "
    "chmod +x hooked/.git/hooks/post-index-change",
    "linked": "git -C linked config core.fsmonitor {evil}; mv linked/.git linked/real; ln -s real linked/.git",
    "named": "git -C named config core.fsmonitor {evil}; mv named/.git named/real; echo 'gitdir: real' >named/.git",
    "common": "git -C common config core.fsmonitor {evil}; mv common/.git common/real; mkdir common/.git; "
    "cp common/real/HEAD common/real/index common/.git; echo ../real >common/.git/commondir",
    "worktree": "git -C worktree config extensions.worktreeConfig true; "
    "git -C worktree config --worktree core.fsmonitor {evil}",
    "hidden": "git -C hidden config core.fsmonitor {evil}; mkdir -p hidden/x/.git/lfs; "
    "mv hidden/.git hidden/x/.git/lfs/y; echo 'gitdir: x/.git/lfs/y' >hidden/.git",
    "spelled": "printf ' [core]fsmonitor=\\\\\\n{evil}\\n' >>spelled/.git/config",
}
LATER = (
    "git checkout -q other; git status; git diff; git stash; git submodule update; git reset -q; git status; git add -A"
)


def test_no_repository_made_inside_runs_anything_on_the_host(user_box):
    """Whichever branch has a gitlink there, and wherever in submodules: nobody looks for gitlinks."""
    # proves GIT-03, D10, D11, D13
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    link = "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),"
    links = "; ".join(link + place for place in NESTED)
    sh(box, f"git init -q ../sub; cd ../sub; git commit -q --allow-empty -m s; cd ../project; git submodule add -q "
       f"../sub sub; cd sub; git switch -qc deep; {link}in; git commit -qm in; git switch -qf main; "
       f"cd ..; git commit -qm sub; git switch -qc other; {links}; git commit -qm links; git switch -qf main; "
       f"{link}staged; git commit -qm staged; git rm -q --cached staged")  # fmt: skip
    nests = {place: script.format(evil=evil) for place, script in NESTED.items()}
    nests["sub/in"] = f"git -C sub/in config core.fsmonitor {evil}"
    plant = "".join(
        f"mkdir -p {place}; git init -q {place}; git -C {place} commit -q --allow-empty -m n; {script}; "
        for place, script in nests.items()
    )
    result = box.sh(f"set +e; {plant} true")

    led = {"named": "named/real", "hidden": "hidden/x/.git/lfs/y"}  # what their `.git` files lead to
    armed = [place for place in nests if not is_disarmed(result.stderr, led.get(place, f"{place}/.git"))]
    assert not armed, result.stderr
    assert not has_mark(
        box, f"{LATER}; git -C hooked read-tree HEAD; cd sub; git checkout -q deep; git status; git diff; git stash"
    )
    for place in ("lib", "hooked", "spelled", "sub/in"):  # the positive control
        name = "hooks" if place == "hooked" else "config"
        sh(box, f"cd {place}/.git; test -e {name} || mkdir {name}; mv {name} was; mv {name}.claudebox {name}")
        assert has_mark(box, "git status; git -C hooked read-tree HEAD; git -C sub status"), place
        sh(box, f"cd {place}/.git; mv {name} {name}.claudebox; mv was {name}")


def test_a_repository_that_names_no_program_stays_as_it_is(user_box):
    """A clone with submodules and worktrees, made inside; and one of the user, with hooks and settings of their own."""
    # proves GIT-04, D11
    box = make_repository(user_box)
    sh(box, "echo '/mine /clone' | tr ' ' '\\n' >.gitignore; git clone -q . mine; cd mine; "
       "printf 'exit 0' >.git/hooks/pre-push; git config core.sshCommand mine; git config alias.s status; "
       "cp -a .git ../../before")  # fmt: skip
    inside = (
        "cd mine; git commit -q --allow-empty -m more; cd ..; git clone -q . clone; cd clone; git config user.name me; "
        "git switch -qc topic/a; git push -q -u origin topic/a; git worktree add -qb w w; "
        "git -c protocol.file.allow=always submodule add -q ../mine sub; git commit -qm sub"
    )

    result = box.sh(inside)

    assert result.returncode == 0, result.stderr
    assert "put aside" not in result.stderr
    assert sh(box, "cd mine; git log -1 --format=%s; cmp .git/config ../../before/config; ls .git/hooks/pre-push") == (
        "more\n.git/hooks/pre-push\n"
    )
    assert sh(box, "cd clone; git status --porcelain; git worktree list | wc -l; cd sub; git log -1 --format=%s") == (
        "?? w/\n2\nmore\n"
    )
    change = "printf 'exit 1' >mine/.git/hooks/pre-push; git -C mine config user.name other"
    box.sh(change)
    assert sh(box, "cd mine; cmp .git/config ../../before/config; cat .git/hooks/pre-push") == "exit 0"
    box.sh(change, flags=("--allow", "git-config"))
    kept = sh(box, "cd mine; git config user.name; git config core.sshCommand; cd .git; ls hooks/*.claudebox")
    assert kept == "other\nmine\nhooks/pre-push.claudebox\n"
