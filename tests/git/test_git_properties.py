from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time

from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import need
from tests.support.strategies import strings

from claudebox.git import config as git_config
from claudebox.git import facts as git_facts
from claudebox.git import plan as git_plan

CONTENTS = [
    "gitdir: ../other/.git\n", "gitdir: ../other/.git/worktrees/x\n", "gitdir: .git\n", "gitdir: /\n", "gitdir: fake\n",
    "gitdir: link\n", "../../../../project/.git\n", "../project/.git\n", "../../..\n", "../..\n", ".\n", "/\n", "",
    "\n", "gitdir: \0\n", "[core]\nworktree = /nowhere\n", "[core]\n\tworktree = ../../../other\n", "x" * 10000,
    "[extensions]\nworktreeConfig = true\n",
]  # fmt: skip
PLACES = [
    "project/.git", "project/.git/commondir", "project/.git/config", "project/fake", "project/fake/gitdir",
    "project/fake/commondir", "project/link", "other/.git", "other/.git/gitdir", "other/.git/config",
    "other/.git/commondir", "other/.git/worktrees", "other/.git/worktrees/x", "other/.git/worktrees/x/gitdir",
    "other/.git/worktrees/x/commondir", "other/.git/worktrees/x/config", "other/.git/objects", ".git",
]  # fmt: skip
TARGETS = ["/", "/etc", "project", "other", ".git", "..", "loop", "link", "/dev/zero", "/proc/self/root", "x" * 300]
things = st.one_of(
    st.just(("directory", "")),
    st.just(("pipe", "")),
    st.sampled_from(CONTENTS).map(lambda text: ("file", text)),
    strings.map(lambda text: ("file", f"gitdir: {text}\n")),
    st.sampled_from(TARGETS).map(lambda target: ("link", target)),
)


def build(base: str, layout: dict[str, tuple[str, str]]) -> None:
    """Make what can be made of a layout; a thing beneath a file is left out."""
    for place in sorted(layout):
        kind, content = layout[place]
        path = os.path.join(base, place)
        if not f"{os.path.realpath(os.path.dirname(path))}/".startswith(f"{os.path.realpath(base)}/"):
            continue  # a link leads out of the layout, and nothing is made there
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if kind == "directory":
                os.mkdir(path)
            elif kind == "pipe":
                os.mkfifo(path)
            elif kind == "link":
                os.symlink(content, path)
            else:
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW), "wb") as file:
                    file.write(os.fsencode(content))
        except OSError:
            continue


@given(st.dictionaries(st.sampled_from(PLACES), things, max_size=9))
def test_no_layout_of_hostile_files_stops_the_search_or_is_believed_without_a_way_back(layout):
    # proves D15, C18
    base = os.path.realpath(tempfile.mkdtemp(prefix="claudebox-property-"))
    try:
        os.mkdir(f"{base}/project")
        build(base, layout)
        started = time.monotonic()
        found = git_facts.find_repository(f"{base}/project", os.getuid())
        assert time.monotonic() - started < 20
        if found is None or found.problem or found.gitfile is None or found.common_dir.startswith(f"{base}/project/"):
            return
        # Only a worktree can be believed here, since no file of these layouts names the project as its work tree.
        own = f"{found.common_dir}/worktrees/x"
        with open(f"{own}/gitdir", encoding="utf-8") as file:
            assert os.path.realpath(os.path.join(own, file.read().strip())) == f"{base}/project/.git"
        assert found.directory is not None
        assert all(not os.path.islink(store.path) for store in found.directory.stores)
    finally:
        shutil.rmtree(base)


def test_a_layout_with_a_way_back_is_believed():
    # The positive control of the property above.
    base = os.path.realpath(tempfile.mkdtemp(prefix="claudebox-property-"))
    try:
        layout = {
            "project/.git": ("file", "gitdir: ../other/.git/worktrees/x\n"),
            "other/.git/config": ("file", "[core]\n"),
            "other/.git/objects": ("directory", ""),
            "other/.git/worktrees/x/gitdir": ("file", f"{base}/project/.git\n"),
            "other/.git/worktrees/x/commondir": ("file", "../..\n"),
        }
        build(base, layout)
        found = git_facts.find_repository(f"{base}/project", os.getuid())
        assert found is not None
        assert (found.problem, found.common_dir) == ("", f"{base}/other/.git")
    finally:
        shutil.rmtree(base)


lines = st.one_of(
    strings,
    st.sampled_from(
        ["[user]", "[core]", '[a "b"]', "[include]", "name = x", "name", "=", "\\", '"', "#", ";", "[", "]", "x = \\"]
    ),
)


@given(st.one_of(st.binary(max_size=200), st.lists(lines, max_size=12).map(lambda rows: os.fsencode("\n".join(rows)))))
def test_no_configuration_stops_the_parser(content):
    for section, name, key, value in git_config.parse_config(content):
        assert section == section.lower()
        assert isinstance(name, str)
        assert key == key.lower()
        assert isinstance(value, str)


@given(strings, strings)
def test_a_rendered_identity_is_read_back_without_anything_else(name, email):
    # proves D24
    given_rows = (("user", "", "name", name), ("user", email, "email", email))
    rows = git_config.parse_config(git_plan.render(given_rows))

    assert [(section, key) for section, _, key, _ in rows] == [("user", "name"), ("user", "email")]


VALUES = st.text(st.sampled_from(list('ab \\"#;=[]\tä')), max_size=12)


@given(st.lists(VALUES, min_size=1, max_size=8))
def test_git_itself_agrees_on_what_was_rendered(values):
    # proves D24
    need(shutil.which("git"), "git")
    for value in values:
        argv = ["git", "config", "--file", "-", "--null", "--list"]
        rendered = git_plan.render((("user", "", "name", value), ("user", "", "email", "a@b")))
        result = subprocess.run(
            argv, cwd="/", input=rendered, env={"PATH": os.environ["PATH"]}, capture_output=True, check=True
        )
        wanted = "".join(char for char in value if char.isprintable())
        assert result.stdout.decode().split("\0")[:-1] == [f"user.name\n{wanted}", "user.email\na@b"]
