from __future__ import annotations

import re
import shlex

import pytest
from scripts import trace
from tests.conftest import REPOSITORY

from claudebox.network.tiers import TIERS
from claudebox.settings import layers
from claudebox.settings.table import SETTINGS
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
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)]+)\)", page.read_text()):
        file, _, heading = target.partition("#")
        other = (page.parent / file).resolve() if file else page

        assert other.exists(), target
        assert not heading or heading in HEADINGS[other], target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_a_page_has_flags_that_exist(page):
    """A line of a code block that starts claudebox must be read without complaint, and misspell no flag."""
    for line in _commands(page.read_text()):
        words = shlex.split(line.partition(" > ")[0], comments=True)[1:]
        read = layers.read_settings(words, {})
        own = words[: words.index("--")] if "--" in words else words

        assert not [word for word in own if word.startswith("--") and word in read.words and _misspelt(word)], line


def _commands(text: str) -> list[str]:
    """Return the lines of `sh` blocks, and those after a prompt of `console` blocks, that start claudebox."""
    blocks = re.findall(r"^```(sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for kind, block in blocks for line in block.splitlines() if kind == "sh" or line.startswith("$ ")]
    lines = [line.removeprefix("$ ") for line in lines]
    return [line for line in lines if line.split()[:1] in (["claudebox"], ["scripts/run"], ["bin/claudebox"])]


def _misspelt(flag: str) -> bool:
    # What is not ours is the client's; these are the ones that our pages show.
    return flag.partition("=")[0] not in {"--continue", "--resume", "--model"}


def test_the_list_of_commands_names_every_flag():
    shown = (REPOSITORY / "docs/usage.md").read_text()

    assert [row.flags[-1] for row in SETTINGS if row.flags and row.flags[-1] not in shown] == []


def test_pages_name_every_tier_and_every_protected_path():
    network, guard = ((REPOSITORY / "docs" / name).read_text() for name in ("network.md", "guard.md"))
    shown = next(row.details for row in SETTINGS if row.key == "network")

    assert [name for name in TIERS if f"`{name}`" not in shown] == []
    assert [name for name in TIERS if f"\n| `{name}` " not in network] == []
    assert [name for name, _, _ in PROTECTED if f"`{name}`" not in guard] == []


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
    assert all(re.fullmatch(r"OLD-[AB]\d+|NEW-[EGNR]\d+", name) for name in ids["holes"])
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
    """The last column of the glossary: words for which there is another one."""
    table = (REPOSITORY / "docs/glossary.md").read_text()
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines() if row.startswith("| ")]
    retired = {word for row in rows[1:] for word in row[2].split(", ") if word}
    generated = {"glossary.md", "CHANGELOG.md"}
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
