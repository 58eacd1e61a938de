"""The table of verbs: one row is one word that may stand first, and does something besides starting a session.

Loaded only for a first word that could be one of them. Help, man page and completions follow from the rows. A new verb
is a row here and a module with `run(flags, environ)`: its operands are in `flags.words`, its flags in `flags.on(...)`.
"""

from __future__ import annotations

from claudebox.base.errors import ClaudeboxError
from claudebox.base.records import Value
from claudebox.settings import parsers
from claudebox.settings.records import Setting
from claudebox.settings.table import SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from claudebox.settings.layers import SettingValue

    Group = Literal["Look back", "A running session", "Several agents", "Set up"]

_ROWS = {row.key: row for row in SETTINGS}
_HELP = _ROWS["help"].replace(flags=("-h", "--help"))
_YES = _ROWS["yes"].replace(help="do it without asking")
_JSON = Setting("json", ("--json",), "switch", "Showing", "print JSON")
_PATCH = Setting("patch", ("--patch",), "switch", "Showing", "include the differences of text files")
_SESSION = "SESSION is the beginning of a name in ~/.claudebox/log: `20261119T18`."


class Verb(Value):
    """One row: the word, what may follow it, and what does it."""

    word: str
    operands: str  # as help shows them: `NAME`, `[NAME]` if it may be missing, `FILE...` for several
    group: Group
    help: str  # in a few words
    module: str  # its `run(flags, environ)` returns the exit status
    flags: tuple[Setting, ...] = ()
    details: str = ""  # the rest of it, in sentences
    launches: bool = False  # starts a session: flags and words of a launch may follow the first operand
    in_project: bool = True  # concerns the project of the current directory
    strict: bool = False  # a broken file of settings stops it
    # How long to examine what killed sessions left, before anything else; `self`: the module does so.
    examines: Literal["briefly", "fully", "self"] = "briefly"

    @property
    def usage(self) -> str:
        """Return the verb with its operands."""
        return f"claudebox {self.word} {self.operands}".rstrip()

    def rows(self, of_launch: Mapping[str, Setting]) -> dict[str, Setting]:
        """Return the flags that may follow, by name."""
        own = {flag: row for row in self.flags for flag in row.flags}
        return {**of_launch, **own} if self.launches else {**own, **dict.fromkeys(_HELP.flags, _HELP)}

    def check_given(self, given: Mapping[str, list[SettingValue]], of_launch: Mapping[str, Setting]) -> None:
        """Refuse flags before the verb that do not go with it; actions of a launch go with none."""
        rows = self.rows(of_launch).values()
        fitting = {row.key for row in rows if not row.runs or row.key in ("exec", "shell", "help")}
        for key, values in given.items():
            flag = values[-1].origin
            if key not in fitting and not ("set" in fitting and flag.startswith("--set ")):
                hint = f"`{self.usage}`; `claudebox -- {self.word}` gives the word to the agent"
                raise ClaudeboxError(f"`{flag}` and `{self.word}` cannot be combined", hint=hint)

    def check_words(self, words: tuple[str, ...]) -> None:
        """Refuse operands that are missing or too many."""
        wanted = self.operands.split()
        if "" in words and self.word != "help":  # completion asks for what may stand in the place of an empty word
            raise ClaudeboxError(f"`claudebox {self.word}`: an argument is empty", hint=self._hint())
        least = sum(not operand.startswith("[") for operand in wanted)
        if len(words) < least:
            raise ClaudeboxError(f"`claudebox {self.word}` needs {wanted[len(words)].strip('.')}", hint=self._hint())
        if len(words) > len(wanted) and not self.operands.endswith(("...", "...]")):
            raise ClaudeboxError(f"`claudebox {self.word}`: unexpected argument `{words[-1]}`", hint=self._hint())

    def unknown_flag(self, flag: str) -> ClaudeboxError:
        """Return the error for a flag that this verb does not have."""
        return ClaudeboxError(f"`claudebox {self.word}` has no flag `{flag}`", hint=self._hint())

    def _hint(self) -> str:
        return f"`{self.usage}`; `claudebox {self.word} --help` says more"


VERBS: tuple[Verb, ...] = (
    Verb(
        "changes", "[SESSION]", "Look back", "show what a session changed", "commands.undo", (_PATCH, _JSON),
        f"Without SESSION: the last one in this directory. {_SESSION}", examines="self",
    ),
    Verb(
        "review", "[SESSION]", "Look back", "show a session in a browser", "commands.review",
        (Setting("output", ("--output",), "text", "Showing", "write the page to this file instead", metavar="FILE"),
         _JSON),
        f"One page with diffs, cost and network. Without SESSION: the last one in this directory. {_SESSION} The name "
        "of an agent works, too.",
        examines="self",
    ),
    Verb(
        "undo", "[SESSION]", "Look back", "take back what a session did", "commands.undo",
        (_YES, _PATCH, _ROWS["set"]),
        "Shows what the last session in this directory changed, asks, and restores files, modes, links, branches, HEAD "
        f"and index. `claudebox changes` only shows it. {_SESSION}",
        examines="fully",
    ),
    Verb(
        "sync", "", "Look back", "import commits made inside", "commands.sync", (),
        "Usually they arrive within a second: for `git_import = 'manual'` or `'ask'`, and after a failed import.",
        examines="fully",
    ),
    Verb(
        "log", "[all|changes|denied|HOST]...", "Look back", "show network connections", "commands.log",
        (_JSON,),
        "Shows the last session in this project, or with `all` every session. `denied`, `allowed`, `failed` and a part "
        "of a host's name select connections; `changes` lists changed paths instead.",
    ),
    Verb("denied", "", "Look back", "show what was denied", "commands.log", (_JSON,),
         "In the session that runs here, or in the last one; with the command that permits it."),
    Verb("cost", "", "Look back", "show what models have cost", "commands.log", (_JSON,),
         "By day and project, from retained logs."),

    Verb("show", "FILE...", "A running session", "show files to all sessions", "commands.show", (),
         "Copies them to ~/.claudebox/drop, which every session can read; Ctrl+V in the agent pastes the newest "
         "picture."),
    Verb("allow", "DOMAIN...", "A running session", "permit domains right now", "commands.allow", (),
         "For sessions of tier `allow` in this directory, and agents that were started here, until they end."),
    Verb(
        "publish", "[AGENT] [[HOST:]PORT]...", "A running session", "open ports at localhost", "commands.publish",
        (Setting("off", ("--off",), "switch", "Showing", "close these ports, or all that this verb opened"), _JSON),
        "Opens ports of the session that runs here, or of AGENT, until it ends; without PORT, lists them. AGENT can be "
        "left out if only one was started here. If a port is taken on this machine, the next free one is used, unless "
        "HOST names one.",
    ),

    Verb(
        "new", "NAME", "Several agents", "start an agent on a branch", "many.new",
        (
            Setting("from", ("--from",), "text", "Agents", "the branch, tag or commit to start from (default: HEAD)",
                    metavar="BRANCH", parse=parsers.commit),
            _ROWS["copy"].replace(flags=("--copy",), metavar="PATH"),
        ),
        "In a new worktree, on a new branch NAME. If they exist, resumes there.",
        launches=True,
    ),
    Verb("sessions", "", "Several agents", "list sessions", "many.sessions", (_JSON,),
         "With state, age, memory, cost, project, last line and published ports."),
    Verb("attach", "[NAME]", "Several agents", "show a background session", "many.sessions", (),
         "Ctrl+Z leaves it running. Without NAME: the only one."),
    Verb("stop", "NAME", "Several agents", "end a background session", "many.sessions", (),
         "With SIGTERM, then SIGKILL. One that has ended is removed from the list."),
    Verb("finish", "NAME", "Several agents", "remove an agent's worktree", "many.finish", (_YES,),
         "Shows what the agent did, and asks. The branch stays; nothing that exists nowhere else is deleted."),
    Verb("drop", "NAME", "Several agents", "delete worktree and branch", "many.finish", (_YES,),
         "Shows what would be lost, and asks."),
    Verb(
        "task", "FILE", "Several agents", "do one task unattended", "many.tasks.run",
        (
            Setting("result", ("--result",), "text", "Tasks", "the directory of the result, written atomically at "
                    "the end", metavar="DIR"),
        ),
        "Clones the repository, runs the agent, and leaves patch, bundle, conversation, log and receipt in the "
        "directory of `--result`. The exit status says whether to retry. `claudebox help schema task` has the format.",
        strict=True,
    ),
    Verb(
        "tasks", "[FILES]...", "Several agents", "do many tasks in parallel", "many.tasks.batch",
        (
            Setting("results", ("--results",), "text", "Tasks", "the directory of the results, one for each task; "
                    "without FILES, show them", metavar="DIR"),
            Setting("jobs", ("--jobs",), "text", "Tasks", "how many at once (default: 2)", metavar="COUNT"),
            Setting("page", ("--page",), "text", "Tasks", "also write a page of all results to this file",
                    metavar="FILE"),
            _JSON,
        ),
        "With GNU parallel. The same command continues an interrupted run.",
        strict=True,
    ),

    Verb("projects", "[prune]", "Set up", "list or prune projects", "commands.projects", (_YES, _JSON),
         "`prune` removes state and conversations of projects that no longer exist.", in_project=False),
    Verb("profiles", "[PROFILE]", "Set up", "list profiles, or show one", "commands.profiles", (_JSON,),
         "Shows its file, with reasons, and what differs from the defaults.", in_project=False),
    Verb("trust", "[approve|revoke] [PATH]", "Set up", "approve project settings", "commands.profiles", (_JSON,),
         "Lists the .claudebox.toml files that you approved. `approve` shows the one in this directory and asks; "
         "`revoke PATH` takes an approval back.", in_project=False),
    Verb("init", "", "Set up", "write a commented config", "commands.profiles", (),
         "~/.claudebox/config.toml, with every setting explained. An existing file stays.", in_project=False),
    Verb(
        "demo", "[FLAGS]...", "Set up", "watch blocked attacks", "commands.demo.run", (_ROWS["network"],),
        "A scripted model attacks the sandbox and then works in it, offline and with fake secrets. FLAGS, after `--`, "
        "are more flags for the session.",
        in_project=False,
    ),
    Verb("uninstall", "", "Set up", "remove what claudebox left", "commands.uninstall", (_YES,),
         "Shows what claudebox has left in your home and repositories, and asks.", in_project=False, examines="fully"),
    Verb("help", "[TOPIC] [NAME]...", "Set up", "explain flags and settings", "commands.usage", (),
         "TOPIC is `flags`, `settings [KEY]`, `agents`, a verb, or `schema [task]`: the JSON Schema of settings or of "
         "task files.", in_project=False),
)  # fmt: skip


def find_verb(word: str) -> Verb | None:
    return next((verb for verb in VERBS if verb.word == word), None)


# Flags of 0.2.0 and what replaces them, for one version.
FORMER = {
    "--new": "claudebox new NAME", "--finish": "claudebox finish NAME", "--drop": "claudebox drop NAME",
    "--attach": "claudebox attach", "--sessions": "claudebox sessions", "--stop": "claudebox stop NAME",
    "--log": "claudebox log", "--follow": "claudebox log", "--usage": "claudebox cost",
    "--instances": "claudebox projects", "--import": "claudebox sync", "--changes": "claudebox changes",
    "--patch": "claudebox changes --patch", "--undo": "claudebox undo", "--show": "claudebox show FILE",
    "--demo": "claudebox demo", "--profiles": "claudebox profiles", "--trust": "claudebox trust",
    "--init": "claudebox init", "--schema": "claudebox help schema", "--now": "claudebox allow DOMAIN",
    "--task": "claudebox task FILE --result DIR", "--tasks": "claudebox tasks FILES --results DIR",
    "--from": "claudebox new NAME --from BRANCH", "--copy": "claudebox new NAME --copy PATH",
    "--result": "claudebox task FILE --result DIR", "--results": "claudebox tasks FILES --results DIR",
    "--jobs": "claudebox tasks FILES --jobs COUNT", "--set-env": "--env NAME=VALUE",
}  # fmt: skip


# Settings that had flags of their own in 0.2.0.
SETTINGS_ONLY = frozenset((
    "allow_address", "allow_host_port", "allow_userns", "auth", "browser", "cache_size", "caches", "claude_home",
    "cpus", "device", "devshell", "git_import", "gpu", "inherit", "nix", "nixpkgs", "packages_optional", "path",
    "pids", "project", "receipt", "scratch", "scratch_size", "secret_variables", "submounts",
    "terminal", "tokens", "undo_exclude", "undo_keep", "undo_size", "unsafe_mounts", "uplink",
))  # fmt: skip


def refuse_former(flag: str) -> None:
    """Refuse a flag of the version before, and name the new word."""
    new = FORMER.get(flag, "")
    row = _ROWS.get(flag[2:].replace("-", "_"))
    if row is not None and row.key in SETTINGS_ONLY:
        new = f"--set {row.file_key}={'true' if row.shape == 'switch' else 'VALUE'}"
    if new:
        hint = f"after `--` it goes to the agent: `claudebox -- {flag}`"
        raise ClaudeboxError(f"`{flag}` is now `{new}`", hint=hint)
