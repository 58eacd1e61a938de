"""What the host replaces or removes while a session runs is protected, or masked, again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.conftest import wait_until
from tests.run.test_stubs import entries, journal
from tests.support import repositories

SECRET = "sk-ant-api03-0123456789abcdefghijklmnopqrstuvwxyz"
# Tries to write, once a round, and says whether it could; what is tried is a file, or something in a directory.
AGENT = """
touch up
while test -e up; do
    for path in $1; do
        test -e $path || { echo "gone $path"; continue; }
        if test -d $path; then touch $path/made; else echo evil | dd of=$path oflag=append conv=notrunc,nocreat; fi \\
            2>/dev/null && echo "open $path" || echo "kept $path"
    done >state.new
    mv state.new state
    sleep 0.02
done
"""


@pytest.fixture
def agent(box, background):
    """Return what starts a session that tries to write to paths all the time, and what tells how that went lately."""

    def start(*paths: str, flags: tuple[str, ...] = ()):
        words = ("-y", *flags, "--exec", "--", "sh", "-c", AGENT, "sh", " ".join(paths))
        process = background(box, box.program, *words)
        wait_until(lambda: os.path.exists(f"{box.project}/state") or process.poll() is not None, "the session begins")
        assert process.poll() is None, process.communicate()

        def tried() -> list[str]:
            """Return how the attempts go that begin from now on."""
            for _ in range(2):
                os.unlink(f"{box.project}/state")
                wait_until(lambda: os.path.exists(f"{box.project}/state"), "the agent tries again")
            return Path(box.project, "state").read_text().splitlines()

        return process, tried

    return start


def end(box, process) -> str:
    os.unlink(f"{box.project}/up")
    output: str = process.communicate(timeout=20)[0]
    for name in ("state", "state.new"):
        Path(box.project, name).unlink(missing_ok=True)
    return output


def replace(box, path: str, content: str) -> None:
    """Write a file as editors do."""
    box.write(f"{path}.tmp", content)
    os.rename(f"{box.project}/{path}.tmp", f"{box.project}/{path}")


def test_a_protected_file_that_the_host_replaces_is_protected_again(box, agent):
    # proves MOUNT-01, SEC-04
    box.write(".mcp.json", "{}")
    process, tried = agent(".mcp.json")
    assert tried() == ["kept .mcp.json"]
    for number in range(3):
        replace(box, ".mcp.json", f'{{"a": {number}}}')
        wait_until(lambda: tried() == ["kept .mcp.json"], "it is protected again")
    content = Path(box.project, ".mcp.json").read_text()
    output = end(box, process)

    assert process.returncode == 0, output
    assert content.replace("evil\n", "") == '{"a": 2}'


def test_what_the_host_makes_in_the_place_of_a_stub_is_protected(box, agent):
    # proves MOUNT-01, SEC-04
    repositories.make(box)
    process, tried = agent(".mcp.json", ".vscode")
    os.rmdir(f"{box.project}/.mcp.json")
    box.write(".mcp.json", "{}")
    os.rmdir(f"{box.project}/.vscode")
    box.write(".vscode/settings.json", "{}")
    wait_until(lambda: tried() == ["kept .mcp.json", "kept .vscode"], "both are protected")
    Path(box.project, ".mcp.json").write_text("{}")
    time.sleep(0.1)
    output = end(box, process)

    assert process.returncode == 0, output
    assert Path(box.project, ".mcp.json").read_text() == "{}", "what the user made stays"
    assert Path(box.project, ".vscode/settings.json").read_text() == "{}"
    assert journal(box) == []


@pytest.mark.parametrize("present", [True, False], ids=["a file", "a stub"])
def test_what_the_host_removes_cannot_be_made_by_the_agent(box, agent, present):
    # proves MOUNT-01, C20
    if present:
        box.write(".mcp.json", "{}")
    before = entries(box.project)
    process, tried = agent(".mcp.json")
    (os.unlink if present else os.rmdir)(f"{box.project}/.mcp.json")
    wait_until(lambda: tried() == ["kept .mcp.json"], "a stub stands there again")
    output = end(box, process)

    assert process.returncode == 0, output
    assert not os.path.lexists(f"{box.project}/.mcp.json")
    assert {line for line in entries(box.project) ^ before if ".mcp.json" not in line} == set()
    assert journal(box) == []


def test_git_of_the_host_works_where_an_included_file_is_removed(box, agent):
    # proves MOUNT-01
    checkout = repositories.make(box)
    box.write("included", "[user]\n\tname = other\n")
    checkout.sh("git config include.path ../included")
    process, tried = agent("included")
    os.unlink(f"{box.project}/included")
    wait_until(lambda: tried() == ["kept included"], "a stub stands there")
    checkout.sh("git status")  # it fails where a directory is included
    end(box, process)

    assert not os.path.lexists(f"{box.project}/included")


def test_a_masked_file_that_the_host_replaces_is_masked_again(box, background):
    # proves MOUNT-01, A20
    box.write(".env", f"ANTHROPIC_API_KEY={SECRET}\n")
    other = SECRET.replace("0123", "9876")
    script = "touch up; while test -e up; do cat .env >seen.new; mv seen.new seen; sleep 0.02; done"
    process = background(
        box, box.program, "-y", "--set", "project_secrets=mask", "--exec", "--", "sh", "-c", script
    )  # fmt: skip
    wait_until(lambda: os.path.exists(f"{box.project}/seen") or process.poll() is not None, "the session begins")

    def seen() -> str:
        for _ in range(2):
            os.unlink(f"{box.project}/seen")
            wait_until(lambda: os.path.exists(f"{box.project}/seen"), "the agent reads")
        return Path(box.project, "seen").read_text()

    first = seen()
    replace(box, ".env", f"ANTHROPIC_API_KEY={other}\n")
    wait_until(lambda: other not in seen(), "it is masked again")
    os.unlink(f"{box.project}/up")
    process.communicate(timeout=20)

    assert "ANTHROPIC_API_KEY" in first
    assert SECRET not in first
    assert other in Path(box.project, ".env").read_text()


def test_a_git_directory_that_the_host_makes_anew_is_not_writable(box, agent):
    # proves MOUNT-01, SEC-04
    checkout = repositories.make(box)
    process, tried = agent(".git/config")
    assert tried() == ["open .git/config"], "its own one"
    checkout.sh("mv .git .old; git init -q")
    wait_until(lambda: tried() == ["kept .git/config"], "the new one is read-only")
    before = Path(box.project, ".git/config").read_text()
    tried()
    end(box, process)

    assert Path(box.project, ".git/config").read_text() == before


def test_what_becomes_a_link_is_named_at_the_end(box, agent):
    # proves MOUNT-01
    process, _ = agent("file")
    os.rmdir(f"{box.project}/.mcp.json")
    os.symlink("/etc/passwd", f"{box.project}/.mcp.json")
    time.sleep(1)
    output = end(box, process)

    assert f"{box.project}/.mcp.json` became a link" in output
