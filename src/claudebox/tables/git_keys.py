"""Which keys of git's configuration enter a sandbox: they name no program, no credential, and no file of the host.

A key that is missing here stays outside: filters, pagers, editors, credential helpers, ssh and gpg programs, templates,
proxies, headers. Git inside then does what it does without it.
"""

from __future__ import annotations

# Section: keys, or `*` for all but those after it.
KEYS: dict[str, tuple[str, ...]] = {
    # Who commits.
    "user": ("name", "email", "useconfigonly"),
    "author": ("name", "email"),
    "committer": ("name", "email"),
    # What a repository is: without these git refuses it, or destroys it in silence (partial clones).
    "extensions": ("objectformat", "refstorage", "worktreeconfig", "compatobjectformat", "partialclone",
                   "preciousobjects", "relativeworktrees"),
    "core": ("repositoryformatversion", "filemode", "symlinks", "ignorecase", "precomposeunicode", "bare", "worktree",
             "autocrlf", "eol", "safecrlf", "checkroundtripencoding", "whitespace", "sparsecheckout", "abbrev",
             "sparsecheckoutcone", "splitindex", "untrackedcache", "preloadindex", "quotepath", "logallrefupdates",
             "hookspath", "commentchar", "commentstring", "trustctime", "checkstat", "sharedrepository", "protecthfs",
             "protectntfs", "bigfilethreshold", "compression", "loosecompression", "commitgraph", "multipackindex",
             "notesref", "warnambiguousrefs", "fsync", "fsyncmethod"),
    "index": ("*",),
    "pack": ("*",),
    "gc": ("*", "recentobjectshook"),
    "maintenance": ("auto", "autodetach", "strategy"),
    "feature": ("*",),
    # How commands behave, and what they print.
    "init": ("defaultbranch",),
    "advice": ("*",),
    "color": ("*",),
    "column": ("*",),
    "i18n": ("*",),
    "pull": ("*",),
    "push": ("*", "gpgsign"),
    "fetch": ("*",),
    "merge": ("ff", "conflictstyle", "log", "renames", "renamelimit", "directoryrenames", "renormalize", "stat",
              "autostash", "verbosity", "branchdesc", "defaulttoupstream", "suppressdest"),
    "rebase": ("*", "instructionformat"),
    "rerere": ("*",),
    "diff": ("*", "external", "tool", "guitool", "trustexitcode"),
    "log": ("*", "showsignature"),
    "status": ("*",),
    "commit": ("cleanup", "status", "verbose"),
    "tag": ("sort",),
    "branch": ("autosetupmerge", "autosetuprebase", "sort"),
    "checkout": ("*",),
    "clone": ("defaultremotename", "rejectshallow"),
    "apply": ("*",),
    "am": ("*",),
    "blame": ("*", "ignorerevsfile"),
    "clean": ("*",),
    "grep": ("*",),
    "help": ("autocorrect",),
    "notes": ("*",),
    "stash": ("*",),
    "submodule": ("*",),
    "versionsort": ("*",),
    "worktree": ("*",),
    "transfer": ("fsckobjects", "hiderefs"),
    "protocol": ("version",),
    "lfs": ("fetchinclude", "fetchexclude", "fetchrecentrefsdays", "locksverify", "concurrenttransfers",
            "repositoryformatversion", "skipdownloaderrors", "url", "pushurl", "setlockablereadonly"),
    "alias": ("*",),  # without those that run a program of their own
}  # fmt: skip

# The same in sections that have a name: `[remote "origin"]`.
NAMED: dict[str, tuple[str, ...]] = {
    "branch": ("remote", "merge", "rebase", "pushremote", "description", "mergeoptions"),
    "remote": ("url", "pushurl", "fetch", "push", "tagopt", "prune", "prunetags", "promisor", "partialclonefilter",
               "mirror", "skipdefaultupdate", "skipfetchall", "followremotehead"),
    "submodule": ("url", "active", "branch", "update", "path", "ignore", "fetchrecursesubmodules"),
    "protocol": ("allow",),
    "maintenance": ("enabled", "auto"),
    "color": ("*",),
    "lfs": ("access", "locksverify"),
    "filter": (),  # see `FILTERS`
}  # fmt: skip
ADDRESSES = ("url", "pushurl")  # values that lose the user's name and password

# Filters that enter: name and the values that they have.
FILTERS: dict[str, tuple[tuple[str, str], ...]] = {
    "lfs": (
        ("clean", "git-lfs clean -- %f"),
        ("smudge", "git-lfs smudge -- %f"),
        ("process", "git-lfs filter-process"),
        ("required", "true"),
    ),
}

# What a repository that was made inside may say to git of the host: what git writes by itself, and how commands behave.
# No place but its own, no address that is asked without a command (promisor), no alias, which may begin with `-c`.
PLAIN: dict[str, tuple[str, ...]] = {
    "core": ("repositoryformatversion", "filemode", "bare", "logallrefupdates", "symlinks", "ignorecase",
             "precomposeunicode", "autocrlf", "eol", "safecrlf", "sparsecheckout", "sparsecheckoutcone", "abbrev",
             "quotepath", "splitindex", "untrackedcache", "preloadindex", "checkstat", "trustctime", "commitgraph",
             "multipackindex", "sharedrepository"),
    "extensions": ("objectformat", "refstorage", "worktreeconfig", "relativeworktrees", "compatobjectformat"),
    "user": ("name", "email"),
    "submodule": ("active", "recurse"),
    "index": ("version", "sparse", "threads", "skiphash"),
    "gc": ("auto", "autodetach", "autopacklimit", "pruneexpire"),
    "maintenance": ("auto", "strategy"),
    "init": ("defaultbranch",),
    "commit": ("gpgsign",),
    "tag": ("gpgsign",),
    "pull": ("rebase", "ff"),
    "push": ("default", "autosetupremote"),
    "fetch": ("prune",),
    "merge": ("ff", "conflictstyle"),
    "advice": ("detachedhead",),
    "lfs": ("repositoryformatversion",),
}  # fmt: skip
PLAIN_NAMED: dict[str, tuple[str, ...]] = {
    "remote": ("url", "pushurl", "fetch", "tagopt", "prune"),
    "branch": ("remote", "merge", "rebase", "pushremote", "vscode-merge-base", "description"),
    "submodule": ("url", "active"),
    "lfs": ("access",),
}
