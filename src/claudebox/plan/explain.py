"""Plan → text: the dry run, the tree with reasons, JSON. All render the same value, and so does the audit."""

from __future__ import annotations

from claudebox.base.console import clean, paint, shorten
from claudebox.network import plan as network_plan
from claudebox.plan import audit, bwrap
from claudebox.plan.records import Deferred, Mount, NixAccess, Plan, Variable
from claudebox.tables.environment import GATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.settings.layers import Settings


_MAKING = {
    "directory": "mkdir {}",
    "file": ": >{}",
}
_WIDTH = 100


def _nix(decision: NixAccess) -> str:
    from claudebox.nix.plan import described

    return clean(described(decision))


def _brokered(plan: Plan) -> Iterator[str]:
    if plan.broker is not None:
        from claudebox.broker import plan as broker_plan

        yield from broker_plan.described(plan)


def render(plan: Plan, settings: Settings) -> Iterable[str]:
    """Return what `--dry-run` or `--explain` prints."""
    if settings.on("dry_run"):
        return dry_run(plan)
    return [as_json(plan, settings)] if settings.on("json") else [*tree(plan), *origins(settings)]


def shown(row: Variable) -> str:
    """Return a value as it may be printed: of a secret only its length (B13)."""
    if row.deferred is not None and row.secret:
        return "<made at the start, not shown>"
    if not row.printed:
        return f"<{len(row.value)} characters, not shown>"
    return shorten(row.value, _WIDTH)


def dry_run(plan: Plan) -> Iterator[str]:
    """Yield the command, one option per line, ready to be pasted into bash (UX-04).

    Contents come from here-documents of the shell. The gate is left out, since nobody would answer it.
    """
    plan = plan.replace(
        variables=tuple(row.replace(deferred=None) for row in plan.variables),
        mounts=tuple(row for row in plan.mounts if row.dest != GATE),
    )
    secret = {row.name for row in plan.variables if not row.printed}
    contents: list[bytes] = []

    def word(value: bwrap.Word) -> str:
        if isinstance(value, str):
            return bash_quote(value)
        contents.append(value if isinstance(value, bytes) else b"***")
        return str(9 + len(contents))

    if plan.broker is not None:
        yield "# This starts no broker: what needs one does not work inside."
    made = (*plan.state, *((plan.relay.directory,) if plan.relay else ()))  # which nobody answers in, from here
    yield f"mkdir -p -m 700 {' '.join(bash_quote(directory) for directory in made)}"
    for stub in plan.stubs:
        yield f"{_MAKING[stub.kind].format(bash_quote(stub.path))}"
    yield f"env -i {bash_quote(plan.bwrap)} \\"
    for row in bwrap.options(plan, by_name=True):
        name, *rest = row
        if name == "--setenv" and rest[0] in secret:
            yield f"  --setenv {word(rest[0])} '***' \\"
            continue
        if name == "--ro-bind" and isinstance(rest[0], Deferred):  # a socket, which exists while a broker does
            name, rest[0] = "--ro-bind-try", f"/tmp/claudebox-broker/{rest[0].key}"
        yield f"  {' '.join(map(word, (name, *rest)))} \\"
    yield f"  -- {' '.join(word(value) for value in plan.command)} \\"
    for index, content in enumerate(contents):
        end = " \\" if index + 1 < len(contents) else ""
        yield f"  {10 + index}< <(printf -- {_bash_bytes(content)}){end}"
    if plan.stubs:
        yield "status=$?"
        for stub in reversed(plan.stubs):
            yield f"{'rmdir' if stub.kind == 'directory' else 'rm'} {bash_quote(stub.path)}"
        yield "(exit $status)"


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+@%=")


def bash_quote(text: str) -> str:
    """Return one word for bash, printable whatever it contains."""
    if text and set(text) <= _PLAIN:
        return text
    if text.isprintable() and clean(text) == text:
        return "'" + text.replace("'", "'\\''") + "'"
    encoded = text.encode("utf-8", "surrogateescape")
    return "$'" + "".join(chr(byte) if chr(byte) in _PLAIN else f"\\x{byte:02x}" for byte in encoded) + "'"


def _bash_bytes(content: bytes) -> str:
    """Return the argument of printf that prints these bytes."""
    return "'" + "".join(chr(byte) if chr(byte) in _PLAIN - {"%"} else f"\\x{byte:02x}" for byte in content) + "'"


def tree(plan: Plan) -> Iterator[str]:
    """Yield the mount table as a tree, each row with its reason, then the variables with their origins."""
    yield paint("mounts", "bold", descriptor=1)
    width = max(len(_label(row)) for row in plan.mounts) if plan.mounts else 0
    for row in plan.mounts:
        yield f"  {_label(row):<{min(width, 60)}}  {_access(row):<9}  {clean(row.reason)}{_origin(row)}"
    yield paint("variables", "bold", descriptor=1)
    for variable in plan.variables:
        note = f"; {variable.note}" if variable.note else ""
        yield f"  {clean(variable.name)}={shown(variable)}"
        yield f"      {variable.origin}: {clean(variable.reason)}{note}"
    if plan.withheld:
        yield paint("withheld", "bold", descriptor=1)
        yield from (f"  {shorten(name, _WIDTH)}" for name in plan.withheld)
    for kind, name in plan.inherited:
        yield f"  {clean(kind)}: {clean(name)}"
    yield paint("protections", "bold", descriptor=1)
    for line in protections(plan):
        yield f"  {line}"
    for warning in audit.warnings(plan, quiet=True):
        yield f"  warning: {clean(warning)}"


def _label(row: Mount) -> str:
    depth = row.dest.count("/") - 1 if row.dest != "/" else 0
    return "  " * depth + clean(row.dest)


def _access(row: Mount) -> str:
    if row.role == "scratch":
        return "temporary"
    return {
        "bind": "writable",
        "tmpfs": "temporary",
        "mask": "hidden",
        "empty": "hidden",
        "copy": "copy" if row.content else "hidden",
        "late": "made",
        "closed": "empty",
        "symlink": "link",
        "file": "made",
        "socket": "socket",
        "device": "device",
    }.get(row.kind, "read-only")


def _origin(row: Mount) -> str:
    if row.kind == "symlink" or (row.source and row.source != row.dest and row.kind != "late"):
        return f"  <- {clean(row.source)}"
    return ""


def protections(plan: Plan) -> Iterator[str]:
    """Yield what confines the payload besides mounts and variables."""
    yield f"own namespaces: {', '.join(plan.namespaces)}"
    yield f"network: {'; '.join(network_plan.described(plan))}"
    for line in _brokered(plan):
        yield f"broker: {line}"
    yield from network_plan.reachability(plan)
    if plan.nix is not None:
        yield f"Nix: {_nix(plan.nix)}"
    yield f"seccomp: {len(plan.seccomp) // 8} instructions"
    yield f"Landlock: abstract sockets and signals {'kept inside' if plan.scoped else 'not restricted by this kernel'}"
    yield f"terminal: {_terminal(plan)}"
    yield f"user namespaces inside: {'impossible' if plan.disable_userns else 'allowed'}"


def _terminal(plan: Plan) -> str:
    kind = "none, own session" if plan.detached else "one of the sandbox's own"
    return f"{kind}; what is written to yours is {'filtered' if plan.policy.filter_terminal else 'passed on as it is'}"


def origins(settings: Settings) -> Iterator[str]:
    """Yield every setting that a sandbox has, and where its value came from."""
    yield paint("settings", "bold", descriptor=1)
    rows = [(f"{name} = {shorten(value, _WIDTH)}", origin) for name, value, origin in _settings(settings)]
    width = min(60, max((len(text) for text, _ in rows), default=0))
    for text, origin in rows:
        yield f"  {text:<{width}}  {clean(origin)}"


def _settings(settings: Settings) -> Iterator[tuple[str, str, str]]:
    from claudebox.settings.table import SETTINGS
    from claudebox.tables.secrets import looks_secret

    for row in SETTINGS:
        if row.runs or row.key == "json":
            continue
        for given in settings.all(row.key):
            name, assigned, constant = given.value.partition("=")
            masked = row.shape == "table" and assigned and looks_secret(name, constant)
            value = f"{name}=<{len(constant)} characters, not shown>" if masked else given.value
            if row.shape in ("record", "rows", "words"):
                value = " ".join(word for word in given.fields.values() if word)
            yield row.file_key, value, given.origin


def _broker_document(plan: Plan) -> dict[str, object] | None:
    from claudebox.broker import plan as broker_plan

    return broker_plan.as_document(plan)


def as_json(plan: Plan, settings: Settings | None = None) -> str:
    """Return the plan for machines; secret values are left out here too."""
    import json

    document = {
        "command": plan.command,
        "workdir": plan.workdir,
        "start": plan.start,
        "network": plan.policy.network,
        "link": network_plan.as_document(plan),
        "nix": plan.nix and {"access": plan.nix.kind, "why": plan.nix.why, "remedy": plan.nix.remedy},
        "broker": _broker_document(plan),
        "mounts": [
            {
                "dest": row.dest,
                "access": _access(row),
                "kind": row.kind,
                "role": row.role,
                "source": row.source,
                "reason": row.reason,
            }
            for row in plan.mounts
        ],
        "variables": [
            {
                "name": row.name,
                "value": row.value if row.printed else None,
                "origin": row.origin,
                "reason": row.reason,
                "note": row.note,
            }
            for row in plan.variables
        ],
        "settings": [
            {"name": name, "value": value, "origin": origin}
            for name, value, origin in (_settings(settings) if settings else ())
        ],
        "protections": list(protections(plan)),
        "warnings": tuple(audit.warnings(plan, quiet=True)),
        "withheld": plan.withheld,
        "inherited": [{"kind": kind, "name": name} for kind, name in plan.inherited],
    }
    return json.dumps(document, indent=2, ensure_ascii=True)
