"""Programs and modules that a project plants are never run by the launcher."""

from __future__ import annotations

import os
import shutil

from tests.conftest import REPOSITORY, every_case

NAMES = (
    "bwrap", "git", "claude", "python3", "env", "sh", "perl", "node", "nix", "pasta", "slirp4netns", "nft", "mise",
)  # fmt: skip
MODULES = (
    "json", "typing", "re", "subprocess", "socket", "signal", "enum", "claudebox", "stat", "errno", "pwd", "termios",
)  # fmt: skip


def plant(box) -> str:
    """Put programs and modules with the names of those that a launcher needs into the project; return their mark."""
    mark = f"{box.base}/mark"
    box.mkdir(mark)
    os.chmod(mark, 0o777)
    for name in NAMES:
        for path in (name, f"bin/{name}"):
            box.write(path, f"#!/bin/sh\n/usr/bin/touch {mark}/program-{name}\n", mode=0o755)
    for name in MODULES:
        box.write(f"{name}.py", f"open({mark!r} + '/module-{name}', 'w').close()\nraise SystemExit(99)\n")
    return mark


@every_case(
    "path", [":{path}", ".:{path}", "{path}:", "bin:{path}", "./bin::{path}", "{project}:{path}", "{project}/bin"],
    as_root=2,
)  # fmt: skip
def test_programs_of_the_project_are_never_run_by_the_launcher(box, path):
    # proves E01, E02
    mark = plant(box)
    given = path.format(path="/usr/local/bin:/usr/bin:/bin", project=box.project)

    control = box.host("/bin/sh", "-c", "git", env={"PATH": given})
    ran = os.listdir(mark)
    shutil.rmtree(mark)
    os.mkdir(mark)
    os.chmod(mark, 0o777)
    for words in (
        ("--exec", "--dry-run", "--", "true"),
        ("-y", "--exec", "--", "/usr/bin/true"),
        ("--check",),
        ("--dry-run",),
    ):
        result = box.claudebox(*words, env={"PATH": given})
        assert result.returncode in (0, 1, 126, 127), result.stderr

    if not given.endswith(":"):
        assert control.returncode == 0
        assert ran == ["program-git"]
    assert os.listdir(mark) == []


def test_the_launcher_of_the_checkout_is_isolated():
    # proves E03
    first = (REPOSITORY / "bin/claudebox").read_bytes().split(b"\n", 1)[0]

    assert b" -I" in first


def test_programs_of_the_project_are_not_found_where_path_alone_leads_to_the_tools(box, altered):
    # proves E01
    # As on a system that keeps its programs in a store: no directory is known beforehand.
    altered(box, edits={"host/programs.py": ("for directory in (*_TRUSTED, *path):", "for directory in path:")})
    mark = plant(box)
    link = f"{box.base}/link"
    os.symlink(f"{box.project}/bin", link)
    shutil.copytree(f"{box.project}/bin", f"{box.base}/beside")  # a relative entry depends on where one stands
    inside = ("", ".", "bin", "./bin", box.project, f"{box.project}/bin", f"{box.project}/../project/bin", link)
    path = ":".join(("../beside", *inside, "/usr/local/bin:/usr/bin:/bin"))

    result = box.run("/usr/bin/true", env={"PATH": path})

    assert result.returncode == 0, result.stderr
    assert os.listdir(mark) == []
