"""The table of settings: one row is one thing that a user can ask for.

Flags, keys in files, help, man page, completions, the JSON Schema, the judgement of project files, the merge of layers
and the policy follow from the rows. A new setting is a row here and a field in `Policy`.
"""

from __future__ import annotations

from claudebox.network.tiers import TIERS
from claudebox.settings import parsers
from claudebox.settings.records import Field, Setting

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
    Setting(
        "detach", ("--detach",), "switch", "Agents",
        "start the session without a terminal: it runs on when you leave; needs tmux",
    ),
    Setting(
        "new", ("--new",), "text", "Agents",
        "start an agent in a worktree of its own, on a branch of this name; continues one that exists",
        metavar="AGENT",
    ),
    Setting(
        "from", ("--from",), "text", "Agents",
        "with --new: the branch, tag or commit to begin with; without it, what is checked out", metavar="BRANCH",
        parse=parsers.commit,
    ),
    Setting(
        "copy", ("--copy",), "list", "Agents",
        "with --new: a path of the project that git ignores and the agent needs; repeatable; `node_modules` and "
        "`.venv` unless you say otherwise, `none` for nothing",
        metavar="PATH", in_files="project",
        parse=parsers.copied_path,
    ),
    Setting(
        "finish", ("--finish",), "switch", "Agents",
        "`--finish NAME`: show what an agent did in its worktree, ask, and remove it; the branch stays. "
        "`--finish NAME merge` or `rebase` merges it first", verb=True,
    ),
    Setting(
        "drop", ("--drop",), "switch", "Agents",
        "`--drop NAME`: show what would be lost, ask, and remove the worktree of an agent with its branch", verb=True,
    ),
    Setting(
        "attach", ("--attach",), "switch", "Agents",
        "show a session without a terminal on this one: `--attach NAME`, or the only one here; Ctrl+Z leaves it again",
        verb=True,
    ),
    Setting(
        "sessions", ("--sessions",), "switch", "Agents",
        "list the sessions: state, since when, memory, spent, project, last line", verb=True,
    ),
    Setting(
        "stop", ("--stop",), "switch", "Agents",
        "`--stop NAME`: end a session without a terminal, politely and then by force; take an ended one off the list",
        verb=True,
    ),
    Setting(
        "notify", (), "words", "Agents",
        "a command of yours that tells you when a session without a terminal waits for you or has ended: two words are "
        "added to it, `claudebox` and what happened", in_files="user",
    ),
    Setting(
        "time_limit", ("--time-limit",), "text", "Limits",
        "end the session after this time, as `30m` or `8h`: politely, then by force; its status is 124 then",
        metavar="TIME", in_files="user", effect="tightens",
        field="limits.seconds", parse=parsers.time,
    ),
    Setting(
        "pids", ("--pids",), "text", "Limits",
        "how many processes and threads there can be inside", metavar="COUNT", in_files="user", default="16384",
        field="limits.processes", parse=parsers.count,
    ),
    Setting(
        "scratch_size", ("--scratch-size",), "text", "Limits",
        "how much /tmp, the home and /dev/shm inside can hold, each, in memory",
        metavar="SIZE", in_files="user", effect="tightens",
        field="limits.scratch", parse=parsers.size,
    ),
    Setting(
        "memory", ("--memory",), "text", "Limits",
        "how much memory everything inside can take; refused where this machine cannot enforce it",
        metavar="SIZE", in_files="user", effect="tightens",
        field="limits.memory", parse=parsers.size,
    ),
    Setting(
        "cpus", ("--cpus",), "text", "Limits",
        "how many processors everything inside can take, as `2` or `0.5`; refused where it cannot be enforced",
        metavar="COUNT", in_files="user", effect="tightens",
        field="limits.cpus", parse=parsers.processors,
    ),
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
    Setting("follow", ("--follow",), "switch", "Showing", "with --log: go on showing, as it happens", needs=("--log",)),
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
        needs=("--check", "--verify", "--explain", "--instances", "--log", "--sessions", "--usage"),
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
    Setting(
        "patch", ("--patch",), "switch", "Showing",
        "with --changes: show the differences of texts too",
        needs=("--changes",),
    ),
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
        field="command", parse=parsers.words,
    ),
    Setting(
        "state", (), "list", "What enters", "names in the home that another agent keeps its state under, per project",
        in_files="user",
        field="kept_names", parse=parsers.kept_name,
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
        field="names", parse=parsers.name,
    ),
    Setting(
        "set_env", ("--set-env",), "table", "What enters",
        "give this variable this value in the sandbox; not for secrets, let those in by name; repeatable",
        metavar="NAME=VALUE", in_files="project", name="env",
        field="constants", parse=parsers.constant,
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
        field="mounts", parse=parsers.mount_row,
    ),
    Setting(
        "mount_ro", ("--mount-ro",), "list", "What enters",
        "show this file or directory inside, read-only; repeatable", metavar="SRC[:DEST]", instead="[[mounts]]",
        field="mounts", parse=parsers.mount_ro,
    ),
    Setting(
        "mount_rw", ("--mount-rw",), "list", "What enters",
        "show this file or directory inside, writable; repeatable", metavar="SRC[:DEST]", instead="[[mounts]]",
        field="mounts", parse=parsers.mount_rw,
    ),
    Setting(
        "unsafe_mounts", ("--unsafe-mounts",), "switch", "What enters",
        "permit mounts that expose what the sandbox otherwise hides (keys, sockets, the home)",
        in_files="user",
        field="unsafe_mounts",
    ),
    Setting(
        "path", ("--path",), "list", "What enters",
        "put this directory of programs on PATH, read-only and without what lies beside it; one that has a `bin` is "
        "shown as a whole; repeatable",
        metavar="DIRECTORY", in_files="user",
        field="mounts", parse=parsers.program_directory,
    ),
    Setting(
        "toolchain", ("--toolchain",), "list", "What enters",
        "show programs from your home, read-only and without the credentials beside them: of a language (`rust`, "
        "`node`, `python`, `go`, `java`, `ruby`, `deno`, `bun`) or of what manages them (`conda`, `pnpm`, `uv`, "
        "`mise`, `asdf`, `nvm`, `pyenv`, `rbenv`, `sdkman`, `ghcup`); repeatable",
        metavar="NAME", in_files="project", name="toolchains",
        field="toolchains", parse=parsers.toolchain,
    ),
    Setting(
        "package", ("--package",), "list", "What enters",
        "add this package of nixpkgs to the programs inside; needs Nix; repeatable",
        metavar="PACKAGE", in_files="project", name="packages",
        field="packages", parse=parsers.package,
    ),
    Setting(
        "packages_optional", ("--packages-optional",), "switch", "What enters",
        "start without those packages that cannot be had, rather than not at all", in_files="project",
        field="packages_optional",
    ),
    Setting(
        "nixpkgs", ("--nixpkgs",), "text", "What enters",
        "the package set that packages come from: `github:NixOS/nixpkgs/COMMIT`, `path:/DIRECTORY`, or a name of your "
        "registry, `flake:NAME`",
        metavar="REFERENCE", in_files="user",
        field="nixpkgs", parse=parsers.nixpkgs,
    ),
    Setting(
        "devshell", ("--devshell",), "switch", "What enters",
        "enter the project's own dev shell (flake.nix or shell.nix) before the program starts; it is evaluated inside",
        in_files="project",
        field="devshell", parse=parsers.origin,
    ),
    Setting(
        "caches", ("--caches",), "choice", "What enters",
        "caches of packages (npm, pip, cargo, ...): `own`: kept per project, as ~/.cache inside; `shared`: one for all "
        "projects that say so, each of which can change what the others install; `off`: gone at the end",
        metavar="WHOSE", choices=("shared", "own", "off"), default="own", in_files="project", widest="first",
        field="caches",
    ),
    Setting(
        "cache_size", ("--cache-size",), "text", "What enters",
        "how large caches may become, in GiB, 10 unless you say otherwise; then what was not used for longest goes",
        metavar="GIB", default="10", in_files="user",
        field="cache_limit", parse=parsers.number(1 << 20, unit=1 << 30),
    ),
    Setting(
        "scratch", ("--scratch",), "choice", "What enters",
        "where /tmp and the home inside are until the end: in `memory`, on `disk`, or on disk where memory is scarce "
        "(`auto`)",
        metavar="WHERE", choices=("auto", "memory", "disk"), default="auto", in_files="user",
        field="scratch",
    ),
    Setting(
        "gpu", ("--gpu",), "switch", "What enters",
        "show the graphics processors of this machine and their driver: NVIDIA, AMD, Intel", in_files="project",
        field="gpu", parse=parsers.origin,
    ),
    Setting(
        "device", ("--device",), "list", "What enters",
        "show this device node, `/dev/video0`; disks, memory, input, terminals and virtual machines only with "
        "--unsafe-mounts; repeatable",
        metavar="NODE", in_files="user", name="devices",
        field="devices", parse=parsers.device,
    ),
    Setting(
        "browser", ("--browser",), "switch", "What enters",
        "make browsers of the system, and those that Playwright has downloaded, start inside, headless",
        in_files="project",
        field="browser", parse=parsers.origin,
    ),
    Setting(
        "show", ("--show",), "switch", "Showing",
        "copy the files that are named after it into ~/.claudebox/drop, which every session can read, and stop",
        verb=True,
    ),
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
        field="credential", parse=parsers.credential,
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
        parse=parsers.secret,
    ),
    Setting(
        "inherit", ("--inherit",), "list", "What enters",
        "bring this part of the host's ~/.claude in, read-only: `CLAUDE.md`, `agents`, `commands`, `skills`, "
        "`output-styles`, `rules`, ...; `mcp`: your MCP servers, without their secrets; repeatable",
        metavar="PART", in_files="project",
        field="inherit", parse=parsers.part,
    ),
    Setting(
        "claude_home", ("--claude-home",), "choice", "What enters",
        "`own`: the client has a home per project; `shared`: also everything of the host's ~/.claude, read-only, "
        "except conversations and logins",
        metavar="HOME", choices=("own", "shared"), default="own", in_files="project", widest="last",
        field="shared_home", parse=parsers.is_word("shared"),
    ),
    Setting(
        "network", ("--network",), "choice", "Restrictions",
        "`full`: the host's network with its loopback and LAN; `inet`: the internet, not the LAN nor this machine; "
        "`allow`: only the domains that you name; `none`: loopback of the sandbox only",
        metavar="TIER", choices=tuple(TIERS), default="full", in_files="project", widest="first",
        field="network",
    ),
    Setting(
        "allow_domain", ("--allow-domain",), "list", "Restrictions",
        "in tier `allow`: let programs inside reach this domain (`github.com`), all beneath one (`*.example.org`), "
        "another port than 443 and 80 (`example.org:8443`), or a group (`pypi` or `@pypi`): `anthropic`, `github`, "
        "`pypi`, `npm`, `crates`, `go`, `debian`, `nix`, `huggingface`, or one of your own; repeatable",
        metavar="DOMAIN", in_files="project", name="allow_domains",
        parse=parsers.domain,
    ),
    Setting(
        "now", ("--now",), "switch", "Restrictions",
        "with --allow-domain: let these domains into the session that runs in this project, and stop", verb=True,
        needs=("--allow-domain",),
    ),
    Setting(
        "allow_address", ("--allow-address",), "list", "Restrictions",
        "in tier `inet`: let programs inside reach this address or network of the LAN or a VPN, on one port if you "
        "name it: `10.1.2.3:443`, `10.1.0.0/16`, `[fd77::50]:22`; in tier `allow`: let domains that you name lead "
        "there; never metadata services nor this machine; repeatable",
        metavar="ADDRESS", in_files="project", name="allow_addresses",
        field="addresses", parse=parsers.address,
    ),
    Setting(
        "domains", (), "groups", "Restrictions",
        "groups of domains of your own, to be used by name in `allow_domains`", in_files="user",
        fields=(Field("hosts", "the domains of the group, written as in `allow_domains`", example="git.example.org"),),
        parse=parsers.group,
    ),
    Setting(
        "allow_host_port", ("--allow-host-port",), "list", "Restrictions",
        "in all tiers but `full`: let programs inside reach this TCP port of the host's loopback; repeatable",
        metavar="PORT", in_files="project",
        field="host_ports", parse=parsers.port,
    ),
    Setting(
        "publish", ("--publish",), "list", "Restrictions",
        "in all tiers but `full`: make this TCP port of the sandbox reachable at localhost of the host; repeatable",
        metavar="PORT", in_files="project",
        field="published", parse=parsers.port,
    ),
    Setting(
        "uplink", ("--uplink",), "choice", "Restrictions",
        "the program that connects tier `inet`: `pasta`, `slirp4netns`, or whichever works (`auto`)",
        metavar="PROGRAM", choices=("auto", "pasta", "slirp4netns"), default="auto", in_files="user",
        field="uplink",
    ),
    Setting(
        "budget", ("--budget",), "text", "Restrictions",
        "what the model may cost in this session, in US dollars, by the broker's table of prices; then requests end "
        "with a billing error", metavar="DOLLARS", in_files="user",
        field="budget.dollars", parse=parsers.dollars,
    ),
    Setting(
        "tokens", ("--tokens",), "text", "Restrictions",
        "how many tokens the model may take in this session, those of caches included: `200k`, `2M`",
        metavar="COUNT", in_files="user",
        field="budget.tokens", parse=parsers.tokens,
    ),
    Setting(
        "nix", ("--nix",), "choice", "Restrictions",
        "the Nix daemon inside: `auto` where that gives nothing away, through a relay if the daemon trusts you; "
        "`daemon`, `relay`: in any case; `off`",
        metavar="HOW", choices=("auto", "daemon", "relay", "off"), default="auto", in_files="user",
        field="nix",
    ),
    Setting(
        "auth", ("--auth",), "choice", "Restrictions",
        "`broker`: your API key or login stays outside, and a helper on the host adds it to requests to the model; "
        "`passthrough`: the key, or a short-lived token of the login, enters",
        metavar="WAY", choices=("passthrough", "broker"), default="broker", in_files="project", widest="first",
        field="auth",
    ),
    Setting(
        "allow", ("--allow",), "list", "Restrictions",
        "let the agent change this protected path in this session: `git-config`, `.claude`, ...; "
        "repeatable",
        metavar="PROTECTED", in_files="user",
        field="allow", parse=parsers.protected,
    ),
    Setting(
        "project_secrets", ("--project-secrets",), "choice", "Restrictions",
        "secrets in files of the project: `warn` names them, `mask` shows fake values instead, `allow` says nothing",
        metavar="WHAT", choices=("allow", "warn", "mask"), default="warn", in_files="project", widest="first",
        field="project_secrets",
    ),
    Setting(
        "submounts", ("--submounts",), "choice", "Restrictions",
        "mounts of the host below the project (sshfs, volumes): `show` them inside, `mask` leaves empty directories",
        metavar="WHAT", choices=("show", "mask"), default="show", in_files="project", widest="first",
        field="submounts",
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
        field="git_import",
    ),
    Setting(
        "undo_keep", ("--undo-keep",), "text", "Restrictions",
        "how many sessions can be undone: 10 of an agent, and none of `--exec` and `--shell`, unless you say otherwise",
        metavar="COUNT", default="10", in_files="user",
        field="undo.keep", parse=parsers.number(1000),
    ),
    Setting(
        "undo_size", ("--undo-size",), "text", "Restrictions",
        "the largest file that a snapshot keeps, in MiB, 64 unless you say otherwise", metavar="MIB", default="64",
        in_files="user",
        field="undo.most", parse=parsers.number(1 << 20, unit=1 << 20),
    ),
    Setting(
        "undo_exclude", ("--undo-exclude",), "list", "Restrictions",
        "directories of this name, as `node_modules`, or whatever fits a pattern, as `*.iso` or `data/*`, are in no "
        "snapshot; repeatable",
        metavar="NAME", in_files="user",
        field="undo.excluded", parse=parsers.undo_pattern,
    ),
    Setting(
        "allow_userns", ("--allow-userns",), "switch", "Restrictions",
        "permit user namespaces inside, for programs that bring a sandbox of their own", in_files="project",
        field="allow_userns",
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
        field="filter_terminal", parse=parsers.is_word("filtered"),
    ),
    Setting(
        "task", ("--task",), "text", "Tasks",
        "do the task of this JSON file (`--schema task`) without asking anything: clone, let the agent work, and leave "
        "patch, bundle, conversation and receipt in `--result`; the exit status tells an engine whether to try again",
        metavar="FILE", verb=True,
    ),
    Setting(
        "result", ("--result",), "text", "Tasks", "with --task: the directory of its result, made whole at the end",
        metavar="DIR",
    ),
    Setting(
        "tasks", ("--tasks",), "list", "Tasks",
        "do the tasks of these files (`'tasks/*.json'`) with GNU parallel; a second run goes on where the first was "
        "interrupted; repeatable",
        metavar="FILES", verb=True,
    ),
    Setting(
        "jobs", ("--jobs",), "text", "Tasks", "with --tasks: how many at once; without it two", metavar="COUNT",
    ),
    Setting(
        "results", ("--results",), "text", "Tasks",
        "with --tasks: where the results go, a directory each; alone: show the table of what is there",
        metavar="DIR",
    ),
)  # fmt: skip
