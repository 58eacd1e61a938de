"""Where home, /tmp and caches are, decided from settings and facts alone."""

from __future__ import annotations

import pytest
from tests.support import hosts

from claudebox.agent.kinds import find_kind
from claudebox.plan import mounts as plan_mounts
from claudebox.settings.records import MountRequest, Policy


def rows(host, **wanted):
    return {row.dest: row for row in plan_mounts.plan_storage(Policy("client", **wanted), host)}


@pytest.mark.parametrize(
    ("memory", "scratch", "size"),
    [(16 << 30, "auto", 4 << 30), (7 << 30, "auto", 0), (7 << 30, "memory", 7 << 28), (512 << 20, "memory", 256 << 20),
     (16 << 30, "disk", 0)],
)  # fmt: skip
def test_home_and_tmp_are_in_memory_unless_that_is_little(memory, scratch, size):
    # proves TOOL-06, H09, SAND-11
    table = rows(hosts.debian(memory=memory), scratch=scratch)

    for dest, mode in (("/tmp", 0o1777), (hosts.HOME, 0o700)):
        assert (table[dest].size, table[dest].mode) == (size, mode)
        assert (table[dest].kind, table[dest].role) == (("tmpfs", "system") if size else ("bind", "scratch"))


def test_caches_are_those_of_the_project_and_out_of_the_way_of_what_was_asked_for():
    # proves TOOL-05
    host = hosts.debian()
    below = MountRequest("/data", f"{hosts.HOME}/.cache/models", writable=False, origin="--mount-ro")

    assert rows(host)[f"{hosts.HOME}/.cache"].source == f"{host.instance.directory}/caches"
    assert rows(host, caches="shared")[f"{hosts.HOME}/.cache"].source == f"{host.instance.state}/caches"
    assert set(rows(host, caches="off")) == {"/tmp", hosts.HOME}
    assert set(rows(host, mounts=(below,))) == {"/tmp", hosts.HOME, "/run/claudebox/cache"}
    agent = find_kind("codex").replace(state=((".cache/agent", "home/agent"),))
    assert set(rows(host, agent=agent)) == {"/tmp", hosts.HOME, "/run/claudebox/cache"}
    names = {row.name for row in plan_mounts.plan_caches(Policy("client", caches="off"), host)}
    assert names == {"PYTHONPYCACHEPREFIX"}
