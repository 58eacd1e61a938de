"""`--json` of the verbs: stable keys, for scripts."""

from __future__ import annotations

import json

import pytest

from claudebox.settings.verbs import VERBS, find_verb

# What each verb prints: the keys of the document, or of the elements of an array. Removing one breaks scripts.
KEYS = {
    "changes": {"session", "directory", "end_recorded", "changes", "refs", "changed_since", "changed_again",
                "not_kept"},
    "review": {"path", "session", "opened"},
    "sessions": {"name", "id", "project", "directory", "state", "status", "since", "process", "memory", "usage",
                 "budget", "ports", "last"},
    "projects": {"project", "directory", "bytes", "complete", "caches", "used", "gone"},
    "profiles": {"name", "description", "file", "error"},
    "profiles strict": {"name", "file", "text", "settings", "differences"},
    "trust": {"path", "sha256", "state", "effect"},
    "log": {"kind", "time"},
    "denied": set(),
    "cost": set(),
    "publish": {"url", "host", "inside"},
    "tasks": set(),  # of `--results DIR`: tests/many/test_task.py
}  # fmt: skip


def test_every_verb_that_shows_something_can_print_json():
    # proves CLI-01
    shows = {verb.word for verb in VERBS for row in verb.flags if row.key == "json"}

    assert shows == {words.split()[0] for words in KEYS}
    acts = {"undo", "sync", "show", "allow", "new", "attach", "stop", "finish", "drop", "task", "init", "demo",
            "uninstall", "help"}  # fmt: skip
    assert shows | acts == {verb.word for verb in VERBS}
    assert not [flag for verb in VERBS for row in verb.flags for flag in row.flags if flag[:2] != "--" and flag != "-y"]
    assert find_verb("sessions") is not None


def test_the_keys_of_every_document_are_stable(user_box):
    # proves CLI-01
    user_box.write(f"{user_box.home}/.claudebox/config.toml", "undo_keep = 3\n")
    user_box.write(f"{user_box.project}/old", "x")
    made = user_box.claudebox("-y", "--exec", "--", "sh", "-c", "echo new >new; rm old; mkdir d")
    assert made.returncode == 0, made.stderr
    user_box.write(f"{user_box.project}/.claudebox.toml", "gpu = true\n")

    for words, keys in KEYS.items():
        if words in ("publish", "tasks"):
            continue
        result = user_box.claudebox(*words.split(), "--json")
        assert result.returncode == 0, f"{words}: {result.stderr}"
        if words in ("log", "denied"):  # a document per line
            rows = [json.loads(line) for line in result.stdout.splitlines()]
        else:
            document = json.loads(result.stdout)
            rows = document if isinstance(document, list) else [document]
        for row in rows:
            assert keys <= {*row} if words == "log" else keys == {*row}, words
        assert rows or words in ("sessions", "trust", "denied", "cost"), words

    changes = json.loads(user_box.claudebox("changes", "--json").stdout)
    found = {(row["what"], row["path"], row["kind"]) for row in changes["changes"]}
    assert found == {("created", "new", "file"), ("deleted", "old", "file"), ("created", "d", "directory")}
    assert changes["changed_since"] == [".claudebox.toml"]
    assert changes["directory"] == user_box.project


@pytest.mark.parametrize("state", ["in force", "changed", "gone"])
def test_an_approval_is_listed_with_its_state(tmp_path, state, capfd):
    # proves CLI-01
    from claudebox.base.syscalls import sha256
    from claudebox.commands import profiles
    from claudebox.settings import layers, trust
    from claudebox.settings.layers import Layer

    file = tmp_path / ".claudebox.toml"
    file.write_text("gpu = true\n" if state == "in force" else "gpu = false\n")
    (tmp_path / ".claudebox").mkdir(mode=0o700)
    request = trust.TrustRequest(f"{tmp_path}/.claudebox", str(file), sha256(b"gpu = true\n"), Layer("", {}))
    trust.approve(request, ("gpu: yes",))
    if state == "gone":
        file.unlink()

    assert profiles.run(layers.parse_arguments(["trust", "--json"]), {"HOME": str(tmp_path)}) == 0
    (row,) = json.loads(capfd.readouterr().out)
    assert ({*row}, row["path"], row["state"]) == (KEYS["trust"], str(file), state)
