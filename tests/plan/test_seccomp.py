"""The filter is interpreted here as the kernel would, so that every verdict is seen and not only the bytes."""

from __future__ import annotations

import struct

import pytest

from claudebox.plan import seccomp
from claudebox.plan.seccomp import ARCHITECTURES, SYSCALLS

ALLOW = "allow"
EPERM, ENOSYS, EAFNOSUPPORT, EPROTONOSUPPORT = 1, 38, 97, 93
X86_64, AARCH64, I386, ARM = 0xC000003E, 0xC00000B7, 0x40000003, 0x40000028
MACHINES = ["x86_64", "aarch64"]
TIOCSTI, TIOCLINUX, TIOCSETD, TCGETS = 0x5412, 0x541C, 0x5423, 0x5401
CLONE_NEWUSER, CLONE_NEWNS, CLONE_THREAD, SIGCHLD = 0x10000000, 0x20000, 0x10000, 17
HIGH = 0xDEADBEEF << 32

# What must never work, by the names of the kernel's tables; the numbers are looked up in a table of this file.
DENIED = {
    "acct", "add_key", "bpf", "delete_module", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module",
    "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kexec_file_load", "kexec_load",
    "keyctl", "modify_ldt", "mount", "mount_setattr", "move_mount", "open_by_handle_at", "open_tree", "open_tree_attr",
    "perf_event_open", "pivot_root", "quotactl", "quotactl_fd", "request_key", "setns", "swapoff", "swapon", "syslog",
    "umount2", "userfaultfd",
}  # fmt: skip
# Copied from asm/unistd_64.h and asm-generic/unistd.h, not from the module under test.
NUMBERS = {
    "x86_64": {
        "read": 0, "ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "execve": 59, "ptrace": 101, "syslog": 103,
        "modify_ldt": 154, "pivot_root": 155, "acct": 163, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168,
        "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179, "kexec_load": 246,
        "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298,
        "open_by_handle_at": 304, "setns": 308, "finit_module": 313, "kexec_file_load": 320, "bpf": 321,
        "userfaultfd": 323, "kill": 62, "setpriority": 141, "ioprio_set": 251,
    },
    "aarch64": {
        "ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "quotactl": 60, "read": 63, "acct": 89,
        "unshare": 97,
        "kexec_load": 104, "init_module": 105, "delete_module": 106, "syslog": 116, "ptrace": 117, "socket": 198,
        "socketpair": 199,
        "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "execve": 221, "swapon": 224, "swapoff": 225,
        "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268, "finit_module": 273, "bpf": 280,
        "userfaultfd": 282, "kexec_file_load": 294, "kill": 129, "setpriority": 140, "ioprio_set": 30,
    },
}  # fmt: skip
_SINCE_5_1 = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "mount_setattr": 442,
    "quotactl_fd": 443, "open_tree_attr": 467,
}  # fmt: skip
for _table in NUMBERS.values():
    _table.update(_SINCE_5_1)


def run(program: bytes, architecture: int, number: int, *arguments: int) -> str | int:
    """Return the verdict of a classic BPF program: `allow`, or the error that the caller sees."""
    padded = [argument & (1 << 64) - 1 for argument in (*arguments, *[0] * 6)][:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, architecture, 0x7F00DEADBEEF, *padded)
    instructions = list(struct.iter_unpack("<HBBI", program))
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, constant = instructions[position]
        position += 1
        if code == 0x20:  # load a word of the data
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif code in (0x15, 0x35, 0x45):  # equal, at least, any bit in common
            holds = {0x15: accumulator == constant, 0x35: accumulator >= constant, 0x45: bool(accumulator & constant)}
            position += if_true if holds[code] else if_false
        elif code == 0x06:
            if constant == 0x7FFF0000:
                return ALLOW
            assert constant >> 16 == 0x0005, f"an unexpected action: {constant:#x}"
            return int(constant & 0xFFFF)
        else:
            pytest.fail(f"an instruction that the kernel's checker would not take here: {code:#x}")


@pytest.fixture(params=MACHINES)
def machine(request):
    """Return the name of each machine that has a filter."""
    return request.param


def verdict(machine: str, name: str, *arguments: int, **options: bool) -> str | int:
    program = seccomp.build(machine, **options)
    assert program is not None
    return run(program, {"x86_64": X86_64, "aarch64": AARCH64}[machine], NUMBERS[machine][name], *arguments)


@pytest.mark.parametrize("options", [{}, {"allow_userns": True}])
def test_the_kernel_would_accept_the_program(machine, options):
    # proves E08
    program = seccomp.build(machine, **options)
    assert program is not None
    assert len(program) % 8 == 0
    instructions = list(struct.iter_unpack("<HBBI", program))
    assert 1 < len(instructions) <= 4096
    for position, (code, if_true, if_false, constant) in enumerate(instructions):
        assert code in (0x20, 0x15, 0x35, 0x45, 0x06)
        if code == 0x20:
            assert constant % 4 == 0
            assert constant < 64
        if code in (0x15, 0x35, 0x45):
            assert position + 1 + max(if_true, if_false) < len(instructions)
        else:
            assert (if_true, if_false) == (0, 0)
    assert instructions[-1][0] == 0x06


@pytest.mark.parametrize("options", [{}, {"allow_userns": True}])
def test_every_instruction_can_be_reached(machine, options):
    # A jump that is off by one would leave dead instructions behind.
    instructions = list(struct.iter_unpack("<HBBI", seccomp.build(machine, **options) or b""))
    reached, waiting = set(), [0]
    while waiting:
        position = waiting.pop()
        if position in reached:
            continue
        reached.add(position)
        code, if_true, if_false, _ = instructions[position]
        if code == 0x20:
            waiting.append(position + 1)
        elif code != 0x06:
            waiting += [position + 1 + if_true, position + 1 + if_false]
    assert reached == set(range(len(instructions)))


@pytest.mark.parametrize("name", sorted(DENIED))
def test_a_dangerous_call_is_denied(machine, name):
    # proves A08, A09, H02, C24, H06
    if name not in NUMBERS[machine]:
        assert SYSCALLS[name][MACHINES.index(machine)] is None
        return
    assert verdict(machine, name) == EPERM
    assert verdict(machine, name, *[HIGH | 0xFFFFFFFF] * 6) == EPERM


def test_the_table_of_numbers_is_that_of_the_kernel(machine):
    column = MACHINES.index(machine)
    for name, numbers in SYSCALLS.items():
        assert numbers[column] == NUMBERS[machine].get(name), name


@pytest.mark.parametrize("name", ["read", "execve", "ptrace"])
def test_ordinary_calls_are_allowed(machine, name):
    assert verdict(machine, name) == ALLOW


def test_every_number_outside_of_the_table_is_allowed(machine):
    # Not a list of what is permitted: a new call of the kernel must not break programs.
    program = seccomp.build(machine) or b""
    architecture = ARCHITECTURES[machine][1]
    known = {numbers[MACHINES.index(machine)] for numbers in SYSCALLS.values()}

    for number in range(600):
        if number not in known:
            assert run(program, architecture, number) == ALLOW, number


@pytest.mark.parametrize("command", [TIOCSTI, TIOCLINUX, TIOCSETD])
@pytest.mark.parametrize("high", [0, 1 << 32, HIGH, 0xFFFFFFFF << 32])
def test_nothing_is_typed_into_a_terminal(machine, command, high):
    # proves B01, B02, B04
    assert verdict(machine, "ioctl", 0, command | high) == EPERM


def test_other_ioctls_work(machine):
    assert verdict(machine, "ioctl", 0, TCGETS) == ALLOW
    assert verdict(machine, "ioctl", TIOCSTI, TCGETS, TIOCSTI) == ALLOW
    assert verdict(machine, "ioctl", 0, TIOCSTI << 32) == ALLOW


@pytest.mark.parametrize("family", [1, 2, 10])
def test_sockets_that_programs_use_can_be_made(machine, family):
    assert verdict(machine, "socket", family, 1, 0) == ALLOW
    assert verdict(machine, "socket", family | HIGH, 1, 0) == ALLOW


def test_pairs_of_sockets_are_of_one_family(machine):
    # proves F22, OLD-A27
    allowed = {family for family in range(64) if verdict(machine, "socketpair", family, 1, 0) == ALLOW}

    assert allowed == {1}
    assert verdict(machine, "socketpair", 1 | HIGH, 1, 0) == ALLOW
    assert verdict(machine, "socketpair", 30 | HIGH, 1, 0) == EAFNOSUPPORT


def test_no_other_family_of_sockets_can_be_made(machine):
    # proves F17, F21
    for family in {*range(64), 0xFFFFFFFF} - {1, 2, 10, 16}:
        assert verdict(machine, "socket", family, 1, 0) == EAFNOSUPPORT, family
    assert verdict(machine, "socket", 40 | HIGH, 1, 0) == EAFNOSUPPORT


def test_netlink_speaks_only_the_protocols_that_programs_use(machine):
    # proves H02
    allowed = {protocol for protocol in range(32) if verdict(machine, "socket", 16, 3, protocol) == ALLOW}

    assert allowed == {0, 4, 15, 16}
    assert verdict(machine, "socket", 16, 3, 6) == EPROTONOSUPPORT
    assert verdict(machine, "socket", 16, 3, 12 | HIGH) == EPROTONOSUPPORT
    assert verdict(machine, "socket", 16 | HIGH, 3, 12) == EPROTONOSUPPORT


@pytest.mark.parametrize("name", ["clone", "unshare"])
def test_no_user_namespace_can_be_made(machine, name):
    # proves H01, C24
    for flags in (CLONE_NEWUSER, CLONE_NEWUSER | CLONE_NEWNS | SIGCHLD, CLONE_NEWUSER | HIGH):
        assert verdict(machine, name, flags) == EPERM


def test_threads_and_processes_can_be_made(machine):
    assert verdict(machine, "clone", SIGCHLD) == ALLOW
    assert verdict(machine, "clone", CLONE_THREAD) == ALLOW
    assert verdict(machine, "clone", 0, CLONE_NEWUSER, CLONE_NEWUSER) == ALLOW
    assert verdict(machine, "unshare", CLONE_NEWNS) == ALLOW


def test_clone3_looks_absent_so_that_libraries_fall_back(machine):
    # proves H02
    assert verdict(machine, "clone3") == ENOSYS


NESTING = sorted({
    "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree", "open_tree_attr",
    "pivot_root", "setns", "umount2",
})  # fmt: skip


@pytest.mark.parametrize("name", NESTING)
def test_allowed_user_namespaces_can_be_filled(machine, name):
    assert verdict(machine, name, allow_userns=True) == ALLOW
    assert verdict(machine, name) == EPERM


def test_allowed_user_namespaces_can_be_made(machine):
    assert verdict(machine, "clone", CLONE_NEWUSER, allow_userns=True) == ALLOW
    assert verdict(machine, "unshare", CLONE_NEWUSER, allow_userns=True) == ALLOW
    assert verdict(machine, "clone3", allow_userns=True) == ALLOW


@pytest.mark.parametrize("name", sorted(DENIED - set(NESTING)))
def test_allowing_user_namespaces_allows_nothing_else(machine, name):
    # proves A08, H02
    if name in NUMBERS[machine]:
        assert verdict(machine, name, allow_userns=True) == EPERM
    assert verdict(machine, "ioctl", 0, TIOCSTI, allow_userns=True) == EPERM
    assert verdict(machine, "socket", 40, allow_userns=True) == EAFNOSUPPORT


@pytest.mark.parametrize("foreign", [I386, ARM, 0, 0xFFFFFFFF])
def test_code_for_another_machine_gets_nowhere(machine, foreign):
    # proves B03
    program = seccomp.build(machine) or b""

    for number in (0, 1, 16, 41, 54, 1 << 30):
        assert run(program, foreign, number, 0, TIOCSTI) == ENOSYS


def test_one_machine_is_foreign_to_the_other():
    # proves B03
    assert run(seccomp.build("x86_64") or b"", AARCH64, 63) == ENOSYS
    assert run(seccomp.build("aarch64") or b"", X86_64, 0) == ENOSYS


def test_the_x32_way_into_the_kernel_is_closed():
    # proves B03
    program = seccomp.build("x86_64") or b""

    for number in (0, 16, 514, 0x3FFFFFFF, -1 - 0x40000000):
        assert run(program, X86_64, (number | 0x40000000) & 0xFFFFFFFF, 0, TIOCSTI) == ENOSYS
    assert run(program, X86_64, 0xFFFFFFFF) == ENOSYS
    assert run(program, X86_64, 0x3FFFFFFF) == ALLOW


@pytest.mark.parametrize("machine", ["riscv64", "i686", "armv7l", "", "X86_64"])
def test_there_is_no_filter_for_a_machine_without_a_table(machine):
    # proves E08
    assert seccomp.build(machine) is None
