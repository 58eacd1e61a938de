"""The table of settings: one row is one thing that a user can ask for.

Flags, keys in files, help, man page, completions, the JSON Schema, the checks of files, the merge of layers and the
policy follow from the rows. A new setting is a row here and a field of `Policy`.
"""

from __future__ import annotations

from claudebox.network.tiers import TIERS
from claudebox.settings import parsers
from claudebox.settings.records import Field, Setting

SETTINGS: tuple[Setting, ...] = (
    Setting("yes", ("-y", "--yes"), "switch", "Starting", "start without asking", in_files="user",
            brief="do not ask first"),
    Setting(
        "confirm", (), "choice", "Starting",
        "ask before the start: `always`, `never`, or `new`",
        details="`new`: only if the launch differs from those that you approved in this project",
        metavar="WHEN", choices=("always", "new", "never"), default="always", in_files="user",
    ),
    Setting("quiet", ("--quiet",), "switch", "Starting", "print only warnings before the start", in_files="user"),
    Setting("exec", ("--exec",), "switch", "Starting", "run the command after `--` instead of the agent",
            runs="session", brief="run what follows"),
    Setting("shell", ("--shell",), "switch", "Starting", "open an interactive bash in the sandbox", runs="session",
            brief="look around inside"),
    Setting(
        "agent", (), "text", "Starting", "the agent that `claudebox` starts if you name none",
        details="`claudebox help agents` lists them",
        metavar="NAME", default="claude", variable="CLAUDEBOX_AGENT", in_files="user",
    ),

    Setting("detach", ("--detach",), "switch", "Agents", "run the session in the background",
            details="in tmux, which is needed; the session survives your terminal", brief="in the background"),
    Setting(
        "copy", (), "list", "Agents",
        "ignored paths that `claudebox new` copies into the worktree, or `none`",
        details="if not set: `node_modules`, `.venv` and `.env`",
        in_files="project", parse=parsers.copied_path,
    ),
    Setting(
        "notify", (), "words", "Agents",
        "a command to run when a background session waits for you or has ended",
        details="two arguments are added: `claudebox`, and what happened", in_files="user",
    ),

    Setting(
        "time_limit", ("--time-limit",), "text", "Limits",
        "end the session after this time: `30m`, `8h`", details="with SIGTERM, then SIGKILL; the exit status is 124",
        brief="end it after TIME",
        metavar="TIME", example="8h", in_files="user", effect="tightens", field="limits.seconds", parse=parsers.time,
    ),
    Setting(
        "pids", (), "text", "Limits", "maximum number of processes and threads inside",
        metavar="COUNT", in_files="user", default="16384",
        field="limits.processes", parse=parsers.number(1 << 20, least=16),
    ),
    Setting(
        "scratch_size", (), "text", "Limits",
        "maximum size of each of /tmp, the home and /dev/shm, which are in memory",
        metavar="SIZE", example="2G", in_files="user", effect="tightens", field="limits.scratch", parse=parsers.size,
    ),
    Setting(
        "memory", ("--memory",), "text", "Limits",
        "maximum memory of everything inside", details="refused where it cannot be enforced",
        metavar="SIZE", example="8G", in_files="user", effect="tightens", field="limits.memory", parse=parsers.size,
    ),
    Setting(
        "cpus", (), "text", "Limits",
        "maximum processors of everything inside: `2`, `0.5`", details="refused where it cannot be enforced",
        metavar="COUNT", example="2", in_files="user", effect="tightens", field="limits.cpus", parse=parsers.processors,
    ),

    Setting("dry_run", ("--dry-run",), "switch", "Showing", "print the bwrap command, ready for bash", runs="session"),
    Setting("explain", ("--explain",), "switch", "Showing", "print all that enters the sandbox, and why",
            details="every mount with its reason, every variable and setting with its origin", runs="session",
            brief="what enters, why"),
    Setting("check", ("--check",), "switch", "Showing",
            "report what would prevent a launch here", runs="commands.check",
            brief="would it start?"),
    Setting("verify", ("--verify",), "switch", "Showing",
            "start the sandbox with a probe that tries to break out", details="it reports which promises hold",
            runs="commands.verify.verify", brief="try to break out"),
    Setting(
        "receipt", (), "choice", "Showing",
        "print a receipt at the end: `always`, `never`, or `auto`",
        details="what entered, was withheld, reached and changed; `auto`: only if a limit ended the session",
        metavar="WHEN", choices=("auto", "always", "never"), default="auto", in_files="user",
    ),
    Setting(
        "json", ("--json",), "switch", "Showing", "print JSON",
        needs=("--check", "--verify", "--explain"),
    ),
    Setting("help", ("--help",), "switch", "Showing", "print this help", runs="commands.usage"),
    Setting("version", ("--version",), "switch", "Showing", "print the version of claudebox", runs="commands.usage"),

    Setting(
        "profile", ("--profile",), "text", "Profiles",
        "apply a profile: `strict`, `offline`, or your own",
        details="your own are ~/.claudebox/profiles/PROFILE.toml (or .json); `claudebox profiles` lists all",
        metavar="PROFILE", brief="`strict`, or yours", example="default", variable="CLAUDEBOX_PROFILE", in_files="user",
    ),
    Setting(
        "set", ("--set",), "list", "Profiles", "change any setting: `--set caches=off`",
        details="keys and values as in config.toml; `claudebox help settings` lists them",
        metavar="KEY=VALUE", brief="any other setting",
    ),
    Setting("extends", (), "text", "Profiles", "another profile to apply before this one", in_files="profile"),
    Setting("name", (), "text", "Profiles", "the name of this profile", in_files="profile"),
    Setting("description", (), "text", "Profiles", "what this profile is for, in a sentence", in_files="profile"),

    Setting(
        "env", ("--env",), "list", "What enters", "pass this variable of the host, or set it",
        metavar="NAME[=VALUE]", brief="let a variable in", variable="CLAUDEBOX_EXTRA_ENV", in_files="project",
        name="extra_env_passthrough", assigned="set_env", field="names", parse=parsers.name,
    ),
    Setting(
        "env_file", ("--env-file",), "list", "What enters",
        "set the variables in this file", details="one `NAME=VALUE` per line; values are never shown",
        metavar="FILE",
    ),
    Setting(
        "set_env", (), "table", "What enters", "variables to set inside; never secrets: pass those by name",
        in_files="project", name="env", field="constants", parse=parsers.constant,
    ),
    Setting(
        "mounts", (), "rows", "What enters", "files and directories of the host to show inside",
        in_files="project", field="mounts", parse=parsers.mount_row,
        fields=(
            Field("host", "path on the host: absolute, or with `~/`; in a project file also relative to the project",
                  example="~/data"),
            Field("sandbox", "path inside (default: the same)", default=""),
            Field("mode", "`ro`: read-only; `rw`: writable", ("ro", "rw"), "ro"),
        ),
    ),
    Setting(
        "mount_ro", ("--mount-ro",), "list", "What enters", "show this file or directory inside, read-only",
        metavar="SRC[:DEST]", brief="show, read-only", instead="[[mounts]]", field="mounts", parse=parsers.mount_ro,
    ),
    Setting(
        "mount_rw", ("--mount-rw",), "list", "What enters", "show this file or directory inside, writable",
        metavar="SRC[:DEST]", brief="show, writable", instead="[[mounts]]", field="mounts", parse=parsers.mount_rw,
    ),
    Setting(
        "unsafe_mounts", (), "switch", "What enters",
        "permit mounts that expose what the sandbox hides (keys, sockets, the home)",
        in_files="user", field="unsafe_mounts",
    ),
    Setting(
        "path", (), "list", "What enters",
        "add this directory of programs to PATH, read-only", details="one with a `bin` is shown as a whole",
        metavar="DIRECTORY", in_files="user", field="mounts", parse=parsers.program_directory,
    ),
    Setting(
        "toolchain", ("--toolchain",), "list", "What enters",
        "show your programs, read-only: `auto`, `none`, or by name",
        details="`auto`, the default: those of your PATH; `none`: only those of the system; or a language (`rust`, "
        "`node`, `python`, `go`, `java`, `ruby`, `deno`, `bun`) or a manager (`conda`, `pnpm`, `uv`, `mise`, `asdf`, "
        "`nvm`, `pyenv`, `rbenv`, `sdkman`, `ghcup`)",
        metavar="NAME", in_files="project", alone=("auto", "none"), name="toolchains", field="toolchains",
        parse=parsers.toolchain,
    ),
    Setting(
        "package", ("--package",), "list", "What enters", "add this package of nixpkgs; needs Nix",
        metavar="PACKAGE", in_files="project", name="packages", field="packages", parse=parsers.package,
    ),
    Setting(
        "packages_optional", (), "switch", "What enters",
        "start without packages that are unavailable", in_files="project", field="packages_optional",
    ),
    Setting(
        "nixpkgs", (), "text", "What enters",
        "the package set of --package",
        details="`github:NixOS/nixpkgs/COMMIT`, `path:/DIRECTORY`, or `flake:NAME` from your registry",
        metavar="REFERENCE", example="github:NixOS/nixpkgs/nixos-unstable", in_files="user", field="nixpkgs",
        parse=parsers.nixpkgs,
    ),
    Setting(
        "devshell", (), "switch", "What enters",
        "enter the project's dev shell (flake.nix or shell.nix), evaluated inside",
        in_files="project", field="devshell", parse=parsers.origin,
    ),
    Setting(
        "caches", (), "choice", "What enters",
        "package caches (npm, pip, cargo, ...): `own`, `shared` or `off`",
        details="`own`: kept per project; `shared`: one for all projects with this setting, each of which can change "
        "what the others install; `off`: discarded at the end",
        metavar="WHOSE", choices=("shared", "own", "off"), default="own", in_files="project", widest="first",
        field="caches",
    ),
    Setting(
        "cache_size", (), "text", "What enters",
        "maximum size of caches in GiB", details="least recently used entries are evicted", metavar="GIB", default="10",
        in_files="user", field="cache_limit", parse=parsers.number(1 << 20, unit=1 << 30),
    ),
    Setting(
        "scratch", (), "choice", "What enters",
        "where /tmp and the home inside are kept: `memory`, `disk` or `auto`",
        details="`auto`: on disk if memory is scarce; either way they are gone at the end",
        metavar="WHERE", choices=("auto", "memory", "disk"), default="auto", in_files="user", field="scratch",
    ),
    Setting(
        "gpu", (), "switch", "What enters", "show GPUs and their driver: NVIDIA, AMD, Intel",
        in_files="project", field="gpu", parse=parsers.origin,
    ),
    Setting(
        "device", (), "list", "What enters",
        "show this device node: `/dev/video0`",
        details="disks, memory, input, terminals and virtual machines need `--set unsafe_mounts=true`",
        metavar="NODE", in_files="user", name="devices", field="devices", parse=parsers.device,
    ),
    Setting(
        "browser", (), "switch", "What enters",
        "make browsers work inside, headless: the system's and Playwright's",
        in_files="project", field="browser", parse=parsers.origin,
    ),
    Setting(
        "git_credential", (), "record", "What enters",
        "the one host that git inside can log in to, and where its token comes from",
        in_files="user", field="credential", parse=parsers.credential,
        fields=(
            Field("host", "host name, `github.com`, with `:PORT` if needed", example="github.com"),
            Field("token", "`env:NAME`, a variable of the host; or `command:WORDS`, a command that prints the token",
                  example="env:GH_TOKEN"),
            Field("username", "most hosts accept any name with a token", default="x-access-token"),
        ),
    ),
    Setting(
        "secrets", (), "rows", "What enters",
        "secrets that stay outside",
        details="inside, the variable holds a placeholder, which is replaced by the value only in requests to these "
        "hosts; in tiers `inet` and `allow`",
        in_files="user", parse=parsers.secret,
        fields=(
            Field("env", "name of the variable inside", example="GH_TOKEN"),
            Field("hosts", "names of the hosts that get the value, over HTTPS, with `:PORT` if it is not 443",
                  example="api.github.com\ngithub.com", many=True),
            Field("from", "where the value is on the host: `env:NAME`, `file:PATH`, or `command:WORDS`, a command "
                  "that prints it", example="env:GH_TOKEN"),
            Field("headers", "header fields that may carry the value, besides `Authorization`, `X-Api-Key`, "
                  "`Private-Token` and other credential fields", default="", many=True),
            Field("permit", "permitted methods and paths, `GET /repos/acme/**`, or a preset, `github:read acme/shop`; "
                  "everything else at these hosts is refused", default="",
                  example="github:read acme/shop\nPOST /repos/acme/shop/issues", many=True, spaced=True),
            Field("weak", "`accept` takes a value that can be guessed: answers could then confirm a guess",
                  choices=("accept",), default=""),
        ),
    ),
    Setting(
        "inherit", (), "list", "What enters",
        "show this part of the host's ~/.claude, read-only",
        details="`CLAUDE.md`, `agents`, `commands`, `skills`, `output-styles`, `rules`; `mcp`: your MCP servers, "
        "without their secrets",
        metavar="PART", in_files="project", field="inherit", parse=parsers.part,
    ),
    Setting(
        "claude_home", (), "choice", "What enters",
        "the agent's home: `own` or `shared`",
        details="`own`: one per project; `shared`: with the host's ~/.claude, read-only, without conversations and "
        "logins",
        metavar="HOME", choices=("own", "shared"), default="own", in_files="project", widest="last",
        field="shared_home", parse=parsers.is_word("shared"),
    ),
    Setting(
        "project", (), "choice", "What enters",
        "what is writable in a subdirectory of a repository: `directory` or `repository`",
        details="`directory`: only this one, the rest of the repository is read-only; `repository`: all of it",
        metavar="WHAT", choices=("directory", "repository"), default="directory", in_files="user",
    ),

    Setting(
        "network", ("--network",), "choice", "Restrictions",
        "what can be reached: `full`, `inet`, `allow` or `none`",
        details="`full`: all that the host reaches, its loopback and LAN included; `inet`: the internet, without LAN "
        "and this machine; `allow`: only domains that you list; `none`: only the sandbox's own loopback",
        brief="inet, allow, none",
        metavar="TIER", choices=tuple(TIERS), default="full", in_files="project", widest="first",
        field="network",
    ),
    Setting(
        "allow_domain", ("--allow-domain",), "list", "Restrictions",
        "in tier `allow`: permit a domain, or a group: `pypi`",
        details="a domain (`github.com`), its subdomains (`*.example.org`), a port other than 443 and 80 "
        "(`example.org:8443`), or a group: `anthropic`, `github`, `pypi`, `npm`, `crates`, `go`, `debian`, `nix`, "
        "`huggingface`, or one of your own",
        metavar="DOMAIN", brief="in tier allow", in_files="project", name="allow_domains", parse=parsers.domain,
    ),
    Setting(
        "allow_address", (), "list", "Restrictions",
        "in tier `inet`: permit an address or network of the LAN or a VPN",
        details="`10.1.2.3:443`, `10.1.0.0/16`, `[fd77::50]:22`; in tier `allow`, listed domains may resolve to it; "
        "never metadata services or this machine",
        metavar="ADDRESS", in_files="project", name="allow_addresses", field="addresses", parse=parsers.address,
    ),
    Setting(
        "domains", (), "groups", "Restrictions", "your own groups of domains, for use in `allow_domains`",
        in_files="user", parse=parsers.group,
        fields=(Field("hosts", "the domains of the group, written as in `allow_domains`", example="git.example.org",
                      many=True),),
    ),
    Setting(
        "allow_host_port", (), "list", "Restrictions",
        "permit this TCP port of the host's loopback; not in tier `full`",
        metavar="PORT", in_files="project", field="host_ports", parse=parsers.port,
    ),
    Setting(
        "publish", ("--publish",), "list", "Restrictions",
        "open this TCP port of the sandbox at your localhost; not in tier `full`",
        details="`8080:3000`: port 3000 of the sandbox at port 8080",
        brief="open at localhost",
        metavar="[HOST:]PORT", in_files="project", field="published", parse=parsers.published,
    ),
    Setting(
        "uplink", (), "choice", "Restrictions",
        "the program that connects tier `inet`: `pasta`, `slirp4netns` or `auto`",
        details="`auto`: the first that works",
        metavar="PROGRAM", choices=("auto", "pasta", "slirp4netns"), default="auto", in_files="user", field="uplink",
    ),
    Setting(
        "budget", ("--budget",), "text", "Restrictions",
        "maximum cost of the model in this session",
        details="in US dollars; when it is spent, requests fail with a billing error",
        brief="most to spend",
        metavar="DOLLARS", example="5", in_files="user", field="budget.dollars", parse=parsers.dollars,
    ),
    Setting(
        "tokens", (), "text", "Restrictions",
        "maximum number of tokens of the model in this session: `200k`, `2M`", details="cached ones included",
        metavar="COUNT", example="2M", in_files="user", field="budget.tokens", parse=parsers.tokens,
    ),
    Setting(
        "nix", (), "choice", "Restrictions",
        "the Nix daemon inside: `auto`, `daemon`, `relay` or `off`",
        details="`auto`: where it is safe, through a relay if the daemon trusts you; `daemon`, `relay`: always",
        metavar="HOW", choices=("auto", "daemon", "relay", "off"), default="auto", in_files="user", field="nix",
    ),
    Setting(
        "auth", (), "choice", "Restrictions",
        "where your API key or login is: `broker` or `passthrough`",
        details="`broker`: outside, where a broker adds it to requests; `passthrough`: the key, or a short-lived token "
        "of the login, enters",
        metavar="WAY", choices=("passthrough", "broker"), default="broker", in_files="project", widest="first",
        field="auth",
    ),
    Setting(
        "allow", ("--allow",), "list", "Restrictions",
        "let the agent change this protected path: `.claude`",
        metavar="PROTECTED", brief="let it be changed", in_files="user", field="allow", parse=parsers.protected,
    ),
    Setting(
        "project_secrets", ("--project-secrets",), "choice", "Restrictions",
        "files of the project that hold secrets: `mask` or `show`",
        details="`mask`: the agent sees the same keys with fake values, read-only; `show`: it reads them, and the flag "
        "asks whether to show them in later sessions of this project, too",
        metavar="HOW", choices=("show", "mask"), default="mask", in_files="project", widest="first",
        field="project_secrets",
    ),
    Setting(
        "submounts", (), "choice", "Restrictions",
        "mounts of the host below the project (sshfs, volumes): `show` or `mask`",
        details="`mask`: empty directories inside",
        metavar="WHAT", choices=("show", "mask"), default="show", in_files="project", widest="first",
        field="submounts",
    ),
    Setting(
        "git_import", (), "choice", "Restrictions",
        "when commits made inside reach your repository: `auto`, `ask` or `manual`",
        details="`auto`: at once; `ask`: at the end, after a question; `manual`: with `claudebox sync`",
        metavar="WHEN", choices=("auto", "ask", "manual"), default="auto", in_files="project", widest="first",
        field="git_import",
    ),
    Setting(
        "undo_keep", (), "text", "Restrictions",
        "how many sessions can be undone", details="`--exec` and `--shell` count only if this is set",
        metavar="COUNT", default="10", in_files="user", field="undo.keep", parse=parsers.number(1000),
    ),
    Setting(
        "undo_size", (), "text", "Restrictions", "largest file that a snapshot keeps, in MiB",
        metavar="MIB", default="64", in_files="user", field="undo.most", parse=parsers.number(1 << 20, unit=1 << 20),
    ),
    Setting(
        "undo_exclude", (), "list", "Restrictions",
        "leave this out of snapshots",
        details="directories of this name (`data`), or paths that match a pattern (`*.iso`, `data/*`)",
        metavar="NAME", in_files="user", field="undo.excluded", parse=parsers.undo_pattern,
    ),
    Setting(
        "allow_userns", (), "switch", "Restrictions",
        "permit user namespaces inside, for programs with a sandbox of their own",
        in_files="project", field="allow_userns",
    ),
    Setting(
        "secret_variables", (), "choice", "Restrictions",
        "variables that look like secrets and that you did not name: `show` or `refuse`",
        details="`show` them before the start, or `refuse` to start with `-y`",
        metavar="WHAT", choices=("show", "refuse"), default="show", in_files="project", widest="first",
    ),
    Setting(
        "terminal", (), "choice", "Restrictions",
        "output to your terminal: `plain` or `filtered`",
        details="`filtered`: without clipboard writes, notifications and queries",
        metavar="KIND", choices=("plain", "filtered"), default="plain", in_files="project", widest="first",
        field="filter_terminal", parse=parsers.is_word("filtered"),
    ),
)  # fmt: skip
