"""Files that hold secrets as a rule, by name, and how each is read. What a file holds, its content tells.

Every launch asks this of every name in the project: plain string tests only.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    # bare: nothing but secrets; keyed: keys, whose values are secrets unless they are plain; mixed: settings of a
    # program, in which the key or the look of a value tells; maybe: JSON that is looked into for a private key.
    FileKind = Literal["bare", "keyed", "mixed", "maybe", ""]


_BARE = (
    ".vault-token", ".vault_pass", ".vault-pass", ".vault_pass.txt", "vault_pass.txt", ".pgpass", "pgpass.conf",
    ".htpasswd", "htpasswd", ".htdigest", ".netrc", "_netrc", ".authinfo", ".git-credentials", ".mylogin.cnf",
    ".smbcredentials", ".secret", ".token", ".password", ".passwd", "secrets.txt", "tokens.txt",
    "passwords.txt", "apikey.txt", "deploy_key", "private_key", "ssh_key",
    "api_key", "secret_key", "api-key", "apikey", ".apikey", ".api_key", "secret", "token", "passwd", "password",
    "passwords", ".vault_password", ".ansible_vault", "secring.gpg", ".curlrc", "encrypted_data_bag_secret",
)  # fmt: skip
_KEYED = (
    ".env", ".envrc", ".flaskenv", ".dev.vars", ".secrets", ".npmrc", ".pypirc", ".my.cnf", ".dockercfg",
    ".dockerconfigjson", ".s3cfg", ".boto", "credentials", "kubeconfig", "auth.json", ".terraformrc", "terraform.rc",
    "rclone.conf", ".databrickscfg", ".sentryclirc", ".clasprc.json", "vault.yml", "vault.yaml", "local.settings.json",
    "keystore.properties", "key.properties", "signing.properties", "gcp-key.json",
    "application_default_credentials.json", "serviceaccountkey.json", "secret_key_base",
    "secrets", ".credentials", ".rclone.conf", "kaggle.json", "pg_service.conf", ".pg_service.conf", "wg0.conf",
    ".wgetrc", ".msmtprc", ".fetchmailrc", "sftp.json", "sftp-config.json", ".ftpconfig", "rootkey.csv",
    "settings-security.xml", "sitemanager.xml",
)  # fmt: skip
_MIXED = (
    "database.yml", "database.yaml", "appsettings.json", "application.properties", "application.yml",
    "application.yaml", "bootstrap.yml", "bootstrap.yaml", "bootstrap.properties", "pip.conf", "pip.ini", ".yarnrc",
    ".yarnrc.yml", "bunfig.toml", "mongoid.yml", "redis.yml", "cable.yml", "storage.yml", "parameters.yml",
    "gradle.properties", "local.properties", "alembic.ini", "odbc.ini", ".odbc.ini", "profiles.yml",
    "my.cnf", "airflow.cfg", "nuget.config", "hgrc", ".hgrc", "settings.xml",
)  # fmt: skip
_KINDS: dict[str, FileKind] = {
    **dict.fromkeys(_BARE, "bare"), **dict.fromkeys(_KEYED, "keyed"), **dict.fromkeys(_MIXED, "mixed")
}  # fmt: skip
# By how a name begins and ends; the first that fits counts.
_BARE_STARTS = ("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "vault_pass", "vault-pass", "ssh_host_")
_BARE_ENDS = (
    ".pem", ".key", ".crt", ".asc", ".p8", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".ppk", ".ovpn", ".agekey",
    ".token", ".tfplan", ".htpasswd", "_rsa", "_ed25519",
    "_password", "-password", "password.txt", "_token", "-token", "token.txt", "_secret", "-secret", "secret.txt",
    "_api_key", "api_key.txt",
)  # fmt: skip
_KEYED_STARTS = (".envrc.", ".dev.vars.", "client_secret", "credentials.", "secrets.", ".secrets.", "secret.")
_KEYED_ENDS = (".env", ".kubeconfig", ".tfstate", ".tfvars", "accesskeys.csv", "credentials.csv")
_STARTS = (*_BARE_STARTS, *_KEYED_STARTS)
_ENDS = (*_BARE_ENDS, *_KEYED_ENDS)
# Directories in which a name means more, and those in which nearly every file is a secret.
_PLACED = {
    (".kube", "config"), (".docker", "config.json"), (".bundle", "config"), (".aws", "config"), ("gh", "hosts.yml"),
}  # fmt: skip
ENVIRONMENTS = ".envs"  # everything in it, however deep: `.envs/.production/.postgres`
_SECRET_PLACES = frozenset(("secrets", ".secrets", "credentials"))
PLACES = _SECRET_PLACES | {ENVIRONMENTS} | {place for place, _ in _PLACED}
_TEXTS = (".json", ".yml", ".yaml", ".toml", ".ini", ".properties", ".conf", ".cfg")
_SETTINGS = (".json", ".yml", ".yaml", ".properties")  # of `appsettings.Production.json`, `application-dev.yml`
_HEX, _HEX_DIGITS = frozenset("0123456789abcdef"), 12  # with which Google names the keys of service accounts
_EXAMPLES = (".example", ".sample", ".template", ".tpl", ".dist", ".defaults", ".pub", ".enc", ".gpg", ".age", ".d.ts")
# Most names of a project end like one of these, and are read no further.
ORDINARY = frozenset((
    "c", "cc", "cpp", "cs", "css", "go", "gif", "h", "hpp", "html", "java", "jpg", "js", "jsx", "kt", "lock", "map",
    "md", "mjs", "php", "png", "py", "pyc", "rb", "rs", "scss", "svelte", "svg", "swift", "ts", "tsx", "vue",
    "webp", "woff2",
))  # fmt: skip
# What editors and careful people add: `.env~`, `.env.bak`, `.secrets.yml.swp`, `#.env#`.
_COPIES = (
    "~", "#", ".bak", ".backup", ".old", ".orig", ".save", ".copy", ".tmp", ".swp", ".swo", ".swn", ".kate-swp", ".un",
    "___jb_tmp___", "___jb_old___", " copy", " (copy)", "-old", "_old", "-bak", "_bak", "-backup", "_backup",
)  # fmt: skip


def find_kind(name: str, *, top: bool = False) -> FileKind:
    """Return how a file of this name is read, nothing if it usually holds no secrets; `top`: in the project itself."""
    if name.rpartition(".")[2] in ORDINARY and not name.startswith(".env"):
        return ""
    lower = name.lower()
    if lower.endswith(_COPIES):
        return _find_kind_of_original(lower)
    if kind := _KINDS.get(lower):
        return kind
    is_environment = lower.startswith((".env", "..env")) and not lower.partition("env")[2][:1].isalnum()
    if is_environment or ".env." in lower or lower.startswith(_STARTS) or lower.endswith(_ENDS):
        if lower.endswith(_EXAMPLES):
            return ""
        return "bare" if lower.startswith(_BARE_STARTS) or lower.endswith(_BARE_ENDS) else "keyed"
    return _judge_settings(lower, top=top) if lower.endswith(_SETTINGS) else ""


def find_kind_in(place: str, name: str) -> FileKind:
    """Return how a file is read in a directory of PLACES."""
    kind = find_kind(name)
    if place == ENVIRONMENTS and not name.lower().endswith(_EXAMPLES):
        return kind or "keyed"
    if kind or place not in _SECRET_PLACES:
        return kind or ("keyed" if (place, name) in _PLACED else "")
    lower, end = name.lower(), name.rpartition(".")[2]
    if end in ORDINARY or name.startswith(".") or name.isupper() or lower.endswith(_EXAMPLES):
        return ""
    return "keyed" if lower.endswith(_TEXTS) else "bare" if end in (name, "txt") else ""


def _find_kind_of_original(lower: str) -> FileKind:
    """Return the kind of the file that this one is a copy of; vim puts a dot in front of a name without one."""
    while lower.endswith(_COPIES):
        lower = lower[: -next(len(end) for end in _COPIES if lower.endswith(end))].lstrip("#")
    return find_kind(lower) or (find_kind(lower[1:]) if lower[:1] in (".", "_") else "")


def _judge_settings(lower: str, *, top: bool) -> FileKind:
    if lower.startswith(("appsettings.", "application-", "bootstrap-")):
        return "mixed"
    if lower.rpartition(".")[0].endswith(("secret", "secrets", "credentials")):
        return "keyed"
    if not lower.endswith(".json"):
        return ""
    stem = lower[:-5]
    is_account = "service" in stem and "account" in stem
    if is_account or "credential" in stem or "adminsdk" in stem or stem.endswith(".tfvars"):
        return "keyed"
    is_key = stem[-_HEX_DIGITS - 1 : -_HEX_DIGITS] == "-" and _HEX.issuperset(stem[-_HEX_DIGITS:])
    return "maybe" if top or is_key or any(word in stem for word in ("key", "token", "firebase")) else ""


def file_looks_secret(name: str) -> bool:
    """Return whether a file of this name usually holds nothing but secrets."""
    return find_kind(name) in ("bare", "keyed")
