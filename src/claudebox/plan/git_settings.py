"""Which of git's settings git finds inside, as files that claudebox writes (GIT-01, GIT-03)."""

from __future__ import annotations

from claudebox.tables import git_keys
from claudebox.tables.secret_patterns import value_looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.facts.git_config import Row
    from claudebox.facts.host import Host

_TRUE = ("true", "yes", "on", "1")


def admit(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows that may enter, without passwords in addresses."""
    filters = set()
    for section, name, key, value in rows:
        if section == "filter" and name in git_keys.FILTERS:
            filters.add(name)
        elif _is_listed(section, name, key) and not value.startswith("!"):
            plain = _address(value) if key in git_keys.ADDRESSES else value
            if not value_looks_secret(plain):
                yield section, name, key, plain
    for name in sorted(filters):
        for key, value in git_keys.FILTERS[name]:
            yield "filter", name, key, value


def _is_listed(section: str, name: str, key: str) -> bool:
    keys = (git_keys.NAMED if name else git_keys.KEYS).get(section, ())
    return key not in keys[1:] if keys[:1] == ("*",) else key in keys


def _address(value: str) -> str:
    """Return an address without what identifies the user: tokens stand in its name, its password or its query."""
    scheme, found, rest = value.partition("://")
    if not found:
        return value
    host, slash, path = rest.partition("/")
    user, at, host = host.rpartition("@")
    if scheme.lower().startswith("http"):
        return f"{scheme}://{host}{slash}{path.partition('?')[0]}"
    return f"{scheme}://{user.partition(':')[0]}{at}{host}{slash}{path}"


def merge(rows: Iterable[Row], before: Iterable[Row], inside: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of the host with what was changed inside since they were written `before`."""
    was, now, rows = set(before), list(inside), list(rows)
    gone = was - set(now) if now else set()
    yield from (row for row in rows if row not in gone)
    yield from (row for row in now if row not in was and row not in rows)  # the host may have the same by now


def signs(rows: Iterable[Row]) -> bool:
    """Return whether commits would be signed."""
    values = [value for section, name, key, value in rows if (section, name, key) == ("commit", "", "gpgsign")]
    return bool(values) and values[-1].lower() in _TRUE


def render(rows: Iterable[Row]) -> bytes:
    """Return a file of configuration."""
    lines: list[str] = []
    last = None
    for section, name, key, value in rows:
        if (section, name) != last:
            last = (section, name)
            lines.append(f"[{section} {_quoted(name)}]" if name else f"[{section}]")
        lines.append(f"\t{key} = {_quoted(value)}")
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _quoted(value: str) -> str:
    # A name with a line end in it would otherwise write configuration of its own (D24).
    plain = "".join(char for char in value if char.isprintable() or "\udc80" <= char <= "\udcff")
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def user_config(host: Host, helper: tuple[str, str] = ("", ""), proxy: str = "") -> bytes:
    """Return the user's configuration inside: what `tables.git_keys` lists of it, and nothing else of the host's.

    `helper` answers for one host alone (SEC-03).
    """
    rows: list[Row] = [("safe", "", "directory", "*")]
    if proxy:
        rows.append(("http", "", "proxy", proxy))
    if helper[0]:
        name = f"https://{helper[0]}"
        rows += [("credential", name, "helper", ""), ("credential", name, "helper", helper[1])]
    return render((*rows, *admit(host.git_user.rows)))
