"""Policy + Host → the variables of the sandbox: it starts empty, and a variable enters because a row names it.

Also what tells shells inside why a program of the home is missing.
"""

from __future__ import annotations

from claudebox import __version__
from claudebox.base.errors import ClaudeboxError
from claudebox.host import programs
from claudebox.host.records import Host, KeptOut
from claudebox.network import plan as network_plan
from claudebox.plan import mounts as plan_mounts
from claudebox.plan.records import Deferred, Mount, Variable, placeholder_key
from claudebox.tables import environment as tables_environment
from claudebox.tables import secrets as tables_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.settings.records import Policy


_ALL_AUTHORITIES = ("SSL_CERT_FILE", "NIX_SSL_CERT_FILE", *tables_environment.AUTHORITIES)


def plan_variables(policy: Policy, host: Host, made: Iterable[Variable]) -> tuple[Variable, ...]:
    """Return every variable that enters, `made` being those that the client needs."""
    own = (*_made(host), *_certificates(host), *plan_mounts.plan_caches(policy, host), *_stop_go_from_looking(host))
    own = (*_programs(policy, host), *own)
    rows = {row.name: row for row in (*own, *network_plan.plan_variables(policy, host), *made)}
    for name, reason, rule in (*tables_environment.PASSED, *policy.agent.passed):
        if name in host.environ and name not in rows and _is_harmless(name, rule, host):
            rows[name] = _from_host(name, host.environ[name], "host", reason)
    rows |= {row.name: row for row in _placeholders(host, rows)}
    fulfilled = {*tables_environment.AUTHORITIES, tables_environment.NPM_AUTHORITIES, *network_plan.PROXY_VARIABLES}
    for request in policy.names:
        if request.name in policy.agent.brokered and request.name in rows:  # the wish is fulfilled, from outside
            continue
        fixed = request.name in rows and rows[request.name].origin == "claudebox"
        if fixed and request.name in fulfilled:  # what the user wants by that is there already
            continue
        if fixed and request.name not in tables_environment.YIELDING:
            raise ClaudeboxError(
                f"`{request.origin}`: `{request.name}` is made by claudebox and never read from the host"
            )
        if request.name in host.environ:
            value = host.environ[request.name]
            rows[request.name] = _from_host(request.name, value, request.origin, "asked for")
    for constant in policy.constants:
        if constant.name in network_plan.PROXY_VARIABLES and policy.tier.listed:
            raise ClaudeboxError(
                f"`{constant.origin}`: `{constant.name}` is the only way out in tier `{policy.network}`"
            )
        if (
            constant.name in policy.agent.brokered
            and constant.name in rows
            and rows[constant.name].origin == "claudebox"
        ):
            continue
        row = _from_host(constant.name, constant.value, constant.origin, "a constant of your settings")
        advice = "looks like a secret: let the variable in by its name instead"
        note = advice if row.secret and not constant.hidden else row.note
        rows[constant.name] = row.replace(note=note, hidden=constant.hidden)
    known = ((host.environ.get(row.source.removeprefix("env:"), ""), row.origin) for row in host.secrets.held)
    check_withheld(known, rows.values())
    if policy.refuse_secrets:
        _refuse_secrets(policy, rows.values())
    return tuple(rows[name] for name in sorted(rows))


def _is_harmless(name: str, rule: str, host: Host) -> bool:
    """Return whether the value of a preference is what it should be; what looks like a secret stays out."""
    value = host.environ[name]
    if tables_secrets.looks_secret(name, value):
        return False
    match rule:
        case "number":
            return value.isascii() and value.isdigit()
        case "program":
            return host.system.pager
        case "path":
            return value.startswith(("/usr/", "/nix/store/") if host.system.store else "/usr/")
        case "index":
            return tables_secrets.names_place(value)
        case _:
            return True


def _refuse_secrets(policy: Policy, rows: Iterable[Variable]) -> None:
    """Stop before a secret enters that the user did not name; without `--yes` they see it and decide (SEC-01)."""
    named = {request.name for request in policy.names if not request.untrusted}
    named |= {secret.env for secret in policy.secrets}
    named |= {constant.name for constant in policy.constants if constant.hidden}
    for row in rows:
        if row.secret and row.name not in named:
            raise ClaudeboxError(
                f"`{row.name}` looks like a secret, and would enter without having been named by you",
                hint=f"name it with `--env {row.name}`, or start without `--yes` and decide when you see it",
            )


def _from_host(name: str, value: str, origin: str, reason: str) -> Variable:
    loader = name in tables_environment.LOADERS
    note = "changes what programs load" if loader else ""
    return Variable(name, value, origin, reason, tables_secrets.looks_secret(name, value), note, loader=loader)


def _placeholders(host: Host, rows: dict[str, Variable]) -> Iterable[Variable]:
    """Return the placeholders of secrets, and what makes programs trust the broker, which answers for their hosts."""
    for secret in host.secrets.held:
        if secret.env in rows and rows[secret.env].origin == "claudebox":
            raise ClaudeboxError(f"`{secret.origin}`: `{secret.env}` is made by claudebox")
        limits = f", for {', '.join(secret.permit)}" if secret.permit else ""
        note = f"a placeholder: the value goes to {', '.join(secret.places)} alone{limits}"
        reason = f"the value comes from {secret.source} and stays outside"
        placeholder = Deferred(placeholder_key(secret.env))
        yield Variable(secret.env, "", secret.origin, reason, secret=True, note=note, deferred=placeholder)
    if host.secrets.held:
        yield from _lead_to_authorities(_ALL_AUTHORITIES, host, "certificate authorities, with that of this session")


def check_withheld(values: Iterable[tuple[str, str]], rows: Iterable[Variable]) -> None:
    """Refuse a variable that contains a value which stays outside; each value comes with the setting that says so."""
    rows = tuple(rows)
    for value, origin in values:
        for row in rows:
            if value and value in row.value and row.origin != "claudebox":
                raise ClaudeboxError(
                    f"`{row.name}` (from {row.origin}) has the value in it that `{origin}` keeps out",
                    hint="remove one of them",
                )


def _made(host: Host) -> Iterable[Variable]:
    shell = "/bin/bash" if host.system.bash else "/bin/sh"
    for name, value, reason in (
        ("HOME", host.home, "the sandbox's own, empty home"),
        ("PATH", search_path(host), "programs of the client, of your PATH, and of the system"),
        ("USER", host.user, "who you are"),
        ("LOGNAME", host.user, "who you are"),
        ("SHELL", shell, "the shell"),
        ("TMPDIR", "/tmp", "the sandbox's own"),
        ("XDG_RUNTIME_DIR", f"/run/user/{host.uid}", "the sandbox's own, without the host's sockets"),
        ("CLAUDEBOX", __version__, "tells programs that they are in this sandbox"),
    ):
        yield Variable(name, value, "claudebox", reason)


def _stop_go_from_looking(host: Host) -> Iterable[Variable]:
    """Tell `go` that there is no repository: it takes the empty `.git`, which is there for one, for a broken one."""
    if host.git.repository is None and host.git.empty:
        yield Variable("GOFLAGS", "-buildvcs=false", "claudebox", "the project is no repository")


def search_path(host: Host, more: tuple[str, ...] = ()) -> str:
    """Return PATH of the sandbox."""
    system = ("/usr/local/bin", "/usr/bin", "/bin") if host.system.usr else ()
    own = host.tools.programs.path if host.tools.programs is not None else ()
    return ":".join(dict.fromkeys((tables_environment.CLIENT_DIRECTORY, *more, *own, *host.system.store_path, *system)))


def _programs(policy: Policy, host: Host) -> Iterable[Variable]:
    """Return what tells programs where they are installed, and where to keep what they download."""
    found = host.tools.programs
    if found is None:
        return
    from claudebox.tables import tools as tables_tools

    for name, value in found.variables:
        yield Variable(name, value, "host", "where programs are that are shown")
    caches = plan_mounts.caches_inside(policy, host) or f"{host.home}/.cache"
    for program in sorted(found.names & tables_tools.STARTERS.keys()):
        for name, place in tables_tools.STARTERS[program].caches:
            yield Variable(name, f"{caches}/{place}", "claudebox", "where this program keeps its cache")
    if "pnpm" in found.names:
        store = plan_mounts.find_pnpm_store(policy, host) or f"{caches}/pnpm-store"
        yield Variable("npm_config_store_dir", store, "claudebox", "where pnpm keeps its store")


def path_outside(host: Host, inside: Iterable[Variable]) -> tuple[KeptOut, ...]:
    """Return the directories of the host's PATH that are not on that of the sandbox, and what else is kept out."""
    present = next((row.value for row in inside if row.name == "PATH"), "").split(":")
    project = host.workdir.real.rstrip("/")
    entries = dict.fromkeys(entry.rstrip("/") for entry in host.environ.get("PATH", "").split(":"))
    skipped = (f"{project}/", "/usr/", "/run/claudebox/")
    kept_out = host.tools.programs.kept_out if host.tools.programs is not None else ()
    named = {row.path for row in kept_out}
    others = (
        KeptOut(entry, "", "--set path=") for entry in entries
        if entry[:1] == "/" and entry not in present and entry not in named and entry not in ("/bin", "/sbin", project)
        and not entry.startswith(skipped)
    )  # fmt: skip
    return (*(row for row in kept_out if row.path not in present), *others)


def _certificates(host: Host) -> Iterable[Variable]:
    if host.system.ca_bundle is not None:
        yield from _lead_to_authorities(_ALL_AUTHORITIES[:2], host, "certificate authorities")
    if host.network.company is not None and host.network.company.sources:
        reason = f"certificate authorities, with those of {', '.join(host.network.company.sources)}"
        every = (
            _ALL_AUTHORITIES
            if host.network.company.bundle
            else tables_environment.ADDED_AUTHORITIES
            if host.network.company.named
            else ()
        )
        yield from _lead_to_authorities(dict.fromkeys((*every, *host.network.company.told)), host, reason)


def _lead_to_authorities(names: Iterable[str], host: Host, reason: str) -> Iterable[Variable]:
    told, named = (
        (host.network.company.told, host.network.company.named) if host.network.company is not None else ((), b"")
    )
    for name in names:
        added = name in tables_environment.ADDED_AUTHORITIES and name not in told
        if added and not named and not host.secrets.held:
            continue
        path = tables_environment.NAMED_AUTHORITIES_INSIDE if added else tables_environment.CA_BUNDLE_INSIDE
        yield Variable(name, path, "claudebox", reason)


def withheld(host: Host, entering: Iterable[Variable]) -> tuple[str, ...]:
    """Return the names of the host's variables that stay out, those that look secret first."""
    entered = {row.name for row in entering}
    out = [(not tables_secrets.looks_secret(name, host.environ[name]), name) for name in host.environ]
    return tuple(
        name
        for harmless, name in sorted(out)
        if name not in entered and not (harmless and name in tables_environment.MADE_BY_SHELLS)
    )


_ABSENT = "/run/claudebox/absent"  # inside: names, each with a sentence
_HANDLER_VARIABLE = "BASH_FUNC_command_not_found_handle%%"  # a function that bash calls
_HANDLER = f"""() {{
 local name words
 while IFS=$'\\t' read -r name words; do
  [ "$name" = "$1" ] && printf 'claudebox: %s\\n' "$words" >&2
 done <{_ABSENT}
 printf 'bash: %s: command not found\\n' "$1" >&2
 return 127
}}"""


def find_absent(host: Host, outside: tuple[KeptOut, ...]) -> dict[str, str]:
    """Return the programs that are `outside`, each with a sentence that says what brings it in."""
    found: dict[str, str] = {}
    listed = dict(host.tools.outside)
    for row in outside:
        for name in listed.get(row.path, ()):
            place = programs.spell(row.path.removesuffix(f"/{name}"), host.home)
            sentence = f"{name} of {place} is not inside: {programs.describe(row, host.home)}"
            if sentence.isprintable():
                found.setdefault(name, sentence)
    return found


def plan_absent_table(absent: dict[str, str]) -> Iterator[Mount]:
    """Yield the table that shells inside read."""
    if absent:
        content = "".join(f"{name}\t{sentence}\n" for name, sentence in absent.items())
        reason = "names programs that are not inside"
        yield Mount(_ABSENT, "file", reason, content=content.encode("utf-8", "surrogateescape"), mode=0o444)


def plan_absent_handler(absent: dict[str, str], host: Host) -> Iterator[Variable]:
    """Yield the function by which bash names what would bring a missing program in."""
    if absent and host.system.bash:
        yield Variable(_HANDLER_VARIABLE, _HANDLER, "claudebox", "lets bash say what brings a missing program in")
