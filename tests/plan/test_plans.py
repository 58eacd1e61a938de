from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import hosts
from tests.support.hosts import PROJECT
from tests.support.strategies import SOURCE_FACTS, environs, names, requests

from claudebox.agent.claude import CLAUDE
from claudebox.base.errors import ClaudeboxError
from claudebox.network.plan import PROXIES
from claudebox.plan import compose
from claudebox.plan.records import Mount, Plan
from claudebox.settings.records import MountRequest, NameRequest, Policy
from claudebox.tables import environment as tables_environment

PASSED = [name for name, _, _ in (*tables_environment.PASSED, *CLAUDE.passed)]
THERE = ("/srv/data", "/srv/data/sub", f"{PROJECT}/src", "/opt/tool")
KINDS = ["bind", "ro-bind", "tmpfs", "dir", "symlink", "file", "mask"]
MASKED = f"{PROJECT}/tmux.sock"


def made(mounts: tuple[MountRequest, ...], *, unsafe: bool = False) -> Plan | None:
    """Return the plan for these mounts, None where it is refused."""
    policy = Policy("exec", ("true",), mounts=mounts, unsafe_mounts=unsafe)
    host = hosts.asking(hosts.debian(sockets=(MASKED,)), policy, *SOURCE_FACTS, there=THERE)
    try:
        return compose.make_plan(policy, host)
    except ClaudeboxError:
        return None


def parents_come_first(rows: tuple[Mount, ...]) -> bool:
    seen: list[str] = []
    for row in rows:
        if any(earlier.startswith(row.dest.rstrip("/") + "/") for earlier in seen):
            return False
        seen.append(row.dest)
    return True


destinations = st.lists(st.sampled_from(["a", "a b", "a-b", "b", "c", "ü"]), max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)
rows = st.builds(
    Mount, dest=destinations, kind=st.sampled_from(KINDS), reason=st.just("why"), source=st.sampled_from(["/x", "/y"])
)


@given(st.lists(rows, max_size=12), st.randoms(use_true_random=False))
def test_rows_are_arranged_one_per_destination_parents_first_in_whatever_order_they_came(listed, random):
    # proves C23
    shuffled = list(listed)
    random.shuffle(shuffled)
    results: list[tuple[Mount, ...] | None] = []
    for order in (listed, shuffled, listed[::-1]):
        try:
            results.append(compose.arrange(order))
        except ClaudeboxError:
            results.append(None)

    assert results[0] == results[1] == results[2]
    if results[0] is not None:
        assert len({row.dest for row in results[0]}) == len(results[0])
        assert {row.dest for row in results[0]} == {row.dest for row in listed}
        assert parents_come_first(results[0])


@given(st.lists(requests, max_size=3), st.booleans())
def test_the_order_in_which_mounts_are_asked_for_changes_nothing(asked, unsafe):
    # proves EXT-02, C23
    plans = [made(order, unsafe=unsafe) for order in itertools.permutations(asked)]
    built = [plan and plan.replace(policy=plan.policy.replace(mounts=())) for plan in plans]

    assert all(other == built[0] for other in built)


@given(st.lists(requests, max_size=4), st.booleans())
def test_every_plan_keeps_the_invariants(asked, unsafe):
    # proves SAND-04, C19, C23
    result = made(tuple(asked), unsafe=unsafe)
    if result is None:
        return

    assert len({row.dest for row in result.mounts}) == len(result.mounts)
    assert parents_come_first(result.mounts)
    assert all(row.reason for row in result.mounts)
    assert all(row.reason for row in result.variables)
    assert {row.dest for row in result.mounts if row.kind == "mask"} >= {MASKED, "/proc/keys"}
    bare = made(())
    assert bare is not None
    own = [row for row in bare.mounts if not row.content]  # texts describe the mounts
    assert {row.dest for row in own} <= {row.dest for row in result.mounts}
    assert [row for row in result.mounts if row in own] == own


def exposes(row: Mount) -> bool:
    """Tell independently of the code under test whether a row of a user shows something hidden."""
    above = [row.source.rstrip("/") + "/", row.source]
    hidden = [place.fact.path for place in hosts.debian().places.hidden]
    return any(
        place.startswith(above[0]) or place == above[1] or f"{row.source}/".startswith(f"{place}/") for place in hidden
    )


@given(st.lists(requests, max_size=4))
def test_hidden_stays_hidden_unless_it_is_called_unsafe(asked):
    # proves SAND-09, EXT-02, C26
    result = made(tuple(asked))
    if result is None:
        return

    assert not [row for row in result.mounts if row.role == "asked" and exposes(row)]


def test_the_generator_of_mounts_finds_both_what_is_refused_and_what_is_not():
    outcomes = {
        (fact.path, unsafe): made(
            (MountRequest(fact.path, "/data", writable=False, origin="--mount-ro"),), unsafe=unsafe
        )
        for fact in SOURCE_FACTS
        for unsafe in (False, True)
    }
    safe = [path for (path, unsafe), result in outcomes.items() if result and not unsafe]
    only_unsafe = [path for path, unsafe in outcomes if unsafe and outcomes[path, True] and not outcomes[path, False]]

    assert len(safe) >= 8
    assert len(only_unsafe) >= 10
    assert any(exposes(row) for path in only_unsafe for row in outcomes[path, True].mounts if row.dest == "/data")  # type: ignore[union-attr]


@given(environs, st.lists(names, max_size=4))
def test_nothing_enters_the_environment_unless_it_is_named(environ, asked):
    # proves SAND-02, SAND-03, D-04
    policy = Policy("exec", ("true",), names=tuple(NameRequest(name, "--env") for name in asked))
    bare = {row.name: row for row in compose.make_plan(Policy("exec", ("true",)), hosts.debian(environ={})).variables}
    if set(asked) & set(bare):
        with pytest.raises(ClaudeboxError, match="is made by claudebox"):
            compose.make_plan(policy, hosts.debian(environ=environ))
        return
    entering = {row.name: row for row in compose.make_plan(policy, hosts.debian(environ=environ)).variables}

    passed = {
        "ANTHROPIC_API_KEY",
        "CLAUDE_CODE_OAUTH_TOKEN",
        *(name for name, _, _ in (*tables_environment.PASSED, *CLAUDE.passed)),
        *PROXIES,
    }
    assert set(entering) <= set(bare) | ((passed | set(asked)) & set(environ))
    for name, row in entering.items():
        assert row.reason
        assert row.value == (bare[name].value if name in bare else environ[name])
        assert row.origin == "claudebox" if name in bare else row.origin in ("host", "--env")


@pytest.mark.parametrize("name", sorted(hosts.ALL))
@given(network=st.sampled_from(["full", "none"]), userns=st.booleans(), words=st.lists(st.text(max_size=5), max_size=3))
def test_every_distribution_yields_a_sound_plan_for_every_policy(name, network, userns, words):
    # proves SAND-06
    policy = Policy("client", tuple(words), network=network, allow_userns=userns)
    result = compose.make_plan(policy, hosts.ALL[name]())

    assert parents_come_first(result.mounts)
    assert ("net" in result.namespaces) == (network != "full")
    assert result.command[1:2] == ("--dangerously-skip-permissions",)
    assert result.command[2:] == tuple(words)
