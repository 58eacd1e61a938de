"""What an agent writes into a repository must not run on the host: each attack is carried out inside, then the user
uses git outside. The same attack on the host runs the attacker's program, so that the test can fail."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tests.conftest import every_case
from tests.support import repositories

MONITOR = "printf '[core]\\n\\tfsmonitor = %s/evil.sh\\n' \"$TOP\""


@dataclass(frozen=True)
class Attack:
    """What is there before, what the agent does, and where the user then uses git."""

    threats: str
    script: str
    setup: str = "true"
    workdir: str = ""
    used: tuple[str, ...] = ("",)
    flags: tuple[str, ...] = ()


SUBMODULE = (
    "git init -q ../sub; git -C ../sub commit -q --allow-empty -m s;"
    "git submodule --quiet add ../sub sub; git commit -qm sub"
)
WORKTREE = "git worktree add -q ../tree"
PLANT = f"rm -rf x; cp -r .git x; {MONITOR} >>x/config;"
HOOK = "cp evil.sh {0}/pre-commit"
ANOTHER = f"cp -r .git/modules/sub x; git config -f x/config core.worktree ../sub; {MONITOR} >>x/config;"
BARE_CONFIG = 'git config core.fsmonitor "$TOP/evil.sh"'

ATTACKS = {
    "configuration is edited by git": Attack("D05", BARE_CONFIG),
    "configuration is appended to": Attack("D05", f"{MONITOR} >>.git/config"),
    "configuration is replaced": Attack("D05", f"cp .git/config c; {MONITOR} >>c; mv -f c .git/config"),
    "configuration is removed first": Attack(
        "D05", f"cp .git/config c; {MONITOR} >>c; rm -f .git/config; cp c .git/config"
    ),
    "missing configuration is created": Attack(
        "C20", f"printf '[core]\\n\\trepositoryformatversion = 0\\n' >.git/config; {MONITOR} >>.git/config",
        setup="rm .git/config",
    ),
    "a hook is added": Attack("D05", HOOK.format(".git/hooks")),
    "a hook is changed": Attack("D05", "cp evil.sh .git/hooks/pre-commit", setup="cp /bin/true .git/hooks/pre-commit"),
    "missing hooks are created": Attack(
        "C20", "mkdir -p .git/hooks; cp evil.sh .git/hooks/pre-commit", setup="rm -rf .git/hooks"
    ),
    "hooks become a link": Attack(
        "C20", "mkdir h; cp evil.sh h/pre-commit; rm -rf .git/hooks; ln -s ../h .git/hooks", setup="rm -rf .git/hooks"
    ),
    "the git directory is renamed": Attack("C22", f"mv .git .old && cp -r .old .git; {MONITOR} >>.git/config"),
    "the git directory is exchanged": Attack("C22", f"{PLANT} rm -rf .git; mv x .git"),
    "commondir is created": Attack("D06", f"{PLANT} echo ../x >.git/commondir"),
    "commondir is replaced": Attack("D06", f"{PLANT} echo ../x >.git/c; mv -f .git/c .git/commondir"),
    "configuration of the worktree is created": Attack(
        "D07", f"{MONITOR} >.git/config.worktree",
        setup="git config core.repositoryformatversion 1; git config extensions.worktreeConfig true",
    ),
    "hooks kept in the project": Attack(
        "D08", HOOK.format(".husky"), setup="mkdir .husky; touch .husky/x; git config core.hooksPath .husky"
    ),
    "missing hooks of the project": Attack(
        "D08, C20", "mkdir -p .husky/_; cp evil.sh .husky/_/pre-commit", setup="git config core.hooksPath .husky/_"
    ),
    "the parent of hooks is renamed": Attack(
        "D08, C22", "mv tools t; cp -r t tools; cp evil.sh tools/git/hooks/pre-commit",
        setup="mkdir -p tools/git/hooks; touch tools/git/hooks/x; git config core.hooksPath tools/git/hooks",
    ),
    "hooks that an include names": Attack(
        "D08", HOOK.format("hooks"),
        setup="mkdir hooks; touch hooks/x; git config include.path more; git config -f .git/more core.hooksPath hooks",
    ),
    "hooks that the user's configuration names": Attack(
        "D08", HOOK.format("hooks"), setup="mkdir hooks; touch hooks/x; git config --global core.hooksPath hooks"
    ),
    "included configuration is edited": Attack(
        "D08", f"{MONITOR} >>shared.conf", setup="touch shared.conf; git config include.path ../shared.conf"
    ),
    "included configuration is created": Attack(
        "D08, C20", f"{MONITOR} >>shared.conf", setup="git config include.path ../shared.conf"
    ),
    "conditionally included configuration is edited": Attack(
        "D08", f"{MONITOR} >>.git/more",
        setup='touch .git/more; git config includeif.gitdir:"$TOP/".path more',
    ),
    "a program that the configuration names is changed": Attack(
        "D05", "cp evil.sh tools/watch.sh; cp evil.sh e; mv -f e tools/watch.sh",
        setup="mkdir tools; cp /bin/true tools/watch.sh; git config core.fsmonitor tools/watch.sh",
    ),
    "the directory of such a program is renamed": Attack(
        "D05, C22", "mv tools t; mkdir tools; cp evil.sh tools/clean.sh; touch a",
        setup="mkdir tools; cp /bin/cat tools/clean.sh; echo 'a filter=f' >.gitattributes;"
        "git config filter.f.clean './tools/clean.sh %f'; git add .gitattributes; touch a",
    ),
    "what a hook is a link to is changed": Attack(
        "D05", "cp evil.sh scripts/hook", setup="mkdir scripts; cp /bin/true scripts/hook;"
        "ln -s ../../scripts/hook .git/hooks/pre-commit",
    ),
    "configuration of a submodule is edited": Attack(
        "D10", f"{MONITOR} >>.git/modules/sub/config", setup=SUBMODULE
    ),
    "the git directory of a submodule is exchanged": Attack(
        "D10, C22", f"cp -r .git/modules m; {MONITOR} >>m/sub/config; mv .git/modules y; mv m .git/modules",
        setup=SUBMODULE,
    ),
    "the .git file of a submodule names another repository": Attack(
        "D13", f"{ANOTHER} echo 'gitdir: ../x' >sub/.git", setup=SUBMODULE
    ),
    "the checkout of a submodule is exchanged": Attack(
        "D13, C22",
        f"{ANOTHER} mv sub y; mkdir sub; echo 'gitdir: ../x' >sub/.git",
        setup=SUBMODULE,
    ),
    "configuration of a submodule with a repository of its own": Attack(
        "D10, D13", f"{MONITOR} >>sub/.git/config",
        setup=f"{SUBMODULE}; rm sub/.git; mv .git/modules/sub sub/.git; git -C sub config --unset core.worktree",
    ),
    "the .git file of a worktree names another repository": Attack(
        "D13", f"{PLANT.replace('.git ', '../project/.git ')} echo 'gitdir: x' >.git", setup=WORKTREE,
        workdir="../tree", used=("",),
    ),
    "the repository of a worktree is configured": Attack(
        "D14", BARE_CONFIG, setup=WORKTREE, workdir="../tree", used=("", "../project")
    ),
    "the repository of a worktree gets a hook": Attack(
        "D14", "cp evil.sh ../project/.git/hooks/pre-commit", setup=WORKTREE, workdir="../tree",
        used=("", "../project"),
    ),
    "a worktree is told of another repository": Attack(
        "D14, D06",
        "cd ../project/.git; mkdir worktrees/tree/x; cp -r config HEAD objects refs worktrees/tree/x; cd $TOP;"
        f"{MONITOR} >>../project/.git/worktrees/tree/x/config; echo x >../project/.git/worktrees/tree/commondir",
        setup=WORKTREE, workdir="../tree",
    ),
    "hooks in a worktree": Attack(
        "D08, D14", HOOK.format(".husky"), workdir="../tree",
        setup=f"git config core.hooksPath .husky; {WORKTREE}; mkdir ../tree/.husky; touch ../tree/.husky/x",
    ),
    "configuration of the submodule that is worked in": Attack(
        "D10", BARE_CONFIG, setup=SUBMODULE, workdir="sub", used=("", "..")
    ),
    "a hook of the submodule that is worked in": Attack(
        "D10", "cp evil.sh ../.git/modules/sub/hooks/pre-commit", setup=SUBMODULE, workdir="sub"
    ),
    "a repository in a directory of a checkout": Attack(
        "D11, C20", f"cp -r kept .git; {MONITOR} >>.git/config",
        setup="mkdir sub; cp evil.sh sub; cp -r .git sub/kept", workdir="sub",
    ),
    "hooks in a directory of a checkout": Attack(
        "D08", HOOK.format("hooks"), setup="mkdir -p sub/hooks; cp evil.sh sub; git config core.hooksPath sub/hooks",
        workdir="sub",
    ),
    "configuration of a submodule of a worktree": Attack(
        "OLD-A3", f"{MONITOR} >>../project/.git/worktrees/tree/modules/sub/config", workdir="../tree",
        setup=f"{SUBMODULE}; {WORKTREE}; git -C ../tree submodule --quiet update --init",
    ),
    "a git directory in the project that .git names": Attack(
        "OLD-A16", f"{MONITOR} >>.bare/config", setup="mv .git .bare; echo 'gitdir: .bare' >.git",
    ),
    "a missing git directory in the project that .git names": Attack(
        "OLD-A16", f"cp -r kept .bare; {MONITOR} >>.bare/config", setup="mv .git kept; echo 'gitdir: .bare' >.git",
    ),
    "a submodule that .gitmodules does not name": Attack(
        "OLD-A17", f"{MONITOR} >>.git/modules/sub/config; {MONITOR} >>sub/.git/config",
        setup=f"{SUBMODULE}; git rm -q --cached .gitmodules; rm .gitmodules; git commit -qm gone",
    ),
    "a gitlink without a repository gets one": Attack(
        "OLD-A17", f"cp -r kept sub/.git; {MONITOR} >>sub/.git/config",
        setup=f"{SUBMODULE}; git submodule --quiet deinit -f sub; cp -r .git/modules/sub kept;"
        "git config -f kept/config --unset core.worktree || true; rm -rf .git/modules",
    ),
    "hooks of the home of a user": Attack(
        "OLD-A18", HOOK.format("hooks"),
        setup="mkdir hooks; touch hooks/x; git config core.hooksPath ~$(id -un)/../..$PWD/hooks",
    ),
    "a second repository that is mounted": Attack(
        "OLD-A32", "cd ../sub; cp $TOP/evil.sh .git/hooks/pre-commit; git config core.fsmonitor $TOP/evil.sh",
        setup="git init -q ../sub; git -C ../sub commit -q --allow-empty -m s", used=("../sub",),
        flags=("--mount-rw", "{box.base}/sub"),
    ),
    "a repository that is led elsewhere already": Attack(
        "D06", f"cp -r other x; {MONITOR} >>x/config; echo ../x >.git/commondir",
        setup="cp -r .git other; echo ../other >.git/commondir",
    ),
}  # fmt: skip


@every_case("name", ATTACKS, as_root=8, in_gate=20)
def test_git_on_the_host_does_not_run_what_an_agent_planted(box, name):
    # proves SEC-04, SEC-05, C20, C22, C23, D05, D06, D07, D08, D10, D13, D14, D16
    # proves OLD-A3, OLD-A16, OLD-A17, OLD-A18, OLD-A32
    attack = ATTACKS[name]
    checkout = repositories.make(box)
    checkout.sh(f"TOP=$PWD; {attack.setup}")
    box.project = os.path.normpath(os.path.join(box.project, attack.workdir))
    box.write("evil.sh", f"#!/bin/sh\ntouch {checkout.mark}\n", mode=0o755)
    checkout.save()
    script = f"TOP=$PWD; {attack.script}"
    checkout.attack(script, *(flag.format(box=box) for flag in attack.flags))

    assert not any(checkout.use_git(where) for where in attack.used)

    checkout.restore()
    box.host("sh", "-c", script)
    assert any(checkout.use_git(where) for where in attack.used), "the attack itself does not work"
