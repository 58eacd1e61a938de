"""Policy → the seccomp filter, as the bytes that `bwrap --seccomp` loads.

A deny-list, assembled by hand: no library, no import. It closes what namespaces leave open: typing into the
host's terminal (B01-B04), the kernel's keyrings (A08, A09), socket families that no network namespace covers
(F17), and the parts of the kernel that attackers like and developers do not need (H01, H02).

Syscalls that are always allowed cost nothing: the kernel remembers them and skips the filter.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


# Two columns: x86_64, aarch64. None where the architecture never had it.
SYSCALLS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "request_key": (249, 218),
    "setns": (308, 268),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH

_KEYRINGS = ("add_key", "keyctl", "request_key")
_ATTACK_SURFACE = (
    "acct", "bpf", "delete_module", "finit_module", "init_module", "io_uring_enter", "io_uring_register",
    "io_uring_setup", "ioperm", "iopl", "kexec_file_load", "kexec_load", "modify_ldt", "open_by_handle_at",
    "perf_event_open", "quotactl", "quotactl_fd", "swapoff", "swapon", "syslog", "userfaultfd",
)  # fmt: skip
_MOUNTS = (
    "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree", "open_tree_attr",
    "pivot_root", "setns", "umount2",
)  # fmt: skip
# TIOCSTI types into the terminal, TIOCLINUX pastes into a console, TIOCSETD loads line disciplines.
_IOCTLS = (0x5412, 0x541C, 0x5423)
_AF_UNIX = 1
_FAMILIES = (_AF_UNIX, 2, 10)  # and AF_INET, AF_INET6
_AF_NETLINK = 16
_NETLINK_PROTOCOLS = (0, 4, 15, 16)  # route, socket diagnosis, device events, generic
_CLONE_NEWUSER = 0x10000000
_X32_BIT = 0x40000000

_EPERM, _ENOSYS, _EAFNOSUPPORT, _EPROTONOSUPPORT = 1, 38, 97, 93
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW = 0x7FFF0000
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16


def build(machine: str, *, allow_userns: bool = False) -> bytes | None:
    """Return the filter for a machine, None where we have no table for it."""
    if machine not in ARCHITECTURES:
        return None
    column, architecture = ARCHITECTURES[machine]
    numbers = {name: row[column] for name, row in SYSCALLS.items()}

    def when(name: str, body: Sequence[Instruction]) -> list[Instruction]:
        """Run the body, which always returns, if this is the syscall."""
        number = numbers[name]
        return [] if number is None else [(_EQUAL, 0, len(body), number), *body]

    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_EQUAL, 1, 0, architecture),
        _deny(_ENOSYS),  # 32-bit code would come through with other numbers (B03)
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    if machine == "x86_64":
        program += [(_AT_LEAST, 0, 1, _X32_BIT), _deny(_ENOSYS)]
    for name in (*_KEYRINGS, *_ATTACK_SURFACE):
        program += when(name, [_deny(_EPERM)])
    program += when("ioctl", _deny_values(1, _IOCTLS))
    program += when("socket", _sockets())
    # Programs make pairs of one family alone; others reach parsers of the kernel that nothing else uses (F22).
    pairs = [_argument(0), *_allow_values((_AF_UNIX,), otherwise=_EAFNOSUPPORT)]
    program += when("socketpair", pairs)
    if not allow_userns:
        for name in _MOUNTS:
            program += when(name, [_deny(_EPERM)])
        # Its flags lie in memory, where a filter cannot look; every C library falls back to clone (CVE-2021-41133).
        program += when("clone3", [_deny(_ENOSYS)])
        for name in ("clone", "unshare"):
            program += when(name, [_argument(0), (_ANY_BIT, 0, 1, _CLONE_NEWUSER), _deny(_EPERM), _allow()])
    program.append(_allow())
    return b"".join(_encode(instruction) for instruction in program)


def _sockets() -> list[Instruction]:
    """Allow the families that programs use, and of netlink the protocols that they use."""
    netlink = [_argument(2), *_allow_values(_NETLINK_PROTOCOLS, otherwise=_EPROTONOSUPPORT)]
    families = [(_EQUAL, len(_FAMILIES) - index, 0, family) for index, family in enumerate(_FAMILIES)]
    return [
        _argument(0),
        (_EQUAL, 0, len(netlink), _AF_NETLINK),
        *netlink,
        *families,
        _deny(_EAFNOSUPPORT),
        _allow(),
    ]


def _deny_values(argument: int, values: Sequence[int]) -> list[Instruction]:
    jumps = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [_argument(argument), *jumps, _allow(), _deny(_EPERM)]


def _allow_values(values: Sequence[int], *, otherwise: int) -> list[Instruction]:
    jumps = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [*jumps, _deny(otherwise), _allow()]


def _argument(index: int) -> Instruction:
    # The low half only: the kernel ignores the high half of these arguments, so must we (B02, CVE-2019-10063).
    return (_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * index)


def _deny(error: int) -> Instruction:
    return (_RETURN, 0, 0, 0x00050000 | error)


def _allow() -> Instruction:
    return (_RETURN, 0, 0, _ALLOW)


def _encode(instruction: Instruction) -> bytes:
    code, true, false, constant = instruction
    return code.to_bytes(2, "little") + bytes((true, false)) + constant.to_bytes(4, "little")
