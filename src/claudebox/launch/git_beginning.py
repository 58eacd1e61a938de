"""What both sides of a repository start a session with, written down where set-up has no means or no time for it."""

from __future__ import annotations

from claudebox.errors import ClaudeboxError
from claudebox.launch import git_state
from claudebox.launch.git_checkout import Checkout
from claudebox.launch.git_names import find_hidden
from claudebox.launch.git_sandbox import GitError, Limits
from claudebox.launch.git_sides import own_side, own_side_writable, real_side
from claudebox.launch.git_state import Base, Private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.launch.git_sandbox import Tools


def read_base(path: str, tools: Tools) -> None:
    """Write down the refs that both sides start with where set-up could only copy them: the agent has not run yet."""
    with Private(path) as private:
        layout, base = private.layout(), private.base()
        if base is None or base.heads.get(layout.checkout) != git_state.REFTABLE_HEAD:
            return
        try:
            if layout.only:  # the user's stash and reflogs, and other agents, stay outside
                hidden = find_hidden(layout.work_tree, layout.git_dir)
                with own_side_writable(tools, path, layout, Limits()) as own:
                    own.begin_refs()
                    own.read_refs()
                    rows = "".join(f"delete {name}\0\0" for name in ("refs/stash", *filter(hidden, own.refs)))
                    own.box.git("update-ref", "--stdin", "-z", data=rows.encode("utf-8", "surrogateescape"))
                    own.box.git("reflog", "expire", "--expire=now", "--all")
                    own.box.git("pack-refs", "--all")
            with own_side(tools, path, layout, Limits()) as own:
                own.begin_refs()
                own.read_refs()
                private.write("base", Base(own.refs, {layout.checkout: own.head()[0]}).rows())
        except GitError as error:
            raise ClaudeboxError(f"`{layout.common}`: {error}") from None


def remember(path: str, tools: Tools, session: str) -> None:
    """Write down the index that both sides start with, which set-up has no time for."""
    with Private(path) as private:
        layout, limits = private.layout(), Limits()
        with real_side(tools, path, layout, limits, session, private.lock) as real:
            real.begin_refs()
            real.read_refs()
            Checkout(private, layout, real, real, lambda: real).remember()
