"""The table of settings: one row is one thing that a user can ask for.

Flags, keys in files, help, man page, completions, the JSON Schema, the judgement of project files and the merge of
layers all follow from the rows here; nothing else in claudebox knows the name of a flag or of a key.
"""

from __future__ import annotations

from claudebox.config.agent_options import AGENT_SETTINGS
from claudebox.config.model import Field, Setting
from claudebox.config.network_options import NETWORK
from claudebox.config.task_options import TASKS
from claudebox.config.tool_options import TOOLS

SETTINGS: tuple[Setting, ...] = (
    Setting("yes", ("-y", "--yes"), "switch", "Starting", "start without asking", in_files="user"),
    Setting(
        "quiet", ("--quiet",), "switch", "Starting", "before the start, print nothing but warnings", in_files="user",
    ),
    Setting(
        "exec", ("--exec",), "switch", "Starting",
        "run the words after `--` instead of the client, in the very same sandbox", verb=True,
    ),
    Setting("shell", ("--shell",), "switch", "Starting", "open an interactive bash in the sandbox", verb=True),
    *AGENT_SETTINGS,
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
        "examine this machine and the plan of this launch, tell what would stop it, and stop", verb=True,
    ),
    Setting(
        "verify", ("--verify",), "switch", "Showing",
        "start this very sandbox with a probe inside, tell which promises hold, and stop", verb=True,
    ),
    Setting(
        "log", ("--log",), "switch", "Showing",
        "show what the last session here decided about the network; `all`: of every session, `denied` or a part of a "
        "host's name: only those", verb=True,
    ),
    Setting("follow", ("--follow",), "switch", "Showing", "with --log: go on showing, as it happens"),
    Setting(
        "usage", ("--usage",), "switch", "Showing",
        "show what the model has cost, by project and day, as far as logs are kept", verb=True,
    ),
    Setting(
        "receipt", ("--receipt",), "choice", "Showing",
        "at the end, on one screen, what entered, what was withheld, who was reached and what changed: `auto`: when "
        "something was denied or ended by a limit, `always`, `never`",
        metavar="WHEN", choices=("auto", "always", "never"), default="auto", in_files="user",
    ),
    Setting(
        "json", ("--json",), "switch", "Showing",
        "with --check, --verify, --explain, --instances, --log or --sessions: print JSON",
    ),
    Setting(
        "instances", ("--instances",), "switch", "Showing",
        "list the projects that have conversations here; `--instances prune` removes those whose project is gone",
        verb=True,
    ),
    Setting(
        "import", ("--import",), "switch", "Showing",
        "bring what was committed inside into your repository now, and stop", verb=True,
    ),
    Setting(
        "changes", ("--changes",), "switch", "Showing",
        "show what has changed in the project since the last session began, or that SESSION of the log", verb=True,
    ),
    Setting("patch", ("--patch",), "switch", "Showing", "with --changes: show the differences of texts too"),
    Setting(
        "undo", ("--undo",), "switch", "Showing",
        "show the same, ask, and put the project back: files, modes, links, branches, HEAD and index", verb=True,
    ),
    Setting(
        "profiles", ("--profiles",), "switch", "Profiles",
        "list the profiles; `--profiles NAME` shows one with its reasons and what it changes", verb=True,
    ),
    Setting(
        "trust", ("--trust",), "switch", "Profiles",
        "list the project files that you have approved; `--trust approve` asks for the one here, "
        "`--trust revoke PATH` takes one back", verb=True,
    ),
    Setting(
        "init", ("--init",), "switch", "Profiles",
        "write ~/.claudebox/config.toml, every setting in it with its meaning, unless it is there already", verb=True,
    ),
    Setting("schema", ("--schema",), "switch", "Profiles", "print the JSON Schema of these files, and stop", verb=True),
    Setting(
        "profile", ("--profile",), "text", "Profiles",
        "apply ~/.claudebox/profiles/PROFILE.toml (or .json), or a built-in profile: "
        "`default`, `strict`, `offline`, `batch`",
        metavar="PROFILE", variable="CLAUDEBOX_PROFILE", in_files="user",
    ),
    Setting("extends", (), "text", "Profiles", "another profile that is applied before this one", in_files="profile"),
    Setting("name", (), "text", "Profiles", "what this profile is called", in_files="profile"),
    Setting("description", (), "text", "Profiles", "what this profile is for, in a sentence", in_files="profile"),
    Setting(
        "command", (), "words", "Starting",
        "another agent to start instead of Claude Code: the program, then its words", in_files="user",
    ),
    Setting(
        "state", (), "list", "What enters", "names in the home that another agent keeps its state under, per project",
        in_files="user",
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
        metavar="NAME", variable="CLAUDEBOX_EXTRA_ENV", in_files="project", name="extra_env_passthrough",
    ),
    Setting(
        "set_env", ("--set-env",), "table", "What enters",
        "give this variable this value in the sandbox; not for secrets, let those in by name; repeatable",
        metavar="NAME=VALUE", in_files="project", name="env",
    ),
    Setting(
        "mounts", (), "rows", "What enters", "files and directories of the host to show inside",
        in_files="project",
        fields=(
            Field("host", "path on the host: absolute, or with `~/`; in a project file also relative to the project",
                  example="~/data"),
            Field("sandbox", "path inside; without it the same", default=""),
            Field("mode", "`ro`: read-only; `rw`: writable", ("ro", "rw"), "ro"),
        ),
    ),
    Setting(
        "mount_ro", ("--mount-ro",), "list", "What enters",
        "show this file or directory inside, read-only; repeatable", metavar="SRC[:DEST]", instead="[[mounts]]",
    ),
    Setting(
        "mount_rw", ("--mount-rw",), "list", "What enters",
        "show this file or directory inside, writable; repeatable", metavar="SRC[:DEST]", instead="[[mounts]]",
    ),
    Setting(
        "unsafe_mounts", ("--unsafe-mounts",), "switch", "What enters",
        "permit mounts that expose what the sandbox otherwise hides (keys, sockets, the home)",
        in_files="user",
    ),
    *TOOLS,
    Setting(
        "git_credential", (), "record", "What enters",
        "the one host that git inside can log in to, and where its token comes from",
        in_files="user",
        fields=(
            Field("host", "name of the host, `github.com`, with `:PORT` if it has one", example="github.com"),
            Field("token", "`env:NAME`, a variable of the host; or `command:WORDS`, a command that prints the token",
                  example="env:GH_TOKEN"),
            Field("username", "most hosts take any name with a token", default="x-access-token"),
        ),
    ),
    Setting(
        "secrets", (), "rows", "What enters",
        "secrets that stay outside: inside, the variable is a placeholder, and the value is put in on the way to "
        "these hosts alone; in tiers `inet` and `allow`",
        in_files="user",
        fields=(
            Field("env", "name of the variable inside", example="GH_TOKEN"),
            Field("hosts", "names of the hosts that get the value, over HTTPS, with `:PORT` if it is not 443",
                  example="api.github.com\ngithub.com", many=True),
            Field("from", "where the value comes from, on the host: `env:NAME`, `file:PATH`, or `command:WORDS`, a "
                  "command that prints it", example="env:GH_TOKEN"),
            Field("headers", "header fields that may carry the value, beside `Authorization`, `X-Api-Key`, "
                  "`Private-Token` and others that are there for credentials", default="", many=True),
            Field("permit", "methods and paths that the value is good for, `GET /repos/acme/**`, or a preset, "
                  "`github:read acme/shop`; everything else at these hosts is refused", default="",
                  example="github:read acme/shop\nPOST /repos/acme/shop/issues", many=True, spaced=True),
            Field("weak", "`accept` takes a value that can be guessed: cleaning answers confirms a right guess",
                  choices=("accept",), default=""),
        ),
    ),
    Setting(
        "inherit", ("--inherit",), "list", "What enters",
        "bring this part of the host's ~/.claude in, read-only: `CLAUDE.md`, `agents`, `commands`, `skills`, "
        "`output-styles`, `rules`, ...; `mcp`: your MCP servers, without their secrets; repeatable",
        metavar="PART", in_files="project",
    ),
    Setting(
        "claude_home", ("--claude-home",), "choice", "What enters",
        "`own`: the client has a home per project; `shared`: also everything of the host's ~/.claude, read-only, "
        "except conversations and logins",
        metavar="HOME", choices=("own", "shared"), default="own", in_files="project", widest="last",
    ),
    *NETWORK,
    Setting(
        "nix", ("--nix",), "choice", "Restrictions",
        "the Nix daemon inside: `auto` where that gives nothing away, through a relay if the daemon trusts you; "
        "`daemon`, `relay`: in any case; `off`",
        metavar="HOW", choices=("auto", "daemon", "relay", "off"), default="auto", in_files="user",
    ),
    Setting(
        "auth", ("--auth",), "choice", "Restrictions",
        "`broker`: your API key or login stays outside, and a helper on the host adds it to requests to the model; "
        "`passthrough`: the key, or a short-lived token of the login, enters",
        metavar="WAY", choices=("passthrough", "broker"), default="broker", in_files="project", widest="first",
    ),
    Setting(
        "allow", ("--allow",), "list", "Restrictions",
        "let the agent change this protected path in this session: `git-config`, `.claude`, ...; "
        "repeatable",
        metavar="PROTECTED", in_files="user",
    ),
    Setting(
        "project_secrets", ("--project-secrets",), "choice", "Restrictions",
        "secrets in files of the project: `warn` names them, `mask` shows fake values instead, `allow` says nothing",
        metavar="WHAT", choices=("allow", "warn", "mask"), default="warn", in_files="project", widest="first",
    ),
    Setting(
        "submounts", ("--submounts",), "choice", "Restrictions",
        "mounts of the host below the project (sshfs, volumes): `show` them inside, `mask` leaves empty directories",
        metavar="WHAT", choices=("show", "mask"), default="show", in_files="project", widest="first",
    ),
    Setting(
        "project", ("--project",), "choice", "What enters",
        "in a subdirectory of a repository: the project is this `directory`, and the rest is read-only; or all of the "
        "`repository`",
        metavar="WHAT", choices=("directory", "repository"), default="directory", in_files="user",
    ),
    Setting(
        "git_import", ("--git-import",), "choice", "Restrictions",
        "when commits made inside reach your repository: `auto`: at once; `ask`: at the end, after a look; `manual`: "
        "by `--import`",
        metavar="WHEN", choices=("auto", "ask", "manual"), default="auto", in_files="project", widest="first",
    ),
    Setting(
        "undo_keep", ("--undo-keep",), "text", "Restrictions",
        "how many sessions can be undone: 10 of an agent, and none of `--exec` and `--shell`, unless you say otherwise",
        metavar="COUNT", default="10", in_files="user",
    ),
    Setting(
        "undo_size", ("--undo-size",), "text", "Restrictions",
        "the largest file that a snapshot keeps, in MiB, 64 unless you say otherwise", metavar="MIB", default="64",
        in_files="user",
    ),
    Setting(
        "undo_exclude", ("--undo-exclude",), "list", "Restrictions",
        "directories of this name, as `node_modules`, or whatever fits a pattern, as `*.iso` or `data/*`, are in no "
        "snapshot; repeatable",
        metavar="NAME", in_files="user",
    ),
    Setting(
        "allow_userns", ("--allow-userns",), "switch", "Restrictions",
        "permit user namespaces inside, for programs that bring a sandbox of their own", in_files="project",
    ),
    Setting(
        "secret_variables", ("--secret-variables",), "choice", "Restrictions",
        "what looks like a secret and was not named by you: `show` it before the start; `refuse` to start with `--yes`",
        metavar="WHAT", choices=("show", "refuse"), default="show", in_files="project", widest="first",
    ),
    Setting(
        "terminal", ("--terminal",), "choice", "Restrictions",
        "what is written to your terminal passes as it is (`plain`), or `filtered`: without clipboard writes, "
        "notifications and questions to the terminal",
        metavar="KIND", choices=("plain", "filtered"), default="plain", in_files="project", widest="first",
        former=(
            ("shared", "your terminal is never inside any more; the sandbox always has one of its own"),
            ("private", "every terminal inside is private now; the filter is `filtered`"),
        ),
    ),
    *TASKS,
)  # fmt: skip
