"""Programs of languages that people keep in their home: which directories hold them, and only them.

Beside most of these lie credentials (`~/.cargo/credentials.toml`, `~/.gem/credentials`, `~/.config/mise`), so each row
names the directories of programs and never the directory around them. What a tool wants to write (registries,
compiled packages) gets a private directory of the project instead.
"""

from __future__ import annotations

import os

from claudebox.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.facts.model import PathFact
    from claudebox.files import Examiner


class Toolchain(Value):
    """One language: everything is relative to the home."""

    programs: tuple[str, ...]  # shown read-only, if they exist
    path: tuple[str, ...]  # directories of PATH; a star stands for versions, of which one is chosen
    caches: tuple[tuple[str, str], ...] = ()  # variable, name of the private directory that it gets
    variables: tuple[tuple[str, str], ...] = ()  # variable, value


# mise and asdf keep every language under one roof, by names of their own.
TOOLCHAINS: dict[str, Toolchain] = {
    "rust": Toolchain(
        # The programs in ~/.cargo/bin are mostly one, rustup's, which looks for the real ones in ~/.rustup.
        (".cargo/bin", ".rustup/toolchains", ".rustup/settings.toml", ".local/share/mise/installs/rust",
         ".asdf/installs/rust"),
        (".cargo/bin", ".local/share/mise/installs/rust/*/bin", ".asdf/installs/rust/*/bin"),
        (("CARGO_HOME", "cargo"),),  # registry, git checkouts, `cargo install`
        (("RUSTUP_HOME", ".rustup"),),
    ),
    "node": Toolchain(
        (".nvm/versions", ".local/share/fnm/node-versions", ".volta/bin", ".volta/tools", ".npm-global/bin",
         ".npm-global/lib", ".local/share/mise/installs/node", ".local/share/mise/installs/npm",
         ".asdf/installs/nodejs"),
        (".nvm/versions/node/*/bin", ".local/share/fnm/node-versions/*/installation/bin", ".volta/bin",
         ".npm-global/bin", ".local/share/mise/installs/node/*/bin", ".asdf/installs/nodejs/*/bin"),
        (("npm_config_cache", "npm"), ("YARN_CACHE_FOLDER", "yarn"), ("COREPACK_HOME", "corepack")),
    ),
    "python": Toolchain(
        (".pyenv/bin", ".pyenv/libexec", ".pyenv/shims", ".pyenv/versions", ".pyenv/version", ".local/share/uv/python",
         ".local/share/uv/tools", ".local/share/pipx/venvs", ".local/bin/uv", ".local/bin/uvx", ".local/bin/pipx",
         ".local/share/mise/installs/python", ".asdf/installs/python"),
        (".pyenv/shims", ".pyenv/bin", ".local/share/uv/python/*/bin", ".local/share/mise/installs/python/*/bin",
         ".asdf/installs/python/*/bin", ".local/bin"),
        (("PIP_CACHE_DIR", "pip"), ("UV_CACHE_DIR", "uv")),
        (("PYENV_ROOT", ".pyenv"),),
    ),
    "go": Toolchain(
        # ~/go also holds sources and modules of everything else that was ever built.
        ("go/bin", "sdk", ".local/go", ".local/share/mise/installs/go", ".asdf/installs/golang"),
        (".local/go/bin", "sdk/*/bin", "go/bin", ".local/share/mise/installs/go/*/bin",
         ".asdf/installs/golang/*/go/bin"),
        (("GOPATH", "go"), ("GOCACHE", "go-build")),
    ),
    "java": Toolchain(
        # ~/.m2 and ~/.gradle hold passwords of repositories: only private ones exist inside.
        (".sdkman/candidates", ".local/share/mise/installs/java", ".asdf/installs/java"),
        (".sdkman/candidates/java/current/bin", ".sdkman/candidates/maven/current/bin",
         ".sdkman/candidates/gradle/current/bin", ".sdkman/candidates/kotlin/current/bin",
         ".local/share/mise/installs/java/*/bin", ".asdf/installs/java/*/bin"),
        (("GRADLE_USER_HOME", "gradle"),),
    ),
    "ruby": Toolchain(
        (".rbenv/bin", ".rbenv/libexec", ".rbenv/shims", ".rbenv/versions", ".rbenv/version",
         ".local/share/mise/installs/ruby", ".asdf/installs/ruby"),
        (".rbenv/shims", ".rbenv/bin", ".local/share/mise/installs/ruby/*/bin", ".asdf/installs/ruby/*/bin"),
        (("GEM_SPEC_CACHE", "gem"), ("BUNDLE_USER_HOME", "bundle")),
        (("RBENV_ROOT", ".rbenv"),),
    ),
    "deno": Toolchain((".deno/bin", ".local/share/mise/installs/deno"), (".deno/bin",
        ".local/share/mise/installs/deno/*/bin"), (("DENO_DIR", "deno"),)),
    "bun": Toolchain((".bun/bin", ".local/share/mise/installs/bun"), (".bun/bin",
        ".local/share/mise/installs/bun/*/bin"), (("BUN_INSTALL_CACHE_DIR", "bun"),)),
}  # fmt: skip
_LINKS = ".local/bin"  # pipx and uv put links to what they install here; the scripts beside them stay out


class Found(Value):
    """What of the wanted toolchains this home has."""

    programs: tuple[tuple[str, str, PathFact], ...] = ()  # toolchain, path in the home, what is there
    links: tuple[tuple[str, str], ...] = ()  # path in the home, where it leads
    path: tuple[str, ...] = ()


def find(names: Iterable[str], home: str, host_path: Iterable[str], examiner: Examiner) -> Found:
    """Look for the programs of these toolchains."""
    wanted = [(name, TOOLCHAINS[name]) for name in names]
    programs = []
    for name, toolchain in wanted:
        for place in toolchain.programs:
            fact = examiner.fact(f"{home}/{place}")
            if fact.kind in ("directory", "file"):
                programs.append((name, f"{home}/{place}", fact))
    roots = tuple(fact.path for _, _, fact in programs if fact.kind == "directory")
    links = tuple(_links(home, roots))
    path = list(dict.fromkeys(entry for entry in host_path if _beneath(entry, roots)))
    for _, toolchain in wanted:
        for pattern in toolchain.path:
            path += _directories(home, pattern, path)
    if not links and not any(place.startswith(f"{home}/{_LINKS}/") for _, place, _ in programs):
        path = [entry for entry in path if entry != f"{home}/{_LINKS}"]
    return Found(tuple(dict.fromkeys(programs)), links, tuple(dict.fromkeys(path)))


def _beneath(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _links(home: str, roots: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the links that lead straight into what is shown."""
    try:
        with os.scandir(f"{home}/{_LINKS}") as entries:
            found = [(entry.path, os.readlink(entry.path)) for entry in entries if entry.is_symlink()]
    except OSError:
        return
    for link, target in sorted(found):
        absolute = os.path.normpath(os.path.join(f"{home}/{_LINKS}", target))
        if _beneath(absolute, roots) and os.path.exists(absolute):
            yield link, absolute


def _directories(home: str, pattern: str, chosen: list[str]) -> list[str]:
    """Return the directory that a pattern stands for: of several versions the newest, unless PATH has chosen one."""
    before, star, after = f"{home}/{pattern}".partition("*")
    if not star:
        return [before] if os.path.isdir(before) else []
    if any(entry.startswith(before) for entry in chosen):
        return []
    try:
        versions = sorted(os.listdir(before), key=_version, reverse=True)
    except OSError:
        return []
    candidates = (f"{before}{version}{after}" for version in versions)
    return next(([path] for path in candidates if os.path.isdir(path)), [])


def _version(name: str) -> list[tuple[int, str]]:
    """Return a key by which 20.9.0 comes before 20.10.0, and names without a number first."""
    words = "".join(char if char.isdigit() else " " for char in name).split()
    return [(int(word[:9]), "") for word in words] or [(-1, name)]
