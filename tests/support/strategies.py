"""What hostile and merely odd input looks like, as strategies of hypothesis."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from tests.support.hosts import HOME, PROJECT, fact

from claudebox.agent import kinds
from claudebox.agent.claude import CLAUDE
from claudebox.settings.records import MountRequest
from claudebox.settings.table import SETTINGS
from claudebox.settings.verbs import FORMER, VERBS

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_NASTY = [
    "\x1b]52;c;eA==\x07", "\x9b2J", "\u202e", "\u2066", "\n", "\r", "\t", "\x7f", "\u200b", "\u2028", "\U000e0041", "'",
    '"', "\\", "$(id)", "`id`", "%s", "-", "--", "=", ":", "~", "/", "..", " ", "*", "ä", "日", "😀",
]  # fmt: skip


def _system_string(data: bytes) -> str:
    return os.fsdecode(data.replace(b"\0", b""))


# Strings as the kernel hands them out: any bytes but NUL, decoded as Python decodes names and variables.
strings: SearchStrategy[str] = st.one_of(
    st.binary(max_size=24).map(_system_string),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=24),
    st.lists(st.sampled_from(_NASTY), max_size=6).map("".join),
)
components = strings.map(lambda text: text.replace("/", "")).filter(lambda text: text not in ("", ".", ".."))
paths = st.lists(components, min_size=1, max_size=4).map(lambda parts: "/srv/" + "/".join(parts))
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True)
environs = st.dictionaries(st.one_of(names, strings.map(lambda text: text.replace("=", ""))), strings, max_size=8)

_SOURCES = [
    "/", "/home", HOME, f"{HOME}/.ssh", f"{HOME}/.ssh/id", f"{HOME}/.config", f"{HOME}/.config/gh", f"{HOME}/notes",
    PROJECT, f"{PROJECT}/src", "/etc", "/etc/ssh", "/etc/nginx", "/srv", "/srv/data", "/srv/data/sub", "/srv/out",
    "/run/user/1000", "/proc", "/usr/share", "/opt/tool",
]  # fmt: skip
_DESTINATIONS = [
    "/", "/data", "/data/sub", "/srv/data", "/srv/data/sub", "/srv/out", "/usr/bin", "/etc/passwd", "/etc/app",
    "/proc/self", HOME, f"{HOME}/.claude/x", f"{HOME}/notes", PROJECT, f"{PROJECT}/src", f"{PROJECT}/.git", "/tmp",
    "/tmp/x", "/opt/tool",
]  # fmt: skip
SOURCE_FACTS = [
    *(fact(path) for path in _SOURCES),
    fact("/srv/innocent", real=f"{HOME}/.ssh"),
    fact("/srv/other-home", real=HOME),
    fact("/srv/app.sock", "socket"),
    fact("/srv/pipe", "other"),
    fact("/srv/missing", "missing"),
    fact("/srv/file", "file"),
]
requests = st.builds(
    MountRequest,
    source=st.sampled_from([row.path for row in SOURCE_FACTS]),
    dest=st.sampled_from(_DESTINATIONS),
    writable=st.booleans(),
    origin=st.sampled_from(["--mount-ro", "--mount-rw"]),
)

FLAGS = {flag: row for row in SETTINGS for flag in row.flags}
# Words that decide what the others mean.
OWN_WORDS = {
    "--",
    *FLAGS,
    *FORMER,
    *CLAUDE.extras.background,
    *CLAUDE.subcommands,
    *kinds.NAMES,
    *(verb.word for verb in VERBS),
}
foreign_words = strings.filter(lambda word: word.partition("=")[0] not in OWN_WORDS)


@st.composite
def own_words(draw: st.DrawFn) -> list[str]:
    """Return a flag of ours with a value that it takes."""
    others = ("json", "set")  # which goes with another flag only, and which is another
    flag = draw(st.sampled_from([flag for flag, row in FLAGS.items() if not row.runs and row.key not in others]))
    row = FLAGS[flag]
    if row.shape == "switch":
        return [flag]
    value = (
        draw(st.sampled_from(row.choices))
        if row.choices
        else draw(strings.filter(lambda text: text and not (row.assigned and "=" in text)))
    )
    return draw(st.sampled_from([[flag, value], [f"{flag}={value}"]]))
