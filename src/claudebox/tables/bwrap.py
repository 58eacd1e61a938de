"""Options of bwrap that some version lacks, and the versions that have them."""

from __future__ import annotations

NEEDED = ("--args", "--perms", "--seccomp", "--cap-drop", "--die-with-parent", "--remount-ro")
LEAST = "0.5"  # the first version with all of them
USEFUL = ("--bind-fd", "--disable-userns", "--size")
FULL = "0.10"  # the first version with these too
