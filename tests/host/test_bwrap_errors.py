from __future__ import annotations

import os

import pytest

from claudebox.host import remedies


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("bwrap: setting up uid map: Permission denied\n", "the user namespace could not be made: setting up uid map"),
        ("bwrap: No permissions to create a new namespace, likely because", "the user namespace could not be made"),
        ("bwrap: Creating new namespace failed: Operation not permitted", "the user namespace could not be made"),
        ("bwrap: Unknown option --disable-userns", "bwrap is too old: Unknown option"),
        (
            "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
            "/proc of the sandbox could not be mounted",
        ),
        ("bwrap: prctl(PR_SET_SECCOMP): Invalid argument", "the seccomp filter could not be installed"),
        ("claudebox: Landlock did not take the restriction", "Landlock could not be put in force"),
        (
            "bwrap: Can't find source path /x: No such file",
            "something that is mounted was replaced or removed while the sandbox was being built: Can't find source",
        ),
        (
            "bwrap: Can't find source path /x: Permission denied",
            "bwrap could not set up the sandbox: Can't find source path /x",
        ),
        ("", "bwrap could not set up the sandbox: no error output"),
        ("\n", "bwrap could not set up the sandbox: no error output"),
    ],
)
def test_the_last_words_of_bwrap_become_what_is_wrong_and_a_remedy(said, message):
    # proves UX-05, SAND-14
    error = remedies.explain(said)

    assert error.message.startswith(message)
    assert error.hint
    assert error.status == 125


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kernel/unprivileged_userns_clone": b"0"}, ["kernel.unprivileged_userns_clone=1"]),
        ({"user/max_user_namespaces": b"0"}, ["user.max_user_namespaces=15000", "/etc/sysctl.d"]),
        ({}, ["container", "chroot", "seccomp=unconfined"]),
        ({"user/max_user_namespaces": b"15000"}, ["seccomp=unconfined"]),
    ],
)
def test_the_remedy_is_the_one_of_this_machine(monkeypatch, settings, words):
    # proves UX-05
    monkeypatch.setattr(remedies, "_read_sysctl", lambda name: settings.get(name, b""))

    for word in words:
        assert word in remedies.namespace_remedy("/opt/bwrap")


@pytest.mark.parametrize(
    "said",
    [
        "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
        "bwrap: Failed to make / slave: Permission denied",
        "bwrap: setting up gid map: Permission denied",
        "bwrap: pivot_root: Operation not permitted",
        "bwrap: capset failed: Operation not permitted",
    ],
)
@pytest.mark.parametrize(
    ("files", "remedy"),
    [
        ((), "/etc/apparmor.d/claudebox-bwrap"),
        (("/etc/apparmor.d/bwrap-userns-restrict",), "apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict"),
        (("/usr/share/apparmor/extra-profiles/bwrap-userns-restrict",), "sudo cp /usr/share/apparmor/extra-profiles"),
    ],
)
def test_every_symptom_of_ubuntus_restriction_has_its_remedy(monkeypatch, said, files, remedy):
    # proves UX-05, HOST-01
    monkeypatch.setattr(os.path, "isfile", lambda path: path in files)
    plain = remedies.explain(said)
    monkeypatch.setattr(remedies, "is_restricted", lambda: True)
    restricted = remedies.explain(said)

    assert remedy in restricted.hint
    assert "apparmor" not in plain.hint
    assert 'claudebox-bwrap "/opt/bwrap" ' in remedies.explain(said, "/opt/bwrap").hint  # no profile is about it
    assert "install bubblewrap at /usr/bin/bwrap" in remedies.explain(said, "/opt/*/bwrap").hint


def test_settings_of_the_kernel_are_read():
    assert remedies._read_sysctl("kernel/ostype") == b"Linux"
    assert remedies._read_sysctl("kernel/no_such_setting") == b""
