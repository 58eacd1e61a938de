"""At the end of a session the report accounts for every change, in bounded time."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.conftest import few, is_disarmed
from tests.support import repositories
from tests.support.sandbox import PYTHON

from claudebox.report import changes as report_changes
from claudebox.report import kinds, screen
from claudebox.undo import manifest, snapshot

WORK = (
    "echo b >>deep/er/notes.md; echo new >new.txt; mkdir src; echo 1 >src/main.py; git add -A; git commit -qm work;"
    "ln -s new.txt in.txt"
)
CHANGES = {  # script, path, who runs it
    "a nested repository": ("git init -q src/nested", "src/nested/.git", ""),
    "a repository in a heavy directory": ("git init -q node_modules/x", "node_modules/x/.git", ""),
    "a .git file": ("mkdir w; echo gitdir: x >w/.git", "w/.git", ""),
    "a .git link": ("mkdir w; ln -s ../kept/.git w/.git", "w/.git", ""),
    "a bare repository": ("git init -q --bare docs/api", "docs/api", "shape of a git"),
    "a repository in two halves": (
        "mkdir docs/api half; echo ref: refs/heads/main >docs/api/HEAD; echo ../../half >docs/api/commondir",
        "docs/api", "shape of a git",
    ),
    "a repository in two halves at the top": (
        "mkdir half; echo ref: refs/heads/main >HEAD; echo half >commondir", ".", "shape of a git",
    ),
    "the missing half of a repository": ("echo ref: refs/heads/main >docs/half/HEAD", "docs/half", "shape of a git"),
    "a setuid program": ("cp /bin/true s; chmod 4755 s", "s", "rights"),
    "a setgid program in a directory that did not change": (
        "chmod 2755 deep/er/program", "deep/er/program", "rights"
    ),
    "a socket": ("python3 -c 'import socket; socket.socket(1).bind(\"so\")'", "so", "socket"),
    "a pipe": ("mkfifo .config", ".config", ""),
    "a link to the outside": ("ln -s ../../../.ssh/id key", "key", "leads to ../../../.ssh/id"),
    "an absolute link": ("ln -s /etc/shadow src-link", "src-link", "leads to /etc/shadow"),
    "a link that leads out by way of another": (
        "mkdir -p x/y; ln -s ../.. x/y/up; ln -s x/y/up/../../key k", "k", "leads to x/y/up/../../key",
    ),
    "a file that became a link": ("ln -sf /etc/passwd a", "a", "leads to /etc/passwd"),
    "direnv": ("echo evil >.envrc", ".envrc", "direnv"),
    "direnv as a link in the project": ("ln -s evil.sh .envrc", ".envrc", "direnv"),
    "a workflow": ("mkdir -p .github/workflows; echo x >.github/workflows/x.yml", ".github/workflows/x.yml", "forge"),
    "cargo": ("mkdir .cargo; echo x >.cargo/config.toml", ".cargo/config.toml", "cargo"),
    "a start-up file of python": ("mkdir lib; echo import os >lib/x.pth", "lib/x.pth", "python"),
    "a module that hides python's own": ("echo evil >json.py", "json.py", "python"),
    "bytecode": ("mkdir -p deep/__pycache__; echo x >deep/__pycache__/x.pyc", "deep/__pycache__/x.pyc", "python"),
    "a dotfile that nobody knows": ("echo x >.strange", ".strange", "may obey it"),
    "a program where a shell looks for it": ("cp /bin/true .venv/bin/ls", ".venv/bin/ls", "take programs from here"),
    "a program of an environment": ("echo x >>.venv/bin/env", ".venv/bin/env", "take programs from here"),
}  # fmt: skip
# What is the user's own comes first, by name.
NAMED = {
    "a file of npm somewhere": ("mkdir -p web; echo {} >web/package.json", "web/package.json"),
    "a file changed in its place": ("echo x >>deep/er/Makefile", "deep/er/Makefile"),
    "a program": ("cp evil.sh run; chmod +x run", "run"),
    "a program changed in its place": ("echo x >>deep/er/program", "deep/er/program"),
    "a file made executable": ("chmod +x deep/er/notes.md", "deep/er/notes.md"),
    "a kind that nobody knows": ("echo x >deep/data.strange", "deep/data.strange"),
    "a dotfile deeper": ("echo x >deep/.strange", "deep/.strange"),
    "a deleted file": ("rm a", "1 deleted: a"),
    "a deleted directory": ("rm -r deep", "1 deleted: deep/"),
}  # fmt: skip
# Names of findings that nobody had on a list, at the top and deeper: obeyed unasked, or when the user builds or tests.
UNASKED = """
    .zed/tasks.json x.code-workspace .hg/hgrc
    .jj/repo/config.toml mise.local.toml sitecustomize.py .gdbinit .exrc .nvim.lua .dir-locals.el lefthook.yml
    .gitlab-ci.yml AGENTS.md .gitmodules .gitattributes .lfsconfig .husky/pre-commit .Rprofile
"""
ASKED = """
    .mvn/jvm.config .pnp.cjs .pnpmfile.cjs .bazelrc GNUmakefile Justfile Taskfile.yaml pyproject.toml setup.cfg
    pytest.ini Gemfile Rakefile compose.yaml build.gradle CMakePresets.json requirements-dev.txt gulpfile.mjs
    hatch_build.py wdio.conf.ts webpack.config.babel.js karma.conf.cjs
"""
# At the top these are read-only or put aside (tests/run/test_put_aside.py).
DEEPER = (
    ".claude/settings.json", ".mcp.json", ".vscode/tasks.json", ".idea/x.xml", ".devcontainer/devcontainer.json",
    ".cursor/mcp.json", ".gemini/settings.json", ".codex/config.toml", "opencode.json",
)  # fmt: skip


@pytest.fixture
def repository(user_box):
    made = repositories.make(user_box)
    user_box.write("deep/er/program", "#!/bin/sh\n", mode=0o755)
    user_box.write("deep/er/Makefile", "all:\n")
    user_box.write("deep/er/notes.md", "all\n")
    user_box.write("docs/half/commondir", "../..\n")
    user_box.write(".venv/bin/env", "#!/bin/sh\n", mode=0o755)
    made.sh("git add -A; git commit -qm more; echo kept >>.git/info/exclude; git init -q kept; sleep 0.1")
    return made


def report(result) -> str:
    """Return what was to be looked at."""
    said: str = result.stderr
    return said.partition("look at these before you work here:\n")[2]


def summary(result) -> str:
    """Return what came of a session, which is at most three lines, or four with long paths."""
    said: str = result.stderr
    rows = said.partition("look at these")[0].splitlines()
    first = next((number for number, row in enumerate(rows) if " file" in row or " deleted: " in row), len(rows))
    assert len(rows) - first <= 3 + any(len(row) > 60 for row in rows[first:]), rows
    return "\n".join(rows[first:])


def silent(result) -> bool:
    """Return whether nothing was said but which sandbox it is."""
    said = [line for line in result.stderr.splitlines() if line.startswith("claudebox:")]
    return all(" · network " in line for line in said)


def shown(result, path: str, why: str = "") -> bool:
    """Return whether a line says this of a path, alone or with others of its kind."""
    return any(f"{line} ".startswith(f"  {path} ") and why in line for line in report(result).splitlines())


def test_a_session_of_ordinary_work_is_told_in_two_lines(repository):
    # proves SEC-04, REPORT-01, SHOW-01
    result = repository.box.sh(WORK)

    assert result.returncode == 0
    assert "4 files: " in summary(result)
    assert all(name in summary(result) for name in ("deep/er/notes.md", "in.txt", "new.txt", "src/main.py"))
    assert report(result) == ""


def test_a_session_without_a_change_is_told_in_silence(repository):
    # proves REPORT-01, SHOW-01
    for _ in range(2):
        assert silent(repository.box.sh("cat a; ls -R >/dev/null"))


@pytest.mark.parametrize("name", few(CHANGES, 14))
def test_what_the_host_would_run_unasked_is_shown(repository, name):
    # proves SEC-04, REPORT-01, C17, D11, D12, D13, D18, D19, D20, D22, R01, R04, R06, R07, R12, OLD-A7, OLD-A11
    script, path, why = CHANGES[name]
    repository.box.sh("true")
    result = repository.box.sh(script)

    disarmed = is_disarmed(result.stderr, path)
    assert disarmed or shown(result, path, why), result.stderr


@pytest.mark.parametrize(
    "script",
    [
        "mkdir tools; cd tools; touch CACHEDIR.TAG; echo e >.envrc",
        "mkdir -p .cache/app; echo e >.cache/app/.envrc",
        "mkdir -p ignored/deep; echo e >ignored/deep/.envrc",
        "mkdir -p node_modules/app; echo e >node_modules/app/.envrc; ln -s node_modules/app app",
    ],
)
def test_output_that_the_agent_made_hides_nothing_that_is_run_unasked(repository, script):
    # proves SHOW-01, NEW-E10
    repository.sh("echo ignored/ >.gitignore; git add -A; git commit -qm ignore; sleep 0.1")
    repository.box.sh("true")
    said = report(repository.box.sh(script))

    assert "direnv runs it" in said or "leads into node_modules" in said, said


@pytest.mark.parametrize("name", NAMED)
def test_what_is_the_users_own_is_named_first(repository, name):
    # proves REPORT-01, SHOW-01
    script, shown = NAMED[name]
    repository.box.sh("true")
    result = repository.box.sh(script)

    assert shown in summary(result).partition(": ")[2], result.stderr
    assert report(result) == ""


def test_what_tools_obey_is_named_at_any_depth(repository):
    # proves REPORT-01, R06, R07, OLD-A13, OLD-A14, NEW-E10
    unasked, asked = UNASKED.split(), ASKED.split()
    paths = [*unasked, *asked, *(f"deep/er/{path}" for path in (*unasked, *asked, *DEEPER))]
    script = "".join(f"mkdir -p $(dirname {path}); echo x >{path};" for path in paths)
    repository.box.sh("true")
    result = repository.box.sh(script)
    log = repository.box.claudebox("log", "changes").stdout

    for path in paths:
        kind = "asked" if path.removeprefix("deep/er/") in asked else "unasked"
        assert f"  {kind}: {path} (new)\n" in log, path
        found = kinds.classify(path, 0o100644, lambda _: "")
        assert found.why in report(result) or path in summary(result), path


def test_a_directory_that_moves_into_place_brings_everything_in_it(repository):
    # proves REPORT-01, R05, OLD-A12
    box = repository.box
    box.sh(
        "mkdir -p plain/sub deep/plain; echo x >plain/config.toml; echo x >plain/sub/notes.md; echo y >deep/plain/x.yml"
    )
    result = box.sh("mv plain .cargo; mv deep/plain deep/.github")
    assert shown(result, ".cargo/config.toml and 1 more", "cargo")
    assert shown(result, "deep/.github/x.yml", "forge")
    assert " deleted: plain/" in summary(result)


def test_the_first_session_of_a_project_knows_what_moved_and_what_went(repository):
    # proves REPORT-01, UNDO-02, R05, R12
    repository.sh(
        "mkdir -p deep/plain harmless; echo x >deep/plain/config.toml; echo x >harmless/config.toml; sleep 0.1"
    )
    result = repository.box.sh("mv deep/plain deep/.cargo; mv harmless .cargo; rm deep/er/notes.md")
    assert shown(result, ".cargo/config.toml", "cargo")
    assert shown(result, "deep/.cargo/config.toml", "cargo")
    assert "deep/er/notes.md" in summary(result)
    assert "not known" not in result.stderr


@pytest.mark.root
def test_what_cannot_be_read_is_said_in_the_last_line(repository):
    # proves REPORT-01, R02, OLD-A8
    closed = Path(repository.box.project, "sub")
    closed.mkdir(mode=0o711)  # of root: the user cannot open it
    result = repository.box.sh("echo y >.envrc")
    assert result.stderr.splitlines()[-1].startswith("claudebox: not everything could be looked at: sub (")
    assert shown(result, ".envrc", "direnv")
    assert "  not looked at: sub/Permission denied" in repository.box.claudebox("log", "changes").stdout
    closed.chmod(0o755)
    assert "not everything" not in repository.box.sh("true").stderr


def test_decoys_push_nothing_off_the_screen_or_out_of_the_log(repository):
    # proves REPORT-01, R09, OLD-A20
    box = repository.box
    box.sh("mkdir sub; echo x >sub/x.py")
    script = (
        "for i in $(seq 100); do mkdir -p aa$i; echo x >aa$i/Makefile; echo x >aa$i/.envrc; git init -q aa$i/r;"
        "cp evil.sh aa$i/run; done; echo x >.envrc; git init -q sub; echo x >sub/justfile"
    )
    result = box.sh(script)
    log = box.claudebox("log", "changes").stdout
    assert shown(result, "sub/.git")
    assert shown(result, ".envrc", "direnv")
    assert shown(result, "and 98 more", "direnv")
    assert shown(result, "sub/justfile", "a runner of tasks") or "sub/justfile" in summary(result)
    assert len(report(result).splitlines()) < 40
    for path in ("unasked: aa77/.envrc (new)", "repository: sub/.git/config (new)", "asked: aa77/run (new)"):
        assert f"  {path}\n" in log


def test_a_long_path_keeps_its_name(repository):
    # proves REPORT-02, R11
    deep = "/".join("d" * 60 for _ in range(8))
    script = f"mkdir -p {deep}/.github/{deep}; echo x >{deep}/.envrc; echo x >{deep}/.github/{deep}/x.yml"
    lines = report(repository.box.sh(script)).splitlines()
    assert any(line.startswith("  dddd") and "d/.envrc " in line and "direnv" in line for line in lines)
    assert any(line.startswith("  dddd") and "d/x.yml " in line and "forge" in line for line in lines)


def test_what_was_opened_is_reported_when_it_changed(repository):
    # proves SEC-04, D05, D21
    repository.sh("mkdir hooks; touch hooks/x; git config core.hooksPath hooks; git add -A; git commit -qm hooks")
    script = "cp evil.sh hooks/pre-commit; mkdir .claude; echo {} >.claude/settings.json"
    result = repository.box.sh(script, flags=("--allow", "git-config", "--allow", ".claude"))
    for path in ("hooks/pre-commit", ".claude/settings.json"):
        assert shown(result, path), result.stderr


def test_a_protected_file_that_the_host_replaced_is_reported(repository, running):
    # The host replaces the file by renaming another over it, and with the file goes what protected it inside.
    # proves D23
    box = repository.box
    repository.sh("echo {} >.mcp.json; git add -A; git commit -qm servers")
    session = running(box)
    repository.sh("echo {} >new; mv new .mcp.json")
    output = session.end()
    assert any(row.startswith("  .mcp.json ") and "claude starts these servers" in row for row in output.splitlines())


def test_names_cannot_write_to_the_terminal_and_the_report_fits_on_a_screen(repository):
    # proves B12, SEC-04, REPORT-02
    script = (
        'name=$(printf "0\\033]0;owned\\007\\n\\342\\200\\256y"); ln -s /etc "$name";'
        "for i in $(seq 40); do git init -q r$i; cp evil.sh p$i; chmod 4755 p$i; ln -s /etc l$i; mkfifo f$i;"
        "mkdir m$i; echo x >m$i/Makefile; cp evil.sh q$i; chmod 755 q$i; done"
    )
    result = repository.box.sh(script)
    lines = report(result).splitlines()
    assert all(char.isprintable() for line in lines for char in line)
    assert shown(result, "0\\x1b]0;owned\\x07\\n\\u202ey and 40 more", "leads to /etc")
    assert len(lines) < 40
    assert any(line.startswith("  and ") and line.endswith(" more") for line in lines), "repositories"
    log = repository.box.claudebox("log", "changes").stdout
    assert "link: 0\\x1b]0;owned\\x07\\n\\u202ey" in log
    assert log.count("  privilege: p") == 40


def test_stubs_of_another_session_are_not_reported(repository, running):
    # proves C21
    box = repository.box
    other = running(box)
    assert report(box.sh("true")) == ""
    other.end()


def test_what_changed_in_other_writable_directories_is_reported(repository):
    # proves REPORT-01, D11, OLD-A32
    box = repository.box
    other = box.mkdir(f"{box.base}/other")
    box.write(f"{other}/kept.md", "x")
    time.sleep(0.05)
    script = f"cd {other}; git init -q; echo x >.envrc; rm kept.md; echo x >notes.md"
    result = box.sh(script, flags=("--mount-rw", other))
    for path in (f"{other}/.git", f"{other}/.envrc"):
        assert shown(result, path)
    assert f"1 deleted: {other}/kept.md" in summary(result)
    assert f"  own: {other}/notes.md (new)\n" in box.claudebox("log", "changes").stdout
    assert silent(box.sh("true", flags=("--mount-rw", other)))


@pytest.mark.slow
def test_a_large_project_is_divided_and_what_is_out_of_time_is_named(user_box):
    # proves REPORT-01, REPORT-03
    user_box.host(
        "sh", "-c", "for a in $(seq 120); do mkdir -p big/$a; (cd big/$a; seq -f %g.py 50 | xargs touch); done"
    )
    time.sleep(0.05)
    result = user_box.sh("echo x >big/77/.envrc; rm big/78/7.py; chmod +x big/79/9.py; mkdir big/80/.git")
    again = user_box.sh("rm big/78/8.py")
    begun = snapshot.begin(user_box.project)
    cut = report_changes.look(report_changes.Places(user_box.project), begun, budget=0)
    whole = report_changes.look(report_changes.Places(user_box.project), begun)

    assert shown(result, "big/77/.envrc", "direnv")
    assert shown(result, "big/80/.git")
    assert "big/79/9.py" in summary(result)
    assert "1 deleted: big/78/8.py" in summary(again)
    assert cut.unseen == (("", "out of time"),)
    assert [*screen.lines(screen.Ending(cut))][-1].startswith("claudebox: not everything could be looked at")
    assert whole.unseen == ()


def test_more_changes_than_can_be_told_apart_in_time_are_said_first(tmp_path, monkeypatch):
    # proves REPORT-02
    begun = snapshot.begin(str(tmp_path))
    for number in range(3000):
        (tmp_path / f"{number}.strange").touch()
    monkeypatch.setattr(report_changes, "_SORTING", -100.0)
    seen = report_changes.look(report_changes.Places(str(tmp_path)), begun)

    assert next(screen.lines(screen.Ending(seen))).endswith(": . (3000 changes are too many to be told apart)")


def test_before_the_start_only_so_much_time_is_spent(tmp_path, monkeypatch):
    # proves REPORT-03
    for name in range(30):
        (tmp_path / f"a/{name}/b").mkdir(parents=True)
    (tmp_path / "a/7/deep").write_text("")
    started: list[str] = []
    sys.addaudithook(lambda event, _: started.append(event) if event == "os.scandir" and active else None)
    active = True
    try:
        whole = snapshot.begin(str(tmp_path))
        once = len(started)
    finally:
        active = False
    monkeypatch.setattr(snapshot, "LISTING", -1.0)
    cut = snapshot.begin(str(tmp_path))
    (tmp_path / "a/7/deep").unlink()
    (tmp_path / "a/8/Makefile").write_text("all:")
    seen = [report_changes.look(report_changes.Places(str(tmp_path)), begun) for begun in (whole, cut)]

    assert once == 62, "each directory is read once"
    assert [change.path for change in seen[0].changes] == ["a/8/Makefile", "a/7/deep"]
    assert [change.path for change in seen[1].changes] == ["a/8/Makefile"]
    assert (seen[0].unseen, seen[1].unseen) == ((), (("", snapshot.UNTRACKED),))


def test_a_directory_that_was_listed_in_part_has_no_new_files_that_were_there(tmp_path, monkeypatch):
    # proves REPORT-01, REPORT-03
    for number in range(40):
        (tmp_path / f"{number}.py").touch()
    time.sleep(0.05)
    times = iter((0.0, 0.0, 0.0))
    monkeypatch.setattr(manifest, "_EVERY", 8)
    monkeypatch.setattr(manifest, "time", SimpleNamespace(monotonic=lambda: next(times, 9.0), time_ns=time.time_ns))
    begun = snapshot.begin(str(tmp_path), deadline=5.0)
    monkeypatch.undo()
    assert begun.listing is not None
    assert len(begun.listing.entries) == 17, "itself and 16 names"
    time.sleep(0.05)
    (tmp_path / "Makefile").touch()
    seen = report_changes.look(report_changes.Places(str(tmp_path)), begun)

    assert [change.path for change in seen.changes] == ["Makefile"]
    assert seen.unseen == (("", snapshot.UNTRACKED),)


def test_a_clock_that_is_set_back_hides_nothing(tmp_path, monkeypatch):
    # As if the session had begun ten seconds later than the clock says now.
    # proves REPORT-01, R10
    for listing, seconds in ((True, 60.0), (True, -1.0), (False, 60.0)):
        monkeypatch.setattr(snapshot, "LISTING", seconds)
        begun = snapshot.begin(str(tmp_path), listing=listing)
        moment = begun.moment
        late = begun.replace(moment=moment.replace(file_system=moment.file_system + 10, clock=moment.clock + 10))
        if begun.listing is not None:
            late = late.replace(listing=begun.listing.replace(began=begun.listing.began + 10 * 10**9))
        name = f".envrc{listing}{seconds}"
        (tmp_path / name).write_text("evil")
        os.utime(tmp_path / name, (0, 0))
        seen = report_changes.look(report_changes.Places(str(tmp_path)), late)

        assert name in [change.path for change in seen.changes]


CLOSED = "mkdir -p .github/workflows; echo x >.github/workflows/a.yml; echo x >Makefile; git init -q n;"


def test_a_directory_that_was_closed_hides_nothing(box):
    # proves D18, C17
    repositories.make(box)
    box.mkdir("deep/own")
    box.write("deep/own/Rakefile", "x\n")
    os.chmod(f"{box.project}/deep/own", 0o311)
    result = box.sh(
        f"mkdir deep/in; cd deep/in; {CLOSED} cd ..; echo y >>own/Rakefile; chmod 0 in/n; chmod 444 in/.github;"
        f"chmod 0111 in; cd ..; {CLOSED} chmod 0311 ."
    )
    modes = {path: os.stat(f"{box.project}/{path}").st_mode & 0o777 for path in ("", "deep/own")}
    again = box.sh("echo started")

    for path in (".github/workflows/a.yml", "Makefile", "n/.git"):
        assert path in result.stderr
        assert f"deep/in/{path}" in result.stderr
    assert "deep/own/Rakefile" in result.stderr
    assert "not everything could be looked at" not in result.stderr
    assert modes["deep/own"] == 0o311  # closed by the user, before
    if box.account.uid:
        assert shown(result, ".", "had mode 0311")
        assert shown(result, "deep/in/n", "had mode 0000")
        assert modes[""] & 0o700 == 0o700
        assert again.stdout == "started\n"
        os.chmod(box.project, 0o311)
        refused = box.sh("echo started")
        assert (refused.returncode, refused.stdout) == (125, "")
        assert "cannot be read" in refused.stderr
        assert "`chmod u+rwx .`" in refused.stderr


def test_a_closed_directory_that_a_link_took_the_place_of_is_not_opened(user_box):
    # proves C31
    user_box.write("victim/x")
    for name in ("victim", "other"):
        user_box.mkdir(name)
    os.symlink("victim", f"{user_box.project}/link")
    os.chmod(f"{user_box.project}/victim", 0o311)
    script = (
        "import os, sys; from claudebox.base import trees; opener = trees.Opener(0);"
        "top = os.open('.', trees.DIRECTORY); row = os.lstat('victim'); other = os.lstat('other');"
        "print(opener.open(top, 'link', (row.st_dev, row.st_ino)),"
        "opener.open(top, 'victim', (other.st_dev, other.st_ino)),"
        "os.lstat('victim').st_mode & 0o777 == 0o311, opener.open(top, 'victim', (row.st_dev, row.st_ino)))"
    )
    source = os.path.dirname(os.path.dirname(user_box.program)) + "/src"
    result = user_box.host(PYTHON, "-c", script, env={"PYTHONPATH": source})

    assert result.stdout == "False False True True\n", result.stderr
