"""What installations of programs look like, where languages keep theirs, and which device nodes may be shown."""

from __future__ import annotations

from claudebox.base.records import Value

# An installation is a directory with programs in one of these, and beside it what they load.
PROGRAM_DIRECTORIES = frozenset(("bin", "sbin", "shims", "condabin"))
MANAGED = frozenset(("versions", "installs"))  # a manager of versions keeps its installations beside its `shims`
LIBRARIES = MANAGED | frozenset((
    "lib", "lib64", "libexec", "pyvenv.cfg", "conda-meta", "jmods", "Cellar", "cabal-hash.txt",
))  # fmt: skip
# Where one of these lies, a program made the installation: its scripts are not the user's own.
CERTAIN = MANAGED | frozenset((
    "include", "libexec", "pyvenv.cfg", "conda-meta", "jmods", "Cellar", "release", "VERSION",
))  # fmt: skip
# The parts of an installation. Whatever else lies there stays out: settings, credentials, caches, work.
PARTS = PROGRAM_DIRECTORIES | LIBRARIES | frozenset((
    "include", "share", "man", "doc", "docs", "etc", "ssl", "info", "lib32", "libx32", "plugins", "completions",
    "version", "VERSION", "LICENSE", "LICENSE.txt", "LICENSE.md", "README", "README.md", "README.txt", "NOTICE",
    "CHANGELOG.md", "CHANGES", "NEWS", "AUTHORS", "BUILD",
    "compiler_compat", "envs", "shell",  # conda
    "src", "pkg", "api", "misc", "go.env", "go",  # go
    "conf", "legal", "release", "boot", "init.d", "jre", "demo",  # java
    "opt", "Homebrew",  # Homebrew
    "sdk", "shared", "host", "packs", "templates",  # .NET
    "erts", "releases",  # Erlang
    "pipx_metadata.json", "uv-receipt.toml", ".gitignore", "CACHEDIR.TAG", ".lock",  # environments of Python
))  # fmt: skip
# Directories that hold installations and nothing else: one mount shows them all.
COLLECTIONS: tuple[str, ...] = ("/pipx/venvs", "/uv/tools", "/uv/python")
SHARED_PARTS = frozenset(("lib", "lib64"))  # of a directory that much else shares, such as ~/.local
# Variables that tell programs where an installation is; they enter if they name one that is shown.
LOCATING: tuple[str, ...] = (
    "ASDF_DATA_DIR", "ASDF_DIR", "CONDA_DEFAULT_ENV", "CONDA_PREFIX", "DOTNET_ROOT", "GOROOT", "HOMEBREW_PREFIX",
    "JAVA_HOME", "MISE_DATA_DIR", "NODENV_ROOT", "PYENV_ROOT", "RBENV_ROOT", "RUSTUP_HOME", "UV_PYTHON_INSTALL_DIR",
    "VIRTUAL_ENV", "VOLTA_HOME",
)  # fmt: skip


class Starter(Value):
    """A program that starts others which no link leads to, or that has a cache of its own."""

    root: str = ""  # in the home, unless the variable names another
    variable: str = ""
    parts: tuple[str, ...] = ()  # of the root; an empty one is the root itself
    files: tuple[str, ...] = ()  # in the home: which versions the user has chosen
    caches: tuple[tuple[str, str], ...] = ()  # variable, name of the private directory that it gets


# By the name of the program on PATH. Their settings stay out, since tokens may stand there.
STARTERS: dict[str, Starter] = {
    "rustup": Starter(".rustup", "RUSTUP_HOME", ("toolchains", "settings.toml")),
    "volta-shim": Starter(".volta", "VOLTA_HOME", ("tools", "layout.v4")),
    "uv": Starter(".local/share/uv/python", "UV_PYTHON_INSTALL_DIR", ("",), caches=(("UV_TOOL_DIR", "uv-tools"),)),
    "asdf": Starter(".asdf", "ASDF_DATA_DIR", ("installs", "plugins"), (".tool-versions",)),
    "mise": Starter(".local/share/mise", "MISE_DATA_DIR", ("installs", "plugins")),
    "pnpm": Starter(".local/share/pnpm", "PNPM_HOME", ("global", "nodejs")),
    "go": Starter(caches=(("GOPATH", "go"),)),
    "bun": Starter(caches=(("BUN_INSTALL_CACHE_DIR", "bun"),)),
    "bundle": Starter(caches=(("BUNDLE_USER_HOME", "bundle"),)),
    "gem": Starter(caches=(("GEM_SPEC_CACHE", "gem"),)),
    "conda": Starter(caches=(("CONDA_PKGS_DIRS", "conda"),)),
    "cabal": Starter(caches=(("CABAL_DIR", "cabal"),)),
    "stack": Starter(caches=(("STACK_ROOT", "stack"),)),
}  # fmt: skip


_MISE, _ASDF = ".local/share/mise/installs", ".asdf/installs"
_CONDA = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba")

# Directories for PATH by the name of a language or a manager, relative to the home. A star stands for versions, of
# which one is chosen: that of the host's PATH, or else the newest; a star before it stands for every tool.
TOOLCHAINS: dict[str, tuple[str, ...]] = {
    "rust": (".cargo/bin", f"{_MISE}/rust/*/bin", f"{_ASDF}/rust/*/bin"),
    "node": (
        ".nvm/versions/node/*/bin", ".local/share/fnm/node-versions/*/installation/bin", ".volta/bin",
        ".npm-global/bin", f"{_MISE}/node/*/bin", f"{_ASDF}/nodejs/*/bin",
    ),
    "python": (
        ".pyenv/shims", ".pyenv/bin", ".local/share/uv/python/*/bin", f"{_MISE}/python/*/bin",
        f"{_ASDF}/python/*/bin", ".local/bin",
    ),
    "go": (".local/go/bin", "sdk/*/bin", "go/bin", f"{_MISE}/go/*/bin", f"{_ASDF}/golang/*/go/bin"),
    "java": (
        ".sdkman/candidates/java/current/bin", ".sdkman/candidates/maven/current/bin",
        ".sdkman/candidates/gradle/current/bin", ".sdkman/candidates/kotlin/current/bin", f"{_MISE}/java/*/bin",
        f"{_ASDF}/java/*/bin",
    ),
    "ruby": (".rbenv/shims", ".rbenv/bin", f"{_MISE}/ruby/*/bin", f"{_ASDF}/ruby/*/bin"),
    "deno": (".deno/bin", f"{_MISE}/deno/*/bin"),
    "bun": (".bun/bin", f"{_MISE}/bun/*/bin"),
    "nvm": (".nvm/versions/node/*/bin",),
    "pyenv": (".pyenv/shims", ".pyenv/bin"),
    "rbenv": (".rbenv/shims", ".rbenv/bin"),
    "uv": (".local/share/uv/python/*/bin", ".local/bin"),
    "conda": tuple(f"{prefix}/{part}" for prefix in _CONDA for part in ("condabin", "bin")),
    "pnpm": (".local/share/pnpm/bin", ".local/share/pnpm"),
    "mise": (f"{_MISE}/*/*/bin", ".local/bin"),
    "asdf": (".asdf/shims", ".asdf/bin", ".local/bin", f"{_ASDF}/*/*/bin"),
    "sdkman": (".sdkman/candidates/*/*/bin",),
    "ghcup": (".ghcup/bin", ".cabal/bin"),
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
