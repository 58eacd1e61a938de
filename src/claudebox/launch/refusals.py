"""What the rules of tier `inet` have refused: for the log, and for the user with the flag that would permit it."""

from __future__ import annotations

import os
import time

from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SHOWN = 5
_NOISE = ("224.", "239.", "255.", "ff0")  # multicast and broadcast: programs that look for printers


class Refusal(Value):
    """One address and port that was wanted."""

    address: str
    port: int
    kind: str  # `lan`: a user can open it; `machine`: an address of the host; `never`

    @property
    def place(self) -> str:
        """Return it as `--allow-address` takes it."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def read_rows(rows: Iterable[str]) -> list[Refusal]:
    """Return what the netns holder saw refused, in order."""
    found = []
    for row in rows:
        address, port, kind = row.split(" ")
        if not address.startswith(_NOISE):
            found.append(Refusal(address, int(port), kind))
    return sorted(found, key=lambda refusal: refusal.place)


def record(found: Iterable[Refusal], log: int) -> None:
    """Write each to the log of the session, as the broker writes its decisions."""
    for refusal in found if log >= 0 else ():
        line = (
            f'{{"time": {time.time():.3f}, "kind": "decision", "service": "inet", "host": "{refusal.address}", '
            f'"port": {refusal.port}, "verdict": "denied", "rule": "{refusal.kind}"}}\n'
        )
        try:
            os.write(log, line.encode("ascii"))
        except OSError:  # a full disk; the session goes on
            return


def describe(found: Iterable[Refusal]) -> Iterator[str]:
    """Yield what was refused, and what would permit it."""
    rows = {kind: [row for row in found if row.kind == kind] for kind in ("lan", "machine", "never")}
    for kind, what in (("lan", "in the LAN or a VPN"), ("machine", "of this machine"), ("never", "that stay closed")):
        shown = rows[kind][:_SHOWN]
        if not shown:
            continue
        places = ", ".join(row.place for row in shown)
        more = f" and {len(rows[kind]) - _SHOWN} more, see `claudebox --log`" if len(rows[kind]) > _SHOWN else ""
        flags = dict.fromkeys(map(permitting, shown))
        permit = f"; to permit: {' '.join(flags)}" if kind != "never" else ""
        yield f"connections to addresses {what} were refused: {places}{more}{permit}"


def permitting(refusal: Refusal) -> str:
    """Return the flag that would permit it."""
    return f"--allow-host-port {refusal.port}" if refusal.kind == "machine" else f"--allow-address {refusal.place}"
