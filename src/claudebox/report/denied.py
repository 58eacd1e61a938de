"""What a session was denied, and the words that permit it: places of one kind in one line."""

from __future__ import annotations

from claudebox.base.console import clean, list_some, shorten
from claudebox.settings.domains import canonical
from claudebox.tables.network import GROUPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    Line = Mapping[str, Any]


_USUAL = (80, 443, 53)  # a lookup of the name alone has the port of DNS
_PLACES, _WORDS = 4, 8  # that are shown
_REASONS = {
    "not-listed": "not among the permitted domains",
    "no-name": "an address: only names are permitted",
    "port": "this port is not permitted",
    "other-host": "asked for over the connection to another host",
    "not-public": "its address is in the LAN or on this machine",
    "lan": "in the LAN or a VPN",
    "machine": "an address of this machine",
    "never": "stays closed in this network",
    "billing_error": "the budget is spent",
}


def is_denial(line: Line) -> bool:
    return line.get("kind") == "decision" and line.get("verdict") == "denied"


def spell_place(line: Line) -> str:
    host, port = str(line.get("host", "")), line.get("port", "")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def find_domain(line: Line) -> str:
    """Return the domain, or the group of domains, that permits a denied connection; nothing if none does."""
    name, port, rule = canonical(str(line.get("host", ""))), line.get("port"), line.get("rule")
    if not is_denial(line) or line.get("service") == "filter" or "." not in name or rule not in ("not-listed", "port"):
        return ""
    if port not in _USUAL or rule == "port":
        return f"{name}:{port}"
    return next((group for group, names in GROUPS.items() if name in names), name)


def find_flag(line: Line) -> str:
    """Return the flag that permits a denied connection in the next session; nothing if none does."""
    port = line.get("port")
    if not is_denial(line):
        return ""
    if line.get("service") == "filter":
        flags = {"lan": f"--set allow_addresses={spell_place(line)}", "machine": f"--set allow_host_port={port}"}
        return clean(flags.get(str(line.get("rule")), ""))
    domain = find_domain(line)
    return f"--allow-domain {domain}" if domain else ""


def summarise(lines: Iterable[Line]) -> str:
    """Return one line about connections that were denied; nothing if there were none."""
    places: dict[str, int] = {}
    flags: dict[str, None] = {}
    for line in lines:
        # No user can open another path of a model's API.
        if is_denial(line) and line.get("rule") != "permission_error":
            spent = line.get("rule") == "billing_error"
            place = "the model, as the budget is spent" if spent else spell_place(line).removesuffix(":443")
            place = shorten(place, 60)
            places[place] = places.get(place, 0) + int(line.get("count", 1))
            flags |= dict.fromkeys(filter(None, (find_flag(line),)))
    if not places:
        return ""
    shown = list_some(sorted(places, key=lambda place: -places[place]), _PLACES)
    words = " ".join(list(flags)[:_WORDS])
    more = "; `claudebox denied` has all" if len(places) > _PLACES or len(flags) > _WORDS else ""
    return f"denied: {shown}" + (f"; to permit: `{words}`" if words else "") + more


def explain(rule: str) -> str:
    """Return why something was denied, for people; a rule without a sentence as it is."""
    return _REASONS.get(rule, rule)
