"""The table of settings: one row is one thing that a person can ask for.

Flags, help, man page, completions and the merge of layers all follow from the rows here; nothing else in
claudebox knows the name of a flag.
"""

from __future__ import annotations

from claudebox.errors import ClaudeboxError
from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    Shape = Literal["switch", "choice", "list"]
    Group = Literal["Starting", "Showing", "What enters", "Restrictions"]


class Setting(Value):
    """One row: what it is called, what it takes, what it does."""

    key: str
    flags: tuple[str, ...]
    shape: Shape
    group: Group
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    default: str = ""
    variable: str = ""  # an environment variable of the host that sets it, comma-separated for lists
    verb: bool = False  # does something else than starting the client; two of them contradict each other


SETTINGS: tuple[Setting, ...] = (
    Setting("yes", ("-y", "--yes"), "switch", "Starting", "start without asking"),
    Setting(
        "exec", ("--exec",), "switch", "Starting",
        "run the words after `--` instead of the client, in the very same sandbox", verb=True,
    ),
    Setting("shell", ("--shell",), "switch", "Starting", "open an interactive bash in the sandbox", verb=True),
    Setting(
        "dry_run", ("--dry-run",), "switch", "Showing",
        "print the whole bwrap command, ready to be pasted into bash, and stop", verb=True,
    ),
    Setting(
        "explain", ("--explain",), "switch", "Showing",
        "print every mount with its reason and every variable with its origin, and stop", verb=True,
    ),
    Setting(
        "check", ("--check",), "switch", "Showing",
        "examine this machine and tell what would stop a launch, and stop", verb=True,
    ),
    Setting(
        "verify", ("--verify",), "switch", "Showing",
        "start this very sandbox with a probe inside, tell which promises hold, and stop", verb=True,
    ),
    Setting("json", ("--json",), "switch", "Showing", "with --check, --verify, --explain or --instances: print JSON"),
    Setting(
        "instances", ("--instances",), "switch", "Showing",
        "list the projects that have conversations here; `--instances prune` removes those whose project is gone",
        verb=True,
    ),
    Setting(
        "demo", ("--demo",), "switch", "Showing",
        "watch a scripted model attack the sandbox and then work in it, offline and with fake secrets, and stop",
        verb=True,
    ),
    Setting("help", ("-h", "--help"), "switch", "Showing", "print this help, and stop", verb=True),
    Setting("version", ("--version",), "switch", "Showing", "print the version of claudebox, and stop", verb=True),
    Setting(
        "env", ("--env",), "list", "What enters",
        "let this variable of the host into the sandbox; repeatable",
        metavar="NAME", variable="CLAUDEBOX_EXTRA_ENV",
    ),
    Setting(
        "mount_ro", ("--mount-ro",), "list", "What enters",
        "show this file or directory inside, read-only; repeatable", metavar="SRC[:DEST]",
    ),
    Setting(
        "mount_rw", ("--mount-rw",), "list", "What enters",
        "show this file or directory inside, writable; repeatable", metavar="SRC[:DEST]",
    ),
    Setting(
        "unsafe_mounts", ("--unsafe-mounts",), "switch", "What enters",
        "permit mounts that expose what the sandbox otherwise hides (keys, sockets, the home)",
    ),
    Setting(
        "inherit", ("--inherit",), "list", "What enters",
        "bring this part of the host's ~/.claude in, read-only: `CLAUDE.md`, `agents`, `commands`, `skills`, "
        "`output-styles`, `rules`, ...; repeatable",
        metavar="PART",
    ),
    Setting(
        "claude_home", ("--claude-home",), "choice", "What enters",
        "`own`: the client has a home per project; `shared`: also everything of the host's ~/.claude, read-only, "
        "except conversations and logins",
        metavar="HOME", choices=("own", "shared"), default="own",
    ),
    Setting(
        "network", ("--network",), "choice", "Restrictions",
        "`full`: the host's network with its loopback and LAN; `inet`: the internet, not the LAN nor this machine; "
        "`none`: loopback of the sandbox only",
        metavar="TIER", choices=("full", "inet", "none"), default="full",
    ),
    Setting(
        "allow_host_port", ("--allow-host-port",), "list", "Restrictions",
        "in tiers `inet` and `none`: let programs inside reach this TCP port of the host's loopback; repeatable",
        metavar="PORT",
    ),
    Setting(
        "publish", ("--publish",), "list", "Restrictions",
        "in tiers `inet` and `none`: make this TCP port of the sandbox reachable at localhost of the host; repeatable",
        metavar="PORT",
    ),
    Setting(
        "uplink", ("--uplink",), "choice", "Restrictions",
        "the program that connects tier `inet`: `pasta`, `slirp4netns`, or whichever works (`auto`)",
        metavar="PROGRAM", choices=("auto", "pasta", "slirp4netns"), default="auto",
    ),
    Setting(
        "allow", ("--allow",), "list", "Restrictions",
        "let the agent change this protected path for once: `git-config`, `.claude`, `.mcp.json`, `.vscode`, ...; "
        "repeatable",
        metavar="PROTECTED",
    ),
    Setting(
        "project_secrets", ("--project-secrets",), "choice", "Restrictions",
        "secrets in files of the project: `warn` names them, `mask` shows the agent the same files with harmless "
        "values, `allow` says nothing",
        metavar="WHAT", choices=("warn", "mask", "allow"), default="warn",
    ),
    Setting(
        "allow_userns", ("--allow-userns",), "switch", "Restrictions",
        "permit user namespaces inside, for programs that bring a sandbox of their own",
    ),
)  # fmt: skip

_BY_FLAG = {flag: row for row in SETTINGS for flag in row.flags}


class Given(Value):
    """A value and where it came from."""

    value: str
    origin: str


class Settings(Value):
    """All settings of one launch, each knowing its origin, and the words that are not ours."""

    given: dict[str, tuple[Given, ...]]
    words: tuple[str, ...] = ()

    def on(self, key: str) -> bool:
        """Tell whether a switch was given."""
        return key in self.given

    def one(self, key: str) -> Given:
        """Return a single value; the last one given wins."""
        return self.given[key][-1]

    def all(self, key: str) -> tuple[Given, ...]:
        """Return every value of a list."""
        return self.given.get(key, ())


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Merge the layers: defaults, then the environment, then the flags."""
    given: dict[str, list[Given]] = {}
    for row in SETTINGS:
        if row.shape == "choice":
            given[row.key] = [Given(row.default, "default")]
        if row.variable and (value := environ.get(row.variable)):
            names = (name.strip() for name in value.split(","))
            given[row.key] = [Given(name, row.variable) for name in names if name]
    words: list[str] = []
    rest = list(reversed(argv))
    while rest:
        word = rest.pop()
        if word == "--":
            words += reversed(rest)
            break
        flag, assigned, value = word.partition("=")
        own = _BY_FLAG.get(flag)
        if own is None:
            words.append(word)
        elif own.shape == "switch":
            if assigned:
                raise ClaudeboxError(f"`{flag}` takes no value", hint=f"write `{flag}` alone")
            given[own.key] = [Given("yes", flag)]
        else:
            if not assigned:
                if not rest:
                    raise ClaudeboxError(f"`{flag}` needs a value: `{flag} {own.metavar}`")
                value = rest.pop()
            given.setdefault(own.key, []).append(_checked(own, Given(value, flag)))
    merged = {key: tuple(values) for key, values in given.items()}
    _check_verbs(merged)
    return Settings(merged, tuple(words))


def _checked(row: Setting, given: Given) -> Given:
    if row.choices and given.value not in row.choices:
        allowed = ", ".join(f"`{choice}`" for choice in row.choices)
        raise ClaudeboxError(f"`{given.origin}` is {allowed}, not `{given.value}`")
    if "\0" in given.value or not given.value:
        raise ClaudeboxError(f"`{given.origin}` needs a value: `{given.origin} {row.metavar}`")
    return given


def _check_verbs(given: Mapping[str, tuple[Given, ...]]) -> None:
    verbs = [row.flags[-1] for row in SETTINGS if row.verb and row.key in given]
    running = {"--exec", "--shell"}
    showing = {"--dry-run", "--explain"}
    if "--help" in verbs or "--version" in verbs:
        return
    if len(verbs) > 1 and not (len(verbs) == 2 and set(verbs) & running and set(verbs) & showing):
        raise ClaudeboxError(f"`{verbs[0]}` and `{verbs[1]}` exclude each other", hint="give one of them")
    if "json" in given and not {"--check", "--explain", "--instances", "--verify"} & set(verbs):
        raise ClaudeboxError("`--json` goes with `--check`, `--verify`, `--explain` or `--instances`")
