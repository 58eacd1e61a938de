"""Files that a user redirects are read and written for the sandbox; none of them is handed in."""

from __future__ import annotations

import os
import random
import resource
import socket
import subprocess
from pathlib import Path

import pytest
from tests.conftest import wait_until
from tests.support.terminals import command, content

# Tries to have more of its standard descriptors than the bytes that are meant for it.
REACHING = """\
import os
for number in (0, 1, 2):
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_TRUNC, os.O_RDWR):
        try:
            descriptor = os.open(f"/proc/self/fd/{number}", flags | os.O_NONBLOCK)
            if flags != os.O_RDONLY:
                os.write(descriptor, b"evil")
            if flags != os.O_WRONLY | os.O_TRUNC:
                print("found", os.pread(descriptor, 100, 0), flush=True)
        except OSError as error:
            pass
    try:
        os.lseek(number, 0, os.SEEK_SET)
        os.ftruncate(number, 0)
    except OSError as error:
        print(number, error.strerror, flush=True)
"""


def run(box, line, *words):
    """Run a line of a host's shell in the project."""
    return box.host("sh", "-c", line, *words, timeout=120)


@pytest.mark.parametrize(
    "redirection", ["<prompt >>log", "<prompt >>log 2>&1", "<prompt 1<>log 2>>log", "<>prompt >>log"]
)
def test_redirected_files_are_out_of_reach(box, redirection):
    # proves A21, OLD-A6
    outside = box.mkdir(f"{box.base}/outside")
    program = box.write("reaching.py", REACHING)
    box.write(f"{outside}/prompt", "the prompt\n")
    box.write(f"{outside}/log", "an earlier secret\n" * 100)
    redirected = redirection.replace("prompt", f"{outside}/prompt").replace("log", f"{outside}/log")

    run(box, f"{command(box, 'python3', program)} {redirected}")
    log = Path(f"{outside}/log").read_text()
    assert "earlier" not in log.replace("an earlier secret\n", "")
    assert log.count("an earlier secret\n") >= (90 if "<>log" in redirection else 100)
    assert "Illegal seek" in log
    assert Path(f"{outside}/prompt").read_text() == "the prompt\n"

    run(box, f"python3 {program} {redirected}")  # control
    assert "an earlier secret\n" * 90 not in Path(f"{outside}/log").read_text()


def test_a_lot_of_data_goes_through_unchanged(user_box):
    data = random.Random(30).randbytes(30 << 20)
    user_box.write("in", data)

    result = run(user_box, f"{command(user_box, 'cat')} <in >out")

    assert result.returncode == 0, result.stderr
    assert Path(f"{user_box.project}/out").read_bytes() == data


def test_output_and_errors_in_one_file_keep_their_order(user_box):
    script = user_box.write(
        "script.sh", "i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i + 1)); done"
    )

    run(user_box, f"{command(user_box, 'sh', script)} >log 2>&1")

    lines = [line for line in Path(f"{user_box.project}/log").read_text().splitlines() if line[:4] in ("out ", "err ")]
    assert lines == [f"{name} {number}" for number in range(500) for name in ("out", "err")]


def test_status_and_end_of_file_are_as_without_a_sandbox(user_box):
    user_box.write("in", "one\ntwo\n")

    assert run(user_box, f"{command(user_box, 'sh', '-c', 'wc -l; exit 7')} <in >out").returncode == 7
    assert Path(f"{user_box.project}/out").read_text().strip() == "2"


def test_what_was_not_read_is_left_for_the_next_reader(user_box):
    user_box.write("in", "".join(f"line {number}\n" for number in range(5)))
    line = f'while read -r line; do echo "$line" >>seen; {command(user_box, "true")}; done <in'

    assert run(user_box, line).returncode == 0
    assert Path(f"{user_box.project}/seen").read_text() == Path(f"{user_box.project}/in").read_text()


def test_a_large_input_that_nobody_reads_does_not_hold_it_up(user_box):
    user_box.write("in", bytes(8 << 20))

    assert run(user_box, f"{command(user_box, 'true')} <in").returncode == 0


def test_output_that_cannot_be_written_is_not_lost_in_silence(user_box):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, 256 << 10))

    line = f"{command(user_box, 'sh', '-c', 'head -c 500000 /dev/zero; exit 0')} >out"
    result = user_box.host("sh", "-c", line, preexec_fn=limit)

    assert result.returncode != 0
    assert "standard output could not be written: File too large" in result.stderr


@pytest.mark.parametrize("private", [False, True])
def test_a_connection_of_the_host_carries_bytes_and_nothing_else(user_box, private):
    # proves A21
    program = (
        "import os, socket, sys\n"
        "try:\n"
        "    socket.socket(fileno=os.dup(0)).getpeername()\n"
        "    print('reached', flush=True)\n"
        "except OSError as error:\n"
        "    print(error.strerror, flush=True)\n"
        "print(sys.stdin.readline(), end='')\n"
    )
    words = ("python3", user_box.write("program.py", program))
    options = ("--set", "terminal=filtered") if private else ()
    for argv, expected in (((), "reached"), ((user_box.program, "-y", *options, "--exec", "--"), "Socket operation")):
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()) as client,
            server.accept()[0] as connection,
        ):
            process = subprocess.Popen(
                    (*argv, *words), cwd=user_box.project, env=user_box.variables(), stdin=connection,
                    stdout=connection, stderr=subprocess.DEVNULL, **user_box.account.demotion,
                )  # type: ignore[call-overload]  # fmt: skip
            connection.close()
            client.sendall(b"something\n")
            with client.makefile() as lines:
                assert lines.readline().startswith(expected)
                assert lines.readline() == "something\n"
            assert process.wait(30) == 0


def test_a_script_from_standard_input_and_shell_documents_work(user_box):
    result = run(user_box, f"{command(user_box, 'sh')} <<END\necho from a document\nEND")

    assert result.stdout == "from a document\n"


def test_what_is_written_appears_at_once(user_box, background):
    process = background(
        user_box, "sh", "-c", f"{command(user_box, 'sh', '-c', 'echo first; read x <fifo; exit 3')} >out"
    )
    os.mkfifo(f"{user_box.project}/fifo")
    os.chown(f"{user_box.project}/fifo", user_box.account.uid, user_box.account.gid)

    wait_until(lambda: content(f"{user_box.project}/out") == "first\n", "the first line")
    Path(f"{user_box.project}/fifo").write_text("go\n")
    assert process.wait(20) == 3
