"""Who may go where: the list of names held against what a caller asks for, and the words of a refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from claudebox.config.domains import Permission, canonical
from claudebox.console import list_some
from claudebox.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LISTED = 30  # names in a refusal
_ADDRESS = frozenset("0123456789abcdefABCDEF:.[]")
_LOUD = 100  # characters of what a caller wrote, in what we write


class Denied(Exception):  # noqa: N818 - an answer, not an error
    """A connection that is not made, by which rule, and what to tell whoever asked."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(text)
        self.rule, self.text = rule, text


class Record(Protocol):
    """Where decisions are written down."""

    def __call__(self, *, host: str, port: int, verdict: str, rule: str, up: int = 0, down: int = 0) -> None:
        """Write one down: `allowed`, `denied`, or `failed` for a permitted name that did not answer."""


def unrecorded(**_decision: object) -> None:
    """Write nothing down."""


class Admission(Value):
    """A connection that is permitted, and by which pattern."""

    name: str
    port: int
    rule: str


class AccessList:
    """Decides by name and port; addresses come later."""

    looks = True  # what is said first must be meant for the name

    def __init__(
        self, permission: Permission, record: Record = unrecorded, *, listed: Sequence[str] = (),
        meaning: Callable[[str], str] = lambda _: "",
    ) -> None:  # fmt: skip
        self._permission, self._record, self._listed = permission, record, listed
        self._meaning = meaning  # the name for which we gave an address out, if it is such an address

    def admit(self, host: str, port: int) -> Admission:
        """Return the permission for a host as a caller wrote it, or raise the refusal."""
        name = canonical(self._meaning(host) or host)
        if "." not in name:
            raise self.denial(host, port, "no-name", "only full names can be reached from here, no addresses")
        rule = self._permission.rule(name, port)
        if rule is None:
            if ports := self._permission.ports(name):
                listed = ", ".join(map(str, ports))
                raise self.denial(name, port, "port", f"of `{name}` only port {listed} can be reached from here")
            raise self.denial(
                name, port, "not-listed", f"`{name}` is not among the names that can be reached from here"
            )
        return Admission(name, port, str(rule))

    def denial(self, host: str, port: int, rule: str, why: str) -> Denied:
        """Write a refusal down, and return it in words for an agent."""
        self._record(host=shown(host), port=port, verdict="denied", rule=rule)
        listed = list_some(self._listed, _LISTED) or "none"
        where = f"{shown(host)}:{port}" if rule == "port" or port not in (80, 443) else shown(host)
        ask = f" with `claudebox --allow-domain {where}`" if rule in ("port", "not-listed") else ""
        return Denied(
            rule,
            f"{why} ({shown(host)}:{port}). Permitted are: {listed}. That is intended and cannot be changed from "
            f"inside: do not try to work around it. If the task needs it, say so: the user can allow it{ask}.",
        )


class EveryName(AccessList):
    """The entrance to the proxy of this machine: every name may be asked for, in tier `full` every address too."""

    looks = False

    def __init__(self, record: Record, *, addresses: bool) -> None:
        super().__init__(Permission(()), record)
        self._addresses = addresses

    def admit(self, host: str, port: int) -> Admission:
        """Return the permission for a host as a caller wrote it, or raise the refusal."""
        name = canonical(host)
        if self._addresses and (name or set(host) <= _ADDRESS):
            return Admission(name or host.strip("[]"), port, "proxy")
        if "." not in name:
            self._record(host=shown(host), port=port, verdict="denied", rule="no-name")
            raise Denied("no-name", f"the proxy takes full names only; connect to `{shown(host)}` directly")
        return Admission(name, port, "proxy")


def shown(text: str) -> str:
    """Return what a caller wrote, as it may be repeated."""
    return "".join(char if "!" <= char <= "~" and char != "`" else "?" for char in text[:_LOUD])
