from __future__ import annotations

import pytest
from tests.support import hosts
from tests.support.hosts import HOME, PROJECT

from claudebox.base.errors import NOT_FOUND, ClaudeboxError
from claudebox.git.facts import Repository, Store
from claudebox.host.records import Bubblewrap
from claudebox.plan import compose, seccomp
from claudebox.plan.limits import spell_limits
from claudebox.plan.records import Mount
from claudebox.settings.records import LimitRequest, MountRequest, NameRequest, Policy
from claudebox.tables import environment as tables_environment

CLIENT = Policy("client", ("-p", "hello"))


def test_the_client_is_always_told_that_every_permission_is_granted():
    # proves UX-06
    made = compose.make_plan(CLIENT, hosts.debian())

    assert made.command == ("/run/claudebox/bin/claude", "--dangerously-skip-permissions", "-p", "hello")


def test_a_command_or_a_shell_runs_in_the_very_same_sandbox():
    client = compose.make_plan(Policy("client"), hosts.debian())
    command = compose.make_plan(Policy("exec", ("make", "-j2")), hosts.debian())
    shell = compose.make_plan(Policy("shell", ("-l",)), hosts.debian())

    assert command.command == ("make", "-j2")
    assert shell.command == ("/bin/bash", "-l")
    same = {"command": (), "policy": Policy("exec"), "login": ""}
    assert client.replace(**same) == command.replace(**same) == shell.replace(**same)
    assert compose.make_plan(Policy("shell"), hosts.debian(bash=False)).command == ("/bin/sh",)


@pytest.mark.parametrize("words", [("-p", "hello"), ("--model", "opus", "--print"), ("hello", "-p")])
def test_a_client_that_prints_is_spared_the_answers_to_questions_that_it_does_not_ask(words):
    talking = compose.make_plan(Policy("client"), hosts.debian())
    printing = compose.make_plan(Policy("client", words), hosts.debian())

    spared = {row.dest for row in talking.mounts} - {row.dest for row in printing.mounts}
    assert spared == {"/etc/claude-code/managed-settings.d/claudebox.json"}
    same = {"command": (), "mounts": (), "policy": Policy("exec")}
    assert printing.replace(**same) == talking.replace(**same)


def test_without_a_client_only_the_client_cannot_start():
    # proves SAND-14
    problem = ClaudeboxError("`claude` was not found", status=NOT_FOUND)
    host = hosts.debian(client=None, client_problem=problem)

    with pytest.raises(ClaudeboxError) as caught:
        compose.make_plan(CLIENT, host)
    assert caught.value is problem
    assert compose.make_plan(Policy("exec", ("true",)), host).command == ("true",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bwrap": Bubblewrap("", ClaudeboxError("bubblewrap is not installed", hint="do so"))}, "is not installed"),
        ({"machine": "riscv64"}, "no seccomp filter for riscv64"),
        ({"workdir": hosts.fact(HOME)}, "cannot be a project"),
    ],
)
def test_what_cannot_be_confined_is_not_started(changes, message):
    # proves E08, B06, SAND-05
    with pytest.raises(ClaudeboxError, match=message) as caught:
        compose.make_plan(CLIENT, hosts.debian(**changes))

    assert caught.value.status == 125
    assert caught.value.hint


def test_namespaces_follow_the_tier():
    # proves NET-T, SEC-02, A11
    assert compose.make_plan(CLIENT, hosts.debian()).namespaces == ("user", "pid", "ipc", "uts", "cgroup")
    assert compose.make_plan(CLIENT.replace(network="none"), hosts.debian()).namespaces[-1] == "net"


def test_the_terminal_is_shared_in_the_foreground_and_given_up_without_one():
    # proves B05, B07
    assert compose.make_plan(CLIENT, hosts.debian()).detached
    assert not compose.make_plan(CLIENT, hosts.debian(terminal=True)).detached


def test_the_filter_is_the_one_of_the_machine_and_of_the_policy():
    # proves H01, H02
    assert compose.make_plan(CLIENT, hosts.debian()).seccomp == seccomp.build("x86_64")
    assert compose.make_plan(CLIENT, hosts.unmerged()).seccomp == seccomp.build("aarch64")

    loose = compose.make_plan(CLIENT.replace(allow_userns=True), hosts.debian())
    assert loose.seccomp == seccomp.build("x86_64", allow_userns=True)
    assert not loose.disable_userns
    assert any("user namespaces are allowed" in warning for warning in loose.warnings)


def test_an_old_machine_is_used_as_far_as_it_goes_and_the_user_is_told():
    # proves F15
    made = compose.make_plan(CLIENT, hosts.unmerged())

    assert not made.scoped
    assert any("abstract sockets" in warning for warning in made.warnings)
    assert not any(
        "abstract" in line for line in compose.make_plan(CLIENT.replace(network="none"), hosts.unmerged()).warnings
    )


def test_the_gate_is_told_which_signals_to_give_back():
    # proves SAND-15
    ignored = frozenset({1, 17})

    (path, mask, _), (_, without, _) = (
        compose.make_plan(CLIENT, hosts.debian(ignored_signals=numbers)).gate for numbers in (frozenset(), ignored)
    )

    assert path == tables_environment.GATE
    assert [number for number in range(32) if int(mask) >> number & 1] == [1, 2, 3, 10, 12, 15]
    assert [number for number in range(32) if int(without) >> number & 1] == [2, 3, 10, 12, 15]  # `nohup` means it


@pytest.mark.parametrize("make", [hosts.debian, hosts.unmerged])
def test_the_gate_is_that_of_the_machine(make):
    plan = compose.make_plan(CLIENT, make(gate=b"other code"))
    (row,) = (row for row in plan.mounts if row.dest == tables_environment.GATE)

    assert (row.content, row.mode) == (b"other code", 0o555)


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [("ro-bind", "bind", "bind"), ("bind", "mask", "mask"), ("ro-bind", "mask", "mask"), ("file", "tmpfs", "tmpfs")],
)
def test_where_two_rows_want_one_place_hiding_wins_over_writing_over_reading(first, second, winner):
    # proves SAND-09
    rows = [Mount("/x", first, "one", "/s"), Mount("/x", second, "two", "/s")]

    assert [row.kind for row in compose.arrange(rows)] == [winner]
    assert [row.kind for row in compose.arrange(rows[::-1])] == [winner]


def test_two_equal_claims_to_one_place_are_refused_unless_they_are_the_same():
    one, two = Mount("/x", "bind", "r", "/a"), Mount("/x", "bind", "r", "/b")

    assert compose.arrange([one, one]) == (one,)
    with pytest.raises(ClaudeboxError, match="two mounts want to be at `/x`"):
        compose.arrange([one, two])


def test_an_agent_that_lies_among_the_programs_of_the_path_is_shown_once():
    # proves ANY-01, SAND-10
    need = Mount("/npm", "ro-bind", "what the client consists of", "/npm", role="client")
    shown = Mount("/npm", "ro-bind", "programs of yours", "/npm", pinned=(1, 2), role="programs")

    assert compose.arrange((need, shown)) == compose.arrange((shown, need)) == (shown,)
    with pytest.raises(ClaudeboxError, match="two mounts want to be at `/npm`"):
        compose.arrange((need, shown.replace(source="/other")))


@pytest.mark.parametrize("row", [Mount("x", "dir", "r"), Mount("/x", "dir", ""), Mount("/x\0", "dir", "r"),
                                 Mount("/x", "bind", "r", "/s\0")])  # fmt: skip
def test_a_malformed_row_is_refused(row):
    with pytest.raises(ClaudeboxError, match="malformed"):
        compose.arrange([row])


OWN = ["/etc/passwd", "/etc/resolv.conf", "/etc/ssl/certs", "/etc/hosts", f"{HOME}/.gitconfig", "/etc/localtime",
       "/etc/claude-code/CLAUDE.md"]  # fmt: skip


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("dest", OWN)
def test_what_claudebox_puts_in_place_cannot_be_replaced_by_a_mount(dest, writable):
    # proves C27
    policy = CLIENT.replace(mounts=(MountRequest("/srv/x", dest, writable, "--mount-rw"),), unsafe_mounts=True)

    with pytest.raises(ClaudeboxError, match=f"the destination `{dest}` is claudebox's own"):
        compose.make_plan(policy, hosts.asking(hosts.debian(), policy))


def test_a_mask_cannot_be_lifted_by_a_mount():
    # proves SAND-09, C19
    socket = f"{PROJECT}/s"
    policy = CLIENT.replace(
        mounts=(MountRequest(socket, socket, writable=True, origin="--mount-rw"),), unsafe_mounts=True
    )
    host = hosts.asking(hosts.debian(sockets=(socket,)), policy, there=[socket])

    with pytest.raises(ClaudeboxError, match="is claudebox's own"):
        compose.make_plan(policy, host)


_DIRECTORY = hosts.REPOSITORY.directory
assert _DIRECTORY is not None
ABOVE = hosts.REPOSITORY.replace(root="/home/alice/src")
BORROWED = Store("/srv/other/.git/objects", hosts.identity("/srv/other/.git/objects"), borrowed=True)
BORROWING = hosts.REPOSITORY.replace(directory=_DIRECTORY.replace(stores=(*_DIRECTORY.stores, BORROWED)))
SIGNING = hosts.REPOSITORY.replace(directory=_DIRECTORY.replace(rows=(("commit", "", "gpgsign", "true"),)))


@pytest.mark.parametrize(
    ("repository", "words"),
    [
        (Repository(PROJECT, problem="`.git` is neither"), "git does not work inside: `.git` is neither"),
        (ABOVE, "the repository starts above, at /home/alice/src: the rest of it is read-only inside"),
        (ABOVE.replace(root="/home/alice"), "git does not work inside: `/home/alice` cannot be a project"),
        (BORROWING, "lacks the objects that this repository borrows from /srv/other/.git/objects"),
        (SIGNING, "commits made inside are not signed"),
    ],
)
def test_a_repository_that_does_not_fully_work_is_mentioned(repository, words):
    # proves GIT-01, GIT-02, GIT-03, D15
    above = hosts.fact(repository.root) if repository.root != PROJECT else None
    made = compose.make_plan(CLIENT, hosts.debian(repository=repository, above=above))

    assert any(words in warning for warning in made.warnings)


def test_ordinary_launches_come_without_warnings():
    assert compose.make_plan(CLIENT, hosts.debian(repository=hosts.REPOSITORY)).warnings == ()


def test_a_name_that_is_not_set_is_mentioned_if_a_flag_asked_for_it():
    # proves D-03
    names = (NameRequest("NO_SUCH", "--env"), NameRequest("NOR_THIS", "CLAUDEBOX_EXTRA_ENV"))

    assert compose.make_plan(CLIENT.replace(names=names), hosts.debian()).warnings == (
        "--env: NO_SUCH is not set on the host",
    )


def test_every_limit_is_said():
    # proves LIMIT-01
    for name in LimitRequest._fields:
        assert spell_limits(LimitRequest(**{name: 1 << 30})), name
