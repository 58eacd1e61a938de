"""`claudebox review` of real sessions: what is on the page, what is not, and where the page is."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import signal
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.conftest import wait_until
from tests.review.examples import draw_png
from tests.support.client import bash, conversation, equip
from tests.support.terminals import Terminal

from claudebox.base.state import Instance
from claudebox.commands import review
from claudebox.report.log import name_moment
from claudebox.review.diffs import read_patch
from claudebox.review.gather import SessionRecord, _find_neighbours, gather_task
from claudebox.review.records import Story
from claudebox.review.session_page import render_session

SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYzE5kd9q2"
KEY = "sk-ant-api03-key-that-stays-outside-which-is-long-enough"
PICTURE = draw_png(8, 4, lambda x, y: (x * 9, y * 9, 9))


@pytest.fixture
def project(user_box):
    """Return a box whose project is a repository, and whose sessions of commands can be undone."""
    config = 'network = "none"\nundo_keep = "5"\nproject_secrets = "show"\n'
    user_box.write(f"{user_box.home}/.claudebox/config.toml", config, mode=0o600)
    os.chmod(f"{user_box.home}/.claudebox", 0o700)
    user_box.write("src/a.py", "one\ntwo\nthree\n")
    user_box.write("README.md", "before\n")
    user_box.write("logo.png", PICTURE)
    user_box.write("old.txt", "farewell\n")
    user_box.write(".env.old", f"API_KEY={SECRET}\n" + "# filler\n" * 30)
    user_box.write(".env", f"API_KEY={SECRET}\n")
    for words in (
        ("init", "-q", "-b", "main"),
        ("config", "user.name", "Ada"),
        ("config", "user.email", "a@example.org"),
        ("add", "src", "README.md", "logo.png", "old.txt", ".env.old"),
        ("commit", "-q", "-m", "Begin"),
    ):
        assert user_box.host("git", *words).returncode == 0
    return user_box


def page_of(box, *words: str, **options) -> str:
    done = box.claudebox("review", *words, **options)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == box.account.uid
    return path.read_text(encoding="utf-8")


def moment_of(box) -> str:
    """Return when the session began, as the client writes it."""
    (log,) = Path(f"{box.home}/.claudebox/log").glob("*.jsonl")
    began = json.loads(log.read_bytes().split(b"\n")[0])["time"]
    return datetime.fromtimestamp(began + 0.001, UTC).isoformat()


def text_of(page: str) -> str:
    return html.unescape(re.sub(r" ?<[^>]*> ?", "\u00a6", page.partition("<body")[2]))


def test_a_page_has_what_a_session_did(project):
    # proves REVIEW-01
    done = project.sh(
        "printf 'one\\nTWO\\nthree\\n' >src/a.py; git commit -qam 'a: Say it loud' -m 'Because.'; "
        "printf '* -diff\\n' >.gitattributes; git add .gitattributes; echo hidden >>README.md; git commit -qam 'b'; "
        "git mv .env.old plain.txt; echo more >>plain.txt; git commit -qam 'c'; rm old.txt; "
        "echo draft >>README.md; echo new >'we\"ird\nname'; printf 'a\\0b' >bin; cp logo.png other.png; "
        "mkdir node_modules; touch node_modules/1 node_modules/2; echo x >.envrc; echo more >>.env; "
        "git mv src/a.py b.py"
    )
    assert done.returncode == 0, done.stderr
    page = page_of(project)
    text = text_of(page)

    for told in (
        "main +3 commits",
        "farewell",
        "a: Say it loud",
        "Because.",
        "TWO",
        "hidden",
        "draft",
        'we"ird',
        "direnv runs it",
        "Build output\u00a62 files",
        "src/a.py",
        "finished",
        "claudebox undo 2",
    ):
        assert told in text, told
    assert "data:image/png;base64," in page
    assert SECRET not in page  # neither in a file with such a name, nor in one that had it before
    assert page.count("not shown: files of this name hold secrets") == 2
    assert page.index(">hidden</ins>") < page.index('id="files"')
    assert ">draft</ins>" in page.partition('id="files"')[2]
    assert ">hidden</ins>" not in page.partition('id="files"')[2]  # a commit has it
    where = f"{project.home}/.claudebox/instances"
    assert [path.suffix for path in Path(where).glob("*/review/*")] == [".html"]
    assert "<script" not in page

    output = f"{project.base}/home/page.html"
    assert project.claudebox("review", "2", "--output", output).stdout == f"{output}\n"
    assert len(Path(output).read_bytes()) == len(page.encode())


def test_a_repository_that_was_begun_inside_has_its_commits_on_the_page(user_box):
    # proves REVIEW-01
    user_box.write(f"{user_box.home}/.claudebox/config.toml", 'network = "none"\nundo_keep = "5"\n', mode=0o600)
    os.chmod(f"{user_box.home}/.claudebox", 0o700)
    author = "-c user.name=Ada -c user.email=a@example.org"
    done = user_box.sh(
        f"git init -q -b main; echo one >a; git add a; git {author} commit -qm 'a: Begin here'; echo two >>a"
    )
    assert done.returncode == 0, done.stderr
    commits, files = page_of(user_box).split('id="files"')

    assert "a: Begin here" in commits
    assert ">one</ins>" in commits
    assert ">one</ins>" not in files
    assert ">two</ins>" in files


def test_a_withheld_value_stops_the_page_and_is_named(project):
    # proves REVIEW-01
    project.sh(f"echo \"key = '{SECRET}'\" >src/config.py")
    done = project.claudebox("review", env={"AWS_SECRET_ACCESS_KEY": SECRET})

    assert done.returncode == 125
    assert "AWS_SECRET_ACCESS_KEY" in done.stderr
    assert "src/config.py" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert not list(Path(f"{project.home}/.claudebox/instances").glob("*/review/*"))
    assert SECRET in page_of(project)  # the control: without the variable nothing is withheld


def test_a_masked_value_stops_the_page_and_is_named(project):
    # proves REVIEW-01
    config = 'network = "none"\nundo_keep = "5"\nproject_secrets = "mask"\n'
    project.write(f"{project.home}/.claudebox/config.toml", config, mode=0o600)
    project.sh(f"cat .env; echo \"key = '{SECRET}'\" >src/config.py")  # as if it had learnt it elsewhere
    done = project.claudebox("review")

    assert done.returncode == 125
    assert "`.env:1`" in done.stderr
    assert "src/config.py" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    project.sh("echo more >>README.md")
    assert SECRET not in page_of(project)


def test_a_value_is_found_that_markup_would_divide(project):
    project.write("a.py", "token = 'x'\n")
    value = "a8f<k2&j3'h\u202e4s9dk3j"
    project.sh(f'cat >a.py <<"X"\ntoken = "{value}"\nX')
    done = project.claudebox("review", env={"SOME_TOKEN": value})

    assert done.returncode == 125
    assert "SOME_TOKEN" in done.stderr


def test_a_killed_session_has_a_page_of_what_it_left(project):
    # proves REVIEW-01
    argv = (project.program, "-y", "--exec", "--", "sh", "-c", "echo changed >>README.md; echo ready; exec sleep 60")
    with subprocess.Popen(
        argv,
        cwd=project.project,
        env=project.variables(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        **project.account.demotion,
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"ready\n"
        alive = text_of(page_of(project))
        launcher.send_signal(signal.SIGKILL)
        launcher.wait(20)
    wait_until(lambda: project.claudebox("sessions", "--json").stdout.strip() == "[]", "the session to end")
    killed = text_of(page_of(project))

    assert "at work" in alive
    assert "was killed" in killed
    for text in (alive, killed):
        assert "README.md" in text
        assert "changed" in text


def test_a_damaged_log_says_what_is_missing(project):
    # proves REVIEW-01
    project.sh("echo x >>README.md")
    (log,) = Path(f"{project.home}/.claudebox/log").glob("*.jsonl")
    lines = log.read_bytes().splitlines(keepends=True)
    changes = next(line for line in lines if b'"changes"' in line)
    log.write_bytes(b"\xff\xfe{not json\n[1]\n" + b"".join(line for line in lines if line != changes))
    text = text_of(page_of(project))

    assert "2 lines of the log are damaged" in text
    assert "no room for 1 more changes" in text

    junk = {"kind": "decision", "host": {"a": 1}, "port": "x", "verdict": ["denied"], "count": 1e400, "time": -1}
    rows = [
        junk,
        {"kind": "usage", "price": "1", "time": "x"},
        {"kind": "end", "found": 3, "failed": 4, "changed": [1], "moved": {"a": 1}, "disarmed": [[1], 2]},
        {"kind": "start", "variables": 7, "withheld_names": "x"},
        {"kind": "changes", "what": [], "names": [1]},
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page_of(project)

    log.write_bytes(b"".join(lines))
    (snapshots,) = Path(f"{project.home}/.claudebox/instances").glob("*/undo/*.sqlite")
    os.truncate(snapshots, 5000)
    text = text_of(page_of(project))
    assert "what changed in files is not known" in text
    assert str(snapshots.parent) in text
    assert "README.md" in text


def test_sessions_that_ran_at_the_same_time_are_named(tmp_path):
    instance = Instance("/p", str(tmp_path), "1234")
    spans = ((100, 190), (150, 260), (200, 300), (290, 400), (310, 320))
    names = [f"{name_moment(began)}-1234-n{number}-7.jsonl" for number, (began, _) in enumerate(spans)]
    for name, (_, ended) in zip(names, spans, strict=True):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (ended, ended))
    source = SessionRecord(instance, str(tmp_path), names[2])
    others, until = _find_neighbours(source, Story("x", "x", began=200.0, ended=300.0))

    assert others == [name_moment(150), name_moment(290)]
    assert until == 310.0


HOSTILE = ("a b", "a'b", 'a"b', "a;touch pwned", "$(touch pwned)", "`touch pwned`", "a&b|c", "-rf", "#x", "~", "!x")
UNSEEN = ("a\nb", "a\tb", "a\rb", "a\x1bb", "a\u202eb", "a\u200bb", "a\udce9b", "a\u2028b")


@pytest.mark.parametrize("name", [*HOSTILE, *UNSEEN])
def test_a_copied_command_does_what_it_says_and_nothing_else(name, tmp_path):
    # proves REVIEW-01
    log = "20261119T181305.792Z-1234-n1-7.jsonl"
    (tmp_path / log).touch()
    instance = Instance("/p", str(tmp_path), "1234")
    source, story = SessionRecord(instance, str(tmp_path), log), Story("x", "x")
    review._add_commands(story, review._Place(f"/home/{name}", instance), source)
    review._add_commands(story, review._Place("/p", instance, name=name, is_copy=True), source)

    for what, command in story.commands:
        if name in UNSEEN and what == "Go to the project":
            raise AssertionError(command)
        words = shlex.split(command)
        assert words[0] in ("claudebox", "git", "cd")
        assert [word for word in words if "pwned" in word] in ([], [name], [f"/home/{name}"])
    assert ("Go to the project", f"cd {shlex.quote(f'/home/{name}')}") in story.commands or name in UNSEEN


def test_unknown_words_are_refused_in_one_line(project):
    project.sh("true")
    assert project.claudebox("review", "nothing").returncode == 125
    assert project.claudebox("review", "../../x").returncode == 125
    assert "`nothing`" in project.claudebox("review", "nothing").stderr
    link = f"{project.base}/home/link"
    os.symlink("/nonexistent", link)
    for place in (f"{project.base}/none/page.html", f"{project.base}/home", link, "/dev/null"):
        refused = project.claudebox("review", "--output", place)
        assert (refused.returncode, refused.stdout) == (125, "")
        assert len(refused.stderr.splitlines()) <= 3
        assert "Traceback" not in refused.stderr
    assert os.readlink(link) == "/nonexistent"


def test_an_agent_is_found_by_its_name(project):
    # proves REVIEW-01
    done = project.claudebox(
        "-y", "new", "fix-it", "--exec", "--", "sh", "-c", "echo x >>README.md; git commit -qam 'Fix it'"
    )
    assert done.returncode == 0, done.stderr
    text = text_of(page_of(project, "fix-it"))

    for told in ("fix-it", "Fix it", "claudebox finish fix-it", "git merge fix-it"):
        assert told in text
    with Terminal(project) as terminal:
        terminal.type(f"{project.program} finish fix-it")
        terminal.expect("as a page: `claudebox review fix-it`")
        terminal.type("n")


def test_a_page_is_opened_on_a_desktop_only(project):
    # proves REVIEW-01
    project.sh("echo x >>README.md")
    tools, opened = project.mkdir(f"{project.base}/bin"), Path(f"{project.home}/opened")
    browser = project.write(f"{tools}/browser", f'#!/bin/sh\nprintf "%s\\n" "$#" "$1" >{opened}\n', mode=0o755)
    project.write(f"{tools}/xdg-open", f'#!/bin/sh\nexec {browser} "$@"\n', mode=0o755)  # of the system, if it has one
    project.environ |= {"DISPLAY": ":7", "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin", "BROWSER": browser,
                        "XDG_DATA_DIRS": f"{tools}/none"}  # fmt: skip
    page_of(project)  # through a pipe
    assert not opened.exists()
    with Terminal(project) as terminal:
        for before in ("SSH_CONNECTION=x", "DISPLAY="):
            terminal.type(f"{before} {project.program} review")
            assert "opened" not in terminal.expect(r"review/\S+\.html\n(?s:.*?)\$ ")[0]
        terminal.type(f"{project.program} review --output ~/page.html")
        assert "opened" not in terminal.expect(r"page\.html\n(?s:.*?)\$ ")[0]
        assert not opened.exists()
        terminal.type(f"{project.program} changes")
        name = terminal.expect("as a page: `claudebox review ([^`]*)`")[1]
        terminal.type(f"{project.program} review {name}")
        terminal.expect("opened in your browser")
        wait_until(lambda: opened.exists() and opened.read_text().endswith(".html\n"), "the page to be opened")
    count, path = opened.read_text().splitlines()
    assert count == "1"
    assert Path(path).is_absolute()
    assert name in path
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


def test_the_conversation_is_on_the_page(project):
    # proves REVIEW-01
    project.sh("echo x >>README.md")
    (instance,) = Path(f"{project.home}/.claudebox/instances").iterdir()
    now = moment_of(project)
    rows = [
        {"type": "user", "timestamp": now, "message": {"role": "user", "content": "Fix <b>it</b>"}},
        {
            "type": "assistant",
            "timestamp": now,
            "message": {
                "content": [
                    {"type": "tool_use", "name": "Bash", "input": {"command": "rm -rf \u202e/"}},
                    {"type": "text", "text": "It is done."},
                ]
            },
        },
        {"type": "user", "timestamp": "1999-01-01T00:00:00Z", "message": {"content": "of another session"}},
        {
            "type": "assistant",
            "timestamp": now,
            "message": {"content": [{"type": "tool_use", "name": 5, "input": [1]}, 7]},
        },
        {"type": "user", "timestamp": now, "isMeta": True, "message": {"content": "of the client"}},
    ]
    name = "136a2d4b-70c1-4d0c-9a3e-4d4a7e0d6c11"
    path = f"{instance}/claude/projects/-project/$(touch pwned); {name}.jsonl"  # as an agent may call it
    project.write(path, "".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    text = text_of(page_of(project))
    assert f"\u00a6claudebox --resume {name}\u00a6" in text
    assert "pwned" not in text

    for told in (
        "Fix <b>it</b>",
        "It is done.",
        "Bash: rm -rf",
        "1 lines of the conversation are damaged",
    ):
        assert told in text, told
    assert "of another session" not in text
    assert "of the client" not in text

    project.sh("true")
    assert "It is done." not in page_of(project)


def test_the_results_of_tasks_become_a_page(user_box):
    # proves REVIEW-01
    results = user_box.mkdir(f"{user_box.base}/results")
    user_box.environ["HOME"] = user_box.home
    for name, status in (("one", "done"), ("two", "failed"), ('"><script>', "failed")):
        result = {
            "id": name,
            "status": status,
            "exit": int(status != "done"),
            "retry": False,
            "why": "<i>",
            "cost_usd": 0.5,
            "seconds": 60,
            "tries": 2,
            "files": {"review.html": 3},
        }
        user_box.write(f"{results}/{name}/result.json", json.dumps(result))
        user_box.write(f"{results}/{name}/review.html", "xxx")
    page = f"{user_box.base}/home/batch.html"
    done = user_box.claudebox("tasks", "--results", results, "--page", page)

    assert done.returncode == 1
    content = Path(page).read_text(encoding="utf-8")
    assert stat.S_IMODE(os.stat(page).st_mode) == 0o600
    assert 'href="../results/one/review.html"' in content
    assert 'href="../results/%22%3E%3Cscript%3E/review.html"' in content
    assert "2\u00a6failed" in text_of(content)
    assert user_box.claudebox("tasks", "--results", results, "--page", "/none/x.html").returncode == 125


def test_a_task_has_a_page_of_its_own(tmp_path):
    patch = b"diff --git a/a b/a\nnew file mode 100644\n--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+<b>\n"
    patch += b"diff --git a/.env b/.env\n--- a/.env\n+++ b/.env\n@@ -1 +1 @@\n-KEY=%s\n+KEY=x\n" % SECRET.encode()
    (tmp_path / "work.patch").write_bytes(patch)
    (tmp_path / "log.jsonl").write_text(
        json.dumps({"kind": "decision", "host": "evil.example", "port": 443, "verdict": "denied", "time": 5}) + "\n"
    )
    story = gather_task({"id": "fix", "status": "failed", "why": "the agent ended with 1", "said": "no"}, str(tmp_path))
    text = text_of(render_session(story).decode())

    assert isinstance(story, Story)
    assert next(read_patch(patch, 9)).how == "new"
    for told in ("review of a task", "failed", "the agent ended with 1", "evil.example", "<b>", "git apply work.patch"):
        assert told in text
    assert "2 files, 2 lines added, 1 removed" in text
    assert "not shown: files of this name hold secrets" in text
    assert SECRET not in text


def test_a_session_of_the_real_client_shows_what_was_asked_done_and_spent(project, real_client, model):
    # proves REVIEW-01
    equip(project, real_client)
    steps = (
        {"tools": [bash("cat README.md")]},
        {"tools": [bash("echo after >README.md; git commit -qam 'README: Say what comes after'")]},
        {"say": "It says what comes after now."},
    )
    served = model(conversation("Say what comes after", *steps), key=KEY)
    env = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": KEY, "CLAUDE_CODE_MAX_RETRIES": "0"}
    done = project.claudebox("-y", "-p", "Say what comes after", env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    page = page_of(project, env=env)
    text = text_of(page)

    for told in (
        "Say what comes after",
        "It says what comes after now.",
        "README: Say what comes after",
        "cat README.md",
        "Model\u00a63",
        "Tools\u00a62",
        "Tokens",
        "--resume ",
    ):
        assert told in text, told
    assert KEY not in page
