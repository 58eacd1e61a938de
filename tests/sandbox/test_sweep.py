"""At the end of a session a person is told what changed that the host could execute, in bounded time."""

from __future__ import annotations

import os
import time

import pytest
from tests.sandbox import repositories

WORK = "echo b >>a; echo new >new.txt; mkdir src; echo 1 >src/main.py; git add -A; git commit -qm work; ln -s a in"
STAY = "touch up; while test -e up; do sleep 0.02; done"
CHANGES = {
    "a nested repository": ("git init -q src/nested", "repositories", "src/nested/.git"),
    "a repository in a heavy directory": ("git init -q node_modules/x", "repositories", "node_modules/x/.git"),
    "a hook of a repository that was there": ("cp evil.sh kept/.git/hooks/pre-commit", "repositories", "kept/.git"),
    "configuration of one that was there": ("git -C kept config core.fsmonitor x", "repositories", "kept/.git"),
    "a .git file": ("mkdir w; echo gitdir: x >w/.git", "repositories", "w/.git"),
    "a bare repository": ("git init -q --bare docs/api", "repositories", "docs/api: has the shape of a bare"),
    "a setuid program": ("cp /bin/true s; chmod 4755 s", "rights", "s"),
    "a setgid program in a directory that did not change": ("chmod 2755 deep/er/program", "rights", "deep/er/program"),
    "a socket": ("python3 -c 'import socket; socket.socket(1).bind(\"so\")'", "sockets", "so"),
    "a pipe": ("mkfifo .config", "sockets", ".config"),
    "a link to the outside": ("ln -s ../../../.ssh/id key", "links", "key: leads to "),
    "an absolute link": ("ln -s /etc/shadow src-link", "links", "src-link: leads to /etc/shadow"),
    "direnv": ("echo evil >.envrc", "obey", ".envrc: direnv runs it"),
    "a file of npm somewhere": ("mkdir -p web; echo {} >web/package.json", "obey", "web/package.json: npm runs"),
    "a file changed in its place": ("echo x >>deep/er/Makefile", "obey", "deep/er/Makefile: make runs it"),
    "a workflow": ("mkdir -p .github/workflows; echo x >.github/workflows/x.yml", "obey", ".github/workflows/x.yml"),
    "cargo": ("mkdir .cargo; echo x >.cargo/config.toml", "obey", ".cargo/config.toml"),
    "a program": ("cp evil.sh run; chmod +x run", "programs", "run"),
    "a program changed in its place": ("echo x >>deep/er/program", "programs", "deep/er/program"),
    "a rebase under way": (
        "mkdir .git/rebase-merge; echo 'exec ./evil.sh' >.git/rebase-merge/git-rebase-todo",
        "git directory", ".git/rebase-merge/git-rebase-todo: a rebase is under way",
    ),
    "objects of elsewhere": ("echo /x >.git/objects/info/alternates", "git directory", ".git/objects/info/alternates"),
}  # fmt: skip


@pytest.fixture
def repository(user_box):
    made = repositories.make(user_box)
    user_box.write("deep/er/program", "#!/bin/sh\n", mode=0o755)
    user_box.write("deep/er/Makefile", "all:\n")
    made.sh("git add -A; git commit -qm more; echo kept >>.git/info/exclude; git init -q kept; mkdir docs; sleep 0.1")
    return made


def report(result) -> str:
    said: str = result.stderr
    return said.partition("claudebox: changed during the session")[2]


def test_a_session_of_ordinary_work_is_told_in_silence(repository):
    # proves SEC-04
    result = repository.box.sh(WORK)
    assert result.returncode == 0
    assert "claudebox:" not in result.stderr


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_host_could_execute_is_reported(repository, name):
    # proves SEC-04, C17, D11, D12, D13, D18, D19, D22
    script, kind, line = CHANGES[name]
    lines = report(repository.box.sh(script)).splitlines()
    kinds = [text for text in lines if text.startswith("  ") and text.endswith(":")]
    assert any(kind in text for text in kinds), lines
    assert any(text.startswith(f"    {line}") for text in lines), lines


def test_what_was_opened_is_reported_when_it_changed(repository):
    # proves SEC-04, D05, D21
    script = "git config x.y z; cp evil.sh .git/hooks/pre-commit; mkdir .claude; echo {} >.claude/settings.json"
    said = report(repository.box.sh(script, flags=("--allow", "git-config", "--allow", ".claude")))
    for line in (".git/config: ", ".git/hooks/pre-commit: ", ".claude: "):
        assert f"    {line}" in said, said


def test_a_protected_file_that_the_host_replaced_is_reported(repository, background):
    # The host's git replaces the file by renaming another over it, and with the file goes what protected it inside.
    # proves D23
    box = repository.box
    session = background(
        box, box.program, "-y", "--exec", "--", "sh", "-c", "touch up; while test -e up; do sleep 0.02; done"
    )
    deadline = time.monotonic() + 20
    while not os.path.exists(f"{box.project}/up") and time.monotonic() < deadline:
        time.sleep(0.02)
    repository.sh("git config x.y z; rm up")
    output, _ = session.communicate(timeout=20)
    assert "    .git/config: git runs programs named here" in output


def test_names_cannot_write_to_the_terminal_and_the_report_fits_on_a_screen(repository):
    # proves B12, SEC-04
    script = (
        'name=$(printf "a\\033]0;owned\\007\\n\\342\\200\\256y"); ln -s /etc "$name";'
        "for i in $(seq 40); do git init -q r$i; cp evil.sh p$i; chmod 4755 p$i; ln -s /etc l$i; mkfifo f$i;"
        "mkdir m$i; echo x >m$i/Makefile; cp evil.sh q$i; chmod 755 q$i; done"
    )
    result = repository.box.sh(script)
    lines = report(result).splitlines()
    assert all(char.isprintable() for line in lines for char in line)
    assert "a\\x1b]0;owned\\x07\\n\\u202ey: leads to /etc" in report(result)
    assert len(lines) < 40
    assert any("r10/.git" in line for line in lines)
    assert any("and 37 more" in line for line in lines)


def test_stand_ins_of_another_session_are_not_reported(repository, background):
    # proves C21
    box = repository.box
    other = background(
        box, box.program, "-y", "--exec", "--", "sh", "-c", "touch up; while test -e up; do sleep 0.02; done"
    )
    deadline = time.monotonic() + 20
    while not os.path.exists(f"{box.project}/up") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert report(box.sh("true")) == ""
    os.unlink(f"{box.project}/up")
    other.wait(timeout=20)


def test_a_large_project_takes_bounded_time_and_says_that_it_was_not_seen_whole(user_box):
    # 60,000 files: 30 % of what the bound is stated for. The small project is the control of this machine's speed.
    # proves SEC-04
    repositories.make(user_box)
    user_box.host(
        "sh", "-c", "for a in $(seq 60); do mkdir -p big/$a/d; for b in $(seq 100); do mkdir big/$a/d/$b; done; done"
    )
    tree = f"{user_box.project}/big"
    for base, directories, _ in os.walk(tree):
        for number in range(10 if not directories else 0):
            os.close(os.open(f"{base}/{number}.py", os.O_CREAT | os.O_WRONLY, 0o644))

    def best(project: str) -> tuple[float, str]:
        took, said = [], ""
        for _ in range(5):
            started = time.perf_counter()
            said = user_box.sh("true", cwd=project).stderr
            took.append(time.perf_counter() - started)
        return min(took), said

    small, _ = best(user_box.mkdir(f"{user_box.base}/small"))
    large, said = best(user_box.project)
    assert large - small < 0.3, (small, large)

    from claudebox.report.changes import Sweep

    seen = Sweep(user_box.project, time.time(), budget=0.001).run((), "", frozenset())
    assert not seen.complete
    assert "too large to look at every file" in "\n".join(seen.lines())
    assert Sweep(user_box.project, time.time(), budget=60).run((), "", frozenset()).complete
    assert "error" not in said
