"""What the other tools of the host obey cannot change, and what is left open is said."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.conftest import wait_until
from tests.support import repositories

from claudebox.tables import paths as tables_paths

NAMES = [name for name, _, _ in tables_paths.PROTECTED]


@pytest.mark.parametrize("present", [False, True], ids=["missing", "present"])
def test_what_the_tools_of_the_host_obey_cannot_change(box, present):
    # proves SEC-04, C20, C21, C22, D20, D21, E06
    checkout = repositories.make(box)
    directories = [name for name, stub, _ in tables_paths.PROTECTED if stub == "directory"]
    if present:
        for name in NAMES:
            content = "" if name.endswith(".toml") else "{}"
            box.write(f"{name}/settings.json" if name in directories else name, content)
        checkout.sh("git add -A -f; git commit -qm obeyed")
    attempts = (
        'for name in {names}; do (echo evil >"$name") 2>/dev/null && echo "wrote $name";'
        'mkdir -p "$name" 2>/dev/null && (echo evil >"$name/settings.json") 2>/dev/null && echo "filled $name";'
        'mv "$name" away 2>/dev/null && echo "moved $name"; rm -rf "$name" 2>/dev/null && echo "removed $name";'
        'ln -sfn /tmp "$name" 2>/dev/null && test -L "$name" && echo "linked $name"; done; true'
    ).format(names=" ".join(NAMES))

    inside = box.sh(f"{attempts}; git status --porcelain")
    assert (inside.returncode, inside.stdout) == (0, ""), inside.stdout + inside.stderr
    assert checkout.sh("git status --porcelain --ignored") == ""
    assert sorted(n for n in NAMES if os.path.lexists(f"{box.project}/{n}")) == (sorted(NAMES) if present else [])

    opened = box.sh(attempts, flags=tuple(word for name in NAMES for word in ("--allow", name)))
    assert len([line for line in opened.stdout.splitlines() if line.startswith(("wrote", "filled"))]) >= len(NAMES)


def test_a_launch_says_what_it_leaves_open(user_box):
    # proves UX-01, SEC-04
    repositories.make(user_box)
    result = user_box.sh("true", flags=("--allow", "git-config", "--allow", ".vscode"))
    assert "--allow git-config: the agent can change it" in result.stderr
    assert "--allow .vscode: the agent can change it" in result.stderr


def test_a_link_for_the_git_directory_is_warned_about(user_box):
    # proves SEC-04
    checkout = repositories.make(user_box)
    checkout.sh("mv .git ../real; ln -s ../real .git")
    assert f"{user_box.project}/.git is a link and cannot be protected" in user_box.sh("true").stderr


def test_hooks_that_are_the_whole_project_are_warned_about(user_box):
    # proves SEC-04, D08
    checkout = repositories.make(user_box)
    checkout.sh("git config core.hooksPath .")
    assert "as a whole is obeyed by git of the host" in user_box.sh("true").stderr


def test_git_on_the_host_is_safe_while_a_session_runs(box, background):
    # proves D23
    checkout = repositories.make(box)
    attacks = (
        "printf '[core]\\n\\tfsmonitor = %s/evil.sh\\n' $PWD >e; cat e >>.git/config; cp e .git/config;"
        "mv e .git/config; cp evil.sh .git/hooks/pre-commit; mv .git x; echo ../x >.git/commondir"
    )
    script = f"touch up; while test -e up; do {attacks}; done 2>/dev/null"
    session = background(box, box.program, "-y", "--exec", "--", "sh", "-c", script)
    wait_until(lambda: os.path.exists(f"{box.project}/up"), "the session begins")
    ran = [checkout.use_git() for _ in range(10)]
    seen = checkout.sh("rm up; git status --porcelain")
    session.wait(timeout=20)
    assert ran == [False] * 10
    assert seen.replace("?? e\n", "") == ""


def test_a_project_that_its_owner_has_closed_is_not_opened_from_inside(user_box):
    # proves C20, SEC-04, UX-10
    checkout = repositories.make(user_box)
    checkout.sh("chmod a-w .")
    try:
        result = user_box.sh("chmod 755 .; mkdir .claude .vscode; echo >.mcp.json; echo >>evil.sh; ls -A")
        mode = os.stat(user_box.project).st_mode
    finally:
        checkout.sh("chmod u+w .")
    assert result.stderr.count("Read-only file system") >= 5, result.stderr
    assert "`chmod u+w .` makes it writable" in result.stderr
    assert not {".claude", ".vscode", ".mcp.json"}.intersection((*result.stdout.split(), *os.listdir(user_box.project)))
    assert mode & 0o777 == 0o555
    assert user_box.sh("touch made").returncode == 0


@pytest.mark.parametrize("mode", [0o555, 0o600, 0])
def test_a_directory_that_hooks_would_be_made_in_is_not_opened_from_inside(user_box, mode):
    # proves C20, D08
    checkout = repositories.make(user_box)
    checkout.sh(f"mkdir tools; git config core.hooksPath tools/hooks; chmod {mode:o} tools")
    user_box.sh("chmod 755 tools; mkdir -p tools/hooks; cp evil.sh tools/hooks/pre-commit; mv tools t; cp -r t tools")
    checkout.sh("chmod 755 tools")

    assert os.listdir(f"{user_box.project}/tools") == []
    assert not checkout.use_git()


def test_a_filesystem_without_sockets_and_links(root_box, tmp_path):
    # proves C20, C21
    image = tmp_path / "image"
    image.write_bytes(bytes(8 << 20))
    for command in (["mkfs.vfat", str(image)], ["mount", "-o", "loop", str(image), root_box.project]):
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("this machine has no FAT filesystem to mount")
    try:
        result = root_box.sh("echo x >.mcp.json/y; ls -A")
        left = os.listdir(root_box.project)
    finally:
        subprocess.run(["umount", root_box.project], check=True)
    assert "Read-only file system" in result.stderr
    assert left == []
