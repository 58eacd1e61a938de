"""Programs of languages that people keep in their home, and of what manages them: which directories hold only them.

Beside most of these lie credentials (`~/.cargo/credentials.toml`, `~/.gem/credentials`, `~/.config/mise`), so each row
names the directories of programs and never the directory around them. What a tool wants to write (registries,
compiled packages) gets a private directory of the project instead.
"""

from __future__ import annotations

from claudebox.base.records import Value


class Toolchain(Value):
    """One language: everything is relative to the home."""

    programs: tuple[str, ...]  # shown read-only, if they exist
    path: tuple[str, ...]  # directories of PATH; the last star stands for versions, of which one is chosen
    caches: tuple[tuple[str, str], ...] = ()  # variable, name of the private directory that it gets
    variables: tuple[tuple[str, str], ...] = ()  # variable, value
    without: tuple[str, ...] = ()  # in what is shown, an empty directory instead of this one


_PYENV = (".pyenv/bin", ".pyenv/libexec", ".pyenv/shims", ".pyenv/versions", ".pyenv/version")
_RBENV = (".rbenv/bin", ".rbenv/libexec", ".rbenv/shims", ".rbenv/versions", ".rbenv/version")
_CONDA = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba")
_CONDA_PARTS = ("bin", "condabin", "conda-meta", "envs", "etc", "include", "lib", "libexec", "share", "shell", "ssl")

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
        (*_PYENV, ".local/share/uv/python", ".local/share/uv/tools",
         ".local/share/pipx/venvs", ".local/bin/uv", ".local/bin/uvx", ".local/bin/pipx",
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
        (*_RBENV, ".local/share/mise/installs/ruby", ".asdf/installs/ruby"),
        (".rbenv/shims", ".rbenv/bin", ".local/share/mise/installs/ruby/*/bin", ".asdf/installs/ruby/*/bin"),
        (("GEM_SPEC_CACHE", "gem"), ("BUNDLE_USER_HOME", "bundle")),
        (("RBENV_ROOT", ".rbenv"),),
    ),
    "deno": Toolchain((".deno/bin", ".local/share/mise/installs/deno"), (".deno/bin",
        ".local/share/mise/installs/deno/*/bin"), (("DENO_DIR", "deno"),)),
    "bun": Toolchain((".bun/bin", ".local/share/mise/installs/bun"), (".bun/bin",
        ".local/share/mise/installs/bun/*/bin"), (("BUN_INSTALL_CACHE_DIR", "bun"),)),
    # What manages versions, by its own name.
    "nvm": Toolchain((".nvm/versions", ".nvm/alias", ".nvm/nvm.sh", ".nvm/nvm-exec"), (".nvm/versions/node/*/bin",),
        (("npm_config_cache", "npm"),), (("NVM_DIR", ".nvm"),)),
    "pyenv": Toolchain(_PYENV, (".pyenv/shims", ".pyenv/bin"), (("PIP_CACHE_DIR", "pip"),),
        (("PYENV_ROOT", ".pyenv"),)),
    "rbenv": Toolchain(_RBENV, (".rbenv/shims", ".rbenv/bin"), (("BUNDLE_USER_HOME", "bundle"),),
        (("RBENV_ROOT", ".rbenv"),)),
    "uv": Toolchain((".local/bin/uv", ".local/bin/uvx", ".local/share/uv/python", ".local/share/uv/tools"),
        (".local/share/uv/python/*/bin", ".local/bin"), (("UV_CACHE_DIR", "uv"),)),
    # A prefix of conda also has its cache of packages (`pkgs`) with the addresses that they came from, and `.condarc`;
    # both may hold tokens of channels.
    "conda": Toolchain(
        (*(f"{prefix}/{part}" for prefix in _CONDA for part in _CONDA_PARTS), ".conda/envs"),
        tuple(f"{prefix}/{part}" for prefix in _CONDA for part in ("condabin", "bin")),
        (("CONDA_PKGS_DIRS", "conda"), ("PIP_CACHE_DIR", "pip")),
    ),
    # The programs of packages that are installed globally lie in PNPM_HOME itself. Its store has every package of every
    # project, so only what programs are made of is shown.
    "pnpm": Toolchain((".local/share/pnpm",), (".local/share/pnpm/bin", ".local/share/pnpm"),
        (("npm_config_store_dir", "pnpm-store"),), without=(".local/share/pnpm/store",)),
    # Settings of mise may hold variables with secrets, and stay out: of each tool the newest version is on PATH, or the
    # one that the user's own PATH has chosen.
    "mise": Toolchain((".local/bin/mise", ".local/share/mise/installs", ".local/share/mise/plugins"),
        (".local/share/mise/installs/*/*/bin", ".local/bin")),
    "asdf": Toolchain((".asdf/bin", ".asdf/lib", ".asdf/libexec", ".asdf/shims", ".asdf/installs", ".asdf/plugins",
                       ".asdf/asdf.sh", ".tool-versions", ".local/bin/asdf"),
        (".asdf/shims", ".asdf/bin", ".local/bin", ".asdf/installs/*/*/bin")),
    "sdkman": Toolchain((".sdkman/candidates", ".sdkman/libexec"), (".sdkman/candidates/*/*/bin",),
        (("GRADLE_USER_HOME", "gradle"),), (("SDKMAN_CANDIDATES_DIR", ".sdkman/candidates"),)),
    # ~/.cabal/config holds the password for Hackage.
    "ghcup": Toolchain((".ghcup/bin", ".ghcup/ghc", ".ghcup/hls", ".ghcup/share", ".cabal/bin"),
        (".ghcup/bin", ".cabal/bin"), (("CABAL_DIR", "cabal"), ("STACK_ROOT", "stack"))),
}  # fmt: skip


# Device nodes: those of graphics processors, those that a user may ask for, and what the others would give away.


# Of NVIDIA: the cards, what controls them, and unified memory; capabilities are for MIG and profilers. Of AMD: compute.
# Of Windows' subsystem: all of it. Cards of Mesa are shown by their nodes for rendering, never by those for displays.
GPU_NAMES: tuple[str, ...] = (
    "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "kfd", "dxg",
)  # fmt: skip
GPU_NUMBERED = "nvidia"  # and a number
GPU_DIRECTORIES: tuple[tuple[str, str], ...] = (("/dev/nvidia-caps", "nvidia-cap"), ("/dev/dri", "renderD"))
# Variables that choose among cards.
GPU_VARIABLES: tuple[str, ...] = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "ZE_AFFINITY_MASK",
)  # fmt: skip
# Libraries of drivers, by the beginning of their names, and programs that come with them.
GPU_LIBRARIES: tuple[str, ...] = ("libcuda.so", "libnvidia-ml.so", "libamdhip64.so", "libze_loader.so")
GPU_PROGRAMS: tuple[str, ...] = ("nvidia-smi", "rocm-smi", "rocminfo", "xpu-smi")
# What libraries read of /sys besides the cards themselves: how many processors there are, and how near.
GPU_SYSTEM: tuple[str, ...] = ("/sys/devices/system/cpu", "/sys/devices/system/node")

# Subsystems of the kernel whose nodes a user may name; every other is refused unless they insist.
PERMITTED: frozenset[str] = frozenset((
    "accel", "dma_heap", "habanalabs", "infiniband_verbs", "kfd", "media", "neuron_device", "sound", "video4linux",
))  # fmt: skip
PERMITTED_NUMBERS: frozenset[tuple[int, int]] = frozenset(((10, 183), (10, 200), (10, 229)))  # hwrng, tun, fuse
# Why others are refused, by number where a minor number of -1 stands for all, for the message.
REFUSED: dict[tuple[int, int], str] = {
    (1, -1): "memory of this machine",
    (4, -1): "a terminal of the host",
    (5, -1): "a terminal of the host",
    (7, -1): "a screen of the host",
    (10, 232): "virtual machines, which no sandbox confines",
    (13, -1): "what is typed and clicked on this machine",
    (188, -1): "a terminal of the host",
}
REFUSED_SUBSYSTEMS: dict[str, str] = {
    "drm": "a display",
    "hidraw": "what is typed and clicked on this machine",
    "input": "what is typed and clicked on this machine",
    "mem": "memory of this machine",
    "tty": "a terminal of the host",
    "usb": "any device at this bus",
    "vc": "a screen of the host",
}
