from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.support import hosts

from claudebox.plan import audit, compose, explain
from claudebox.settings.records import MountRequest, NameRequest, Policy

if TYPE_CHECKING:
    from claudebox.plan.records import Plan


def make(*names: str, mounts=(), network="full", **environ: str) -> Plan:
    wishes = tuple(NameRequest(name, "--env") for name in names)
    policy = Policy("client", ("-p", "hello world"), network=network, names=wishes, mounts=tuple(mounts))
    return compose.make_plan(policy, hosts.asking(hosts.debian(environ=environ), policy))


def renderings(made: Plan) -> dict[str, str]:
    return {
        "audit": "\n".join(audit.lines(made, frozenset(), asking=True)),
        "brief": "\n".join(audit.lines(made, frozenset(audit.decided(made)), asking=False)),
        "dry run": "\n".join(explain.dry_run(made)),
        "tree": "\n".join(explain.tree(made)),
        "json": explain.as_json(made),
    }


def test_a_secret_is_in_no_rendering():
    # proves UX-01, UX-04, B13, SEC-01
    canaries = {"GH_TOKEN": "canary-by-name", "FLAG": "ghp_canary_by_value", "PROXY": "http://u:canary-pass@h"}
    made = make("GH_TOKEN", "FLAG", "PROXY", **canaries)

    assert {row.name for row in made.variables if row.secret} == set(canaries)
    for name, text in renderings(made).items():
        assert "canary" not in text, name
        assert "GH_TOKEN" in text or name == "brief", name


def test_what_is_no_secret_is_shown():
    shown = renderings(make("MY_FLAG", MY_FLAG="visible-value"))

    assert "variable MY_FLAG" in shown["audit"]
    for name in ("dry run", "tree", "json"):
        assert "visible-value" in shown[name], name


def test_the_tree_names_what_is_withheld():
    # proves UX-01
    assert "withheld\n  GH_TOKEN\n  ZED" in "\n".join(explain.tree(make(GH_TOKEN="x", ZED="x")))


def test_a_short_secret_does_not_mask_other_words():
    # proves UX-04
    lines = list(explain.dry_run(make("A_TOKEN", "B_TOKEN", A_TOKEN="1", B_TOKEN="")))

    assert "  --setenv A_TOKEN '***' \\" in lines
    assert "  --setenv B_TOKEN '***' \\" in lines
    assert "  --setenv DISABLE_AUTOUPDATER 1 \\" in lines
    assert "".join(lines).count("***") == 2


@pytest.mark.parametrize(
    "content",
    [bytes(range(256)), b"", b"-n leading dash", b"---\ntitle: x\n", b"%s %d \\n", b"ends with newline\n", b"\x41" * 3],
)
def test_every_content_comes_back_from_bash_as_it_went_in(content):
    # proves UX-04
    made = make().replace(mounts=(), variables=(), seccomp=content)
    last = list(explain.dry_run(made))[-1]
    assert last.startswith("  10< <(")

    back = subprocess.run(["bash", "-c", f"cat /dev/fd/10 {last}"], capture_output=True, check=True).stdout
    assert back == content


def test_the_dry_run_has_one_option_per_line_and_names_no_descriptor_of_ours():
    # proves UX-04
    lines = list(explain.dry_run(make()))
    options = [line for line in lines if line.startswith("  --")]

    assert any(line.startswith("env -i /usr/bin/bwrap") for line in lines)
    assert f"  --bind {hosts.PROJECT} {hosts.PROJECT} \\" in options
    assert not [line for line in options if "-fd " in line]
    assert all(line.endswith(" \\") for line in lines[1:-1])
    assert "  -- /run/claudebox/bin/claude --dangerously-skip-permissions -p 'hello world' \\" in lines


def test_the_tree_gives_every_mount_its_reason_and_every_variable_its_origin():
    # proves SAND-04
    made = make(TERM="xterm")
    text = "\n".join(explain.tree(made))

    for row in made.mounts:
        assert row.dest in text
        assert row.reason in text
    for variable in made.variables:
        assert f"{variable.name}=" in text
    assert "own namespaces: user, pid" in text


def test_json_is_the_same_plan_for_machines():
    made = make("GH_TOKEN", GH_TOKEN="x", TERM="xterm")
    document = json.loads(explain.as_json(made))

    assert [row["dest"] for row in document["mounts"]] == [row.dest for row in made.mounts]
    assert {row["name"]: row["value"] for row in document["variables"]}["GH_TOKEN"] is None
    assert {row["name"]: row["value"] for row in document["variables"]}["TERM"] == "xterm"
    assert all(row["reason"] for row in document["mounts"] + document["variables"])
    assert document["network"] == "full"
    assert document["withheld"] == []


def test_user_namespaces_are_described_as_they_are():
    # proves H01
    def said(host, **changes) -> str:
        lines = explain.protections(compose.make_plan(Policy("client", **changes), host))
        return next(line for line in lines if "user namespaces" in line)

    assert "impossible" in said(hosts.debian())
    assert "allowed" in said(hosts.debian(), allow_userns=True)


@pytest.mark.parametrize("hostile", ["\x1b]52;c;eA==\x07", "a\nb", "\u202egnp.exe", "\udcff", "\x9b2J"])
def test_hostile_names_reach_no_rendering_raw(hostile):
    # proves B12
    place = f"/srv/{hostile}"
    mounts = (MountRequest(place, place, writable=True, origin="--mount-rw"),)
    made = make("MY_FLAG", mounts=mounts, MY_FLAG=hostile, **{f"X{hostile}": "x"})
    made = made.replace(command=("x", hostile), warnings=(f"w {hostile}",))

    for name, text in renderings(made).items():
        lines = text.split("\n")
        assert all(line.isprintable() for line in lines), name
        assert hostile not in text, name
