from __future__ import annotations

import pytest
from tests.support import hosts
from tests.support.hosts import PROJECT

from claudebox.base.errors import ClaudeboxError
from claudebox.plan import audit, compose
from claudebox.plan import protected as plan_protected
from claudebox.plan.records import Mount, Stub
from claudebox.settings import layers
from claudebox.settings.records import NameRequest, Policy
from claudebox.tables import paths as tables_paths


def host(*present: str, **options):
    return hosts.debian(repository=hosts.REPOSITORY, protected=hosts.protected(*present, **options))


def rows(machine, wishes: Policy | None = None) -> dict[str, Mount]:
    return {row.dest: row for row in plan_protected.plan_mounts(wishes or Policy("client"), machine)}


def allowing(*names: str) -> Policy:
    return Policy("client", allow=tuple(NameRequest(name, "--allow") for name in names))


def test_what_git_and_editors_obey_cannot_change():
    # proves SEC-04, D05, D20, D21
    table = rows(host(".claude", ".vscode"))

    for name in (".claude", ".vscode"):
        row = table[f"{PROJECT}/{name}"]
        assert (row.kind, row.source, row.pinned) == ("ro-bind", row.dest, hosts.identity(row.dest))


def test_what_is_missing_has_a_stand_in_that_cannot_change_either():
    # proves C20, D06
    machine = host(".vscode")
    stubs = plan_protected.stubs(Policy("client"), machine)

    assert Stub(f"{PROJECT}/.claude", "directory") in stubs
    assert Stub(f"{PROJECT}/.mcp.json", "directory") in stubs
    assert not [stub for stub in stubs if stub.path == f"{PROJECT}/.vscode"]
    for stub in stubs:
        assert rows(machine)[stub.path].kind == "ro-bind"


@pytest.mark.parametrize("words", [("mcp", "list"), ("mcp", "remove", "x")])
def test_a_project_is_only_read_where_the_client_lists_servers_and_would_fail_on_a_stub(words):
    # proves C21, SEC-04
    plan = compose.make_plan(Policy("client", words), host(".vscode"))

    assert plan.stubs == ()
    beneath = {row.dest: row.kind for row in plan.mounts if f"{row.dest}/".startswith(f"{PROJECT}/")}
    assert (beneath.pop(PROJECT), beneath.pop(f"{PROJECT}/.vscode")) == ("ro-bind", "ro-bind")
    assert set(beneath) <= {f"{PROJECT}/.git"}  # the sandbox's own
    assert "nothing in the project" in "".join(audit.lines(plan, None, asking=False))


@pytest.mark.parametrize(
    ("wishes", "present"),
    [
        (Policy("client", ("mcp", "serve")), ()),
        (Policy("client", ("mcp",)), ()),
        (Policy("client", ("fix", "list")), ()),
        (Policy("exec", ("mcp", "list")), ()),
        (Policy("client", ("mcp", "list")), (".mcp.json",)),
    ],
)
def test_a_project_is_written_by_everything_else(wishes, present):
    # proves SAND-05
    plan = compose.make_plan(wishes, host(*present))

    assert next(row.kind for row in plan.mounts if row.dest == PROJECT) == "bind"
    assert Stub(f"{PROJECT}/.claude", "directory") in plan.stubs


def test_a_link_gets_neither_a_mount_nor_a_stub():
    # proves C01, SEC-04
    machine = host(links=(".claude",))

    assert f"{PROJECT}/.claude" not in rows(machine)
    assert not [stub for stub in plan_protected.stubs(Policy("client"), machine) if stub.path.endswith("/.claude")]
    assert [line for line in plan_protected.notes(Policy("client"), machine) if f"{PROJECT}/.claude is a link" in line]


@pytest.mark.parametrize("name", [".claude", ".mcp.json", ".vscode"])
def test_one_thing_can_be_opened_for_a_launch(name):
    # proves SEC-04
    machine = host(name)

    assert f"{PROJECT}/{name}" in rows(machine)
    assert f"{PROJECT}/{name}" not in rows(machine, allowing(name))
    assert f"{PROJECT}/.idea" in rows(machine, allowing(name))
    assert [line for line in plan_protected.warnings(allowing(name), machine) if name in line]
    assert not [stub for stub in plan_protected.stubs(allowing(name), machine) if stub.path.endswith(f"/{name}")]


def test_only_what_is_protected_can_be_opened():
    # proves SEC-04
    for name in ("", "src", ".git", ".git/hooks", "../x", "/"):
        with pytest.raises(ClaudeboxError, match="`--allow`"):
            layers.decide_policy(layers.read_settings(["--allow", name], {}), home="/h", workdir=PROJECT)
    wishes = layers.decide_policy(
        layers.read_settings(["--allow", tables_paths.GIT, "--allow", ".claude"], {}), home="/h", workdir=PROJECT
    )
    assert [request.name for request in wishes.allow] == [tables_paths.GIT, ".claude"]


def test_the_plan_makes_stand_ins_and_mounts_over_them():
    # proves SEC-04, C20, C23
    made = compose.make_plan(Policy("client"), host(".vscode"))
    order = [row.dest for row in made.mounts]

    assert {stub.path for stub in made.stubs} <= set(order)
    assert order.index(PROJECT) < order.index(f"{PROJECT}/.vscode")


def test_names_of_the_tables_are_unique_and_explained():
    names = [name for name, _, _ in tables_paths.PROTECTED]
    assert len(set(names)) == len(names)
    assert all(why for _, _, why in tables_paths.PROTECTED)
