"""Plan → SANDBOX.md: what the agent should know about where it is (AWARE-02). True, short, useful."""

from __future__ import annotations

from claudebox.console import clean
from claudebox.plan import network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.config.model import Policy
    from claudebox.plan.model import Mount

PATH = "/run/claudebox/SANDBOX.md"


def describe(policy: Policy, rows: Iterable[Mount], advice: Iterable[str] = ()) -> bytes:
    """Return the text for this sandbox; `advice` is what parts of it have to say."""
    return ("\n".join(_lines(policy, list(rows), advice)) + "\n").encode("utf-8", "backslashreplace")


def _lines(policy: Policy, rows: list[Mount], advice: Iterable[str]) -> Iterator[str]:
    binds = [row for row in rows if row.kind == "bind" and row.role not in ("pin", "git", "scratch")]
    kept = [clean(row.dest) for row in binds if not row.dest.startswith("/run/claudebox")]
    lost = [clean(row.dest) for row in rows if row.kind == "tmpfs" or row.role == "scratch"]
    extra = [clean(row.dest) for row in rows if row.kind == "ro-bind" and row.role == "asked"]
    yield "# You run in a claudebox sandbox"
    yield ""
    yield "Every permission is granted because the sandbox is the boundary. You need not ask before running commands."
    yield ""
    yield f"- Writable and kept: {', '.join(kept)}."
    yield f"- Writable and lost at the end: {', '.join(lost)}. The rest of the home is empty."
    if extra:
        yield f"- Also readable: {', '.join(extra)}."
    for sentence in network.advice(policy):
        yield f"- {sentence}"
    if policy.credential is not None:
        yield f"- git can log in to {clean(policy.credential.host)} over HTTPS, and to no other host."
    yield (
        "- Absent on purpose: the user's keys, tokens, shell history, other projects, SSH and GPG agents, Docker, "
        "the desktop. Do not look for them. If a task needs one, say which variable (`claudebox --env NAME`) or path "
        "(`claudebox --mount-ro PATH`) the user could let in."
    )
    for sentence in advice:
        yield f"- {clean(sentence)}"
    place = "/usr" if any(row.dest == "/usr" for row in rows) else "/nix/store"
    yield (
        f"- Programs of the system are in {place}, read-only; `sudo`, `apt` and their like do not work. Install into "
        "the project or the home: a virtual environment, `npm install`, `cargo install --root`."
    )
    if not policy.allow_userns:
        yield "- Containers and other sandboxes (docker, podman, bwrap, unshare) do not start inside."
    yield "- Processes end with the session; there is no background after it."
