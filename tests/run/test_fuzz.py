"""Hostile layouts, configurations and names: no traceback, nothing that is left open."""

from __future__ import annotations

import os
import tempfile

from hypothesis import example, given
from hypothesis import strategies as st
from tests.git.test_git_properties import build, things
from tests.support import hosts
from tests.support.strategies import strings

from claudebox.base import state as base_state
from claudebox.git import facts as git_facts
from claudebox.git import plan as plan_git
from claudebox.host import protected as host_protected
from claudebox.plan import protected as plan_protected
from claudebox.plan.compose import arrange
from claudebox.settings.records import Policy
from claudebox.tables import paths as tables_paths

CONFIGURATIONS = st.lists(
    st.one_of(
        st.sampled_from([
            "[core]\n", "\thooksPath = .husky\n", "hooksPath=../x\n", "hooksPath = .\n", "hooksPath = /\n",
            "hooksPath =\n",
            "[include]\npath = ../shared\n", "path = ~/x\n", '[includeIf "gitdir:x"]\npath = config\n', "path = .git\n",
            "[extensions]\nworktreeConfig = true\n", '[filter "f"]\nclean = ./tools/run %f\n',
            '[alias]\nx = "!sh a/b"\n',
            '[submodule "s"]\npath = sub\n', "path = ../..\n", "path = .git\n", "fsmonitor = .git/hooks/x\n",
            "hooksPath = .claude/hooks\n", "hooksPath = .git\n", "hooksPath = .git/config\n", "hooksPath = tools\n",
        ]),
        strings.map(lambda text: f"hooksPath = {text}\n"),
        strings.map(lambda text: f"path = {text}\n"),
    ),
    max_size=8,
).map("".join)  # fmt: skip
PLACES = [
    ".git", ".git/HEAD", ".git/objects", ".git/config", ".git/hooks", ".git/commondir", ".git/modules", ".git/info",
    ".git/info/attributes",
    ".husky", ".claude", ".claude/hooks", ".mcp.json", ".vscode", "shared", "tools", "tools/run", "a", "a/b", "sub",
    "sub/.git", "sub/.git/config", "sub/.git/HEAD", "sub/.git/objects", ".gitmodules",
]  # fmt: skip


def looked_at(base: str):
    """Return a host of which the guard knows what lies in this directory."""
    place = base_state.locate(base, base)
    repository = git_facts.find_repository(base, os.getuid(), "/nonexistent", {})
    rows = host_protected.look_at_project(base, repository, place)
    return hosts.debian(
        workdir=hosts.fact(base),
        repository=repository,
        protected=rows,
        empty_git="" if repository else git_facts.empty_name(base),
        worktrees=host_protected.find_worktrees(base, repository, place),
    )


@given(
    layout=st.dictionaries(st.sampled_from(PLACES), things, max_size=10),
    configuration=CONFIGURATIONS,
    modules=CONFIGURATIONS,
    complete=st.booleans(),
)
@example(layout={".git": ("file", "gitdir: .git\n")}, configuration="", modules="", complete=False)
@example(layout={".git": ("file", "gitdir: .git/x\n")}, configuration="", modules="", complete=False)
@example(layout={}, configuration="[core]\nhooksPath = .git\n", modules="", complete=True)
@example(layout={}, configuration="", modules='[submodule "s"]\npath = .git\n', complete=True)
@example(layout={".git/modules": ("link", "..")}, configuration="", modules="", complete=True)
def test_no_layout_leaves_a_protected_path_open(layout, configuration, modules, complete):
    # proves SEC-04, C20, C22, D08
    with tempfile.TemporaryDirectory() as directory:
        base = os.path.realpath(directory)
        layout.setdefault(".git/config", ("file", configuration))
        layout.setdefault(".gitmodules", ("file", modules))
        if complete:
            layout.setdefault(".git/HEAD", ("file", "ref: refs/heads/main\n"))
            layout.setdefault(".git/objects", ("directory", ""))
        build(base, layout)
        host = looked_at(base)
        policy = Policy("exec", ("true",))
        planned = (*plan_protected.plan_mounts(policy, host), *plan_git.plan_mounts(policy, host))
        rows = {row.dest: row for row in arrange(planned)}
        list(plan_protected.warnings(policy, host))
        list(plan_git.warnings(policy, host))
        made = {stub.path for stub in (*plan_protected.stubs(policy, host), *plan_git.stubs(policy, host))}

        for dest, row in rows.items():
            if row.kind != "file" and dest.startswith(base):
                assert os.path.realpath(dest) == dest or not os.path.lexists(dest), "a mount leads through a link"
                assert os.path.lexists(dest) or dest in made, "bwrap would have to create it"
        for name, _, _ in tables_paths.PROTECTED:
            path = f"{base}/{name}"
            assert os.path.islink(path) or rows[path].kind == "ro-bind"
        nested = (f"{row.root}/.git" for row in host.git.repository.nested) if host.git.repository else ()
        owns = {own.dest: own for own in plan_git.plan_private(policy, host)}
        for git_dir in (f"{base}/.git", *nested):
            if not os.path.isdir(git_dir) or os.path.islink(git_dir) or rows[git_dir].kind == "ro-bind":
                continue
            assert (rows[git_dir].kind, rows[git_dir].source) == ("bind", owns[git_dir].directory)
            assert not owns[git_dir].directory.startswith(base)
            assert not [dest for dest in rows if dest.startswith(f"{git_dir}/")], "something of the real one is shown"
