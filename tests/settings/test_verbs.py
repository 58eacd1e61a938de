from __future__ import annotations

import importlib
import inspect
import re

import pytest

from claudebox.base.errors import ClaudeboxError
from claudebox.settings import layers
from claudebox.settings.table import SETTINGS
from claudebox.settings.verbs import FORMER, SETTINGS_ONLY, VERBS, find_verb


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.word)
def test_every_verb_names_a_module_that_does_it(verb):
    module = importlib.import_module(f"claudebox.{verb.module}")

    assert [*inspect.signature(module.run).parameters][1] in ("environ", "_environ")
    assert verb.word.isalpha()
    assert verb.word.islower()
    assert verb.help[-1] != "."
    flags = [flag for row in verb.flags for flag in row.flags]
    assert len(set(flags)) == len(flags)
    if verb.launches:
        assert not {flag for row in SETTINGS for flag in row.flags} & set(flags)


@pytest.mark.parametrize(
    ("argv", "verb", "given", "words"),
    [
        (["undo"], "undo", set(), ()),
        (["undo", "-y", "2026"], "undo", {"yes"}, ("2026",)),
        (["-y", "undo", "2026"], "undo", {"yes"}, ("2026",)),
        (["log", "all", "--json"], "log", {"json"}, ("all",)),
        (["task", "f.json", "--result=out"], "task", {"result"}, ("f.json",)),
        (["show", "--", "-odd.png", "--yes"], "show", set(), ("-odd.png", "--yes")),
        (["undo", "-h"], "undo", {"help"}, ()),
        (["drop", "--help"], "drop", {"help"}, ()),
        # A verb that launches takes a name, and then what a launch takes.
        (["--network", "none", "new", "x", "-p", "go"], "new", {"network", "new"}, ("-p", "go")),
        (["new", "--from", "v2", "x", "--copy", "a", "-y", "do it"], "new", {"from", "copy", "yes", "new"}, ("do it",)),
        (["new", "x", "--exec", "--", "make", "--from"], "new", {"new", "exec"}, ("make", "--from")),
        (["new", "x", "undo"], "new", {"new"}, ("undo",)),
        (["new", "undo"], "new", {"new"}, ()),
        # Only the first word, and only exactly; the rest is the agent's.
        (["--", "undo"], "", set(), ("undo",)),
        (["-p", "undo"], "", set(), ("-p", "undo")),
        (["--resume", "undo"], "", set(), ("--resume", "undo")),
        (["undo the last change"], "", set(), ("undo the last change",)),
        (["undoo"], "", set(), ("undoo",)),
        (["mcp", "list"], "", set(), ("mcp", "list")),
        (["--exec", "undo"], "", {"exec"}, ("undo",)),
        (["--shell", "undo"], "", {"shell"}, ("undo",)),
        # The name of an agent takes everything after it.
        (["-y", "claude", "undo", "--undo", "-y", "--"], "", {"yes", "agent"}, ("undo", "--undo", "-y", "--")),
        (["new", "x", "claude", "--from"], "new", {"new", "agent"}, ("--from",)),
    ],
)
def test_a_verb_is_the_first_word_and_what_follows_is_its_own(argv, verb, given, words):
    # proves CLI-01
    read = layers.parse_arguments(argv)

    assert (read.verb, set(read.given), read.words) == (verb, given, words)


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["--network", "none", "undo"], "`--network` and `undo` cannot be combined", "claudebox -- undo"),
        (["--set", "gpu=true", "changes"], "`--set gpu` and `changes` cannot be combined", "claudebox -- changes"),
        (["--explain", "new", "x"], "`--explain` and `new` cannot be combined", "claudebox new NAME"),
        (["undo", "--netwrok"], "`claudebox undo` has no flag `--netwrok`", "claudebox undo --help"),
        (["undo", "-p"], "`claudebox undo` has no flag `-p`", "claudebox undo"),
        (["undo", "--network", "none"], "no flag `--network`", "claudebox undo"),
        (["undo", "a", "b"], "unexpected argument `b`", "claudebox undo \\[SESSION\\]"),
        (["sync", "x"], "unexpected argument `x`", "claudebox sync"),
        (["finish"], "`claudebox finish` needs NAME", "claudebox finish NAME"),
        (["new"], "`claudebox new` needs NAME", "claudebox new NAME"),
        (["new", "--model", "opus", "x"], "`claudebox new` needs NAME", "claudebox new NAME"),
        (["show"], "`claudebox show` needs FILE", "claudebox show FILE"),
        (["show", "a", ""], "`claudebox show`: .* empty", "claudebox show FILE"),
        (["task", "x", "--result"], "`--result` needs a value: `--result DIR`", ""),
        (["-p", "x", "--undo"], "`--undo` is now `claudebox undo`", "claudebox -- --undo"),
        (["--import"], "`--import` is now `claudebox sync`", ""),
    ],
)
def test_what_a_verb_does_not_take_is_refused(argv, message, hint):
    # proves CLI-01
    with pytest.raises(ClaudeboxError, match=message) as caught:
        layers.parse_arguments(argv)

    assert caught.value.status == 125
    assert not hint or re.search(hint, caught.value.hint)


@pytest.mark.parametrize("flag", [flag for flag, new in FORMER.items() if not new.startswith("--")])
def test_every_flag_that_became_a_verb_is_refused_with_the_verb(flag):
    # proves CLI-01
    with pytest.raises(ClaudeboxError, match=f"`{flag}` is now `claudebox ") as caught:
        layers.parse_arguments([flag, "x"])

    _, word, *more = caught.value.message.split("`")[3].split()
    verb = find_verb(word)
    assert verb is not None
    assert {flag for flag in more if flag.startswith("--")} <= verb.rows({}).keys()
    assert layers.parse_arguments(["--", flag]).words == (flag,)
    assert layers.parse_arguments(["--exec", "x", flag]).words == ("x", flag)


def test_every_flag_that_became_a_setting_is_refused_with_the_setting():
    # proves CLI-01
    for flag, new in {"--gpu": "--set gpu=true", "--allow-address": "--set allow_addresses=VALUE",
                      "--nix": "--set nix=VALUE", "--set-env": "--env NAME=VALUE"}.items():  # fmt: skip
        with pytest.raises(ClaudeboxError, match=f"`{flag}` is now `{new}`"):
            layers.parse_arguments([flag, "x"])
    rows = {row.key: row for row in SETTINGS}
    assert [key for key in SETTINGS_ONLY if rows[key].flags or rows[key].in_files == "none"] == []
    for flag in ("--name", "--state", "--settings", "--model"):  # never were ours, and are the client's
        assert layers.parse_arguments([flag, "x"]).words == (flag, "x")
