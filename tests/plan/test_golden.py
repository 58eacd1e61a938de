"""The options of bwrap in six cases, one per line in a file: every change shows as a difference."""

from __future__ import annotations

import difflib
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support import hosts
from tests.support.hosts import PROJECT

from claudebox.agent.claude import CLAUDE
from claudebox.git.facts import Repository, UserSettings
from claudebox.network.uplink import Candidate
from claudebox.plan import bwrap, compose, sandbox_md
from claudebox.plan import environment as plan_environment
from claudebox.plan.explain import bash_quote
from claudebox.plan.records import Deferred
from claudebox.settings.records import MountRequest, NameRequest, Policy, SecretRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.host.records import Host
    from claudebox.plan.records import Plan

CASES = Path(__file__).parent / "golden"
FOR_AGENT = (sandbox_md.PATH, CLAUDE.instructions)  # tests/plan/test_sandbox_md.py is about these texts
CLIENT = Policy("client", ("-p", "hello world"))
OFFLINE = Policy("exec", ("make", "test"), network="none", network_origin="--network")
GENEROUS = Policy(
    "client",
    names=(NameRequest("AWS_SECRET_ACCESS_KEY", "--env"), NameRequest("NOT_SET", "CLAUDEBOX_EXTRA_ENV")),
    mounts=(
        MountRequest("/srv/data", "/data", writable=False, origin="--mount-ro"),
        MountRequest("/srv/out", "/srv/out", writable=True, origin="--mount-rw"),
    ),
    allow_userns=True,
)
_SECRET = SecretRequest(
    "GH_TOKEN", (("api.github.com", 443), ("git.example.org", 8443)), "env:GH_TOKEN", "config.toml:1",
)  # fmt: skip
_COMMON = "/home/alice/main/.git"
_OWN = f"{_COMMON}/worktrees/project"
_WORKTREE = Repository(
    PROJECT,
    "/home/alice/main",
    hosts.git_directory(_COMMON, PROJECT),
    _OWN,
    gitfile=hosts.identity(f"{PROJECT}/.git"),
)


def cases() -> dict[str, tuple[Policy, Host]]:
    """Return every case by its name: six, which have every kind of option between them."""
    key = {"ANTHROPIC_API_KEY": "not-shown-anywhere", "ANTHROPIC_BASE_URL": "https://gate.example/x"}
    return {
        "debian-broker": (
            CLIENT.replace(auth="broker"), hosts.debian(environ=key, libraries=("/lib/python",), terminal=True)
        ),
        "debian-repository": (
            CLIENT,
            hosts.debian(
                repository=hosts.REPOSITORY, protected=hosts.protected(".claude"),
                worktrees=hosts.fact(f"{PROJECT}/.claude/worktrees", "missing"),
                sockets=(f"{PROJECT}/tmux.sock",), git_user=UserSettings(),
            ),
        ),
        "debian-secrets": (
            Policy("exec", ("gh", "pr", "list"), network="inet", secrets=(_SECRET,)),
            hosts.debian(held_secrets=(_SECRET,), uplinks=(Candidate("pasta", "/usr/bin/pasta"),)),
        ),
        "debian-worktree": (CLIENT, hosts.debian(repository=_WORKTREE)),
        "nixos-offline": (OFFLINE, hosts.nixos()),
        "unmerged-generous": (GENEROUS, hosts.asking(hosts.unmerged(), GENEROUS)),
    }  # fmt: skip


def lines(made: Plan) -> Iterator[str]:
    """Yield one option per line."""
    for row in bwrap.options(made):
        words = [shown(word) for word in row]
        if row[-1] in FOR_AGENT and row[1]:
            words[1] = "<text for the agent>"
        yield " ".join(words)
    for placed in bwrap.place(made):
        mount, source = placed.mount, placed.source and f" from {bwrap.STAGE}/{placed.source}"
        yield f"then {mount.kind} {shown(mount.dest)}{source}"
    yield f"-- {' '.join(shown(word) for word in made.gate)}"
    yield f"-- {' '.join(shown(word) for word in made.command)}"


def shown(word: bwrap.Word) -> str:
    if isinstance(word, bytes):
        return f"<content {len(word)} bytes {sha256(word).hexdigest()[:12]}>"
    if isinstance(word, Deferred):
        return f"{word.before}<{word.key}>{word.after}"
    return bash_quote(word)


@pytest.mark.parametrize("name", sorted(cases()))
def test_the_options_are_those_of_the_file(name, update_golden, monkeypatch):
    # proves SAND-02, SAND-04, SAND-06, SAND-12, SAND-13
    monkeypatch.setattr(plan_environment, "__version__", "0.0.0")  # a release changes no file
    wanted_file = CASES / f"{name}.txt"
    text = "\n".join(lines(compose.make_plan(*cases()[name]))) + "\n"
    if update_golden:
        CASES.mkdir(exist_ok=True)
        wanted_file.write_text(text, encoding="utf-8")
        return
    wanted = wanted_file.read_text(encoding="utf-8") if wanted_file.exists() else ""
    if text != wanted:
        difference = difflib.unified_diff(
            wanted.splitlines(), text.splitlines(), f"{name}.txt", "now", lineterm="", n=1
        )
        pytest.fail(
            "\n".join(
                (f"the options of `{name}` have changed; `pytest tests/plan --update-golden` takes them", *difference)
            ),
            pytrace=False,
        )


def test_every_file_belongs_to_a_case():
    assert {path.stem for path in CASES.iterdir()} == set(cases())


def test_a_secret_of_the_host_is_only_where_a_policy_asked_for_it():
    # proves SAND-02
    secret = hosts.ENVIRON["AWS_SECRET_ACCESS_KEY"]
    holding = {path.stem for path in CASES.iterdir() if secret in path.read_text(encoding="utf-8")}

    assert holding == {name for name, (policy, _) in cases().items() if policy.names}
