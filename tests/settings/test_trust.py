"""What a project file asks for, said in words, and what counts as approved."""

from __future__ import annotations

import os

import pytest

from claudebox.settings import layers, trust
from claudebox.settings.layers import Layer, Settings, SettingValue


def merged(**given):
    layer = Layer("x", {key: tuple(values) for key, values in given.items()})
    return layers.merge(Settings({}), {}, (layer,))


def changes(before, after):
    return {change.text: change.widens for change in trust.changes(before, after)}


MOUNT = SettingValue("~/data ro", "x", {"host": "~/data", "sandbox": "", "mode": "ro"})
ELSEWHERE = SettingValue("/a /b rw", "x", {"host": "/a", "sandbox": "/b", "mode": "rw"})


@pytest.mark.parametrize(
    ("given", "text", "widens"),
    [
        ({"network": [SettingValue("none", "x")]}, "network: full -> none", False),
        ({"claude_home": [SettingValue("shared", "x")]}, "claude_home: own -> shared", True),
        ({"terminal": [SettingValue("filtered", "x")]}, "terminal: plain -> filtered", False),
        ({"allow_userns": [SettingValue("yes", "x")]}, "allow_userns: no -> yes", True),
        ({"env": [SettingValue("GH_TOKEN", "x")]}, "extra_env_passthrough: + GH_TOKEN", True),
        ({"set_env": [SettingValue("A=b c", "x")]}, "env: + A=b c", True),
        ({"mounts": [MOUNT]}, "mounts: + ~/data read-only", True),
        ({"mounts": [ELSEWHERE]}, "mounts: + /a writable at /b", True),
        ({"package": [SettingValue("jq", "x")]}, "packages: + jq", True),
    ],
)
def test_a_difference_is_said_in_words_with_its_direction(given, text, widens):
    # proves EXT-01, E05
    assert changes(merged(), merged(**given)) == {text: widens}


def test_the_way_back_has_the_other_direction():
    # proves EXT-01
    none, full = merged(network=[SettingValue("none", "x")]), merged()
    on, off = merged(allow_userns=[SettingValue("yes", "x")]), merged(allow_userns=[SettingValue("no", "x")])

    assert changes(none, full) == {"network: none -> full": True}
    assert changes(on, off) == {"allow_userns: yes -> no": False}
    assert changes(off, merged()) == {}


def test_what_the_user_has_already_is_no_difference():
    # proves EXT-01
    mine = {"env": [SettingValue("A", "~/.claudebox/config.toml:1")], "mounts": [MOUNT]}
    theirs = {"env": [*mine["env"], SettingValue("A", "x")], "mounts": [MOUNT, MOUNT]}

    assert changes(merged(**mine), merged(**theirs)) == {}


@pytest.fixture
def request_of(tmp_path):
    os.makedirs(tmp_path / ".claudebox", mode=0o700)
    return lambda digest="d" * 64, path="/project/.claudebox.toml": trust.TrustRequest(
        f"{tmp_path}/.claudebox", path, digest, Layer(".claudebox.toml", {})
    )


def test_an_approval_is_of_this_content_at_this_path_with_this_effect_and_no_more(request_of):
    # proves EXT-01, E05, E06
    assert not trust.is_approved(request_of(), ("network: none -> full",))
    trust.approve(request_of(), ("network: none -> full", "packages: + jq"))

    assert trust.is_approved(request_of(), ("network: none -> full", "packages: + jq"))
    assert trust.is_approved(request_of(), ("packages: + jq",))
    assert not trust.is_approved(request_of(), ("packages: + jq", "mounts: + ~/x read-only"))
    assert not trust.is_approved(request_of(digest="e" * 64), ("packages: + jq",))
    assert not trust.is_approved(request_of(path="/other/.claudebox.toml"), ("packages: + jq",))


def test_approvals_are_private_listed_and_revoked(request_of):
    # proves EXT-01
    request = request_of()
    trust.approve(request, ("packages: + jq",))
    (record,) = os.listdir(f"{request.state}/trust")

    assert os.stat(f"{request.state}/trust").st_mode & 0o777 == 0o700
    assert os.stat(f"{request.state}/trust/{record}").st_mode & 0o777 == 0o600
    assert list(trust.approvals(request.state)) == [(request.path, request.digest, ("packages: + jq",))]
    assert trust.revoke(request.state, request.path)
    assert not trust.revoke(request.state, request.path)
    assert not trust.is_approved(request, ("packages: + jq",))


def test_an_approval_that_was_copied_under_another_name_is_not_believed(request_of):
    # proves E05
    request, other = request_of(), request_of(path="/other/.claudebox.toml")
    trust.approve(request, ("packages: + jq",))
    trust.approve(other, ("packages: + jq",))
    first, second = (trust._record(request.state, path) for path in (request.path, other.path))
    os.replace(first, second)

    assert not trust.is_approved(other, ("packages: + jq",))
    assert list(trust.approvals(request.state)) == []
