"""Git directories of any name, which git of the host enters where the user is, or where something leads there."""

from __future__ import annotations

from tests.git.test_gitlinks import has_mark
from tests.git.test_hostile import MARK
from tests.git.test_session import make_repository, sh

USE = "cd {place} && git status; git diff; git ls-remote ssh://host.invalid/x"
BARE = "mkdir -p {d}/objects {d}/refs; echo 'ref: refs/heads/main' >{d}/HEAD; "
ARMED = (
    "printf '[core]\\n repositoryformatversion=0\\n bare=false\\n worktree=.\\n fsmonitor={evil};:\\n' >{d}/config; "
    "echo ' sshCommand={evil}' >>{d}/config; "
)
# How a directory of some name is made into what git takes for a repository.
SHAPES = {
    ".": BARE + ARMED,
    "src": BARE + ARMED,
    "new": BARE + ARMED + "mkdir {d}/x",
    "links": "mkdir {d} o; ln -s refs/heads/x {d}/HEAD; ln -s ../o {d}/objects; ln -s ../o {d}/refs; " + ARMED,
    "split": BARE.replace("{d}", "r") + ARMED.replace("{d}", "r") + "mkdir -p {d}; "
    "echo ../r >{d}/commondir; echo 'ref: refs/heads/main' >{d}/HEAD",
    "later": "test -e {d} && {{ " + BARE + "}} || {{ mkdir {d}; " + ARMED + "}}",  # a part in each of two sessions
}
BOTH = ("repo.git", "real/w4git", "docs/cache")


def test_no_directory_becomes_a_repository_that_runs_something(user_box):
    # proves D10, D11, D12, D13
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    sh(box, "mkdir pkg pkg/src; echo x >pkg/src/x; git add pkg; git commit -qm pkg")
    box.project = f"{box.project}/pkg"
    plant = "; ".join(f"( {script.format(d=d, evil=evil)} )" for d, script in SHAPES.items())
    box.sh(f"set +e; ( {SHAPES['later'].format(d='later', evil=evil)} )")
    result = box.sh(f"set +e; {plant}; true")

    places = [*(place for place in SHAPES if place != "split"), "r"]
    assert not [d for d in places if f"`{d}`: put aside as *.claudebox" not in result.stderr], result.stderr
    for place in SHAPES:
        assert not has_mark(box, USE.format(place=place)), place
    for place in places:  # the positive control
        sh(box, f"cp {place}/config.claudebox {place}/config")
    sh(box, "mv split/commondir.claudebox split/commondir")
    for place in SHAPES:
        assert has_mark(box, USE.format(place=place)), place


def test_what_the_users_own_checkouts_lead_to_is_disarmed(user_box):
    """A bare repository with worktrees, a `.git` that is a link of the user, and what an address leads to."""
    # proves D10, D11, D13
    box = user_box
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    make_repository(box)
    sh(box, "mv .git ../seed; rm -rf ./*; git clone -q --bare ../seed repo.git; git init -q w4; "
       "git -C repo.git worktree add -q $PWD/main; mkdir real docs; mv w4/.git real/w4git; "
       "ln -s ../real/w4git w4/.git; git clone -q main lib")  # fmt: skip
    first = box.sh("git clone -q --bare lib docs/cache; git init -q --bare docs/plain; git -C main commit -q "
                   "--allow-empty -m more; git -C w4 commit -q --allow-empty -m more")  # fmt: skip
    assert first.returncode == 0, first.stderr
    assert "put aside" not in first.stderr
    assert not sh(box, "find . -name '*.claudebox'")

    hook = f"printf '#!/bin/sh\\n{evil}\\n' >docs/cache/hooks/pre-receive; chmod +x docs/cache/hooks/pre-receive"
    arm = "; ".join(f"git --git-dir={d} config core.fsmonitor '{evil};:'" for d in ("repo.git", "real/w4git"))
    result = box.sh(f"{arm}; {hook}; git -C lib config remote.origin.url ../docs/cache")

    assert not [d for d in BOTH if f"`{d}`: put aside as *.claudebox" not in result.stderr], result.stderr
    push = "cd lib; git commit -q --allow-empty -m x; git push origin HEAD:x"
    uses = ("cd main; git status", "cd w4; git status", push)
    for use in uses:
        assert not has_mark(box, use), use
    sh(box, "for d in repo.git real/w4git; do mv $d/config.claudebox $d/config; done; cd docs/cache; "
       "rm -rf hooks; mv hooks.claudebox hooks")  # fmt: skip
    for use in (*uses[:2], uses[2].replace(":x", ":y")):
        assert has_mark(box, use), use  # the positive control
