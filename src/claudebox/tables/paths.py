"""Tables of places on the host: what is never visible, and where claudebox does not start."""

from __future__ import annotations

from claudebox.tables import agents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.host.records import StubKind


# In the home: copies of projects for agents, PROJECT/NAME; the one part of our own state in which claudebox starts.
STATE, COPIES = ".claudebox", "work"

# Below the home unless absolute. Each hides everything beneath it (SAND-09).
HIDDEN: tuple[tuple[str, str], ...] = (
    (".ssh", "SSH keys"),
    (".gnupg", "GPG keys"),
    (".aws", "AWS credentials"),
    (".azure", "Azure credentials"),
    (".oci", "Oracle Cloud credentials"),
    (".config/gcloud", "Google Cloud credentials"),
    (".config/gh", "GitHub token"),
    (".config/hub", "GitHub token"),
    (".config/glab-cli", "GitLab token"),
    (".config/op", "1Password"),
    (".config/rclone", "rclone remotes"),
    (".config/sops", "sops keys"),
    (".config/age", "age keys"),
    (".age", "age keys"),
    (".config/cachix", "cachix token"),
    (".config/nix", "Nix access tokens"),
    (".config/composer", "composer tokens"),
    (".config/git", "git configuration and credentials"),
    (".config/pip", "pip index credentials"),
    (".config/anthropic", "Anthropic credentials"),
    (".config/containers", "registry logins"),
    (".config/helm", "helm repositories"),
    (".config/doctl", "DigitalOcean token"),
    (".config/fly", "fly.io token"),
    (".fly", "fly.io token"),
    (".config/google-chrome", "browser profile"),
    (".config/chromium", "browser profile"),
    (".config/BraveSoftware", "browser profile"),
    (".config/microsoft-edge", "browser profile"),
    (".mozilla", "browser profile"),
    (".thunderbird", "mail profile"),
    ("snap/firefox", "browser profile"),
    ("snap/chromium", "browser profile"),
    (".var/app", "profiles of flatpak programs"),
    (".local/share/keyrings", "desktop keyring"),
    (".local/share/kwalletd", "desktop keyring"),
    (".local/share/password-store", "password store"),
    (".local/share/gopass", "password store"),
    (".local/share/uv/credentials", "index credentials"),
    (".password-store", "password store"),
    (".kube", "Kubernetes credentials"),
    (".docker", "registry logins"),
    (".terraform.d", "Terraform tokens"),
    (".pulumi", "Pulumi tokens"),
    (".netrc", "passwords for hosts"),
    (".git-credentials", "git passwords"),
    (".gitconfig", "git configuration"),
    (".npmrc", "npm token"),
    (".yarnrc.yml", "npm token"),
    (".pypirc", "PyPI token"),
    (".pgpass", "database passwords"),
    (".my.cnf", "database passwords"),
    (".vault-token", "Vault token"),
    (".boto", "cloud credentials"),
    (".s3cfg", "cloud credentials"),
    (".m2/settings.xml", "Maven passwords"),
    (".gradle/gradle.properties", "Gradle passwords"),
    (".gem/credentials", "RubyGems key"),
    (".cargo/credentials.toml", "crates.io token"),
    (".cargo/credentials", "crates.io token"),
    (".cache/huggingface/token", "Hugging Face token"),
    (".bash_history", "shell history"),
    (".zsh_history", "shell history"),
    (".local/share/fish/fish_history", "shell history"),
    (".python_history", "Python history"),
    (".node_repl_history", "node history"),
    (".psql_history", "database history"),
    (".mysql_history", "database history"),
    *agents.HIDDEN,
    (".claudebox", "claudebox's own state"),
    ("/var/lib/tailscale", "Tailscale node key"),
    ("/etc/ssl/private", "host keys"),
    ("/etc/pki/tls/private", "host keys"),
    ("/etc/ssh", "host keys"),
    ("/etc/shadow", "password hashes"),
)

# Variables that name a socket or a directory of sockets: whoever connects speaks for the user.
AGENT_SOCKETS: tuple[tuple[str, str], ...] = (
    ("SSH_AUTH_SOCK", "ssh-agent"),
    ("GPG_AGENT_INFO", "gpg-agent"),
    ("DBUS_SESSION_BUS_ADDRESS", "D-Bus"),
    ("DOCKER_HOST", "docker"),
    ("XDG_RUNTIME_DIR", "runtime sockets of the session"),
)

# Not a project: binding one of these writable gives away the system or the home (SAND-05, C07, C08).
NOT_A_PROJECT: tuple[str, ...] = (
    "/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/media", "/mnt",
    "/nix", "/nix/store", "/nix/var", "/opt", "/proc", "/root", "/run", "/run/media", "/sbin", "/srv", "/sys", "/tmp",
    "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/local/bin", "/usr/sbin", "/usr/share", "/var",
    "/var/cache", "/var/lib", "/var/log", "/var/run", "/var/spool", "/var/tmp", "/dev/shm",
)  # fmt: skip
NOT_A_PROJECT_IN_HOME: tuple[str, ...] = (
    "", ".cache", ".config", ".local", ".local/bin", ".local/share", ".local/state", "bin", ".var", "snap",
)  # fmt: skip

# Nothing beneath these can be mounted or be a project; removable media are the exception.
NOT_BENEATH: tuple[str, ...] = ("/boot", "/dev", "/nix/var", "/proc", "/run", "/sys")
NOT_A_PROJECT_BENEATH: tuple[str, ...] = (*NOT_BENEATH, "/etc")
ALLOWED_BENEATH: tuple[str, ...] = ("/dev/shm", "/run/media")

# Parts of /etc that programs need and that hold no secret; everything else of the host's /etc stays out (A18).
# A star stands for the rest of a name.
ETC: tuple[tuple[str, str], ...] = (
    ("/etc/alternatives", "programs that alternatives chose"),
    ("/etc/ld.so.cache", "libraries in unusual places"),
    ("/etc/localtime", "time zone"),
    ("/etc/os-release", "name of the distribution"),
    ("/etc/mime.types", "file types"),
    ("/etc/protocols", "names of protocols"),
    ("/etc/services", "names of ports"),
    ("/etc/fonts", "fonts"),
    ("/etc/terminfo", "terminals"),
    ("/etc/perl", "perl's library path"),
    ("/etc/python3*", "Debian's Python"),
    ("/etc/java-*", "configuration of the Java runtime"),
    ("/etc/maven/m2.conf", "class path of Maven"),
    ("/etc/maven/logging", "logging of Maven"),
    ("/etc/ssl/certs", "certificate authorities"),
    ("/etc/ssl/openssl.cnf", "OpenSSL"),
    ("/etc/ssl/cert.pem", "certificate authorities"),
    ("/etc/ca-certificates/extracted", "certificate authorities (Arch)"),
    ("/etc/pki/ca-trust/extracted", "certificate authorities (Fedora)"),
    ("/etc/pki/tls/certs", "certificate authorities (Fedora)"),
    ("/etc/pki/tls/cert.pem", "certificate authorities (Fedora)"),
    ("/etc/pki/tls/openssl.cnf", "OpenSSL (Fedora)"),
    ("/etc/crypto-policies", "TLS policy (Fedora)"),
    ("/var/lib/ca-certificates", "certificate authorities (openSUSE)"),
)
CA_BUNDLES: tuple[str, ...] = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, NixOS
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # Alpine
)
SYSTEM_ROOTS: tuple[str, ...] = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
USR_LOCAL_ELSEWHERE = "/var/usrlocal"  # where /usr/local leads on Silverblue and its relatives

# Single files in what is visible that tell too much: keys of the host, or configuration that may hold a token.
MASKED: tuple[tuple[str, str], ...] = (
    ("/proc/keys", "kernel keyrings of the host"),
    ("/proc/key-users", "kernel keyrings of the host"),
    ("/proc/cmdline", "boot parameters of the host"),
    ("/usr/etc/npmrc", "npm token"),
    ("/usr/local/etc/npmrc", "npm token"),
    ("/usr/etc/gitconfig", "git configuration"),
    ("/usr/local/etc/gitconfig", "git configuration"),
)

# Parts of /proc that configure the kernel of the host. Their files ask for the user id of root and for nothing else,
# so root could write them from inside a user namespace without any capability (H06).
KERNEL_SETTINGS: tuple[str, ...] = (
    "/proc/acpi", "/proc/bus", "/proc/driver", "/proc/fs", "/proc/irq", "/proc/mtrr", "/proc/pressure", "/proc/scsi",
    "/proc/sys", "/proc/sysrq-trigger",
)  # fmt: skip

# Where programs that were not built for a store expect the dynamic loader.
LOADERS: dict[str, str] = {
    "x86_64": "/lib64/ld-linux-x86-64.so.2",
    "aarch64": "/lib/ld-linux-aarch64.so.1",
}

# What a store-only PATH offers where no package has baked one in (SAND-10).
STORE_TOOLS: tuple[str, ...] = (
    "ls", "bash", "git", "curl", "jq", "rg", "fd", "nix", ",", "node", "grep", "sed", "awk", "find",
    "tar", "gzip", "less",
)  # fmt: skip


# Paths of a project that the host's own tools execute or obey, and that are protected from the agent.


GIT = "git-config"  # the name that opens what the configuration of git makes the host execute in the project
SUBMODULES = "submodules"  # their directories; nothing opens them
OWN = "claudebox"  # settings of the user that lie in the project; nothing opens them
SERVERS = ".mcp.json"  # the client fails on anything else than a file here, or nothing
WORKTREES = ".claude/worktrees"  # where Claude Code makes worktrees
ASIDE = ".claudebox"  # what follows the name of an entry that was put aside

# In the project: path, what stands in if it is missing, why.
PROTECTED: tuple[tuple[str, StubKind, str], ...] = (
    (".claude", "directory", "the host's own claude runs hooks and commands from here"),
    (SERVERS, "directory", "the host's own claude starts these servers"),
    (".vscode", "directory", "the editor runs tasks and programs named here"),
    (".idea", "directory", "the editor runs programs named here"),
    (".devcontainer", "directory", "the editor runs commands named here"),
    (".devcontainer.json", "directory", "the editor runs commands named here"),
    (".claudebox.toml", "directory", "claudebox reads it"),
)

# The same for other agents. What is missing has no stub, since a project full of strange directories would be worse;
# what a session makes is put aside at its end.
PUT_ASIDE: tuple[tuple[str, str], ...] = (
    *agents.PROTECTED,
    (".crush.json", "Crush starts servers and runs hooks named here"),
    ("crush.json", "Crush starts servers and runs hooks named here"),
    (".cursor/hooks.json", "Cursor runs these hooks"),
    (".cursor/mcp.json", "Cursor starts these servers"),
    (".factory", "droid starts servers and runs hooks named here"),
    (".kilocode/mcp.json", "Kilo Code starts these servers"),
    (".kiro", "Kiro starts servers and runs hooks named here"),
    (".roo/mcp.json", "Roo Code starts these servers"),
    (".windsurf/hooks.json", "Windsurf runs these hooks"),
)

NAMES = (GIT, *(name for name, _, _ in PROTECTED), *(name for name, _ in PUT_ASIDE))  # what `--allow` takes

# Names of directories that no snapshot keeps: large, and made again by the tool that made them.
UNKEPT = ("node_modules", "__pycache__", ".venv", ".tox", ".mypy_cache", ".pytest_cache", ".ruff_cache")
