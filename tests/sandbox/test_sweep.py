"""At the end of a session the report accounts for every change, in bounded time."""

from __future__ import annotations

import marshal
import os
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import need
from tests.sandbox import repositories
from tests.sandbox.conftest import PYTHON

from claudebox.report import changes, listing, screen, sweep

WORK = (
    "echo b >>deep/er/notes.md; echo new >new.txt; mkdir src; echo 1 >src/main.py; git add -A; git commit -qm work;"
    "ln -s new.txt in.txt"
)
CHANGES = {
    "a nested repository": ("git init -q src/nested", "repositories", "src/nested/.git"),
    "a repository in a heavy directory": ("git init -q node_modules/x", "repositories", "node_modules/x/.git"),
    "a hook of a repository that was there": ("cp evil.sh kept/.git/hooks/pre-commit", "repositories", "kept/.git"),
    "configuration of one that was there": ("git -C kept config core.fsmonitor x", "repositories", "kept/.git"),
    "a .git file": ("mkdir w; echo gitdir: x >w/.git", "repositories", "w/.git"),
    "a .git link": ("mkdir w; ln -s ../kept/.git w/.git", "repositories", "w/.git"),
    "a bare repository": ("git init -q --bare docs/api", "repositories", "docs/api: has the shape of a git"),
    "a repository in two halves": (
        "mkdir docs/api half; echo ref: refs/heads/main >docs/api/HEAD; echo ../../half >docs/api/commondir",
        "repositories", "docs/api: has the shape of a git directory",
    ),
    "a repository in two halves at the top": (
        "mkdir half; echo ref: refs/heads/main >HEAD; echo half >commondir", "repositories", ".: has the shape of",
    ),
    "the missing half of a repository": ("echo ref: refs/heads/main >docs/half/HEAD", "repositories", "docs/half: has"),
    "a setuid program": ("cp /bin/true s; chmod 4755 s", "rights", "s"),
    "a setgid program in a directory that did not change": ("chmod 2755 deep/er/program", "rights", "deep/er/program"),
    "a socket": ("python3 -c 'import socket; socket.socket(1).bind(\"so\")'", "sockets", "so"),
    "a pipe": ("mkfifo .config", "sockets", ".config"),
    "a link to the outside": ("ln -s ../../../.ssh/id key", "links", "key: leads to "),
    "an absolute link": ("ln -s /etc/shadow src-link", "links", "src-link: leads to /etc/shadow"),
    "a link that leads out by way of another": (
        "mkdir -p x/y; ln -s ../.. x/y/up; ln -s x/y/up/../../key k", "links", "k: leads to x/y/up/../../key",
    ),
    "direnv": ("echo evil >.envrc", "obeyed", ".envrc: direnv runs it"),
    "direnv as a link in the project": ("ln -s evil.sh .envrc", "obeyed", ".envrc: direnv runs it"),
    "a file of npm somewhere": ("mkdir -p web; echo {} >web/package.json", "obeyed", "web/package.json: package"),
    "a file changed in its place": ("echo x >>deep/er/Makefile", "obeyed", "deep/er/Makefile: make runs it"),
    "a workflow": ("mkdir -p .github/workflows; echo x >.github/workflows/x.yml", "obeyed", ".github/workflows/x.yml"),
    "cargo": ("mkdir .cargo; echo x >.cargo/config.toml", "obeyed", ".cargo/config.toml: cargo runs"),
    "activation of an environment": ("mkdir -p .venv/bin; echo x >.venv/bin/activate", "obeyed", ".venv/bin/activate"),
    "a start-up file of python": ("mkdir lib; echo import os >lib/x.pth", "obeyed", "lib/x.pth: python runs it"),
    "a module that hides python's own": ("echo evil >json.py", "obeyed", "json.py: python that is started here"),
    "a dotfile that nobody knows": ("echo x >deep/.strange", "not known", "deep/.strange"),
    "a kind that nobody knows": ("echo x >deep/data.strange", "not known", "deep/data.strange"),
    "a program": ("cp evil.sh run; chmod +x run", "programs", "run"),
    "a program changed in its place": ("echo x >>deep/er/program", "programs", "deep/er/program"),
    "a file made executable": ("chmod +x deep/er/notes.md", "programs", "deep/er/notes.md"),
    "a file that became a link": ("ln -sf /etc/passwd a", "links", "a (now a link): leads to /etc/passwd"),
    "a deleted file": ("rm a", "deleted", "a"),
    "a deleted directory": ("rm -r deep", "deleted", "deep/"),
}  # fmt: skip
# Names of findings that nobody had on a list, at the top and deeper.
OBEYED = """
    .zed/tasks.json .cursor/mcp.json .gemini/settings.json .codex/config.toml opencode.json x.code-workspace .hg/hgrc
    .jj/repo/config.toml mise.local.toml .mvn/jvm.config .pnp.cjs .pnpmfile.cjs .bazelrc GNUmakefile Justfile
    Taskfile.yaml pyproject.toml setup.cfg pytest.ini sitecustomize.py .Rprofile .gdbinit .exrc .nvim.lua
    .dir-locals.el lefthook.yml .gitlab-ci.yml AGENTS.md Gemfile Rakefile compose.yaml build.gradle CMakePresets.json
    .gitmodules .gitattributes .lfsconfig node_modules/.bin/x .husky/pre-commit
"""
DEEPER = (".claude/settings.json", ".mcp.json", ".vscode/tasks.json", ".idea/x.xml", ".devcontainer/devcontainer.json")


@pytest.fixture
def repository(user_box):
    made = repositories.make(user_box)
    user_box.write("deep/er/program", "#!/bin/sh\n", mode=0o755)
    user_box.write("deep/er/Makefile", "all:\n")
    user_box.write("deep/er/notes.md", "all\n")
    user_box.write("docs/half/commondir", "../..\n")
    made.sh("git add -A; git commit -qm more; echo kept >>.git/info/exclude; git init -q kept; sleep 0.1")
    return made


def report(result) -> str:
    said: str = result.stderr
    return said.partition("claudebox: changed during the session")[2]


def test_a_session_of_ordinary_work_is_told_in_one_line(repository):
    # proves SEC-04, REPORT-01
    result = repository.box.sh(WORK)
    assert result.returncode == 0
    git, line = [line for line in result.stderr.splitlines() if line.startswith("claudebox:")]
    assert "git: moved main" in git
    assert "files and directories of harmless kinds: " in line
    assert ".git" not in line


def test_a_session_without_a_change_is_told_in_silence(repository):
    # proves REPORT-01
    for _ in range(2):
        assert "claudebox:" not in repository.box.sh("cat a; ls -R >/dev/null").stderr


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_host_could_execute_is_reported(repository, name):
    # proves SEC-04, REPORT-01, C17, D11, D12, D13, D18, D19, D20, D22, R01, R04, R06, R07, R12, OLD-A7, OLD-A11
    script, kind, line = CHANGES[name]
    lines = report(repository.box.sh(script)).splitlines()
    kinds = [text for text in lines if text.startswith("  ") and text.endswith(":")]
    assert any(kind in text for text in kinds), lines
    assert any(text.startswith(f"    {line}") for text in lines), lines


def test_what_tools_obey_is_named_at_any_depth(repository):
    # proves REPORT-01, R06, R07, OLD-A13, OLD-A14
    names = OBEYED.split()
    paths = [*names, *(f"deep/er/{path}" for path in (*names, *DEEPER))]
    script = "".join(f"mkdir -p $(dirname {path}); echo x >{path};" for path in paths)
    repository.box.sh("true")
    said = repository.box.sh(script).stderr
    log = repository.box.claudebox("--log", "changes").stdout
    shown = said.partition("  run or obeyed by tools of the host:\n")[2].lower()
    for path in paths:
        assert f"  reported: {path} (new)\n" in log, path
        labels = {part.lower() for part in path.split("/")} | {f"*.{path.rpartition('.')[2]}"}
        assert any(label in shown for label in labels), path


def test_a_directory_that_moves_into_place_brings_everything_in_it(repository):
    # proves REPORT-01, R05, OLD-A12
    box = repository.box
    box.sh(
        "mkdir -p plain/sub deep/plain; echo x >plain/config.toml; echo x >plain/sub/notes.md; echo y >deep/plain/x.yml"
    )
    said = report(box.sh("mv plain .cargo; mv deep/plain deep/.github"))
    assert "    .cargo/config.toml, .cargo/sub/notes.md: cargo runs programs named here" in said
    assert "    deep/.github/x.yml: runs on the forge" in said
    assert "    plain/" in said.partition("  deleted:")[2]


def test_the_first_session_of_a_project_says_what_may_have_moved(repository):
    # Nobody has listed this project before: what stands in a directory that changed may have been there, or not.
    # proves REPORT-01, R05, R12
    repository.sh(
        "mkdir -p deep/plain harmless; echo x >deep/plain/config.toml; echo x >harmless/config.toml; sleep 0.1"
    )
    result = repository.box.sh("mv deep/plain deep/.cargo; mv harmless .cargo; rm deep/er/notes.md")
    said = report(result)
    assert "    .cargo/config.toml: cargo runs programs named here" in said
    assert "    deep/.cargo/config.toml (in a directory that was changed or moved): cargo runs" in said
    assert (
        "what was deleted from or moved into these is not known, for lack of an earlier list: deep (" in result.stderr
    )
    again = report(repository.box.sh("rm deep/er/Makefile"))
    assert "    deep/er/Makefile" in again.partition("  deleted:")[2]


def test_what_cannot_be_read_is_said_in_the_first_line(repository):
    # proves REPORT-01, R02, OLD-A8
    need(os.getuid() == 0, "root, who alone makes a directory of another user: what is their own, claudebox opens")
    closed = Path(repository.box.project, "sub")
    closed.mkdir(mode=0o711)  # of root: the user cannot open it
    result = repository.box.sh("echo y >.envrc")
    lines = [line for line in result.stderr.splitlines() if line.startswith("claudebox:")]
    assert lines[0].startswith(
        "claudebox: not everything could be looked at, there may be more changes than these: sub ("
    )
    assert "    .envrc: direnv runs it" in result.stderr
    assert "  not looked at: sub/Permission denied" in repository.box.claudebox("--log", "changes").stdout
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
    said = report(box.sh(script))
    log = box.claudebox("--log", "changes").stdout
    repositories_shown = said.partition("  repositories")[2].partition("  run or obeyed")[0]
    assert "    sub/.git\n" in repositories_shown
    assert "    .envrc, aa1/.envrc, aa10/.envrc and 98 more: direnv runs it" in said
    assert "    sub/justfile: a runner of tasks runs it" in said
    assert len(said.splitlines()) < 40
    for path in ("reported: aa77/.envrc (new)", "repository: sub/.git/config (new)", "program: aa77/run (new)"):
        assert f"  {path}\n" in log


def test_a_long_path_keeps_its_name(repository):
    # proves REPORT-02, R11
    deep = "/".join("d" * 60 for _ in range(8))
    script = f"mkdir -p {deep}/.github/{deep}; echo x >{deep}/.envrc; echo x >{deep}/.github/{deep}/x.yml"
    lines = report(repository.box.sh(script)).splitlines()
    assert any(line.startswith("    dddd") and line.endswith("d/.envrc: direnv runs it") for line in lines)
    assert any("d/.github/ddd" in line and line.endswith("d/x.yml: runs on the forge") for line in lines)


def test_what_was_opened_is_reported_when_it_changed(repository):
    # proves SEC-04, D05, D21
    repository.sh("mkdir hooks; touch hooks/x; git config core.hooksPath hooks; git add -A; git commit -qm hooks")
    script = "cp evil.sh hooks/pre-commit; mkdir .claude; echo {} >.claude/settings.json"
    said = report(repository.box.sh(script, flags=("--allow", "git-config", "--allow", ".claude")))
    for line in ("hooks/pre-commit: ", ".claude, .claude/settings.json: "):
        assert f"    {line}" in said, said


def test_a_protected_file_that_the_host_replaced_is_reported(repository, running):
    # The host replaces the file by renaming another over it, and with the file goes what protected it inside.
    # proves D23
    box = repository.box
    repository.sh("echo {} >.mcp.json; git add -A; git commit -qm servers")
    session = running(box)
    repository.sh("echo {} >new; mv new .mcp.json")
    output = session.end()
    assert "    .mcp.json: the host's own claude starts these servers" in output


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
    assert "0\\x1b]0;owned\\x07\\n\\u202ey, l1, l10 and 38 more: leads to /etc" in report(result)
    assert len(lines) < 40
    assert any(line.startswith("    r11/.git and ") and "more in 37 other places" in line for line in lines)
    log = repository.box.claudebox("--log", "changes").stdout
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
    said = report(result)
    for line in (f"{other}/.git", f"{other}/.envrc: direnv runs it", f"{other}/kept.md"):
        assert f"    {line}" in said
    assert f"  harmless: {other}/notes.md\n" in box.claudebox("--log", "changes").stdout
    assert "claudebox:" not in box.sh("true", flags=("--mount-rw", other)).stderr


def test_a_large_project_is_divided_and_what_is_out_of_time_is_named(user_box):
    # proves REPORT-01, REPORT-03
    user_box.host(
        "sh", "-c", "for a in $(seq 120); do mkdir -p big/$a; (cd big/$a; seq -f %g.py 50 | xargs touch); done"
    )
    time.sleep(0.05)
    result = user_box.sh("echo x >big/77/.envrc; rm big/78/7.py; chmod +x big/79/9.py; mkdir big/80/.git")
    again = user_box.sh("rm big/78/8.py")
    begun = listing.begin(user_box.project, user_box.base)
    cut = changes.look(changes.Places(user_box.project), begun, budget=0)
    whole = changes.look(changes.Places(user_box.project), begun)

    for line in ("big/77/.envrc: direnv runs it", "big/79/9.py", "big/80/.git"):
        assert f"    {line}" in result.stderr
    assert "    big/78/8.py" in again.stderr.partition("  deleted:")[2]
    assert cut.unseen == (("", "out of time"),)
    assert next(screen.lines(cut)).startswith("claudebox: not everything could be looked at")
    assert whole.unseen == ()
    assert len(whole.listing) == 122 + 1


def test_the_parts_of_a_divided_project_make_up_the_whole(tmp_path, monkeypatch):
    # proves REPORT-03
    for number in range(60):
        (tmp_path / f"{number}/a/b").mkdir(parents=True)
        (tmp_path / f"{number}/a/b/x.py").touch()
    looks = []
    for alone in (10, 1 << 30):
        monkeypatch.setattr(sweep, "_ALONE", alone)
        looks.append(sweep.Sweep(str(tmp_path), 0, {}, time.monotonic() + 60).run())
    divided, single = looks

    assert sorted(divided.changed) == sorted(single.changed)
    assert divided.listing == single.listing
    assert len(single.listing) == 181
    assert (divided.unseen, single.unseen) == ([], [])


def test_more_changes_than_can_be_told_apart_in_time_are_said_first(tmp_path, monkeypatch):
    # proves REPORT-02
    begun = listing.begin(str(tmp_path), str(tmp_path))
    for number in range(3000):
        (tmp_path / f"{number}.strange").touch()
    monkeypatch.setattr(changes, "_SORTING", -100.0)
    seen = changes.look(changes.Places(str(tmp_path)), begun)

    assert len(seen.unsure) == 3000
    assert next(screen.lines(seen)).endswith(": . (3000 changes are too many to be told apart)")


def test_a_process_that_dies_leaves_its_part_unseen(tmp_path, monkeypatch):
    # proves REPORT-02
    for number in range(60):
        (tmp_path / f"{number}/a").mkdir(parents=True)
    monkeypatch.setattr(sweep, "_ALONE", 10)
    monkeypatch.setattr(marshal, "dumps", None)  # in the child: it fails at its very end
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    look = sweep.Sweep(str(tmp_path), 0, {}, time.monotonic() + 60).run()

    assert {why for _, why in look.unseen} == {"the process that looked at it failed"}
    assert 10 < len(look.unseen) < 60


def test_nothing_before_the_start_depends_on_the_size_of_the_project(tmp_path):
    # proves REPORT-03
    looked: list[str] = []
    sys.addaudithook(lambda event, _: looked.append(event) if event == "os.scandir" and active else None)
    active = True
    try:
        counts = []
        for number in (1, 100):
            for name in range(number):
                (tmp_path / f"a/{name}/b").mkdir(parents=True, exist_ok=True)
            looked.clear()
            listing.begin(str(tmp_path), str(tmp_path))
            counts.append(len(looked))
        looked.clear()
        changes.look(changes.Places(str(tmp_path)), listing.begin(str(tmp_path), str(tmp_path)))
    finally:
        active = False

    assert counts == [1, 1]
    assert len(looked) == 1 + 202, "each directory is read once"


def test_a_clock_that_is_set_back_hides_nothing(tmp_path):
    # As if the session had begun ten seconds later than the clock says now.
    # proves REPORT-01, R10
    begun = listing.begin(str(tmp_path), str(tmp_path))
    late = begun.replace(since=begun.since + 10, clock=begun.clock + 10)
    (tmp_path / ".envrc").write_text("evil")
    os.utime(tmp_path / ".envrc", (0, 0))
    seen = changes.look(changes.Places(str(tmp_path)), late)

    assert [change.path for change in seen.changes] == [".envrc"]
    assert "the clock was set back by 10.0 s" in "\n".join(screen.lines(seen))
    assert not changes.look(changes.Places(str(tmp_path)), begun).clock_set_back


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
        assert "directories that denied you reading" in result.stderr
        assert ".: had mode 0311" in result.stderr
        assert "deep/in/n: had mode 0000" in result.stderr
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
        "import os, sys; from claudebox.report import tree; closed = tree.Closed(0);"
        "top = os.open('.', tree.DIRECTORY); row = os.lstat('victim'); other = os.lstat('other');"
        "print(closed.open(top, 'link', (row.st_dev, row.st_ino)),"
        "closed.open(top, 'victim', (other.st_dev, other.st_ino)),"
        "os.lstat('victim').st_mode & 0o777 == 0o311, closed.open(top, 'victim', (row.st_dev, row.st_ino)))"
    )
    source = os.path.dirname(os.path.dirname(user_box.program)) + "/src"
    result = user_box.host(PYTHON, "-c", script, env={"PYTHONPATH": source})

    assert result.stdout == "False False True True\n", result.stderr
