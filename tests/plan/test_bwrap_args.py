from __future__ import annotations

from itertools import pairwise

import pytest

from claudebox.base.errors import ClaudeboxError
from claudebox.plan import bwrap
from claudebox.plan.records import Mount, Plan, Variable
from claudebox.settings.records import Policy

PLAN = Plan(
    policy=Policy("exec"),
    bwrap="/usr/bin/bwrap",
    directory="/state",
    mounts=(),
    variables=(),
    namespaces=("user", "pid"),
    start="/p",
    workdir="/p",
    command=("true",),
    gate=("/bin/sh",),
    seccomp=b"filter",
    scoped=True,
    detached=False,
    disable_userns=True,
)


def options(**changes):
    return list(bwrap.options(PLAN.replace(**changes)))


def mount(row: Mount, **changes):
    rows = options(mounts=(row,), **changes)
    start = rows.index(("--seccomp", b"filter")) + 1
    return rows[start : rows.index(("--remount-ro", "/dev"))]


def test_a_plan_without_rows_is_confined_all_the_same():
    # proves SEC-02, A17, C25, E10, H05
    assert options() == [
        ("--die-with-parent",),
        ("--unshare-user",),
        ("--unshare-pid",),
        ("--disable-userns",),
        ("--cap-drop", "ALL"),
        ("--hostname", "claudebox"),
        ("--seccomp", b"filter"),
        ("--remount-ro", "/dev"),
        ("--remount-ro", "/"),
        ("--chdir", "/"),
    ]


def test_what_the_plan_leaves_out_is_left_out():
    assert ("--disable-userns",) not in options(disable_userns=False)
    assert ("--new-session",) in options(detached=True)
    assert ("--new-session",) not in options(detached=False)


def test_a_variable_is_set_with_exactly_its_value():
    # proves SAND-02
    variable = Variable("A", "--bind\nx=y\udcff", "host", "why")

    assert ("--setenv", "A", "--bind\nx=y\udcff") in options(variables=(variable,))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Mount("/d", "bind", "r", "/s"), [("--bind", "/s", "/d")]),
        (Mount("/d", "ro-bind", "r", "/s"), [("--ro-bind", "/s", "/d")]),
        (Mount("/d", "mask", "r"), [("--ro-bind", "/dev/null", "/d")]),
        (Mount("/d", "symlink", "r", "to"), [("--symlink", "to", "/d")]),
        (Mount("/proc", "proc", "r"), [("--proc", "/proc")]),
        (Mount("/dev", "dev", "r"), [("--dev", "/dev")]),
        (Mount("/d", "dir", "r", mode=0o700), [("--perms", "0700"), ("--dir", "/d")]),
        (
            Mount("/d", "tmpfs", "r", mode=0o1777, size=4096),
            [("--perms", "1777"), ("--size", "4096"), ("--tmpfs", "/d")],
        ),
        (Mount("/d", "tmpfs", "r"), [("--perms", "0755"), ("--tmpfs", "/d")]),
        (Mount("/d", "file", "r", content=b"x", mode=0o644), [("--perms", "0644"), ("--file", b"x", "/d")]),
    ],
    ids=lambda value: value.kind if isinstance(value, Mount) else "",
)
def test_every_kind_of_row_has_its_option(row, expected):
    # proves SAND-04
    assert mount(row) == expected


def test_no_option_is_one_that_is_skipped_silently():
    # proves E08, C20
    kinds = ("bind", "ro-bind", "tmpfs", "proc", "dev", "dir", "symlink", "file", "mask")
    rows = tuple(Mount(f"/{kind}", kind, "r", "/s") for kind in kinds)  # type: ignore[arg-type]

    assert not [row for row in options(mounts=rows) if str(row[0]).endswith("-try")]


def test_the_root_is_closed_after_everything_is_in_place():
    # proves C23, C25
    rows = options(mounts=(Mount("/a", "dir", "r"), Mount("/dev/shm", "tmpfs", "r")))
    position = rows.index(("--remount-ro", "/"))

    assert position > max(index for index, row in enumerate(rows) if row[0] in ("--dir", "--tmpfs"))
    assert rows[position:] == [("--remount-ro", "/"), ("--chdir", "/")]


def test_perms_belongs_to_the_option_right_after_it():
    rows = options(mounts=(Mount("/a", "dir", "r"), Mount("/t", "tmpfs", "r", size=1), Mount("/f", "file", "r")))

    for before, after in pairwise(rows):
        if before[0] == "--perms":
            assert after[0] in ("--dir", "--tmpfs", "--file", "--size")
        if before[0] == "--size":
            assert after[0] == "--tmpfs"


PROJECT = Mount("/p", "bind", "r", "/p", role="project", pinned=(1, 2))
STATE = "/home/a/.claudebox/instances/x"


def placed(*rows: Mount) -> dict[str, tuple[str | None, str]]:
    """Return what is mounted by descriptor: the bind that it lies in, and where its source is in the stage."""
    found = bwrap.place(PLAN.replace(mounts=rows, directory=STATE))
    return {row.mount.dest: (row.root.dest if row.root else None, row.source) for row in found}


def test_whatever_lies_in_a_directory_of_the_host_is_mounted_by_descriptor():
    # proves MOUNT-01, C30
    rows = (
        Mount("/etc/ssl", "ro-bind", "", "/etc/ssl"),
        Mount("/etc/ssl/certs.pem", "late", "", "authority"),
        Mount("/home/a", "tmpfs", ""),
        Mount("/home/a/.claude", "bind", "", f"{STATE}/claude", role="state"),
        Mount("/home/a/.claude/agents", "ro-bind", "", "/x", role="client"),
        Mount("/home/a/.gitconfig", "file", "", content=b"x"),
        Mount("/home/a/main/.git", "bind", "", f"{STATE}/git/1/own", role="git"),
        Mount("/home/a/main/.git/modules/m", "bind", "", f"{STATE}/git/2/own", role="git"),
        PROJECT,
        Mount("/p/.claude", "ro-bind", "", f"{STATE}/cover", role="protected"),
        Mount("/p/.claude/worktrees", "bind", "", "/p/.claude/worktrees", role="git"),
        Mount("/p/.env", "copy", "", role="masked"),
        Mount("/p/disk", "empty", "", role="masked"),
        Mount("/p/socket", "mask", "", role="masked"),
        Mount("/p/y", "ro-bind", "", "/x/y", role="asked"),
        Mount("/usr", "ro-bind", "", "/usr"),
        Mount("/usr/npmrc", "copy", "", role="masked"),
    )

    assert placed(*rows) == {
        "/home/a/.claude/agents": ("/home/a/.claude", "1"),
        "/home/a/main/.git": (None, "0/git/1/own"),
        "/home/a/main/.git/modules/m": (None, "0/git/2/own"),
        "/p/.claude": ("/p", "0/cover"),
        "/p/.claude/worktrees": ("/p", ""),
        "/p/.env": ("/p", "content-5"),
        "/p/disk": ("/p", "empty"),
        "/p/socket": ("/p", ""),
        "/p/y": ("/p", "1/y"),
        "/usr/npmrc": ("/usr", "content-9"),
    }
    given = options(mounts=rows, directory=STATE)
    targets = [row[-1] for row in given]
    assert not [word for word in targets if str(word).startswith(("/p/", "/home/a/.claude/"))]
    assert targets.count("/home/a/main/.git") == 1, "a place for it, and nothing in that"
    assert [row for row in given if str(row[-1]).startswith(bwrap.STAGE)] == [
        ("--tmpfs", bwrap.STAGE),
        ("--bind", "/x", f"{bwrap.STAGE}/1"),
        ("--bind", STATE, f"{bwrap.STAGE}/0"),
        ("--file", b"", f"{bwrap.STAGE}/content-5"),
        ("--tmpfs", f"{bwrap.STAGE}/empty"),
        ("--file", b"", f"{bwrap.STAGE}/content-9"),
    ]


def test_what_is_writable_in_something_read_only_comes_from_the_stage():
    # proves MOUNT-01
    # A clone through a read-only mount would be read-only.
    rows = (
        Mount("/r", "ro-bind", "", "/r", role="git"),
        Mount("/r/p", "bind", "", "/r/p", role="project"),
        Mount("/r/p/.mcp.json", "ro-bind", "", "/r/p/.mcp.json", role="protected"),
        Mount("/r/p/tools", "bind", "", "/r/p/tools", role="pin"),
    )

    assert placed(*rows) == {"/r/p": ("/r", "1/p"), "/r/p/.mcp.json": ("/r", ""), "/r/p/tools": ("/r", "1/p/tools")}


def test_a_directory_on_disk_that_no_other_session_has_is_built_upon_by_bwrap():
    rows = (
        Mount("/home/a", "bind", "", f"{STATE}/scratch/1/home", role="scratch"),
        Mount("/home/a/.gitconfig", "file", "", content=b"x"),
        Mount("/home/a/p", "bind", "", "/home/a/p", role="project"),
        Mount("/home/a/p/.env", "copy", "", role="masked"),
    )

    assert placed(*rows) == {"/home/a/p/.env": ("/home/a/p", "content-0")}


@pytest.mark.parametrize("kind", ["file", "symlink", "tmpfs", "dir", "late", "socket", "closed", "device"])
def test_no_row_in_a_directory_that_an_agent_can_write_is_left_to_bwrap(kind):
    # proves MOUNT-01, C30
    with pytest.raises(ClaudeboxError, match="/p/x"):
        placed(PROJECT, Mount("/p/x", kind, "r", "/s"))


def test_what_is_shown_to_people_is_mounted_by_name():
    rows = list(bwrap.options(PLAN.replace(mounts=(PROJECT, Mount("/p/.env", "mask", "r"))), by_name=True))

    assert ("--ro-bind", "/dev/null", "/p/.env") in rows
    assert rows[-1] == ("--chdir", "/p")
