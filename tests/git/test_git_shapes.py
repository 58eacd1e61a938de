"""Git directories of any name, which git of the host enters where the user is, or where something leads there."""

from __future__ import annotations

from tests.conftest import is_disarmed
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
    assert not [d for d in places if not is_disarmed(result.stderr, d)], result.stderr
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
    script = f"{arm}; {hook}; git -C lib config remote.origin.url ../docs/cache"
    assert "put aside" not in box.sh(script).stderr  # they are read-only
    result = box.sh(script, flags=("--allow", "git-config"))

    assert not [d for d in BOTH if not is_disarmed(result.stderr, d)], result.stderr
    push = "cd lib; git commit -q --allow-empty -m x; git push ../docs/cache HEAD:x"
    uses = ("cd main; git status", "cd w4; git status", push)
    for use in uses:
        assert not has_mark(box, use), use
    sh(box, "for d in repo.git real/w4git; do mv $d/config.claudebox $d/config; done; cd docs/cache; "
       "mv hooks/pre-receive.claudebox hooks/pre-receive")  # fmt: skip
    for use in (*uses[:2], uses[2].replace(":x", ":y")):
        assert has_mark(box, use), use  # the positive control


def test_what_a_nested_repository_of_the_user_names_is_put_aside(box):
    """Hooks, an included file and a filter, outside of its own directory, too; and where its remotes lead now."""
    # proves D11, D13
    make_repository(box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    sh(box, "printf 'lib\\nw\\ncfg\\n' >.gitignore; git clone -q . lib; cd lib; mkdir .githooks; touch .githooks/x "
       "../cfg; printf '#!/bin/sh\\ncat\\n' >clean.sh; chmod +x clean.sh; git config core.hooksPath .githooks; "
       "git config include.path ../../cfg; git config filter.z.clean ./clean.sh; echo '* filter=z' >.gitattributes; "
       "git add .; git commit -qm more")  # fmt: skip
    quiet = box.sh("git -C lib commit -q --allow-empty -m more; git clone -q lib w")
    assert "the configuration of git" not in quiet.stderr
    assert "put aside" not in quiet.stderr
    assert "leads to" not in quiet.stderr
    decoys = "for n in $(seq 12); do mkdir d$n; echo >d$n/.envrc; done; "
    hook = f"printf '#!/bin/sh\\n{evil}\\n' >{{0}}; chmod +x {{0}}"

    result = box.sh(
        f"{decoys} cd lib; {hook.format('.githooks/post-index-change')}; "
        f"printf '#!/bin/sh\\n{evil}\\ncat\\n' >clean.sh; printf '[core]\\n fsmonitor = {evil};:\\n' >>../cfg; "
        "echo more >>a"
    )

    names = ["cfg", "lib/.githooks/post-index-change", "lib/clean.sh"]
    (said,) = [line for line in result.stderr.split("\n") if line.startswith("  lib ") and "put aside" in line]
    assert not [name for name in names if name.removeprefix("lib/") not in said], said
    assert sh(box, "ls lib/.githooks") == "post-index-change.claudebox\nx\n"
    assert not has_mark(box, "cd lib; git status; git add a")
    for name in names:
        sh(box, f"mv {name} {name}.was || true; mv {name}.claudebox {name}")
        assert has_mark(box, "cd lib; echo >>a; git status; git add a; git update-index --refresh"), name  # it would
        sh(box, f"rm {name}; mv {name}.was {name} || true")
    sh(box, "git clone -q lib late; mkdir late/hk; git -C late config core.hooksPath hk")  # between two sessions
    script = (
        f"cd late; {hook.format('hk/pre-commit')}; cd ../lib; {hook.format('.githooks/pre-commit')}; "
        "git config remote.origin.url https://h.invalid"
    )
    changed = box.sh(script)
    put = [line for line in changed.stderr.split("\n") if "put aside" in line]
    assert [line for line in put if " late " in line and "hk/pre-commit" in line], changed.stderr
    assert [line for line in put if " lib " in line and ".githooks/pre-commit" in line], changed.stderr
    assert "h.invalid" not in sh(box, "git -C lib config remote.origin.url")
    box.sh("git -C lib config remote.origin.url https://h.invalid", flags=("--allow", "git-config"))
    assert "h.invalid" not in sh(box, "git -C lib config remote.origin.url || true")


def test_hooks_of_checkouts_that_the_agent_made_are_put_aside(user_box):
    """A relative `core.hooksPath` of the repository, in a worktree of it; and one of the user, in a new repository."""
    # proves D08, D11, D13
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    sh(box, "mkdir hk; echo '#!/bin/sh' >hk/post-checkout; chmod +x hk/post-checkout; git add hk; git commit -qm hk; "
       "git config core.hooksPath hk; git config --global core.hooksPath hk")  # fmt: skip
    hook = f"printf '#!/bin/sh\\n{evil}\\n' >hk/{{0}}; chmod +x hk/{{0}}"
    work = (
        f"set -e; git worktree add -q w1; git worktree add -q fine; (cd w1; {hook.format('post-checkout')}; "
        f"{hook.format('pre-commit')}); git clone -q . other; git init -q nn; cd nn; mkdir hk; "
        f"{hook.format('post-index-change')}"
    )

    result = box.sh(work)

    assert result.returncode == 0, result.stderr
    assert sh(box, "ls w1/hk fine/hk nn/hk other/hk") == (
        "fine/hk:\npost-checkout\n\nnn/hk:\npost-index-change.claudebox\n\n"
        "other/hk:\npost-checkout\n\nw1/hk:\npost-checkout.claudebox\npre-commit.claudebox\n"
    ), result.stderr
    assert sh(box, "git -C fine status --porcelain") == ""  # what the user has is no change
    uses = ("cd w1; git checkout -qb w9; git commit -q --allow-empty -m x", "cd nn; touch x; git add x; git status")
    for use in uses:
        assert not has_mark(box, use), use
    sh(box, "for name in w1/hk/post-checkout nn/hk/post-index-change; do mv $name.claudebox $name; done")
    for use in (uses[0].replace("w9", "w8"), uses[1].replace("x", "y")):
        assert has_mark(box, use), use  # the positive control
    assert "put aside" not in box.sh("echo more >>nn/hk/new", flags=("--allow", "git-config")).stderr


def test_hooks_in_a_project_that_becomes_a_repository_are_put_aside(user_box):
    # proves NEW-E9, D08, D11
    box = user_box
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    sh(box, "git config --global core.hooksPath hk; git config --global user.name u; "
       "git config --global user.email u")  # fmt: skip
    hook = f"printf '#!/bin/sh\n{evil}\n' >hk/post-index-change; chmod +x hk/post-index-change"
    result = box.sh(f"git init -q; echo x >x; git add x; git commit -qm x; mkdir hk; {hook}")

    assert sh(box, "git log --format=%s; ls hk") == "x\npost-index-change.claudebox\n", result.stderr
    use = "echo >>x; git add x; git status"
    assert not has_mark(box, use)
    sh(box, "mv hk/post-index-change.claudebox hk/post-index-change")
    assert has_mark(box, use)  # the positive control


def test_programs_that_the_user_names_for_every_repository_are_put_aside_in_those_of_the_agent(user_box):
    # proves D08, D11, D13
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\ncat\n", mode=0o755)
    sh(box, "mkdir t; printf '#!/bin/sh\\ncat\\n' >t/clean.sh; chmod +x t/clean.sh; echo '* filter=x' >.gitattributes; "
       "for key in filter.x.clean diff.external; do git config --global $key ./t/clean.sh; done; "
       "git config --global core.fsmonitor t/monitor; git config --global alias.x '!git log main'; "
       "git add .; git commit -qm t")  # fmt: skip
    arm = f"mkdir -p t; for f in clean.sh monitor; do cp {evil} t/$f; done; echo '* filter=x' >.gitattributes"
    work = f"set -e; git init -q nn; git worktree add -q w1; for d in nn w1; do (cd $d; {arm}; echo >main); done"

    result = box.sh(f"{work}; git clone -q . fine", flags=("--mount-ro", evil))

    assert result.returncode == 0, result.stderr
    names = [f"{place}/t/{name}" for place in ("nn", "w1") for name in ("clean.sh", "monitor")]
    assert sh(box, "find nn w1 fine -path '*/t/*' | sort") == "".join(
        f"{name}\n" for name in ("fine/t/clean.sh", *(f"{name}.claudebox" for name in names))
    ), result.stderr
    assert sh(box, "ls nn/main w1/main") == "nn/main\nw1/main\n"  # the argument of an alias is no program
    use = "cd {}; echo more >>a; git add a; git status; git commit -qm a; echo >>a; git diff"
    assert not [place for place in ("nn", "w1") if has_mark(box, use.format(place))]
    for name in names:
        sh(box, f"mv {name}.claudebox {name}")
        assert has_mark(box, use.format(name[:2])), name  # the positive control
        sh(box, f"rm {name}")


def test_older_files_that_become_hooks_are_put_aside(user_box):
    """A link makes files of an earlier session hooks of a repository, or a new repository around them does."""
    # proves D08, D11, D13
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    sh(box, "printf 'lib\\nx\\nold\\n' >.gitignore; git clone -q . lib; mkdir -p lib/tools/hk; "
       "git -C lib config core.hooksPath tools/hk; git config --global core.hooksPath hk")  # fmt: skip
    hook = f"mkdir -p {{0}}; printf '#!/bin/sh\\n{evil}\\n' >{{0}}/post-index-change; chmod +x {{0}}/post-index-change"
    before = box.sh(f"{hook.format('old/hk')}; {hook.format('x/hk')}")
    assert "put aside" not in before.stderr

    result = box.sh("cd lib; mv tools t2; ln -s ../old tools; cd ../x; git init -q; touch a")

    put = [line for line in result.stderr.split("\n") if "put aside" in line]
    assert [line for line in put if " lib " in line and line.endswith(": tools")], result.stderr
    assert [line for line in put if " x " in line and line.endswith(": hk/post-index-change")], result.stderr
    uses = ("cd lib; touch b; git add b", "cd x; git add a")
    for use in uses:
        assert not has_mark(box, use), use
    sh(box, "mv lib/tools.claudebox lib/tools; cd x/hk; mv post-index-change.claudebox post-index-change")
    for use in uses:
        assert has_mark(box, f"{use}; git rm -q --cached -r ."), use  # the positive control


def test_commits_that_change_what_a_nested_repository_obeys_are_told(user_box):
    # proves D11, D13
    box = make_repository(user_box)
    sh(box, "printf 'lib\\nplain\\n' >.gitignore; git clone -q . plain; git clone -q . lib; mkdir lib/.hk; cd lib; "
       "touch .hk/pre-commit; git add .; git commit -qm hk; git config core.hooksPath .hk")  # fmt: skip
    told = "and git obeys `.hk` there"

    quiet = box.sh("echo 1 >lib/more")
    result = box.sh("for d in lib plain; do cd $d; git commit -q --allow-empty -m in; cd ..; done")

    assert told not in quiet.stderr
    assert told in result.stderr, result.stderr
    assert result.stderr.count(told) == 1


def test_armed_repositories_are_named_before_decoys(user_box):
    # proves D12
    box = make_repository(user_box)
    plant = "".join(BARE.format(d=f"d/{number:02}") for number in range(12)) + BARE.format(d="d/zz")
    result = box.sh(f"mkdir d; {plant} echo '[core]' >d/zz/config")

    said = [line.strip() for line in result.stderr.split("\n")]
    assert said[said.index("look at these before you work here:") + 1].startswith("d/zz "), result.stderr


def test_no_link_leads_to_a_repository_that_nobody_looks_at(user_box):
    """In the caches, which the agent writes and the report does not cover."""
    # proves D11, D13
    box = make_repository(user_box)
    evil = box.write(f"{box.base}/evil.sh", f"#!/bin/sh\ntouch {box.home}/{MARK}\n", mode=0o755)
    sh(box, "git init -q w4; mkdir real; mv w4/.git real/w4git; ln -s ../real/w4git w4/.git")
    box.sh(f"cp -a real/w4git ~/.cache/evil; git --git-dir=$HOME/.cache/evil config core.fsmonitor '{evil};:'")
    place = sh(box, "find ~/.claudebox -name evil").strip()

    led = f"mv real/w4git real/was; ln -s {place} real/w4git; ln -s ../a real/fine"
    result = box.sh(led, flags=("--allow", "git-config"))

    assert "led to a directory of claudebox's own" in result.stderr, result.stderr
    assert sh(box, "readlink real/fine") == "../a\n"
    assert not has_mark(box, "cd w4; git status")
    sh(box, "mv real/w4git.claudebox real/w4git")
    assert has_mark(box, "cd w4; git status")  # the positive control
