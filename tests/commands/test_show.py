"""The drop directory: what a user wants to show is readable inside, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path


def show(box, *words):
    return box.claudebox("show", *words)


def test_what_is_dropped_is_seen_by_sessions_at_once_and_cannot_be_changed(box, background):
    # proves TOOL-10
    picture = box.write(f"{box.home}/Pictures/shot 1.png", b"the picture")
    box.write(f"{box.home}/.claudebox/canary", "CANARY")
    os.chmod(f"{box.home}/.claudebox", 0o700)
    box.mkdir(f"{box.home}/.claudebox/drop")
    os.chmod(f"{box.home}/.claudebox/drop", 0o700)
    waiting = (
        f'until [ -e {box.home}/.claudebox/drop/* ]; do sleep 0.02; done; cat "{box.home}/.claudebox/drop/shot 1.png"'
    )
    session = background(box, box.program, "-y", "--quiet", "--exec", "--", "sh", "-c", f"touch up; {waiting}")
    while not os.path.exists(f"{box.project}/up"):
        assert session.poll() is None

    result = show(box, picture)

    path = result.stdout.strip()
    assert path == f"{box.home}/.claudebox/drop/shot 1.png", result.stderr
    assert "the picture" in session.communicate(timeout=30)[0]
    inside = box.sh(f"echo x >>'{path}'; rm -f '{path}'; ls -A {box.home}/.claudebox")
    assert inside.stdout == "drop\n"
    assert Path(path).read_bytes() == b"the picture"


def test_the_directory_is_no_news(user_box):
    # proves UX-07
    user_box.run("true")
    picture = user_box.write(f"{user_box.home}/shot.png", b"the picture")
    assert "sessions that run already" in show(user_box, picture).stderr
    assert "sessions that run already" not in show(user_box, picture).stderr
    assert "  new " not in user_box.run("true").stderr


def test_without_the_directory_there_is_nothing(user_box):
    assert user_box.sh(f"ls {user_box.home}/.claudebox").returncode != 0


def test_the_newest_picture_within_an_hour_is_pasted_and_nothing_else(user_box):
    # proves TOOL-10
    drop = user_box.mkdir(f"{user_box.home}/.claudebox/drop")
    for path in (os.path.dirname(drop), drop):
        os.chmod(path, 0o700)
    paste = "xclip -selection clipboard -t"
    ask = f"{paste} TARGETS -o; {paste} image/png -o; echo $?; xclip -selection clipboard </dev/null"
    now = time.time()
    rows = (("notes.txt", now), ("old.png", now - 7200), ("two\nlines.png", now - 20), ("a $(x) 'b'.JPEG", now - 10))
    expected = ("1\n", "1\n", None, "image/png\na $(x) 'b'.JPEG0\n")
    for (name, moment), shown in zip(rows, expected, strict=True):
        user_box.write(f"{drop}/{name}", name)
        os.utime(f"{drop}/{name}", (moment, moment))
        result = user_box.sh(ask)
        assert shown is None or result.stdout == shown, result.stderr


def test_only_files_are_dropped(user_box):
    # proves TOOL-10
    os.mkfifo(f"{user_box.home}/pipe")
    for word, message in ((user_box.home, "directory"), (f"{user_box.home}/absent", "No such file"),
                          (f"{user_box.home}/pipe", "not a file")):  # fmt: skip
        result = show(user_box, word)
        assert (result.returncode, message in result.stderr) == (125, True), result.stderr
    assert show(user_box).returncode == 125


def test_a_link_to_what_is_hidden_is_refused_and_one_to_pictures_works(user_box):
    # proves TOOL-10, C26
    user_box.write(f"{user_box.home}/.ssh/id", "CANARY")
    user_box.write(f"{user_box.home}/Pictures/x", "picture")
    state = user_box.mkdir(f"{user_box.home}/.claudebox")
    os.chmod(state, 0o700)
    for target, status in (("../.ssh", 125), ("..", 125), ("../Pictures", 0)):
        os.symlink(target, f"{state}/drop")
        result = user_box.sh(f"cat {state}/drop/x")
        assert result.returncode == status, (target, result.stderr)
        os.unlink(f"{state}/drop")


def test_a_link_that_an_agent_made_is_not_followed(user_box):
    # proves TOOL-10
    key = user_box.write(f"{user_box.home}/.ssh/id_rsa", "CANARY")
    user_box.sh(f"ln -s {key} shot.png; ln -s {os.path.dirname(key)} shots; echo picture >real.png")

    for word in ("shot.png", "shots/id_rsa"):
        result = show(user_box, word)
        assert result.returncode == 125
        assert f"leads to `{key}` through a link" in result.stderr
    assert not os.path.exists(f"{user_box.home}/.claudebox/drop/shot.png")
    assert show(user_box, "real.png").returncode == 0, "the control"
