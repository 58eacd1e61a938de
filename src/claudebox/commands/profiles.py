"""`--profiles`, `--trust`, `--init`, `--schema`: what a user does with files of settings besides writing them."""

from __future__ import annotations

import os
import textwrap
import time
from typing import TYPE_CHECKING

from claudebox import console, syscalls
from claudebox.commands import config_template, json_schema
from claudebox.config import files, settings, trust
from claudebox.config.options import SETTINGS
from claudebox.config.settings import Settings
from claudebox.errors import DECLINED, ClaudeboxError
from claudebox.facts import host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.files import Source
    from claudebox.config.settings import Layer

_USAGE = {
    "profiles": "`--profiles` or `--profiles NAME`",
    "trust": "`--trust`, `--trust approve` or `--trust revoke PATH`",
}


def run(name: str, flags: Settings, environ: dict[str, str]) -> int:
    """Do what one of the flags says."""
    home = host.current_home(environ)
    match name, flags.words:
        case "schema", ():
            console.write([json_schema.text()], descriptor=1)
        case "schema", ("task",):
            import json

            from claudebox.commands.task.model import SCHEMA

            console.write([json.dumps(SCHEMA, indent=2)], descriptor=1)
        case "init", ():
            return _init(home)
        case "profiles", ():
            console.write(_list(files.SettingsReader(home)), descriptor=1)
        case "profiles", (profile,):
            console.write(_show(files.SettingsReader(home), profile), descriptor=1)
        case "trust", ():
            console.write(_approvals(home), descriptor=1)
        case "trust", ("approve",):
            return _approve(home, environ)
        case "trust", ("revoke", path):
            return _revoke(home, path)
        case _:
            unknown = " ".join(flags.words)
            usage = _USAGE.get(name, f"`--{name}`")
            raise ClaudeboxError(f"`--{name}` does not know `{unknown}`", hint=usage)
    return 0


def _init(home: str) -> int:
    path = config_template.write_config(home)
    console.write([f"wrote {console.clean(path)}; every setting is in it, as a comment"], descriptor=1)
    return 0


def _list(reader: files.SettingsReader) -> Iterator[str]:
    names = reader.names()
    width = max(len(name) for name in names)
    for name, path in sorted(names.items()):
        try:
            given = reader.profile(name, "--profiles")[-1].given
        except ClaudeboxError as error:
            text = console.paint(f"cannot be used: {error.message}", "yellow", descriptor=1)
        else:
            text = console.clean(given["description"][0].value) if "description" in given else ""
        where = "" if path.startswith(files.BUILT_IN) else f"  ({console.clean(reader.shown(path))})"
        yield f"{console.clean(name):<{width}}  {text}{where}"


def _show(reader: files.SettingsReader, name: str) -> Iterator[str]:
    chain = reader.profile(name, "--profiles")
    yield console.paint(console.clean(name), "bold", descriptor=1)
    for layer in chain:
        for given in layer.given.get("description", ()):
            yield from textwrap.wrap(console.clean(given.value), 100, initial_indent="  ", subsequent_indent="  ")
    none = Settings({})
    before, after = settings.merge(none, {}), settings.merge(none, {}, chain)
    yield ""
    reasons = {layer.origin: _reasons(reader, layer) for layer in chain}
    described = ("extends", "name", "description")
    for row in (row for row in SETTINGS if row.key in after.given and row.key not in described):
        for given in after.all(row.key):
            if given.origin == "default":
                continue
            path, _, line = given.origin.rpartition(":")
            text = " ".join(word for word in given.fields.values() if word) or given.value
            yield f"  {row.file_key} = {console.shorten(text, 100)}  ({console.clean(given.origin)})"
            reason = reasons.get(path, {}).get(int(line) if line.isdigit() else 0, "")
            yield from textwrap.wrap(console.clean(reason), 100, initial_indent="      ", subsequent_indent="      ")
    yield ""
    yield "  differs from the defaults in:"
    differences = [change for change in trust.changes(before, after) if change.key not in described]
    for change in differences:
        yield f"    {console.shorten(change.text, 150)}"
    if not differences:
        yield "    nothing"


def _reasons(reader: files.SettingsReader, layer: Layer) -> dict[int, str]:
    """Return the comments above each line of a profile."""
    names = {reader.shown(path): path for path in (*reader.names().values(), *_built_in())}
    path = names.get(layer.origin)
    if path is None or not path.endswith(".toml"):
        return {}
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    reasons = {}
    above: list[str] = []
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            above.append(line.lstrip("# "))
            continue
        if line.strip() and above:
            reasons[number] = " ".join(above)
        above = []
    return reasons


def _built_in() -> list[str]:
    return [f"{files.BUILT_IN}/{name}" for name in os.listdir(files.BUILT_IN)]


def _approvals(home: str) -> Iterator[str]:
    rows = list(trust.approvals(f"{home}/.claudebox"))
    if not rows:
        yield "no project file has been approved"
    for path, digest, effect in rows:
        yield f"{console.clean(path)}  sha256 {console.clean(digest[:16])}{_state(path, digest)}"
        for text in effect:
            yield f"    {console.shorten(text, 150)}"


def _state(path: str, digest: str) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            content = file.read(files.LIMIT + 1)
    except OSError:
        return "  (gone)"
    return "" if syscalls.sha256(content) == digest else "  (changed since: not in force)"


def _approve(home: str, environ: dict[str, str]) -> int:
    reader = files.SettingsReader(home)
    none = Settings({})
    source = reader.project(os.getcwd())
    if source is None:
        raise ClaudeboxError(f"there is no {files.PROJECT_FILE} in this directory")
    own = files.layers(none, environ, reader)
    layer = reader.layer(source)
    before, after = settings.merge(none, environ, own), settings.merge(none, environ, (*own, layer))
    request = _request(home, source, layer)
    wide = tuple(change.text for change in trust.changes(before, after) if change.widens)
    console.write(trust.explain(request, before, after))
    if not wide:
        console.write(["nothing in it needs your approval: it only tightens, or changes nothing"])
        return 0
    if trust.is_approved(request, wide):
        console.write(["this is approved already"])
        return 0
    if not console.confirm("Approve exactly this, for this project? [y/N] ", default=False):
        return DECLINED
    trust.approve(request, wide)
    return 0


def _request(home: str, source: Source, layer: Layer) -> trust.TrustRequest:
    return trust.TrustRequest(f"{home}/.claudebox", os.path.realpath(source.path), source.digest, layer)


def _revoke(home: str, path: str) -> int:
    """Take the approval of a project, or of its file, back."""
    real = os.path.realpath(path)
    for candidate in (real, os.path.join(real, files.PROJECT_FILE), path):
        if trust.revoke(f"{home}/.claudebox", candidate):
            when = time.strftime("%H:%M")
            console.write([f"{console.clean(candidate)} is no longer approved, since {when}"], descriptor=1)
            return 0
    raise ClaudeboxError(f"`{path}` was not approved", hint="`claudebox --trust` lists what was")
