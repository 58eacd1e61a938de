from __future__ import annotations

import pytest

from claudebox.base.errors import ClaudeboxError
from claudebox.settings import layers, parsers
from claudebox.settings.records import MountRequest, NameRequest, Policy, UndoRequest
from claudebox.tables.paths import UNKEPT

HOME, WORKDIR = "/home/alice", "/home/alice/project"


def decide(*argv: str, **environ: str) -> Policy:
    return layers.decide_policy(layers.read_settings(argv, environ), home=HOME, workdir=WORKDIR)


def mount(value: str) -> MountRequest:
    return decide("--mount-ro", value).mounts[0]


def test_without_flags_the_client_runs_with_the_words_it_was_given():
    # proves D-01
    undo = UndoRequest(keep=10, most=64 << 20, excluded=UNKEPT, patient=True)
    assert decide("-p", "hello") == Policy("client", ("-p", "hello"), auth="broker", undo=undo)


def test_how_many_sessions_can_be_undone():
    # proves UNDO-01
    assert decide("--set", "undo_keep=0").undo is None
    found = decide("--set", "undo_keep=3", "--set", "undo_size=2", "--set", "undo_exclude=cache", "--shell").undo
    assert found == UndoRequest(3, 2 << 20, (*UNKEPT, "cache"))
    for words in (
        ("--set", "undo_keep=-1"),
        ("--set", "undo_keep=many"),
        ("--set", "undo_size=999999999999999999999999"),
        ("--set", "undo_exclude=../b"),
    ):
        with pytest.raises(ClaudeboxError):
            decide(*words)


def test_exec_runs_the_words_after_the_dashes():
    assert decide("--exec", "--", "make", "-j2").program == "exec"
    assert decide("--exec", "--", "make", "-j2").words == ("make", "-j2")


def test_shell_opens_a_shell():
    assert decide("--shell").program == "shell"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--exec",), "`--exec` needs a command"),
        (("--exec", "--"), "`--exec` needs a command"),
        (("--exec", "--", "--version"), "`--version` is not the name of a program"),
    ],
)
def test_exec_needs_a_program(argv, message):
    # proves C12
    with pytest.raises(ClaudeboxError, match=message):
        decide(*argv)


def test_every_wish_keeps_its_origin():
    # proves NET-T
    policy = decide(
        "--network", "none", "--env", "B", "--mount-rw", "/x", "--mount-ro", "/y",
        "--set", "allow_userns=true", "--set", "unsafe_mounts=true",
        CLAUDEBOX_EXTRA_ENV="A",
    )  # fmt: skip

    assert (policy.network, policy.network_origin) == ("none", "--network")
    assert policy.names == (NameRequest("A", "CLAUDEBOX_EXTRA_ENV"), NameRequest("B", "--env"))
    assert policy.mounts == (
        MountRequest("/y", "/y", writable=False, origin="--mount-ro"),
        MountRequest("/x", "/x", writable=True, origin="--mount-rw"),
    )
    assert policy.allow_userns
    assert policy.unsafe_mounts


@pytest.mark.parametrize("name", ["A", "_", "a1", "PATH_2", "_x"])
def test_ordinary_names_of_variables_are_taken(name):
    assert parsers.valid_name(name)
    assert decide("--env", name).names[0].name == name


@pytest.mark.parametrize(
    "name", ["", "1A", "A=B", "A B", "A-B", "A.B", "Ä", "٣", "A\nB", "\udcff", "--bind", "A\0", " A", "A*", "½", "A²"]
)
def test_a_name_on_which_programs_disagree_is_no_name(name):
    # proves A14, D-03
    assert not parsers.valid_name(name)


@pytest.mark.parametrize("argv", [("--env", "A B"), ("--env=A B",), ("--env", "1A"), ("--env", "a\x1bb")])
def test_a_bad_name_is_refused_with_the_flag_that_gave_it(argv):
    # proves D-03
    with pytest.raises(ClaudeboxError, match=r"`--env`: `.*` is not the name of a variable") as caught:
        decide(*argv)
    assert "no value" in caught.value.hint

    with pytest.raises(ClaudeboxError, match="`CLAUDEBOX_EXTRA_ENV`: `A=B`"):
        decide(CLAUDEBOX_EXTRA_ENV="A=B")


@pytest.mark.parametrize(
    ("value", "source", "dest"),
    [
        ("/data", "/data", "/data"),
        ("/data/", "/data", "/data"),
        ("/data:/d", "/data", "/d"),
        ("~/data", f"{HOME}/data", f"{HOME}/data"),
        ("~:/mnt/home", HOME, "/mnt/home"),
        ("/data:~/data", "/data", f"{HOME}/data"),
        ("data", f"{WORKDIR}/data", f"{WORKDIR}/data"),
        ("../other:/o", "/home/alice/other", "/o"),
        ("./a/../b:/b", f"{WORKDIR}/b", "/b"),
        (r"/a\:b", "/a:b", "/a:b"),
        (r"/a\:b:/c\:d", "/a:b", "/c:d"),
        ("/a:/b:c", "/a", "/b:c"),
        (r"/a\b", r"/a\b", r"/a\b"),
        (r"/a\\:/b", "/a\\\\", "/b"),
        ("/a\\", "/a\\", "/a\\"),
        ("/a b:/c d", "/a b", "/c d"),
        ("/a\udcff", "/a\udcff", "/a\udcff"),
        ("/~", "/~", "/~"),
        ("~bob", f"{WORKDIR}/~bob", f"{WORKDIR}/~bob"),
    ],
)
def test_a_mount_names_a_source_and_perhaps_a_destination(value, source, dest):
    # proves EXT-02
    assert mount(value) == MountRequest(source, dest, writable=False, origin="--mount-ro")


@pytest.mark.parametrize("value", ["/x://usr/bin", "/x:///usr/bin", "/x:/usr//bin/.", "/x:/usr/bin/"])
def test_another_spelling_of_a_destination_is_the_same_destination(value):
    # proves C27
    assert mount(value).dest == "/usr/bin"


def test_two_slashes_in_front_of_a_source_are_one():
    assert mount("//data").source == "/data"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (":/b", "names no source"),
        (":", "names no source"),
        ("/a:", "the destination `` is not an absolute path"),
        ("/a:b", "the destination `b` is not an absolute path"),
        ("/a:~", "the destination `~` is not an absolute path"),
        ("/a:ro", "the destination `ro` is not an absolute path"),
        ("/a:/b/../../etc", r"the destination `/b/../../etc` contains `\.\.`"),
        ("/a:~/../bob", r"contains `\.\.`"),
    ],
)
def test_a_mount_that_cannot_be_meant_is_refused(value, message):
    # proves EXT-02, C27
    with pytest.raises(ClaudeboxError, match=message):
        mount(value)


def test_the_hint_for_a_strange_destination_tells_how_to_write_a_colon():
    with pytest.raises(ClaudeboxError) as caught:
        mount("/a:b")

    assert r"`\:`" in caught.value.hint
