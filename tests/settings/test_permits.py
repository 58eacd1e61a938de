"""`permit` of a secret: what can be written there, and what is refused with a reason."""

from __future__ import annotations

import pytest

from claudebox.base.errors import ClaudeboxError
from claudebox.broker.inject import Permits
from claudebox.settings.secrets import read_permit
from claudebox.tables.secrets import PRESETS


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("GET", "GET"), ("/repos", "/repos"), ("GET repos/x", "repos/x"), ("get /x", "get"), ("GET  /x", " /x"),
        ("GET,POST /x", "GET,POST"), ("TRACE /x", "TRACE"), ("CONNECT /x", "CONNECT"), ("GET /a/**/b", "**"),
        ("GET /a*b", "a*b"), ("GET /a/../b", ".."), ("GET /a//b", "GET /a//b"), ("GET /a?b=c", "a?b=c"),
        ("GET /a b", "a b"),
        ("GET https://api.github.com/x", "api.github.com"), ("GET /ü", "ü"), ("github:write acme/shop", "github:write"),
        ("github:push", "acme/shop"), ("github:push acme", "acme/shop"), ("github:push acme/..", "acme/shop"),
        ("github:push acme/shop/x", "acme/shop"), ("github:push a*/b", "acme/shop"),
        ("github:read-all acme/shop", "read-all"),
        ("", ""),
    ],
)  # fmt: skip
def test_what_is_no_permit_is_refused_by_name(word, named):
    # proves NEW-N8
    with pytest.raises(ClaudeboxError) as problem:
        read_permit(word, "config.toml:7")
    said = f"{problem.value.message} {problem.value.hint}"
    assert "config.toml:7" in said
    assert named in said


@pytest.mark.parametrize(
    "word", ["GET /**", "* /repos/*/x", "POST /graphql", "GET /simple/", "GET /", "GET /projects/acme%2Fshop/**"]
)
def test_a_permit_is_taken_as_it_is_written(word):
    assert read_permit(word, "x") == (word,)


def test_what_is_encoded_in_a_permit_must_come_encoded_in_the_same_way():
    permits = Permits(["GET /projects/acme%2Fshop/**"])

    assert permits.allow(b"GET", b"/projects/acme%2Fshop/issues")
    for path in (b"/projects/acme/shop/issues", b"/projects/acme%2fshop/issues", b"/projects/acme%2Fshop/a%2Fb"):
        assert not permits.allow(b"GET", path)


def allowed(preset: str, method: bytes, target: bytes) -> bool:
    return Permits(read_permit(preset, "x")).allow(method, target)


OWN = "acme/shop"
GITHUB = {  # asked for: which of `read`, `push`, `pull-requests` open it
    (b"GET", b"/repos/acme/shop"): "read push pulls",
    (b"GET", b"/repos/acme/shop/issues?state=open"): "read push pulls",
    (b"GET", b"/acme/shop.git/info/refs?service=git-upload-pack"): "read push pulls",
    (b"POST", b"/acme/shop.git/git-upload-pack"): "read push pulls",
    (b"POST", b"/acme/shop/git-upload-pack"): "read push pulls",
    (b"POST", b"/acme/shop.git/git-receive-pack"): "push",
    (b"POST", b"/repos/acme/shop/pulls"): "pulls",
    (b"PATCH", b"/repos/acme/shop/pulls/7"): "pulls",
    (b"POST", b"/repos/acme/shop/issues/7/comments"): "pulls",
    (b"PUT", b"/repos/acme/shop/pulls/7/merge"): "",
    (b"DELETE", b"/repos/acme/shop"): "",
    (b"POST", b"/graphql"): "",
    (b"GET", b"/user"): "",
    (b"POST", b"/user/repos"): "",
    (b"GET", b"/repos/evil/shop/contents"): "",
    (b"POST", b"/evil/shop.git/git-receive-pack"): "",
}


@pytest.mark.parametrize("asked", GITHUB)
def test_presets_of_github_open_one_repository(asked):
    # proves NEW-N8
    names = {"read": f"github:read {OWN}", "push": f"github:push {OWN}", "pulls": f"github:pull-requests {OWN}.git"}

    assert " ".join(name for name, preset in names.items() if allowed(preset, *asked)) == GITHUB[asked]


def test_reading_everything_writes_nothing():
    # proves NEW-N8
    for method, target in GITHUB:
        reads = method == b"GET" or target.endswith(b"git-upload-pack")
        assert allowed("github:read-all", method, target) == reads
    assert all(rule.split()[1].startswith("/") for rules in PRESETS.values() for rule in rules)
