from __future__ import annotations

import pytest
from tests.support import hosts

from claudebox.agent.claude import API
from claudebox.base.errors import DECLINED, FAILED, NOT_EXECUTABLE, NOT_FOUND, ClaudeboxError
from claudebox.base.records import Value
from claudebox.network.facts import HostProxy
from claudebox.network.records import ApiConfig, Broker, Credential, Endpoint, InjectConfig
from claudebox.settings.records import SecretRequest


class Point(Value):
    x: int
    y: int = 0


class Named(Point):
    name: str = "origin"


class Other(Value):
    x: int
    y: int = 0


def test_fields_come_from_annotations_and_defaults_from_the_class_body():
    point = Point(1)

    assert (point.x, point.y) == (1, 0)
    assert Point(1, y=2) == Point(x=1, y=2)


def test_a_subclass_adds_its_fields_after_those_of_its_parent():
    named = Named(1, 2, "here")

    assert (named.x, named.y, named.name) == (1, 2, "here")
    assert Named(1) == Named(1, 0, "origin")


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "needs 'x'"),
        ((1, 2, 3), {}, "takes 2 values, 3 given"),
        ((1,), {"z": 1}, "does not take 'z'"),
        ((1,), {"x": 1}, "does not take 'x'"),
    ],
)
def test_wrong_fields_are_refused(args, kwargs, message):
    with pytest.raises(TypeError, match=message):
        Point(*args, **kwargs)


def test_a_value_never_changes():
    point = Point(1, 2)

    with pytest.raises(AttributeError, match="read-only"):
        point.x = 5  # type: ignore[misc]
    with pytest.raises(AttributeError, match="read-only"):
        point.new = 5
    with pytest.raises(AttributeError, match="read-only"):
        del point.y
    assert point == Point(1, 2)


def test_values_are_equal_by_content_and_type():
    assert Point(1, 2) == Point(1, 2)
    assert Point(1, 2) != Point(2, 1)
    assert Point(1, 2) != Other(1, 2)
    assert Point(1, 2) != (1, 2)
    assert len({Point(1, 2), Point(1, 2), Other(1, 2)}) == 2


def test_replace_copies_with_some_fields_changed():
    point = Point(1, 2)

    assert point.replace(y=9) == Point(1, 9)
    assert point == Point(1, 2)
    with pytest.raises(TypeError, match="does not take 'z'"):
        point.replace(z=1)


def test_a_value_shows_its_fields():
    assert repr(Named(1, 2)) == "Named(x=1, y=2, name='origin')"


class _Held(Value):
    _unprinted = ("value",)
    name: str
    value: str


def test_a_field_that_holds_a_secret_is_in_no_trace():
    # proves B13
    held = _Held("TOKEN", "hunter2")

    assert repr(held) == "_Held(name='TOKEN')"
    assert "hunter2" not in repr([held]) + str(held)
    assert held.replace(name="X") == _Held("X", "hunter2")


def test_what_the_plan_holds_for_the_broker_is_in_no_trace():
    # proves B13, HOUSE-03
    config = ApiConfig(
        Endpoint("https", "a.example", 443),
        "p",
        API,
        (Credential("KEY", "hunter2"),),
        proxy=HostProxy("p", 1, login="me:hunter2"),
    )
    secret = SecretRequest("TOKEN", (("a.example", 443),), "env:TOKEN", "config", value="hunter2")

    assert "hunter2" not in repr(Broker((config,), inject=InjectConfig((secret,))))


def test_an_error_carries_what_happened_what_to_do_and_the_status():
    # proves SAND-14
    error = ClaudeboxError("it broke", hint="mend it")

    assert (str(error), error.message, error.hint, error.status) == ("it broke", "it broke", "mend it", 125)
    assert ClaudeboxError("x", status=NOT_FOUND).status == 127
    assert (FAILED, NOT_EXECUTABLE, NOT_FOUND, DECLINED) == (125, 126, 127, 130)


def test_the_environment_of_the_host_is_in_no_trace():
    # proves NEW-N11
    assert "hunter2" not in repr(hosts.debian(environ={"TOKEN": "hunter2"}))
