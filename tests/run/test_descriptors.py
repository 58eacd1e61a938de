"""Only standard input, output and error are open inside, whatever a shell or an editor left open outside."""

from __future__ import annotations

import os
import resource
import subprocess

import pytest

NUMBERS = (3, 4, 5, 6, 7, 8, 9, 10, 23, 60, 255, 1000)
LISTING = "for fd in /proc/self/fd/*; do printf '%s ' \"${fd##*/}\"; done"


def start_with_descriptors(box, opened: dict[int, int], argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program that inherits the descriptors under these numbers."""

    def place() -> None:
        high = {number: os.dup2(descriptor, 2000 + number) for number, descriptor in opened.items()}
        for number, descriptor in high.items():
            os.dup2(descriptor, number)
            os.close(descriptor)

    return subprocess.run(
        argv, cwd=box.project, env=box.variables(), capture_output=True, text=True, check=False, timeout=60,
        stdin=subprocess.DEVNULL, close_fds=False, preexec_fn=place, **box.account.demotion,
    )  # fmt: skip


def test_inherited_descriptors_are_closed_whatever_their_number(box):
    # proves A04
    secret = box.write(f"{box.home}/secret", "secret of the host")
    directory = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    file = os.open(secret, os.O_RDWR)
    opened = {number: directory if number % 2 else file for number in NUMBERS}
    script = f"{LISTING}; cat <&4; cat <&8; cat /proc/self/fd/3{secret}; echo changed >/proc/self/fd/7{secret}"
    try:
        control = start_with_descriptors(box, opened, ["sh", "-c", script])
        os.truncate(secret, 0)
        os.pwrite(file, b"secret of the host", 0)
        inside = start_with_descriptors(box, opened, [box.program, "-y", "--exec", "--", "sh", "-c", script])
        kept = os.pread(file, 100, 0)
    finally:
        os.close(directory)
        os.close(file)

    assert set(map(str, NUMBERS)) <= set(control.stdout.split())
    assert "secret of the host" in control.stdout
    assert inside.stdout.split() == ["0", "1", "2", "3"]  # 3 is the shell's own, on the directory that it lists
    assert "secret" not in inside.stdout
    assert kept == b"secret of the host"


def test_what_is_left_open_while_a_launch_is_prepared_stays_outside(user_box, altered):
    """A library of the system may open something of its own when values are fetched."""
    # proves A04
    begin = "    descriptors: list[int] = []\n"
    left = '    os.set_inheritable(os.dup2(os.open("/etc/hostname", os.O_RDONLY), 77), True)\n'
    altered(user_box, edits={"run/prepare.py": (begin, begin + left)})

    result = user_box.run("sh", "-c", LISTING)

    assert result.stdout.split() == ["0", "1", "2", "3"], result.stderr


def test_no_process_inside_holds_a_descriptor_on_the_host(box):
    # proves A04, A02
    script = "for fd in /proc/[0-9]*/fd/*; do readlink $fd; done | sort -u"

    result = box.host(box.program, "-y", "--exec", "--", "sh", "-c", script, stdin=subprocess.DEVNULL)

    lines = result.stdout.split("\n")
    assert "/dev/null" in lines  # the control: links were read
    assert not [line for line in lines if line.startswith("/") and line != "/dev/null" and "/proc/" not in line]
    assert not [line for line in lines if line.startswith(("socket:", "/memfd:"))]


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_nothing_starts_with_a_directory_of_the_host_as_standard_descriptor(user_box, stream):
    # proves A04
    number = ("stdin", "stdout", "stderr").index(stream)
    script = f"[ -e /proc/self/fd/{number}/etc/shadow ] && touch marker"
    plain = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "capture_output": False}
    root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        control = user_box.host("sh", "-c", script, **{**plain, stream: root})
        reached = os.path.exists(f"{user_box.project}/marker")
        os.unlink(f"{user_box.project}/marker")
        inside = user_box.run("sh", "-c", script, **{**plain, stream: root})
    finally:
        os.close(root)

    assert control.returncode == 0
    assert reached
    assert inside.returncode != 0
    assert not os.path.exists(f"{user_box.project}/marker")


def test_limit_of_open_files_inside_is_that_of_the_user(user_box):
    # proves A04
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = (64, limit[1])

    result = user_box.host(
        user_box.program, "-y", "--exec", "--", "sh", "-c", "ulimit -n",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, wanted),
    )  # fmt: skip

    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "64"
