from __future__ import annotations

import os
import re
import shlex
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from scripts import trace
from tests.conftest import REPOSITORY

from claudebox.many.tasks.task import read_task
from claudebox.network.tiers import TIERS
from claudebox.settings import agent_rows, document, layers
from claudebox.settings.files import Source
from claudebox.settings.table import SETTINGS
from claudebox.settings.verbs import VERBS, find_verb
from claudebox.tables.agents import NAMES
from claudebox.tables.paths import PROTECTED

PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
FLAGS = {flag for row in SETTINGS for flag in row.flags}
HEADINGS = {
    page: {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in page.read_text().splitlines()
        if line.startswith("#")
    }
    for page in PAGES
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page):
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:|mailto:)([^)]+)\)", text)
    for target in (*links, *re.findall(r'src(?:set)?="([^"]+)"', text)):
        file, _, heading = target.partition("#")
        other = (page.parent / file).resolve() if file else page

        assert other.exists(), target
        assert not heading or heading in HEADINGS[other], target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_a_page_is_one(page):
    """Ours are read without complaint and misspell no flag, scripts exist, and others are programs that we expect."""
    for line in _lines(page.read_text()):
        program, *words = shlex.split(line.partition(" > ")[0], comments=True)
        if program in ("claudebox", "scripts/run"):
            read = layers.read_settings(words, {})
            own = words[: words.index("--")] if "--" in words else words
            own = own[: own.index(read.agent.name)] if read.agent.name in own[:1] else own
            assert not [word for word in own if word.startswith("--") and word in read.words and _misspelt(word)], line
        elif "/" in program:
            assert os.access(REPOSITORY / program, os.X_OK), line
        else:
            assert program in ("bash", "cd", "docker", "git", "nix", "podman"), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_the_text_of_a_page_is_one(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    if page.name == "CHANGELOG.md":
        text = ""  # tells of earlier versions, too
    for span in re.findall(r"`((?:claudebox |scripts/|bench/)[^`]*)`", text):
        program, *words = shlex.split(span.replace("…", "").replace("\\|", "|").partition(" <")[0])
        if program == "claudebox":
            if (
                words[1:] or not words or find_verb(words[0]) is None
            ):  # not a verb alone, which stands for all that it does
                layers.read_settings(words, {})
        else:
            assert os.access(REPOSITORY / program, os.X_OK), span


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_of_settings_in_a_page_is_read(page):
    for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        read = agent_rows.read_row if block.startswith("install = ") else document.read_document
        assert read(Source("page.toml", "page.toml", "profile", block.encode()))


def test_the_task_in_a_page_is_read(tmp_path):
    (block,) = re.findall(r"^```json\n(.*?)^```", (REPOSITORY / "docs/tasks.md").read_text(), re.MULTILINE | re.DOTALL)
    file = tmp_path / "task.json"
    file.write_text(block)

    assert read_task(str(file)).id


def test_the_still_of_the_readme_is_a_whole_session():
    text = "".join(ET.parse(REPOSITORY / "docs/demo.svg").getroot().itertext())

    for words in (
        "$ claudebox -p",
        "stays outside",
        "Proceed?",
        "main +1 commit",
        "$ claudebox undo",
        "took back",
    ):
        assert words in text
    assert not re.search(r"[^\n -~·…]", text)


def test_every_command_that_starts_or_shows_something_works(user_box):
    """Launches are planned in a project of what the pages assume; verbs that only show something run as they are."""
    user_box.write(
        f"{user_box.home}/.claudebox/profiles/mine.toml", "[[secrets]]\nenv='T'\nhosts=['a.example']\nfrom='env:T'"
    )
    user_box.write("test.env", "A=1\n")
    user_box.write("shot.png")
    user_box.mkdir(".venv/bin")
    for name in ("reference", "data", "opt/tools/bin", "shop"):
        user_box.mkdir(f"{user_box.home}/{name}")
    for name in _AGENTS:
        user_box.write(f"{user_box.home}/.local/bin/{name}", "#!/bin/sh\n", mode=0o755)
    user_box.write(f"{user_box.home}/.claude.json", '{"mcpServers": {"a": {"command": "/usr/bin/true"}}}')
    user_box.host("git", "init", "-q")
    user_box.sh("echo 1 >one", flags=("--set", "undo_keep=1"))
    planned, shown = _runnable()
    environ = {"PATH": f"{user_box.home}/.local/bin:/usr/bin:/bin", "ANTHROPIC_API_KEY": "of-the-pages"}

    failed = {}
    for words in (*(("--dry-run", *words) for words in planned), *shown):
        done = user_box.claudebox(*words, env=environ, input="")
        if done.returncode or "Traceback" in done.stderr:
            failed[shlex.join(words)] = done.stderr

    assert not failed, "\n".join(f"{line}: {said}" for line, said in failed.items())
    assert len(planned) > 25
    assert len(shown) > 12


_AGENTS = ("claude", "codex")
# What needs a running session, an answer, Nix or minutes; each has tests of its own.
_ELSEWHERE = frozenset((
    "--check", "--verify", "--detach", "--package", "--set devshell=true", "allow", "attach", "demo", "drop", "finish",
    "new", "publish", "stop", "task", "tasks", "trust approve", "trust revoke", "undo", "uninstall",
))  # fmt: skip


def _runnable() -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the arguments of all commands of claudebox in pages: of launches, and of verbs and what only shows."""
    planned, shown = [], []
    lines = [line for page in PAGES for line in _lines(page.read_text())]
    for program, *words in dict.fromkeys(tuple(shlex.split(line.partition(" > ")[0], comments=True)) for line in lines):
        if program != "claudebox" or _ELSEWHERE & {*words, *map(" ".join, pairwise(words))}:
            continue
        read = layers.read_settings(words, {})
        if read.verb or (read.action and read.action.key not in ("exec", "shell")):
            shown.append(tuple(words))
        else:
            planned.append(tuple(words))
    return planned, shown


def _lines(text: str) -> list[str]:
    """Return the commands of `sh` blocks, and those after a prompt of `console` blocks."""
    blocks = re.findall(r"^```(sh|console)\n(.*?)^```", text.replace("\\\n", " "), re.MULTILINE | re.DOTALL)
    lines = [line for kind, block in blocks for line in block.splitlines() if kind == "sh" or line.startswith("$ ")]
    lines = [re.sub(r"^(\w+=\S+ )+", "", line.removeprefix("$ ").strip()) for line in lines]
    return [line for line in lines if line and line[0] != "#"]


def _misspelt(flag: str) -> bool:
    # What is not ours is the client's; these are the ones that our pages show.
    return flag.partition("=")[0] not in {"--continue", "--resume", "--model"}


def test_the_settings_name_every_flag_key_and_verb():
    shown = (REPOSITORY / "docs/settings.md").read_text()

    assert [row.flags[-1] for row in SETTINGS if row.flags and row.flags[-1] not in shown] == []
    assert [row.file_key for row in SETTINGS if row.in_files != "none" and f"| `{row.file_key}` |" not in shown] == []
    assert [verb.word for verb in VERBS if f"\n| `{verb.word}" not in shown] == []


def test_pages_name_every_tier_agent_and_protected_path():
    network, threats, guide = (
        (REPOSITORY / "docs" / name).read_text() for name in ("network.md", "threat-model.md", "guide.md")
    )
    shown = next(row.details for row in SETTINGS if row.key == "network")

    assert [name for name in TIERS if f"`{name}`" not in shown] == []
    assert [name for name in TIERS if f"\n| `{name}` " not in network] == []
    assert [name for name, _, _ in PROTECTED if f"`{name}`" not in threats] == []
    assert [name for name in NAMES if f"\n| `{name}` " not in guide] == []


def test_every_page_that_a_message_or_script_names_exists():
    tops = ("src", "scripts", "man", "requirements", "docs/examples")
    files = [path for top in tops for path in (REPOSITORY / top).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    link = re.compile(r"\bdocs/([\w-]+\.md)(?:#([\w-]+))?")
    named = {(file.name, *match) for file in files for match in link.findall(file.read_text(errors="replace"))}

    assert named
    for file, page, heading in sorted(named):
        path = REPOSITORY / "docs" / page
        assert path in HEADINGS, (file, page)
        assert not heading or heading in HEADINGS[path], (file, page, heading)


def test_every_page_can_be_reached_from_the_readme():
    seen, waiting = set(), [REPOSITORY / "README.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            other = (page.parent / target).resolve()
            if other.suffix == ".md" and other not in seen:
                waiting.append(other)

    assert sorted(page.name for page in set(PAGES) - seen) == []


def test_the_design_shows_every_folder_and_its_job():
    # proves HOUSE-05
    shown = [row.split() for row in (REPOSITORY / "docs/design.md").read_text().splitlines()]
    folders = [path.parent for path in (REPOSITORY / "src/claudebox").rglob("*/__init__.py")]

    assert folders
    for path in folders:
        assert [words for words in shown if words[:1] == [f"{path.name}/"] and len(words) > 2], path


def test_every_mark_stands_in_a_test_and_names_something_that_is_known():
    # proves SEC-05
    known = {name for section in trace.read_ids().values() for name in section}
    marks = list(trace.find_marks())

    assert marks
    assert [f"{mark.file}:{mark.line}: {mark.id}" for mark in marks if mark.id not in known] == []
    assert [f"{mark.file}:{mark.line}: {mark.id}" for mark in marks if not mark.test] == []


def test_every_known_id_has_the_form_that_marks_use():
    ids = trace.read_ids()

    assert all(re.fullmatch(r"[A-Z]+-(\d\d|T)", name) for name in ids["requirements"])
    assert all(re.fullmatch(r"[A-Z]\d\d", name) for name in {**ids["threats"], **ids["accepted"]})
    assert all(re.fullmatch(r"OLD-[AB]\d+|NEW-[DEGNR]\d+", name) for name in ids["holes"])
    assert all(0 < len(text) < 130 and "|" not in text for section in ids.values() for text in section.values())


def test_every_requirement_and_threat_has_a_test_that_names_it():
    # proves SEC-05
    ids, proved = trace.read_ids(), {mark.id for mark in trace.find_marks()}

    assert [name for section in trace.SECTIONS for name in ids[section] if name not in proved] == []
    assert not proved & ids["accepted"].keys()


def test_what_cannot_be_closed_stands_in_the_threat_model():
    # proves OLD-A28, OLD-B9
    page = (REPOSITORY / "docs/threat-model.md").read_text()

    for words in ("inotify tells inside which of them are opened", "A request to the model can name MCP servers",
                  "that a VPN or a router leads to"):  # fmt: skip
        assert words in page


def test_comments_and_pages_name_only_threats_that_are_known():
    known = {name for section in trace.read_ids().values() for name in section}
    files = [*PAGES, *(REPOSITORY / "src").rglob("*.py")]
    named = {
        (file.name, name)
        for file in files
        for name in re.findall(
            r"(?<![\w-])(?:SAND|UX|GIT|INST|AUTH|NET|SEC|EXT)-\d\d|\([A-KR]\d\d(?=[,)-])", file.read_text()
        )
    }

    assert sorted((file, name) for file, name in named if name.lstrip("(") not in known) == []


def test_retired_words_do_not_come_back():
    """The last column of the words in contributing.md: there is another one for each."""
    table = (REPOSITORY / "docs/contributing.md").read_text()
    table = table[table.index("| term | means | not |") :].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines() if row.startswith("| ")]
    retired = {word for row in rows[1:] for word in row[2].split(", ") if word}
    generated = {"contributing.md", "CHANGELOG.md"}
    texts = [page for page in PAGES if page.name not in generated] + list((REPOSITORY / "src").rglob("*.py"))
    found = {
        f"{path.name}: {match[0]}"
        for path in texts
        for match in re.finditer(rf"\b({'|'.join(sorted(retired))})s?\b", path.read_text(), re.IGNORECASE)
    }

    assert len(retired) > 8
    assert found == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_that_a_page_names_exists(page):
    for name in re.findall(r"`((?:\w+/)+\w+\.(?:py|c))`", page.read_text()):
        assert any((REPOSITORY / top / name).exists() for top in ("", "src", "src/claudebox")), name
