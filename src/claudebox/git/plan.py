"""Plan the git directories that stand inside in the place of the host's, their configuration and their mounts.

Nothing of a git directory of the host is writable inside: its objects are readable, everything else is a copy that
`git.private` makes. What is made inside comes back through `git.importer` (GIT-03, GIT-04).
"""

from __future__ import annotations

import os

from claudebox.base.errors import ClaudeboxError
from claudebox.host.records import covers
from claudebox.plan import mount_checks
from claudebox.plan import protected as plan_protected
from claudebox.plan.records import GIT_TOKEN, Deferred, Hooks, Mount, PrivateGit, Stub, placeholder_key
from claudebox.tables import git_keys
from claudebox.tables import paths as tables_paths
from claudebox.tables.environment import GIT_HELPER, GIT_TOKEN_FILE
from claudebox.tables.secrets import value_looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from claudebox.git.config import Row
    from claudebox.git.facts import GitDirectory, Repository
    from claudebox.host.records import EmptySubmodule, Host
    from claudebox.settings.records import GitCredential, Policy


# Configuration: what enters, as files that claudebox writes (GIT-01, GIT-03).


_TRUE = ("true", "yes", "on", "1")


def admit(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows that may enter, without passwords in addresses."""
    filters = set()
    for section, name, key, value in rows:
        if section == "filter" and name in git_keys.FILTERS:
            filters.add(name)
        elif _is_listed(section, name, key) and not value.startswith("!"):
            plain = drop_login(value) if key in git_keys.ADDRESSES else value
            if not value_looks_secret(plain):
                yield section, name, key, plain
    for name in sorted(filters):
        for key, value in git_keys.FILTERS[name]:
            yield "filter", name, key, value


def _is_listed(section: str, name: str, key: str) -> bool:
    keys = (git_keys.NAMED if name else git_keys.KEYS).get(section, ())
    return key not in keys[1:] if keys[:1] == ("*",) else key in keys


def drop_login(value: str) -> str:
    """Return an address without user name, password and query: each may hold a token."""
    scheme, found, rest = value.partition("://")
    if not found:
        return value
    host, slash, path = rest.partition("/")
    user, at, host = host.rpartition("@")
    if scheme.lower().startswith("http"):
        return f"{scheme}://{host}{slash}{path.partition('?')[0]}"
    return f"{scheme}://{user.partition(':')[0]}{at}{host}{slash}{path}"


def merge(rows: Iterable[Row], before: Iterable[Row], inside: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of the host with what was changed inside since they were written `before`."""
    was, now, rows = set(before), list(inside), list(rows)
    gone = was - set(now) if now else set()
    yield from (row for row in rows if row not in gone)
    yield from (row for row in now if row not in was and row not in rows)  # the host may have the same by now


def signs(rows: Iterable[Row]) -> bool:
    values = [value for section, name, key, value in rows if (section, name, key) == ("commit", "", "gpgsign")]
    return bool(values) and values[-1].lower() in _TRUE


def render(rows: Iterable[Row]) -> bytes:
    """Return the text of a configuration file."""
    lines: list[str] = []
    last = None
    for section, name, key, value in rows:
        if (section, name) != last:
            last = (section, name)
            lines.append(f"[{section} {_quote(name)}]" if name else f"[{section}]")
        lines.append(f"\t{key} = {_quote(value)}")
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _quote(value: str) -> str:
    # A name with a line end in it would otherwise write configuration of its own (D24).
    plain = "".join(char for char in value if char.isprintable() or "\udc80" <= char <= "\udcff")
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def user_config(host: Host, helper: tuple[str, str] = ("", ""), proxy: str = "") -> bytes:
    """Return the user's configuration inside: what `tables.git_keys` lists of it, and nothing else of the host's.

    `helper` answers for one host alone (SEC-03).
    """
    rows: list[Row] = [("safe", "", "directory", "*")]
    if proxy:
        rows.append(("http", "", "proxy", proxy))
    if helper[0]:
        name = f"https://{helper[0]}"
        rows += [("credential", name, "helper", ""), ("credential", name, "helper", helper[1])]
    return render((*rows, *admit(host.git.user.rows)))


# The git directories.


STORES = "/run/claudebox/git"  # inside, the real objects
CHECKOUTS = "git/checkouts"  # in the state of the project: of submodules that are not initialised outside
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+")
# For a masked file, git inside takes what the index or HEAD has: its fake values are never a change, and never added.
_MASKED = "claudebox-masked"
_ATTRIBUTE = f"filter={_MASKED}"
_FILTER: tuple[Row, ...] = (
    ("filter", _MASKED, "clean", "git cat-file blob :%f 2>/dev/null || git cat-file blob HEAD:%f"),
    ("filter", _MASKED, "smudge", "cat"),
    ("filter", _MASKED, "required", "true"),
)
_NO_BITMAPS: Row = ("repack", "", "writebitmaps", "false")  # they cover no borrowed objects: git would warn, or fail


def plan_private(policy: Policy, host: Host) -> tuple[PrivateGit, ...]:
    """Return a git directory for each writable repository, and for its submodules after it."""
    found = [row for repository in _find_trusted(host) for row in _own(policy, host, repository)]
    found = [row.replace(hooks=tuple(_hooks(policy, host, row, found))) for row in found]
    if host.git.empty and host.git.repository is None:
        path = f"{host.workdir.real}/.git"
        found.append(PrivateGit(host.git.empty, _private(host, host.git.empty), path, worktree=host.workdir.real))
    return tuple(found)


def _hooks(policy: Policy, host: Host, own: PrivateGit, all_own: list[PrivateGit]) -> Iterator[Hooks]:
    """Yield the directories of hooks in a checkout, but for those in a checkout that lies in it."""
    for row in plan_protected.find_copied(policy, host, own.worktree) if own.worktree else ():
        inner = (other.worktree for other in all_own if len(other.worktree) > len(own.worktree))
        if not any(row.path.startswith(f"{worktree}/") for worktree in inner):
            yield Hooks(row.path, row.identity, plan_protected.place_copy(host, row))


def _find_trusted(host: Host) -> Iterator[Repository]:
    repository = host.git.repository
    if repository is not None and not _why_not(host, repository):
        yield from (repository, *repository.nested)
    yield from host.mounted.repositories


def forget_committed(host: Host) -> Host:
    """Return the host, with no file counted as committed where git does not work inside: its objects are not there."""
    repository = host.git.repository
    if repository is None or not _why_not(host, repository):
        return host
    files = tuple(row.replace(committed=False) for row in host.project.secret_files)
    return host.replace(project=host.project.replace(secret_files=files))


def _why_not(host: Host, repository: Repository) -> str:
    """Return why git does not work inside."""
    if repository.problem or repository.directory is None:
        return repository.problem
    if repository.root == host.workdir.real:
        return ""
    return mount_checks.why_no_project(host.git.above, host) if host.git.above is not None else "it starts above"


def _own(policy: Policy, host: Host, repository: Repository) -> Iterator[PrivateGit]:
    for directory in repository.directories:
        rows = (*admit(directory.rows), _NO_BITMAPS)
        masked = tuple(_masked(policy, host, directory.worktree))
        rows = (*rows, *_FILTER) if masked else rows
        merged = tuple(merge(rows, directory.before, directory.inside))
        merged += tuple(_explain_remotes(policy, host, merged, directory.worktree))
        per_worktree = tuple(admit(directory.worktree_rows))
        formats = {key: value for section, _, key, value in rows if section == "extensions"}
        yield PrivateGit(
            directory.name,
            _private(host, directory.name),
            directory.path,
            real=directory.path,
            identity=directory.identity,
            git_dir=directory.path if directory.place else repository.git_dir,
            worktree=directory.worktree,
            place=directory.place,
            mountpoints=tuple(_mountpoints(directory, repository.submodules)),
            stores=tuple(_stores(policy, host, directory)),
            config=render(merged),
            worktree_config=render(per_worktree),
            object_format=formats.get("objectformat", "sha1").lower(),
            ref_format=formats.get("refstorage", "files").lower(),
            only="" if directory.place else repository.branch,
            visible=_visible(policy, host),
            obeyed=(*_obeyed(policy, repository, directory), *masked),
            masked=masked,
        )


def _masked(policy: Policy, host: Host, worktree: str) -> Iterator[str]:
    """Yield the masked files of a checkout, relative to it."""
    top = f"{worktree.rstrip('/')}/"
    for row in host.project.hidden_files if policy.masks_secrets and worktree else ():
        if row.path.startswith(top) and row.path.isprintable():
            yield row.path[len(top) :]


def render_attributes(paths: Iterable[str]) -> bytes:
    """Return the attributes of masked files."""
    escaped = ("".join(f"\\{char}" if char in "\\*?[" else char for char in path) for path in paths)
    return os.fsencode("".join(f"{_quote(f'/{path}')} {_ATTRIBUTE}\n" for path in escaped))


def drop_attributes(content: bytes) -> bytes:
    """Return attributes without those of files that were masked before."""
    rows = (row for row in content.splitlines(keepends=True) if not row.rstrip().endswith(_ATTRIBUTE.encode()))
    return b"".join(row if row.endswith(b"\n") else row + b"\n" for row in rows)


def _explain_remotes(policy: Policy, host: Host, rows: tuple[Row, ...], worktree: str) -> Iterator[Row]:
    """Yield rows by which a remote on this machine that is not mounted says what would permit it.

    Git runs these values, with the path of the remote after them, instead of its own programs.
    """
    remotes: dict[str, tuple[str, str]] = {}  # the addresses to fetch from and to push to
    for section, name, key, value in rows:
        if section == "remote" and name and key in git_keys.ADDRESSES:
            fetch, push = remotes.get(name, ("", ""))
            remotes[name] = (value, push) if key == "url" else (fetch, value)
    for name, (fetch, push) in remotes.items():
        for key, address, flag, verb in (
            ("uploadpack", fetch, "--mount-ro", "fetch"),
            ("receivepack", push or fetch, "--mount-rw", "push"),
        ):
            path = _path_of(address, worktree)
            if path and path.isprintable() and not _is_shown(policy, host, path, writable=key == "receivepack"):
                word = path if _PLAIN.issuperset(path) else _quote_for_shell(path)
                said = f"{path} is outside of the sandbox; `claudebox {flag} {word}` lets the agent"
                yield "remote", name, key, f"printf 'claudebox: %s\\n' {_quote_for_shell(f'{said} {verb}')} >&2; false"


def _path_of(address: str, worktree: str) -> str:
    """Return the directory that an address of git names on this machine, "" if it is elsewhere."""
    address = address.removeprefix("file://")
    before, colon, _ = address.partition(":")
    if not address or (colon and "/" not in before):  # a host, as in `git@host:path` and `https://...`
        return ""
    return os.path.normpath(os.path.join(worktree, address))


def _obeyed(policy: Policy, repository: Repository, directory: GitDirectory) -> Iterator[str]:
    """Yield the paths that git of the host obeys; none if the user lets the agent change them (`--allow`)."""
    if any(request.name == tables_paths.GIT for request in policy.allow):
        return
    if not directory.place:
        yield from repository.obeyed
        return
    worktree = directory.worktree
    for row in repository.executed:
        if row.path == worktree:
            yield "."
        elif row.path.startswith(f"{worktree.rstrip('/')}/"):
            yield row.path[len(worktree.rstrip("/")) + 1 :]


def _mountpoints(directory: GitDirectory, submodules: tuple[GitDirectory, ...]) -> Iterator[str]:
    """Yield where the git directories of the outermost submodules lie in this one."""
    places = [row.place for row in submodules]
    above = f"{directory.place}/" if directory.place else ""
    for place in places:
        around = [other for other in places if place.startswith(f"{other}/") and len(other) > len(directory.place)]
        if place.startswith(above) and place != directory.place and not around:
            yield place[len(above) :]


def _private(host: Host, name: str) -> str:
    return f"{host.instance.directory}/git/{name}"


def _visible(policy: Policy, host: Host) -> tuple[str, ...]:
    """Return the directories that are writable inside."""
    return host.workdir.real, *(request.source for request in policy.mounts if request.writable)


def _stores(policy: Policy, host: Host, directory: GitDirectory) -> Iterator[tuple[str, str]]:
    """Yield where objects lie outside and inside; borrowed ones only if they are mounted anyway."""
    for number, store in enumerate(directory.stores):
        if not store.borrowed:
            yield store.path, f"{STORES}/{directory.name}/{number}/objects"
        elif _is_shown(policy, host, store.path):
            yield store.path, store.path


def _is_shown(policy: Policy, host: Host, path: str, *, writable: bool = False) -> bool:
    rows = [row for row in policy.mounts if row.dest == row.source and (row.writable or not writable)]
    shown = [host.workdir.real, *(row.source for row in rows)]
    return any(covers(base, path) for base in shown)


def plan_mounts(policy: Policy, host: Host) -> Iterator[Mount]:
    """Yield the mounts of git directories, objects and checkouts."""
    repository = host.git.repository
    if repository is not None:
        yield from _checkout(host, repository)
    parent = host.workdir.real.rpartition("/")[0]
    if repository is not None and _can_be_empty(policy, host, parent):
        yield Mount(parent, "closed", "git must not make worktrees beside the project, which would be lost", role="git")
    for own in plan_private(policy, host):
        yield Mount(own.dest, "bind", "the sandbox's own git directory", own.directory, role="git")
    for found in _find_trusted(host):
        for directory in found.directories:
            yield from _objects(directory)
    if host.git.repository is not None and not _why_not(host, host.git.repository):
        for path in _missing_directories(policy, host):  # a mount cannot be renamed, and take the submodule with it
            yield Mount(path, "bind", "holds a submodule that is not initialised outside", path, role="pin")
        for row in _empty_submodules(policy, host):
            source = f"{host.instance.directory}/{CHECKOUTS}/{row.name}"
            yield Mount(row.path, "bind", "a submodule that is not initialised outside", source, role="git")
    if host.project.worktrees is not None and not _is_open(policy):
        path, identity = host.project.worktrees.path, host.project.worktrees.identity
        yield Mount(path, "bind", "worktrees that the agent makes", path, pinned=identity, role="git")


def _empty_submodules(policy: Policy, host: Host) -> Iterator[EmptySubmodule]:
    """Yield the submodules that are not initialised, but for those that need a directory in a read-only place."""
    for row in host.git.empty_submodules:
        if not row.above or not plan_protected.is_closed(policy, host, row.path):
            yield row


def _missing_directories(policy: Policy, host: Host) -> tuple[str, ...]:
    """Return the directories around submodules that have to be made, outermost first."""
    return tuple(dict.fromkeys(path for row in _empty_submodules(policy, host) for path in row.above))


def _is_open(policy: Policy) -> bool:
    """Return whether the directory in which the client makes worktrees is writable anyway."""
    return any(tables_paths.WORKTREES.startswith(f"{request.name}/") for request in policy.allow)


def _can_be_empty(policy: Policy, host: Host, parent: str) -> bool:
    """Return whether the directory above the project holds nothing but mounts, and no program writes there."""
    own = ("/bin", "/dev", "/etc", "/lib", "/nix", "/opt", "/proc", "/run", "/sbin", "/sys", "/usr", "/var")
    if parent in ("", "/tmp", host.home) or any(covers(place, parent) for place in own):
        return False
    return host.git.above is None and not any(covers(request.dest, parent) for request in policy.mounts)


def _checkout(host: Host, repository: Repository) -> Iterator[Mount]:
    if host.git.above is not None and not _why_not(host, repository):
        reason = "the rest of the repository"
        yield Mount(repository.root, "ro-bind", reason, repository.root, pinned=host.git.above.identity, role="git")
    if repository.gitfile is not None and (repository.root == host.workdir.real or not _why_not(host, repository)):
        dot = f"{repository.root}/.git"
        yield Mount(dot, "ro-bind", "names the repository; may not name another", dot,
                    pinned=repository.gitfile, role="git")  # fmt: skip


def _objects(directory: GitDirectory) -> Iterator[Mount]:
    for number, store in enumerate(directory.stores):
        if store.borrowed:
            continue
        base = f"{STORES}/{directory.name}/{number}"
        yield Mount(f"{base}/objects", "ro-bind", "objects of git", store.path, pinned=store.identity, role="git")
        if store.chained:  # all of them stand in the own git directory
            yield Mount(f"{base}/objects/info/alternates", "copy", "stores are named once", mode=0o444, role="git")
        if store.lfs is not None:
            large = f"{store.path.rpartition('/')[0]}/lfs"
            yield Mount(f"{base}/lfs", "ro-bind", "large files of git", large, pinned=store.lfs, role="git")


def stubs(policy: Policy, host: Host) -> Iterator[Stub]:
    """Yield the directories that have to exist on the host as mount points."""
    if host.git.repository is None and host.git.empty:
        yield Stub(f"{host.workdir.real}/.git", "directory")
    yield from (Stub(path, "directory") for path in _missing_directories(policy, host))
    yield from (Stub(row.path, "directory") for row in _empty_submodules(policy, host) if row.missing)
    if host.project.worktrees is not None and host.project.worktrees.kind == "missing" and not _is_open(policy):
        yield Stub(host.project.worktrees.path, "directory")


def warnings(policy: Policy, host: Host) -> Iterator[str]:
    """Yield where git inside differs from git outside."""
    repository = host.git.repository
    if repository is None:
        return
    problem = _why_not(host, repository)
    if problem:
        yield f"git does not work inside: {problem}"
        return
    if repository.root != host.workdir.real:
        yield (
            f"the repository starts above, at {repository.root}: the rest of it is read-only inside "
            "(`--set project=repository` makes all of it the project)"
        )
    for found in _find_trusted(host):
        for store in found.directory.stores if found.directory else ():
            if store.borrowed and not _is_shown(policy, host, store.path):
                yield (
                    f"git inside lacks the objects that this repository borrows from {store.path}: "
                    f"let them in with `--mount-ro {store.path}`"
                )
        rows = (*host.git.user.rows, *(found.directory.rows if found.directory else ()))
        if found is repository and signs(rows):
            yield "commits made inside are not signed (commit.gpgsign): your keys stay outside"


# Git over HTTPS inside (SEC-03): one host, one token, and a helper of the sandbox's own that answers for that host
# alone; the host's helpers and their stores stay outside. The token is fetched once the user has agreed. If its value
# is a secret that stays outside, the helper has the placeholder.


_SCRIPT = """\
#!/bin/sh
# Answers git for one host alone.
[ "$1" = get ] || exit 0
protocol= host= token=
while IFS='=' read -r name value && [ -n "$name" ]; do
  case $name in protocol) protocol=$value ;; host) host=$value ;; esac
done
[ "$protocol" = https ] && [ "$host" = {host} ] || exit 0
IFS= read -r token <{file}
printf '%s\\n' username={username} "password=$token"
"""


def plan_credential_mounts(credential: GitCredential, host: Host) -> Iterator[Mount]:
    """Yield the credential helper and its token."""
    if not host.secrets.git_token:
        return
    script = _SCRIPT.format(
        host=_quote_for_shell(credential.host),
        username=_quote_for_shell(credential.username),
        file=_quote_for_shell(GIT_TOKEN_FILE),
    )
    reason = f"lets git log in to {credential.host}, asked for with {credential.origin}"
    yield Mount(GIT_HELPER, "file", reason, content=os.fsencode(script), mode=0o755)
    yield Mount(GIT_TOKEN_FILE, "file", reason, mode=0o400, deferred=Deferred(_key(credential, host)))


def _key(credential: GitCredential, host: Host) -> str:
    """Return the key of the token: the placeholder where its value is a secret that stays outside."""
    for secret in host.secrets.held:
        if secret.source == credential.token:
            if credential.host not in secret.places:
                raise ClaudeboxError(
                    f"`{credential.origin}` lets git log in to `{credential.host}` with a value that "
                    f"`{secret.origin}` keeps out",
                    hint=f"add `{credential.host}` to the hosts of `{secret.env}`",
                )
            return placeholder_key(secret.env)
    return GIT_TOKEN


def _quote_for_shell(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
