from __future__ import annotations

import pytest
from tests import hosts
from tests.hosts import PROJECT

from claudebox.config import policy, settings
from claudebox.config.model import NameRequest, Policy
from claudebox.errors import ClaudeboxError
from claudebox.plan import compose, project
from claudebox.plan.model import Mount, Stub
from claudebox.tables import project_paths

GIT = f"{PROJECT}/.git"


def host(*present: str, **options):
    repository = hosts.REPOSITORY if options.get("repository", True) else None
    return hosts.debian(repository=repository, guarded=hosts.guarded(*present, **options))


def rows(machine, wishes: Policy | None = None) -> dict[str, Mount]:
    return {row.dest: row for row in project.plan_mounts(wishes or Policy("client"), machine)}


def allowing(*names: str) -> Policy:
    return Policy("client", allow=tuple(NameRequest(name, "--allow") for name in names))


def test_what_git_and_editors_obey_cannot_change():
    # proves SEC-04, D05, D20, D21
    table = rows(host(".git/config", ".git/hooks", ".claude", ".vscode"))

    for name in (".git/config", ".git/hooks", ".claude", ".vscode"):
        row = table[f"{PROJECT}/{name}"]
        assert (row.kind, row.source, row.pinned) == ("ro-bind", row.dest, hosts.identity(row.dest))


def test_the_git_directory_cannot_be_renamed_away_with_its_protection():
    # proves C22
    row = rows(host(".git/config"))[GIT]

    assert (row.kind, row.source, row.pinned) == ("bind", GIT, hosts.identity(GIT))


def test_what_is_missing_has_a_stand_in_that_cannot_change_either():
    # proves C20, D06
    machine = host(".git/config", ".git/hooks")
    stubs = project.stubs(Policy("client"), machine)

    assert Stub(f"{PROJECT}/.claude", "directory") in stubs
    assert Stub(f"{PROJECT}/.mcp.json", "directory") in stubs
    assert Stub(f"{GIT}/commondir", "dot") in stubs
    assert not [stub for stub in stubs if stub.path in (f"{GIT}/config", f"{GIT}/hooks", f"{GIT}/modules")]
    for stub in stubs:
        assert rows(machine)[stub.path].kind == "ro-bind"


def test_without_a_repository_only_the_project_is_guarded():
    table = rows(host(repository=False))

    assert not [dest for dest in table if ".git" in dest]
    assert f"{PROJECT}/.claude" in table


def test_a_link_cannot_be_protected_and_is_mentioned():
    # proves C01, SEC-04
    machine = host(links=(".claude",))

    assert f"{PROJECT}/.claude" not in rows(machine)
    assert not [stub for stub in project.stubs(Policy("client"), machine) if stub.path.endswith("/.claude")]
    assert [line for line in project.warnings(Policy("client"), machine) if ".claude is a link" in line]


@pytest.mark.parametrize("name", [".claude", ".mcp.json", ".vscode"])
def test_one_thing_can_be_opened_for_a_launch(name):
    # proves SEC-04
    machine = host(name)

    assert f"{PROJECT}/{name}" in rows(machine)
    assert f"{PROJECT}/{name}" not in rows(machine, allowing(name))
    assert f"{PROJECT}/.idea" in rows(machine, allowing(name))
    assert [line for line in project.warnings(allowing(name), machine) if name in line]
    assert not [stub for stub in project.stubs(allowing(name), machine) if stub.path.endswith(f"/{name}")]


def test_the_git_directory_can_be_opened_as_a_whole():
    # proves SEC-04
    table = rows(host(".git/config", ".git/hooks"), allowing(project_paths.GIT))

    assert not [dest for dest in table if dest.startswith(GIT)]
    assert f"{PROJECT}/.claude" in table


def test_only_what_is_protected_can_be_opened():
    # proves SEC-04
    for name in ("", "src", ".git", ".git/hooks", "../x", "/"):
        with pytest.raises(ClaudeboxError, match="`--allow`"):
            policy.decide_policy(settings.read_settings(["--allow", name], {}), home="/h", workdir=PROJECT)
    wishes = policy.decide_policy(
        settings.read_settings(["--allow", project_paths.GIT, "--allow", ".claude"], {}), home="/h", workdir=PROJECT
    )
    assert [request.name for request in wishes.allow] == [project_paths.GIT, ".claude"]


def test_the_plan_makes_stand_ins_and_mounts_over_them():
    # proves SEC-04, C20, C23
    made = compose.make_plan(Policy("client"), host(".git/config"))
    order = [row.dest for row in made.mounts]

    assert {stub.path for stub in made.stubs} <= set(order)
    assert order.index(PROJECT) < order.index(GIT) < order.index(f"{GIT}/config")


def test_names_of_the_tables_are_unique_and_explained():
    names = [name for name, _, _ in (*project_paths.PROTECTED, *project_paths.PROTECTED_IN_GIT)]
    assert len(set(names)) == len(names)
    assert all(why for _, _, why in (*project_paths.PROTECTED, *project_paths.PROTECTED_IN_GIT))
    assert {"config", "hooks", "commondir", "config.worktree"} <= {
        name for name, _, _ in project_paths.PROTECTED_IN_GIT
    }
