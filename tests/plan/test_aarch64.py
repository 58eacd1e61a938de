"""The table of system calls for aarch64, executed by a Python of that architecture in user emulation.

The emulator names each call by a table of its own, which is the independent witness. It knows no seccomp filters, no
Landlock and no namespaces of that architecture: the filter itself is interpreted (tests/plan/test_seccomp.py).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from tests.conftest import REPOSITORY, need
from tests.plan.test_seccomp import AARCH64, ALLOW, EPERM, run
from tests.support.sandbox import PROBES

from claudebox.plan import seccomp

pytestmark = [pytest.mark.process, pytest.mark.slow]

TREE = "/var/cache/claudebox-tests/arm64/root"
SHARED_NUMBERS = 424  # from here on calls have one number on every architecture
# What older emulators do not know; their numbers are those of asm-generic/unistd.h.
UNKNOWN = {"open_by_handle_at": 265, "kexec_file_load": 294}


@pytest.fixture(scope="module")
def emulated() -> tuple[dict[str, str], str]:
    """Return what the emulator took each call for, and what the program printed."""
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64") or ""
    need(emulator and os.path.isdir(TREE), "qemu-user-static and packages of arm64 (scripts/setup --test)")
    # Without privileges and apart from everything: the calls are made for real.
    box = (
        "bwrap", "--unshare-all", "--cap-drop", "ALL", "--tmpfs", "/", "--ro-bind", f"{TREE}/usr", "/usr",
        "--symlink", "usr/lib", "/lib", "--proc", "/proc", "--dev", "/dev", "--ro-bind", emulator, "/emulator",
        "--ro-bind", str(REPOSITORY / "src"), "/src", "--ro-bind", str(PROBES / "aarch64.py"), "/probe.py",
    )  # fmt: skip
    words = ("/emulator", "-strace", "/usr/bin/python3", "-IS", "/probe.py", "/src")
    result = subprocess.run([*box, *words], capture_output=True, text=True, timeout=200, check=False, env={})
    assert result.returncode == 0, result.stderr[-1000:]
    taken = {}
    for name, said in re.findall(r"^@(\w+)\n(.*?)(?=^@)", result.stderr, re.MULTILINE | re.DOTALL):
        call = re.search(r"^\d+ (?:(\w+)\(|Unknown syscall (\d+))", said.partition("\n")[2], re.MULTILINE)
        assert call, said
        taken[name] = call[1] or call[2]
    return taken, result.stdout


def test_the_emulator_takes_every_number_for_the_call_that_the_table_means(emulated):
    # proves HOST-14
    taken, _ = emulated
    wanted = {name: row[1] for name, row in seccomp.SYSCALLS.items() if row[1] is not None}
    assert set(taken) == set(wanted)
    wrong = {name: told for name, told in taken.items() if told not in (name, f"{wanted[name]}")}
    assert not wrong
    guessed = {name: wanted[name] for name, told in taken.items() if told != name}
    assert {name: number for name, number in guessed.items() if number < SHARED_NUMBERS}.items() <= UNKNOWN.items()
    assert len(taken) - len(guessed) > len(taken) // 2  # the control: most of them were named


def test_the_filter_that_is_built_there_is_the_one_for_aarch64(emulated):
    # proves HOST-14
    machine, text, landlock = emulated[1].split()
    program = bytes.fromhex(text)

    assert (machine, landlock) == ("aarch64", "True")
    assert program == seccomp.build("aarch64")
    assert run(program, AARCH64, 219, 0) == EPERM  # keyctl
    assert run(program, AARCH64, 63, 0) == ALLOW  # read
