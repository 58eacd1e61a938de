"""What holds for every pattern and every name, not only for those that somebody thought of."""

from __future__ import annotations

import socket

from hypothesis import example, given
from hypothesis import strategies as st

from claudebox.base.errors import ClaudeboxError
from claudebox.settings.domains import Domain, Permission, canonical, parse_domain

LABEL = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,8}[a-z0-9_])?", fullmatch=True)
NAME = st.lists(LABEL, min_size=2, max_size=5).map(".".join).filter(canonical)
PATTERN = st.builds(Domain, NAME, st.booleans(), st.one_of(st.just(0), st.integers(1, 65535)))
ANYTHING = st.one_of(st.text(max_size=80), st.text("0123456789abcdefx.:%-_[]*@/", max_size=40))


@given(PATTERN)
def test_a_pattern_survives_being_written_and_read(pattern):
    assert parse_domain(str(pattern), "x") == pattern


@given(ANYTHING)
@example("0x7f.1")
@example("١٢٧.0.0.1")
def test_whatever_a_resolver_takes_for_an_address_is_no_name(text):
    # proves F05
    name = canonical(text)
    try:
        socket.inet_aton(text)
    except (OSError, ValueError, UnicodeError):
        pass
    else:
        assert not name
    assert canonical(name) == name
    assert ":" not in name
    assert name.isascii()


@given(ANYTHING)
def test_whatever_is_written_is_a_pattern_or_one_clear_line(text):
    try:
        pattern = parse_domain(text, "--allow-domain")
    except ClaudeboxError as error:
        said = error.hint
        assert said
        return
    assert "." in pattern.name
    assert canonical(pattern.name) == pattern.name


@given(st.lists(PATTERN, max_size=6), NAME, st.integers(1, 65535))
def test_the_table_permits_exactly_what_one_of_its_patterns_means(patterns, name, port):
    permission = Permission(patterns)
    meant = [pattern for pattern in patterns if pattern.names(name) and port in pattern.ports]

    assert (permission.rule(name, port) in meant) if meant else permission.rule(name, port) is None
    assert set(permission.ports(name)) == {one for pattern in patterns if pattern.names(name) for one in pattern.ports}


@given(PATTERN, NAME)
def test_what_is_permitted_ends_with_what_was_written(pattern, name):
    if Permission([pattern]).ports(name):
        assert name == pattern.name or (pattern.beneath and name.endswith(f".{pattern.name}"))
