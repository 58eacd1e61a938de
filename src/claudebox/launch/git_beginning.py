"""What both sides of a repository start a session with where set-up could only copy it, since only git reads it."""

from __future__ import annotations

from claudebox.errors import ClaudeboxError
from claudebox.launch import git_state
from claudebox.launch.git_names import find_hidden
from claudebox.launch.git_sandbox import GitError, Limits
from claudebox.launch.git_sides import own_side, own_side_writable
from claudebox.launch.git_state import Private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.launch.git_sandbox import Tools


def read_base(path: str, tools: Tools) -> None:
    """Write down the refs and the HEAD that both sides start with: the agent has not run yet."""
    with Private(path) as private:
        layout = private.state().layout
        if private.read_head() != git_state.REFTABLE_HEAD:
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
                private.update(base=git_state.render_refs(own.refs))
                private.write_head(own.head()[0])
        except GitError as error:
            raise ClaudeboxError(f"`{layout.common}`: {error}") from None
