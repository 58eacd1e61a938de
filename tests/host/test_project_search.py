"""The search of a project at the start of a launch: what it finds, passes over, and cannot look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from claudebox.base import state as base_state
from claudebox.base.errors import ClaudeboxError
from claudebox.git.facts import CommittedContents
from claudebox.host import project_search, secret_files
from claudebox.settings.records import Policy

SECRET = "API_KEY=s3cr3tValue9zQ\n"


def write(path: Path, content: str = SECRET) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def find(top: Path, policy: Policy | None = None, **limits: float) -> secret_files.SecretSearch:
    searched = project_search.search((str(top),), **limits)  # type: ignore[arg-type]
    instance = base_state.locate(str(top.parent), str(top))
    wanted = policy or Policy("client")
    return secret_files.find_secrets(wanted, searched, (str(top),), instance, CommittedContents(None))


@pytest.fixture
def top(tmp_path):
    made = tmp_path / "project"
    made.mkdir()
    return made


def test_files_are_found_by_name_and_place(top):
    # proves MASK-01
    found = (
        ".env", "a/b/.env.local", "secrets/db_password.txt", "secrets/token", "secrets/app.yaml", ".kube/config",
        ".docker/config.json", "target/classes/application.yml", "dist/.env", ".next/standalone/.env", "my-key.json",
        "deploy/shop-0123456789ab.json", ".terraform/terraform.tfstate", "k8s/app-secret.yaml", ".env.php",
        ".envs/.production/.postgres", ".aws/config", "secrets.sh",
    )  # fmt: skip
    others = (
        "node_modules/x/.env", ".venv/.env", "target/debug/.env", "secrets/README", "secrets/tool.py", "a/config",
        "src/config.json", "src/secrets.py", "src/package.json", "secrets/.gitkeep", "deploy/shop-0123456789xy.json",
    )  # fmt: skip
    for name in (*found, *others):
        is_json = name.endswith("json")
        is_php = name.endswith("php")
        text = (
            '{"private_key": "s3cr3tValue9zQ"}' if is_json else "'API_KEY' => 's3cr3tValue9zQ',\n" if is_php else SECRET
        )
        write(top / name, text.replace("=", ": ", 1) if name.endswith("yml") else text)
    rows = {row.path.removeprefix(f"{top}/"): row for row in find(top).files}

    assert set(rows) == set(found)
    assert not [name for name, row in rows.items() if b"s3cr3tValue9zQ" in row.masked]
    assert rows[".env.php"].masked.startswith(b"'API_KEY' => '")


def test_nested_repositories_are_found_and_not_entered(top):
    for place in (".git", "lib/.git", "deep/er/lib/.git", "node_modules/x/.git"):
        write(top / place / "HEAD", "ref: refs/heads/main\n")
        write(top / place / ".env")
    for name in ("HEAD", "objects/x", "refs/x", "more/.env"):
        write(top / "bare" / name)
    searched = project_search.search((str(top),))

    assert {path.removeprefix(f"{top}/") for path in searched.repositories} == {"lib/.git", "deep/er/lib/.git", "bare"}
    assert searched.suspects == ()


def test_no_link_leads_the_search_elsewhere(top, tmp_path):
    # proves C18
    write(tmp_path / "outside/.env")
    (top / "link").symlink_to(tmp_path / "outside")
    (top / "loop").symlink_to(top)
    (top / ".env").symlink_to(tmp_path / "outside/.env")
    (top / "b.env").symlink_to("real/notes.txt")
    write(top / "real/notes.txt")

    assert [row.path for row in find(top).files] == [f"{top}/real/notes.txt"]


@pytest.mark.parametrize("limits", [{"most": 20}, {"seconds": -1.0}])
def test_what_there_was_no_time_for_is_named_or_refused(top, limits):
    # proves MASK-01, C32
    for number in range(40):
        write(top / f"d{number}/x.txt")
    for name in range(project_search._EVERY):
        write(top / f"many/{name}")
    write(top / "many/deep/er/.env")
    found = find(top, **limits)
    strict = Policy("client", project_secrets_origin="~/.claudebox/config.toml:1")

    assert "what lies deeper" in found.unsearched
    assert found.files == ()
    with pytest.raises(ClaudeboxError, match="cannot be masked"):
        find(top, strict, **limits)
    assert find(top, strict).files
    assert find(top, strict.replace(project_secrets="show"), **limits).files == ()


def test_what_was_masked_stays_so_however_much_there_is_to_search(top):
    # proves C32, MASK-01
    path = write(top / "many/deep/er/.env")
    (row,) = find(top).files
    instance = base_state.locate(str(top.parent), str(top))
    Path(instance.directory).mkdir(parents=True)
    known = secret_files.render_remembered([(row.identity, row.path)])
    Path(instance.directory, secret_files.REMEMBERED).write_bytes(known)
    for number in range(project_search._EVERY * 2):
        write(top / f"decoys/{number}")
    searched = find(top, most=10)
    moved = path.rename(top / "many/deep/er/notes.txt")
    again = find(top)
    path.write_text("replaced\n")
    moved.unlink()
    new = write(top / "program.py")
    if new.stat().st_ino == row.identity[1]:
        assert str(new) not in [row.path for row in find(top).files], "it has the inode by chance"
    new.unlink()
    gone = find(top, seconds=-1.0)

    assert [row.path for row in searched.files] == [str(path)]
    assert [row.path for row in again.files] == [str(moved)]
    assert gone.missing == ((row.identity, str(path)),), "it is looked for next time"
    assert find(top).missing == ()


def test_more_files_than_can_be_looked_into_are_refused_in_one_line(top, monkeypatch):
    # proves E16
    monkeypatch.setattr(secret_files, "_MOST", 10)
    for number in range(11):
        write(top / f"{number:02}.env")

    with pytest.raises(ClaudeboxError, match="11 files are named like secrets") as refused:
        find(top)
    assert f"`{top}/00.env`" in refused.value.hint
    assert len(find(top, Policy("client", project_secrets="show")).files) == 11
