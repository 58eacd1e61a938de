"""Plan → the lines before the question: what is written, the network, secrets, and what is new since the last approval.

Everything else is in `--explain`. The launch that was approved is remembered as sentences, one for each thing that a
user decides about; what claudebox makes itself and what shells set is not among them.
"""

from __future__ import annotations

from claudebox.base.console import clean, lay_out, list_some, paint, shorten
from claudebox.network import plan as network_plan
from claudebox.plan.records import GIT_TOKEN
from claudebox.tables.secrets import name_looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.plan.records import Plan


_UNCHOSEN = (
    "no network tier chosen: using full, which reaches the LAN and localhost; start claudebox on a terminal to be "
    "asked, or set `network` in ~/.claudebox/config.toml"
)
_SEEN = "named: "  # in front of what was told and is no decision
_NAMED = 5  # of one kind; the rest is counted
_LONGEST = 200  # characters of a name


def lines(
    plan: Plan, before: frozenset[str] | None, *, asking: bool, quiet: bool = False, notes: Iterable[str] = ()
) -> Iterator[str]:
    """Yield what a user should know before saying yes (UX-01); `before` is what was approved last, if anything was.

    Where nobody is asked and nothing is new, one line is enough; `quiet` leaves that away too.
    """
    news = describe_news(plan, before)
    if quiet:
        rows = [("new", news)] if asking and news else []
    elif news or asking:
        rows = [
            ("writes", _writes(plan)),
            ("network", _network(plan)),
            ("secrets", _secrets(plan)),
            ("new", news or "nothing since the last launch here"),
        ]
    else:
        rows = []
        writes = _listed(_kept(plan))
        yield f"claudebox writes {writes}; network {plan.policy.network} ({_origin(plan)}); {_short(plan)}; nothing new"
    yield from lay_out((paint(f"{label:<8}", "bold"), text) for label, text in rows)
    yield from lay_out((paint("note    ", "bold"), clean(text)) for text in plan.notes if not quiet)
    yield from lay_out((paint("note    ", "bold"), clean(text)) for text in notes if not quiet)
    yield from lay_out((paint("warning ", "yellow"), clean(text)) for text in warnings(plan, quiet=quiet))


def with_unchosen(plan: Plan) -> Plan:
    """Return the plan with a warning that its network happened rather than being chosen."""
    return plan.replace(warnings=(*plan.warnings, _UNCHOSEN))


def warnings(plan: Plan, *, quiet: bool = False) -> Iterator[str]:
    """Yield what is unusual or dangerous about a plan."""
    yield from plan.warnings
    for row in plan.variables:
        if row.loader and row.origin not in ("claudebox", "host"):
            yield f"{row.name} (from {row.origin}) changes what programs load"
    if quiet and plan.exposed and not plan.policy.masks_secrets:
        yield _files(plan)


def untold(plan: Plan, before: frozenset[str] | None) -> list[str]:
    """Return the directories of programs that are not inside and have not been named yet."""
    return [path for path in plan.path_outside if shorten(_SEEN + path, _LONGEST) not in (before or ())]


def path_inside(plan: Plan) -> list[str]:
    """Return the directories whose programs are inside."""
    path = next((row.value for row in plan.variables if row.name == "PATH"), "")
    return [entry for entry in path.split(":") if entry not in plan.path_outside]


def describe_news(plan: Plan, before: frozenset[str] | None) -> str:
    """Return what differs from what was approved last."""
    if before is None:
        return paint("the first launch in this project", "bold")
    now = decided(plan)
    added = [text for text in now if text not in before and not text.startswith(_SEEN)]
    gone = sorted(text for text in before.difference(now) if not text.startswith(_SEEN))
    parts = [paint(_listed(added), "bold")] if added else []
    if gone:
        parts.append(f"no longer: {_listed(gone)}")
    return "; ".join(parts)


def decided(plan: Plan) -> tuple[str, ...]:
    """Return what a user decides about, each as a sentence that can be printed and kept."""
    found = [f"network {plan.policy.network}"]
    found += [f"reaching {line}" for line in network_plan.opened(plan)]
    for row in plan.mounts:
        if row.role in ("asked", "toolchain") and row.kind in ("bind", "ro-bind"):
            found.append(f"{'writing' if row.writable else 'reading'} {row.dest}")
    found += [f"device {row.dest}" for row in plan.mounts if row.kind == "device"]
    for variable in plan.variables:
        if variable.secret:
            found.append(f"{'placeholder' if variable.fetched else 'secret'} {variable.name}")
        elif variable.origin not in ("claudebox", "host"):
            found.append(f"variable {variable.name}")
    found += [f"secrets in {place.partition(':')[0]}" for place in plan.exposed]
    found += [f"{kind} {name}" for kind, name in plan.inherited]
    found += ["a token for git"] if _has_git_token(plan) else []
    found += ["user namespaces inside"] if plan.policy.allow_userns else []
    found += [f"Nix {plan.nix.kind}"] if plan.nix is not None else []
    found += [_SEEN + directory for directory in plan.path_outside]
    return tuple(dict.fromkeys(shorten(text, _LONGEST) for text in found))


def _kept(plan: Plan) -> list[str]:
    """Return what is written and outlives the session, besides the state of claudebox."""
    rows = (row for row in plan.mounts if row.kind == "bind" and row.role in ("project", "asked"))
    return [_at_home(row.dest, plan) for row in rows] or ["nothing in the project"]


def _at_home(path: str, plan: Plan) -> str:
    home = next((row.value for row in plan.variables if row.name == "HOME"), "")
    return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path


def _writes(plan: Plan) -> str:
    own = any(row.role == "state" and row.source != plan.caches for row in plan.mounts)
    state = ("conversations" if own else "its own state") + (" and caches" if plan.caches else "")
    return f"{_listed(_kept(plan))}, and {state} in ~/.claudebox; everything else is gone at the end"


def _network(plan: Plan) -> str:
    first, *rest = network_plan.described(plan)
    tier, _, meaning = first.partition(": ")
    told = paint(tier, "yellow") if plan.policy.tier.shared else paint(tier, "bold")
    nix = (f"Nix: {_nix(plan)}",) if plan.nix is not None else ()
    return "; ".join((f"{told} ({_origin(plan)}): {clean(meaning)}", *(clean(line) for line in (*rest, *nix))))


def _nix(plan: Plan) -> str:
    from claudebox.nix.plan import described

    return described(plan.nix) if plan.nix is not None else ""


def _origin(plan: Plan) -> str:
    return "by default" if plan.policy.network_origin == "default" else f"by {clean(plan.policy.network_origin)}"


def _secrets(plan: Plan) -> str:
    parts = [paint(f"{text} enters", "yellow") for text in _entering(plan)]
    parts += [clean(text) for text in _outside(plan)]
    if not parts:
        parts.append("none enters")
    if plan.exposed:
        parts.append(clean(_files(plan)) if plan.policy.masks_secrets else paint(clean(_files(plan)), "yellow"))
    withheld = [name for name in plan.withheld if name_looks_secret(name)]
    if withheld:
        parts.append(f"withheld: {_listed(withheld)}")
    return "; ".join(parts)


def _entering(plan: Plan) -> Iterator[str]:
    """Yield what enters that looks like a secret, and by whose word."""
    for row in plan.variables:
        if row.secret and row.fetched is None:
            note = f", {row.note}" if row.note else ""
            yield clean(f"{row.name} ({'from the host' if row.origin == 'host' else row.origin}{note})")
    if _has_git_token(plan):
        yield "a token for git"
    for mount in plan.mounts:
        if mount.dest == f"{plan.policy.agent.login}/store" and mount.kind == "ro-bind":
            yield clean(mount.reason)
    for kind, name in plan.inherited:
        if kind.startswith("variable") and name_looks_secret(name):
            yield clean(f"{name} ({kind})")


def _has_git_token(plan: Plan) -> bool:
    return any(row.fetched is not None and row.fetched.key == GIT_TOKEN for row in plan.mounts)


def _outside(plan: Plan) -> Iterator[str]:
    if plan.broker is not None:
        from claudebox.broker import plan as broker_plan

        yield from broker_plan.described(plan)
    for row in plan.variables:
        if row.secret and row.fetched is not None:
            yield f"{row.name} is {row.note}"


def _short(plan: Plan) -> str:
    entering = sum(1 for _ in _entering(plan))
    count = len(plan.exposed)
    files = f", {count} file{'s' if count > 1 else ''} of the project with some" if count else ""
    return f"{entering or 'no'} secret{'s' if entering != 1 else ''} enter{'s' if entering == 1 else ''}{files}"


def _files(plan: Plan) -> str:
    places = _listed(plan.exposed, 12)
    if plan.policy.masks_secrets:
        return f"secrets in the project are masked inside: {places}"
    return f"secrets in the project can be read inside: {places}; `--project-secrets mask` hides them"


def _listed(names: Iterable[str], most: int = _NAMED) -> str:
    """Return names in a row, whole ones only."""
    return list_some([shorten(name, _LONGEST) for name in names], most)
