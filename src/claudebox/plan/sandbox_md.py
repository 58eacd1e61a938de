"""Plan → SANDBOX.md: what the agent should know about where it is (AWARE-02). True, short, useful."""

from __future__ import annotations

from claudebox.base.console import clean, list_some
from claudebox.network import plan as network_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from claudebox.plan.records import Mount
    from claudebox.settings.records import Policy


PATH = "/run/claudebox/SANDBOX.md"
_NAMED = 12  # protected paths


def describe(policy: Policy, rows: Iterable[Mount], advice: Iterable[str] = (), *, masked: Sequence[str] = ()) -> bytes:
    """Return the text for this sandbox; `advice` is what parts of it have to say, `masked` are files."""
    return ("\n".join(_lines(policy, list(rows), advice, masked)) + "\n").encode("utf-8", "backslashreplace")


def _lines(policy: Policy, rows: list[Mount], advice: Iterable[str], masked: Sequence[str]) -> Iterator[str]:
    binds = [row for row in rows if row.kind == "bind" and row.role not in ("pin", "git", "scratch")]
    kept = [clean(row.dest) for row in binds if not row.dest.startswith("/run/claudebox")]
    lost = [clean(row.dest) for row in rows if row.kind == "tmpfs" or row.role == "scratch"]
    extra = [clean(row.dest) for row in rows if row.kind == "ro-bind" and row.role in ("asked", "drop")]
    yield "# You run in a claudebox sandbox"
    yield ""
    yield "Every permission is granted because the sandbox is the boundary. You need not ask before running commands."
    yield ""
    yield f"- Writable and kept: {', '.join(kept)}."
    yield f"- Writable and lost at the end: {', '.join(lost)}. The rest of the home is empty."
    if extra:
        yield f"- Also readable: {', '.join(extra)}."
    protected = [clean(row.dest) for row in rows if row.role == "protected"]
    if protected:
        yield (
            "- Read-only in the project, because tools of the user's machine execute or obey it: "
            f"{list_some(protected, _NAMED)}. Do not work around it; if a task needs a change there, say which file "
            "and what should be in it, or that the user can start claudebox with `--allow NAME`."
        )
    if masked:
        yield (
            f"- Masked in the project: {list_some([clean(name) for name in masked], _NAMED)}. They have the same keys "
            "with fake values, and are read-only; git leaves them alone. What logs in or decrypts with such a value "
            "fails: that is expected, do not look for the real one. If a task needs it, say which file and key: the "
            "user can start claudebox with `--project-secrets show`, or let one variable in with `--env NAME`."
        )
    if any(name.endswith("/.git") for name in protected):
        yield (
            "- Directories of submodules are mounts: `git rm`, `git mv` and `git submodule deinit` cannot remove or "
            "rename one. Commit `git rm --cached PATH` with an edited `.gitmodules`, and say that the user has to "
            "remove the directory."
        )
    yield f"- Network: tier `{policy.network}`, which cannot be changed from inside."
    for sentence in _network(policy):
        yield f"- {sentence}"
    if policy.credential is not None:
        yield f"- git can log in to {clean(policy.credential.host)} over HTTPS, and to no other host."
    yield (
        "- Absent on purpose: the user's keys, tokens, shell history, other projects, SSH and GPG agents, Docker, "
        "the desktop. Do not look for them. If a task needs one, say which variable (`claudebox --env NAME`) or path "
        "(`claudebox --mount-ro PATH`) the user could let in. A file that the user names and that does not exist here "
        "is one of the host: ask for `claudebox show FILE`, in another terminal."
    )
    for sentence in advice:
        yield f"- {clean(sentence)}"
    place = "/usr" if any(row.dest == "/usr" for row in rows) else "/nix/store"
    yield (
        f"- Programs of the system are in {place}, read-only; `sudo`, `apt` and their like do not work. Install into "
        "the project or the home: a virtual environment, `npm install`, `cargo install --root`."
    )
    if not policy.allow_userns:
        allowed = (
            "" if policy.tier.shared else ", if the user permits its port (`claudebox --set allow_host_port=PORT`)"
        )
        yield (
            "- Containers and other sandboxes (docker, podman, bwrap, unshare) do not start inside. A service that "
            f"needs one runs outside, and is reached at localhost{allowed}."
        )
    yield (
        "- Everything that runs ends with the session, background tasks and servers included: finish what must be "
        "finished, and say what the user has to start again."
    )


def _network(policy: Policy) -> Iterator[str]:
    """Yield what the agent should know, in sentences for SANDBOX.md."""
    listed = ", ".join(f"`{row.name}`" for row in policy.domains) or "none"
    yield from policy.tier.for_agent.replace("{domains}", listed).splitlines()
    if policy.addresses:
        rows = ", ".join(network_plan.spell_address(row) for row in policy.addresses)
        yield f"The user opened these private addresses for you: {rows}."
    if not policy.tier.isolated:
        for secret in policy.secrets:
            hosts = ", ".join(map(clean, secret.places))
            yield (
                f"{secret.env} is a placeholder. Use it as you would use the value: in a header or as a password of a "
                f"request to {hosts} over HTTPS, it is replaced by the value on the way. Anywhere else, in an address "
                "or a body, for another host, it stays what it is; the value itself is not in the sandbox."
            )
    for port in policy.host_ports:
        yield f"Port {port} at 127.0.0.1 and ::1 is the host's: a service that the user opened for you."
    for row in policy.published:
        yield (
            f"A server that you start on port {row.inside} of 127.0.0.1 can be seen by the user at "
            f"localhost:{row.host}, or the next free port."
        )
    if not policy.tier.shared:
        other = "another" if policy.published else "a"
        yield (
            f"The user cannot see {other} server that you start until they run `claudebox publish PORT` in this "
            "project, on their side, while you run: ask for that, with the port."
        )
