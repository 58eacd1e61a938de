"""The real client at a terminal of the sandbox's own, as the strict posture gives it."""

from __future__ import annotations

import signal

from tests.support.client import conversation, equip, flags, variables


def test_the_client_works_at_a_private_terminal(user_box, model, real_client, terminal):
    # proves B07, SAND-15, EXT-03
    equip(user_box, real_client)
    served = model(conversation("remember", {"say": "I remember everything"}))
    env = variables(served)
    screen = terminal(user_box, env)

    screen.shell(user_box.program, "-y", "--set", "terminal=filtered", *flags(env))
    screen.expect("bypass permissions on")
    screen.type("do you remember me")
    screen.expect("I remember everything")
    screen.resize(72, 24)
    narrow = screen.expect("bypass permissions on")
    assert max(len(line) for line in narrow.splitlines()) <= 72
    screen.key("C-z")
    screen.expect("Stopped")
    assert screen.status() == 128 + signal.SIGTSTP
    screen.shell("fg")
    screen.expect_gone("Stopped")
    screen.type("/exit")
    screen.expect("resume: claudebox --resume")
    assert screen.status() == 0
    assert screen.modes()["alternate_on"] == "0"
