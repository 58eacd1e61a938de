"""The rows of the table of settings that are about tools: programs, packages, caches and devices."""

from __future__ import annotations

from claudebox.config.model import Setting

TOOLS: tuple[Setting, ...] = (
    Setting(
        "path", ("--path",), "list", "What enters",
        "put this directory of programs on PATH, read-only and without what lies beside it; one that has a `bin` is "
        "shown as a whole; repeatable",
        metavar="DIRECTORY", in_files="user",
    ),
    Setting(
        "toolchain", ("--toolchain",), "list", "What enters",
        "show programs from your home, read-only and without the credentials beside them: of a language (`rust`, "
        "`node`, `python`, `go`, `java`, `ruby`, `deno`, `bun`) or of what manages them (`conda`, `pnpm`, `uv`, "
        "`mise`, `asdf`, `nvm`, `pyenv`, `rbenv`, `sdkman`, `ghcup`); repeatable",
        metavar="NAME", in_files="project", name="toolchains",
    ),
    Setting(
        "package", ("--package",), "list", "What enters",
        "add this package of nixpkgs to the programs inside; needs Nix; repeatable",
        metavar="PACKAGE", in_files="project", name="packages",
    ),
    Setting(
        "packages_optional", ("--packages-optional",), "switch", "What enters",
        "start without those packages that cannot be had, rather than not at all", in_files="project",
    ),
    Setting(
        "nixpkgs", ("--nixpkgs",), "text", "What enters",
        "the package set that packages come from: `github:NixOS/nixpkgs/COMMIT`, `path:/DIRECTORY`, or a name of your "
        "registry, `flake:NAME`",
        metavar="REFERENCE", in_files="user",
    ),
    Setting(
        "devshell", ("--devshell",), "switch", "What enters",
        "enter the project's own dev shell (flake.nix or shell.nix) before the program starts; it is evaluated inside",
        in_files="project",
    ),
    Setting(
        "caches", ("--caches",), "choice", "What enters",
        "caches of packages (npm, pip, cargo, ...): `own`: kept per project, as ~/.cache inside; `shared`: one for all "
        "projects that say so, each of which can change what the others install; `off`: gone at the end",
        metavar="WHOSE", choices=("shared", "own", "off"), default="own", in_files="project", widest="first",
    ),
    Setting(
        "cache_size", ("--cache-size",), "text", "What enters",
        "how large caches may become, in GiB, 10 unless you say otherwise; then what was not used for longest goes",
        metavar="GIB", default="10", in_files="user",
    ),
    Setting(
        "scratch", ("--scratch",), "choice", "What enters",
        "where /tmp and the home inside are until the end: in `memory`, on `disk`, or on disk where memory is scarce "
        "(`auto`)",
        metavar="WHERE", choices=("auto", "memory", "disk"), default="auto", in_files="user",
    ),
    Setting(
        "gpu", ("--gpu",), "switch", "What enters",
        "show the graphics processors of this machine and their driver: NVIDIA, AMD, Intel", in_files="project",
    ),
    Setting(
        "device", ("--device",), "list", "What enters",
        "show this device node, `/dev/video0`; disks, memory, input, terminals and virtual machines only with "
        "--unsafe-mounts; repeatable",
        metavar="NODE", in_files="user", name="devices",
    ),
    Setting(
        "browser", ("--browser",), "switch", "What enters",
        "make browsers of the system, and those that Playwright has downloaded, start inside, headless",
        in_files="project",
    ),
    Setting(
        "show", ("--show",), "switch", "Showing",
        "copy the files that are named after it into ~/.claudebox/drop, which every session can read, and stop",
        verb=True,
    ),
)  # fmt: skip
