"""Make the first file system of an emulated machine, boot it, and tell what became of claudebox in it.

Arguments: the directory with `tree` and `kernel`, as `scripts/aarch64` has unpacked them.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

TOP = Path(__file__).resolve().parent.parent
UNUSED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/zoneinfo", "usr/share/info", "var", "boot")
OPTIONS = ("-M", "virt", "-cpu", "max,pauth=off", "-smp", "2", "-m", "1500", "-nographic", "-no-reboot")


def entries(cache: Path) -> dict[str, Path]:
    """Return what the machine has, by its path there."""
    found: dict[str, Path] = {}
    for top, inside in ((cache / "tree/root", ""), (TOP / "src", "claudebox/src/"), (TOP / "bin", "claudebox/bin/")):
        for path in sorted(top.rglob("*")):
            name = inside + str(path.relative_to(top))
            if not name.startswith(UNUSED) and "__pycache__" not in name:
                found[name] = path
    for name in ("claudebox", "claudebox/src", "claudebox/bin", "new"):
        found[name] = TOP
    return {**dict(sorted(found.items())), "init": TOP / "scripts/aarch64-init.py"}


def write_entry(out: BinaryIO, name: str, mode: int, data: bytes) -> None:
    """Append an entry to an archive as the kernel reads them (cpio, `newc`)."""
    numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name.encode()) + 1, 0)
    head = b"070701" + "".join(f"{number:08x}" for number in numbers).encode() + name.encode() + b"\0"
    out.write(head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4))


def make_archive(target: Path, cache: Path) -> None:
    """Write the first file system of the machine."""
    with target.open("wb") as out:
        for name, path in entries(cache).items():
            mode = path.lstat().st_mode
            data = b""
            if stat.S_ISLNK(mode):
                data = os.fsencode(os.readlink(path))
            elif stat.S_ISREG(mode):
                data = path.read_bytes()
            write_entry(out, name, mode | (0o755 if name == "init" else 0), data)
        write_entry(out, "TRAILER!!!", 0, b"")


def main() -> int:
    """Boot it, show what it says, and return whether everything went well."""
    cache = Path(sys.argv[1])
    (kernel,) = (cache / "kernel/root/boot").glob("vmlinuz-*")
    make_archive(cache / "initrd", cache)
    append = "console=ttyAMA0 quiet panic=1 rdinit=/init"
    parts = ("-kernel", str(kernel), "-initrd", str(cache / "initrd"), "-append", append)
    command = ["qemu-system-aarch64", *OPTIONS, *parts]
    said = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as machine:
        for line in machine.stdout or ():
            print(line, end="", flush=True)
            said.append(line)
    statuses = re.findall(r"^STATUS (\d+)", "".join(said), re.MULTILINE)
    return 0 if statuses == ["0"] * 3 else 1


if __name__ == "__main__":
    sys.exit(main())
