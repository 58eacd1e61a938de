"""What a project file may do: tighten at once, and everything else after the user approved it (E05, E06).

An approval is of this content at this path with the effect that was shown: if the user's own settings change so that
the same content would do more, they are asked again. Approvals are in ~/.claudebox/trust, which no sandbox sees.
"""

from __future__ import annotations

import os

from claudebox.base import console, syscalls
from claudebox.base.files import Closing, list_names, read_small, real_path
from claudebox.base.records import Value
from claudebox.settings.layers import Layer, Settings, SettingValue
from claudebox.settings.table import SETTINGS
from claudebox.tables.paths import COPIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from claudebox.settings.records import Setting


_LIMIT = 1 << 20
_MODES = {"ro": "read-only", "rw": "writable"}


class TrustRequest(Value):
    """What a project asks for."""

    state: str  # ~/.claudebox
    path: str
    digest: str
    layer: Layer


class Change(Value):
    """One difference that a layer makes."""

    key: str
    text: str
    widens: bool


def original_path(state: str, path: str) -> str:
    """Return the path that an approval is for: in an agent's worktree, the one in the project it belongs to."""
    copies = f"{real_path(state)}/{COPIES}/"
    if not path.startswith(copies):
        return path
    project, name, rest = (*path[len(copies) :].split("/", 2), "", "")[:3]
    source = os.fsdecode(read_small(f"{copies}{project}/.{name}") or b"").partition("\0")[0]
    return f"{source}/{rest}" if source and rest else path


def settle(
    request: TrustRequest,
    merge: Callable[[tuple[Layer, ...]], Settings],
    approved: Callable[[Iterable[str]], bool] | None,
) -> Settings:
    """Return the settings with what of the request applies; `approved` shows lines to the user and asks."""
    before, after = merge(()), merge((request.layer,))
    wide = find_widening(before, after)
    if not wide or is_approved(request, wide):
        return after
    if approved is not None and not before.on("yes") and approved(explain(request, before, after)):
        approve(request, wide)
        return after
    shown = "; ".join(wide[:3]) + (f" and {len(wide) - 3} more" if len(wide) > 3 else "")
    console.warn(
        f"{request.layer.origin} is not approved and what it asks for was left out: {shown}\n"
        "review it with `claudebox trust approve`"
    )
    return merge((tightening(request.layer, before, after),))


def tightening(layer: Layer, before: Settings, after: Settings) -> Layer:
    """Return the part of a layer that widens nothing."""
    wide = {change.key for change in changes(before, after) if change.widens}
    return Layer(layer.origin, {key: values for key, values in layer.given.items() if key not in wide})


def find_widening(before: Settings, after: Settings) -> tuple[str, ...]:
    """Return what needs an approval, in words."""
    return tuple(change.text for change in changes(before, after) if change.widens)


def changes(before: Settings, after: Settings) -> Iterator[Change]:
    """Yield the differences, in words, and whether each widens what a sandbox can do."""
    for row in SETTINGS:
        old, new = before.all(row.key), after.all(row.key)
        if row.grows:
            known = [(given.value, given.fields) for given in old]
            for given in new:
                if (given.value, given.fields) not in known:
                    widens = row.effect == "widens" and given.value not in row.alone[1:]
                    yield Change(row.key, f"{row.file_key}: + {_describe(given)}", widens)
        elif _single(row, old) != _single(row, new):
            text = f"{row.file_key}: {_single(row, old)} -> {_single(row, new)}"
            yield Change(row.key, text, _widens(row, old, new))


def _single(row: Setting, values: tuple[SettingValue, ...]) -> str:
    if row.shape == "switch":
        return "yes" if values and values[-1].value == "yes" else "no"
    return " ".join(values[-1].fields.values()) or values[-1].value if values else "nothing"


def _describe(given: SettingValue) -> str:
    fields = given.fields
    if "mode" not in fields:
        return given.value
    return f"{fields['host']} {_MODES[fields['mode']]}" + (f" at {fields['sandbox']}" if fields["sandbox"] else "")


def _widens(row: Setting, old: tuple[SettingValue, ...], new: tuple[SettingValue, ...]) -> bool:
    if row.shape == "switch":
        return (_single(row, new) == "yes") == (row.effect == "widens")
    if row.shape == "choice" and row.widest and old and new:
        moved = row.choices.index(new[-1].value) - row.choices.index(old[-1].value)
        return moved < 0 if row.widest == "first" else moved > 0
    return row.effect == "widens"


def explain(request: TrustRequest, before: Settings, after: Settings) -> Iterator[str]:
    """Yield the request as a difference from the user's own settings."""
    yield f"{console.paint('This project', 'bold')} asks for settings, in {console.quote(request.path)}:"
    for change in changes(before, after):
        mark = console.paint("widens  ", "yellow") if change.widens else "tightens"
        yield f"  {mark}  {console.shorten(change.text, 200)}"


# The records: a file for each path, with path, digest and effect


def is_approved(request: TrustRequest, wide: tuple[str, ...]) -> bool:
    """Return whether exactly this content, with at most this effect, was approved."""
    recorded = (read_small(_record(request.state, request.path), limit=_LIMIT) or b"").split(b"\0")
    if recorded[:2] != [os.fsencode(request.path), request.digest.encode()]:
        return False
    return {_encoded(text) for text in wide} <= set(recorded[2:])


def approve(request: TrustRequest, wide: tuple[str, ...]) -> None:
    from claudebox.base.files import replace_file
    from claudebox.base.state import open_state

    with Closing(open_state(request.state, "trust")) as directory:
        words = (os.fsencode(request.path), request.digest.encode(), *(_encoded(text) for text in wide))
        replace_file(directory, os.path.basename(_record(request.state, request.path)), b"\0".join(words))


def _record(state: str, path: str) -> str:
    return f"{state}/trust/{syscalls.sha256(os.fsencode(path))[:32]}"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def approvals(state: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield path, digest and effect of everything that was approved."""
    for name in list_names(f"{state}/trust"):
        words = (read_small(f"{state}/trust/{name}", limit=_LIMIT) or b"").split(b"\0")
        if len(words) >= 2 and f"{state}/trust/{name}" == _record(state, os.fsdecode(words[0])):
            yield os.fsdecode(words[0]), os.fsdecode(words[1]), tuple(os.fsdecode(word) for word in words[2:])


# What a user has answered about a project itself is a record of its directory, without a digest.

_SHOWS_SECRETS = ("project_secrets: mask -> show",)


def shows_secrets(state: str, project: str) -> bool:
    """Return whether the user wants the agent to read the secrets of a project in every session."""
    return is_approved(_answer(state, project), _SHOWS_SECRETS)


def show_secrets(state: str, project: str) -> None:
    """Remember that the agent may read the secrets of a project."""
    approve(_answer(state, project), _SHOWS_SECRETS)


def hide_secrets(state: str, project: str) -> bool:
    """Mask them again; return whether it was remembered otherwise."""
    return revoke(state, _answer(state, project).path)


def _answer(state: str, project: str) -> TrustRequest:
    return TrustRequest(state, os.path.dirname(original_path(state, f"{project}/file")), "", Layer("", {}))


def revoke(state: str, path: str) -> bool:
    """Remove an approval; return whether there was one."""
    try:
        os.unlink(_record(state, path))
    except FileNotFoundError:
        return False
    return True
