"""Plan → the lines before the question: what is written, the network, secrets, and what is new since the last approval.

Everything else is in `--explain`. Launches that were approved are remembered as sentences, one for each thing that a
user decides about; what claudebox makes itself and what shells set is not among them. A launch is old if one with
exactly these sentences was approved in this project: grants of several launches never add up.
"""

from __future__ import annotations

from claudebox.base.console import clean, lay_out, list_some, paint, shorten, wrap
from claudebox.base.records import Value
from claudebox.host.records import KeptOut, covers
from claudebox.network import plan as network_plan
from claudebox.plan import masking
from claudebox.plan.records import GIT_TOKEN, Mount, Plan, Variable
from claudebox.settings.records import Policy
from claudebox.tables.secrets import name_looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from claudebox.network.records import ApiConfig


_UNCHOSEN = (
    "no network tier chosen: using full, which reaches the LAN and localhost; set `network` in ~/.claudebox/config.toml"
)
_PATH = "PATH: "  # in front of a directory that was told to be absent
_WARNED = "warning: "  # in front of a warning among the decisions
_OWN_SETTINGS = "~/.claudebox/config.toml:"
_NAMED = 5  # of one kind; the rest is counted
_LONGEST = 200  # characters of a name


def lines(
    plan: Plan,
    before: frozenset[str] | None,
    *,
    asking: bool,
    quiet: bool = False,
    settled: bool = False,
    notes: Iterable[str] = (),
    chosen: bool = True,
) -> Iterator[str]:
    """Yield what a user should know before saying yes (UX-01); `before` is what was approved last, if anything was.

    Where nobody is asked and nothing is new, one line is enough; `quiet` leaves that away too. `settled`: the user
    wants no more than that, and has approved these warnings, too. `chosen`: the network did not just happen.
    """
    news = describe_news(plan, before)
    if quiet:
        rows = [("new", news)] if asking and news else []
    elif news or asking:
        rows = [
            ("writes", _writes(plan)),
            ("network", _network(plan)),
            ("secrets", _secrets(plan)),
            *([("login", plan.login)] if plan.login else []),
            ("new", news or "nothing since the last launch here"),
        ]
    else:
        rows, login = [], [plan.login.partition(":")[0]] if plan.login else []
        parts = (_listed(_kept(plan)), f"network {plan.policy.network}", _short(plan), *login)
        yield from wrap(" · ".join(parts), "claudebox: ")
    yield from lay_out((paint(f"{label:<8}", "bold"), text) for label, text in rows)
    said = plan.masked_note if news or asking else ""  # in the line of secrets
    yield from lay_out((paint("note    ", "bold"), clean(text)) for text in notes if not quiet and text != said)
    told = () if settled else (*(() if chosen else (_UNCHOSEN,)), *warnings(plan, quiet=quiet))
    yield from lay_out((paint("warning ", "yellow"), clean(text)) for text in told)


def warnings(plan: Plan, *, quiet: bool = False) -> Iterator[str]:
    """Yield what is unusual or dangerous about a plan."""
    yield from plan.warnings
    for row in plan.variables:
        if row.loader and row.origin not in ("claudebox", "host"):
            yield f"{row.name} (from {row.origin}) changes what programs load"
    if quiet and plan.exposed:
        yield _describe_exposed(plan)


def untold(plan: Plan, told: frozenset[str]) -> tuple[list[str], list[KeptOut]]:
    """Return the notes and the programs outside that were not told yet."""
    outside = [row for row in plan.path_outside if _sentence(_PATH + row.path) not in told]
    return [text for text in plan.notes if _sentence(text) not in told], outside


def telling(plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what a launch tells as it is remembered: in this project, and in all, as PATH is the same in each."""
    return tuple(map(_sentence, plan.notes)), tuple(_sentence(_PATH + row.path) for row in plan.path_outside)


def path_inside(plan: Plan) -> list[str]:
    """Return the directories whose programs are inside."""
    path = next((row.value for row in plan.variables if row.name == "PATH"), "")
    return path.split(":")


def find_nearest(plan: Plan, approved: Sequence[frozenset[str]]) -> frozenset[str] | None:
    """Return the approved launch that differs least from this one."""
    now = frozenset(decided(plan))
    return min(approved, key=lambda before: len(before ^ now), default=None)


def is_approved(plan: Plan, before: frozenset[str] | None) -> bool:
    """Return whether a launch like this one was approved: with the same of everything that a user decides about."""
    return before == frozenset(decided(plan))


def describe_news(plan: Plan, before: frozenset[str] | None) -> str:
    """Return what differs from what was approved last."""
    if before is None:
        return paint("the first launch in this project", "bold")
    now = decided(plan)
    added = [text for text in now if text not in before]
    gone = sorted(text for text in before.difference(now) if not text.startswith(_WARNED))
    named = [text for text in added if not text.startswith(_WARNED)]
    parts = [paint(_listed(named or ["a warning"]), "bold")] if added else []
    if gone:
        parts.append(f"no longer: {_listed(gone)}")
    return "; ".join(parts)


# Fields of a policy that rows of the plan show, or that give nothing away.
_SHOWN = frozenset((
    "addresses", "agent", "agent_named", "budget", "cache_limit", "client", "constants", "credential", "devices",
    "domains", "host_ports", "inherit", "limits", "mounts", "names", "network", "network_origin", "nix", "nix_origin",
    "program", "project_secrets_origin", "published", "scratch", "secrets", "shared_home", "start", "toolchains",
    "undo", "words",
))  # fmt: skip
_USUAL = {"auth": "broker"}  # where the default of the setting is not that of the policy
_SWITCHED = frozenset(("browser", "devshell", "gpu"))  # their value is what asked for them
_TITLES = {"hides_path": "no programs of PATH"}  # of fields whose names say too little


def decided(plan: Plan) -> tuple[str, ...]:
    """Return what a user decides about, each as a sentence that can be printed and kept.

    Everything that widens what a sandbox can do is among them, and every setting that differs from its default.
    """
    policy = plan.policy
    found = [f"network {policy.network}"]
    found += [f"reaching {line}" for line in network_plan.opened(plan)]
    for row in plan.mounts:
        theirs = row.role == "client" and row.dest != policy.agent.program
        if (row.role in ("asked", "toolchain") or theirs) and row.kind in ("bind", "ro-bind"):
            of = f" ({row.source})" if row.source != row.dest else ""
            found.append(f"{'writing' if row.writable else 'reading'} {row.dest}{of}")
    found += [f"device {row.dest}" for row in plan.mounts if row.kind == "device"]
    found += map(_variable, (row for row in plan.variables if row.secret or row.origin not in ("claudebox", "host")))
    for secret in plan.secrets:
        permit = f" for {', '.join(secret.permit)}" if secret.permit else ""
        found.append(f"{secret.env} used at {', '.join(secret.places)}{permit}")
    found += [f"secrets in {place.partition(':')[0]}" for place in plan.exposed]
    found += [f"{kind} {name}" for kind, name in plan.inherited]
    if policy.credential is not None and _has_git_token(plan):
        found.append(f"a token for git at {policy.credential.host}")
    found += [f"login: {row.reason}" for row in _logins(plan)]
    found += [f"Nix {plan.nix.kind}"] if plan.nix is not None else []
    if policy.program == "client" and policy.agent != Policy.agent:
        found.append(f"agent {policy.agent.name}")
    found += [f"the model at {row.endpoint}" for row in _models(plan) if not row.official]
    for name in policy._fields:
        value = getattr(policy, name)
        if name not in _SHOWN and value != _USUAL.get(name, getattr(Policy, name, None)):
            title = _TITLES.get(name, name.replace("_", " "))
            found.append(f"{title}{_spell(value) if name not in _SWITCHED else ''}")
    found += [f"budget {plan.budget}"] if plan.budget else []
    if policy.limits is not None:
        from claudebox.plan.limits import spell_limits

        found.append(f"limits {spell_limits(policy.limits)}")
    found += [_WARNED + text for text in plan.warnings]
    return tuple(dict.fromkeys(map(_sentence, found)))


def _variable(row: Variable) -> str:
    if not row.secret:
        return f"variable {row.name}"
    return f"{'placeholder' if row.deferred else 'secret'} {row.name}"


def _spell(value: object) -> str:
    """Return a value of a policy in words, without where it came from."""
    if value is True:
        return ""
    if isinstance(value, Value):
        value = [getattr(value, name) for name in value._fields if name not in ("origin", "untrusted")]
    if isinstance(value, tuple | list):
        return f" {' '.join(sorted(_spell(one).strip() for one in value))}"
    return f" {value}"


def _sentence(text: str) -> str:
    """Return a text as a line that is kept; different texts stay different."""
    return clean(text.replace("\\", "\\\\"))


def _kept(plan: Plan) -> list[str]:
    """Return what is written and outlives the session, besides the state of claudebox."""
    rows = (row for row in plan.mounts if row.kind == "bind" and row.role in ("project", "asked"))
    return [_at_home(row.dest, plan) for row in rows] or ["nothing in the project"]


def _at_home(path: str, plan: Plan) -> str:
    home = next((row.value for row in plan.variables if row.name == "HOME"), "")
    return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path


def _writes(plan: Plan) -> str:
    own = any(row.role == "state" and not (plan.caches and covers(plan.caches, row.source)) for row in plan.mounts)
    state = ("conversations" if own else "its own state") + (" and caches" if plan.caches else "")
    return f"{_listed(_kept(plan))}; {state} in ~/.claudebox"


def _network(plan: Plan) -> str:
    _, *rest = network_plan.described(plan)
    tier = plan.policy.tier
    told = paint(tier.name, "yellow" if tier.shared else "bold")
    nix = (f"Nix: {_nix(plan)}",) if plan.nix is not None else ()
    return "; ".join((f"{told}{_origin(plan)}: {tier.meaning}", *(clean(line) for line in (*rest, *nix))))


def _nix(plan: Plan) -> str:
    from claudebox.nix.plan import described

    return described(plan.nix) if plan.nix is not None else ""


def _origin(plan: Plan) -> str:
    """Return whose word the tier is, unless it stands in the user's own settings."""
    origin = plan.policy.network_origin
    if origin.startswith(_OWN_SETTINGS):
        return ""
    return " (by default)" if origin == "default" else f" (by {clean(origin)})"


def _secrets(plan: Plan) -> str:
    parts = [paint(f"{text} enters", "yellow") for text in _entering(plan)]
    parts += [clean(text) for text in _outside(plan)]
    if plan.exposed:
        parts.append(paint(clean(_describe_exposed(plan)), "yellow"))
    if plan.committed:
        parts.append(paint(clean(f"in git, and so readable inside: {_listed(plan.committed)}"), "yellow"))
    if not parts:
        parts.append("none enters")
    if plan.masked:
        parts.append(clean(masking.describe(plan.masked)))
    told = {row.name for model in _models(plan) for row in model.credentials}
    withheld = [name for name in plan.withheld if name_looks_secret(name) and name not in told]
    if withheld:
        parts.append(f"withheld: {_listed(withheld)}")
    return "; ".join(parts)


def _entering(plan: Plan) -> Iterator[str]:
    """Yield what enters that looks like a secret, and by whose word."""
    for row in plan.variables:
        if row.secret and row.deferred is None:
            note = f", {row.note}" if row.note else ""
            yield clean(f"{row.name} ({'from the host' if row.origin == 'host' else row.origin}{note})")
    if _has_git_token(plan):
        yield "a token for git"
    yield from (clean(row.reason) for row in _logins(plan))
    for kind, name in plan.inherited:
        if kind.startswith("variable") and name_looks_secret(name):
            yield clean(f"{name} ({kind})")


def _logins(plan: Plan) -> list[Mount]:
    place = f"{plan.policy.agent.extras.login}/store"
    return [row for row in plan.mounts if row.dest == place and row.kind == "ro-bind"]


def _has_git_token(plan: Plan) -> bool:
    return any(row.deferred is not None and row.deferred.key == GIT_TOKEN for row in plan.mounts)


def _outside(plan: Plan) -> Iterator[str]:
    if plan.broker is not None:
        from claudebox.broker import plan as broker_plan

        yield from broker_plan.described(plan)
    for row in plan.variables:
        if row.secret and row.deferred is not None:
            yield f"{row.name} is {row.note}"


def _models(plan: Plan) -> tuple[ApiConfig, ...]:
    return plan.broker.models if plan.broker is not None else ()


def _short(plan: Plan) -> str:
    entering = sum(1 for _ in _entering(plan))
    shown = [_count(plan.exposed, "of the project"), _count(plan.committed, "in git")]
    files = " and ".join(filter(None, shown))
    said = f"{entering or 'no'} secret{'s' if entering != 1 else ''} enter{'s' if entering == 1 else ''}"
    said += (" and those of " if entering else " but those of ") + files if files else ""
    return said + (f", {_count(plan.masked, 'masked')}" if plan.masked else "")


def _count(files: Sequence[str], what: str) -> str:
    return f"{len(files)} file{'s' if len(files) > 1 else ''} {what}" if files else ""


def _describe_exposed(plan: Plan) -> str:
    places = _listed(plan.exposed, 12)
    return f"secrets in the project can be read inside: {places}; `--project-secrets mask` hides them"


def _listed(names: Iterable[str], most: int = _NAMED) -> str:
    """Return names in a row, whole ones only."""
    return list_some([shorten(name, _LONGEST) for name in names], most)
