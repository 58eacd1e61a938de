from __future__ import annotations

from itertools import pairwise

import pytest

from claudebox.plan import bwrap_args
from claudebox.plan.model import Mount, Plan, Variable

PLAN = Plan(
    bwrap="/usr/bin/bwrap",
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
    pin=True,
    disable_userns=True,
    allow_userns=False,
    sizes=True,
    network="full",
)

PINNED = Mount("/d", "bind", "r", "/s", pinned=(1, 2))


def options(**changes):
    return list(bwrap_args.options(PLAN.replace(**changes)))


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
        ("--chdir", "/p"),
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
        (PINNED, [("--bind-fd", PINNED, "/d")]),
        (PINNED.replace(kind="ro-bind"), [("--ro-bind-fd", PINNED.replace(kind="ro-bind"), "/d")]),
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
        (
            Mount("/d", "file", "r", content=b"x", mode=0o644),
            [("--perms", "0644"), ("--file", bwrap_args.Hold(b"x"), "/d")],
        ),
        (
            Mount("/d", "file", "r", content=b"x", mode=0o644, role="state"),
            [("--perms", "0644"), ("--file", b"x", "/d")],
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Mount) else "",
)
def test_every_kind_of_row_has_its_option(row, expected):
    # proves SAND-04
    assert mount(row) == expected


def test_an_old_bwrap_is_not_given_what_it_does_not_know():
    # proves UX-05
    assert mount(Mount("/d", "bind", "r", "/s", pinned=(1, 2)), pin=False) == [("--bind", "/s", "/d")]
    assert mount(Mount("/d", "tmpfs", "r", size=4096), sizes=False) == [("--perms", "0755"), ("--tmpfs", "/d")]


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
    assert rows[position:] == [("--remount-ro", "/"), ("--chdir", "/p")]


def test_perms_belongs_to_the_option_right_after_it():
    rows = options(mounts=(Mount("/a", "dir", "r"), Mount("/t", "tmpfs", "r", size=1), Mount("/f", "file", "r")))

    for before, after in pairwise(rows):
        if before[0] == "--perms":
            assert after[0] in ("--dir", "--tmpfs", "--file", "--size")
        if before[0] == "--size":
            assert after[0] == "--tmpfs"


def test_what_is_made_for_a_session_comes_after_the_file_that_bwrap_waits_for():
    # proves C21
    rows = (
        Mount("/etc/passwd", "file", "", content=b"root"),
        Mount("/home/a", "tmpfs", ""),
        Mount("/home/a/.claude", "bind", "", "/state/claude", role="state"),
        Mount("/home/a/.claude/settings.json", "ro-bind", "", "/x", role="client"),
        Mount("/home/a/.gitconfig", "file", "", content=b"x" * 5000),
        Mount("/p", "bind", "", "/p", role="project"),
        Mount("/p/.env", "copy", "", role="masked"),
        Mount("/usr", "ro-bind", "", "/usr"),
    )
    early, last, late = bwrap_args.divide(rows)

    assert [row.dest for row in early] == ["/home/a", "/home/a/.gitconfig", "/usr"]
    assert last is rows[0], "the others are too large for a pipe, or rest on the session"
    assert [row.dest for row in late] == ["/home/a/.claude", "/home/a/.claude/settings.json", "/p", "/p/.env"]
    given = options(mounts=rows)
    assert given.index(("--file", bwrap_args.Hold(b"root"), "/etc/passwd")) < given.index(
        ("--bind", "/state/claude", "/home/a/.claude")
    )


def test_without_a_file_to_wait_for_everything_is_made_first():
    rows = (Mount("/p", "bind", "", "/p", role="project"), Mount("/usr", "ro-bind", "", "/usr"))

    assert bwrap_args.divide(rows) == ([rows[1]], None, [rows[0]])
