"""Runs `nix build` on the host, shows how far it is on a terminal, and says of a failure which package and why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from typing import Any

from claudebox.base import console, syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.base.files import OPEN_DIRECTORY, Closing, replace_file
from claudebox.base.state import open_state
from claudebox.nix.records import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from claudebox.nix.records import Nix, Packages
    from claudebox.settings.records import Policy


_FEATURES = ("--extra-experimental-features", "nix-command flakes")
_KEEPS_ORDER = (2, 20)  # older ones sort what they print, and the order on PATH is lost
_WIDTH = 78
_PR_SET_PDEATHSIG = 1
# Numbers of Nix's log: kinds of activities and of their results.
_COPY, _BUILD, _DOWNLOAD = 100, 105, 101
# What the complaints of Nix mean, in the order in which they are looked for.
_MEANINGS = (
    ("does not provide attribute", "does not exist in {set}"),
    ("has an unfree license", "has an unfree license, which the configuration of nixpkgs does not permit"),
    ("is marked as broken", "is marked as broken in {set}"),
    ("is marked as insecure", "is marked as insecure in {set}"),
    ("is not available on the requested hostPlatform", "is not available for this machine"),
    ("Refusing to evaluate package", "is refused by {set}: {line}"),
    ("unable to download", "could not be downloaded: {line}"),
    ("Could not resolve host", "could not be downloaded: {line}"),
    ("cannot connect to socket", "could not be built: {line}"),
    ("failed with exit code", "could not be built: {line}"),
    ("failed due to signal", "could not be built: {line}"),
    ("dependencies of derivation", "could not be built: {line}"),
)


class Builder:
    """Builds packages of one set."""

    def __init__(self, nix: Nix, environ: dict[str, str], roots: str) -> None:
        self._nix = nix
        self._environ = environ
        self._roots = roots
        self._shows = os.isatty(2)

    def build(self, names: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
        """Return the store paths of each package, and the packages that failed with the reason."""
        console.note(f"resolving packages: {', '.join(names)}")
        built: dict[str, tuple[str, ...]] = {}
        if len(names) > 1 and number(self._nix.daemon.client) >= _KEEPS_ORDER:
            paths, _ = self._run(names, "all")
            if len(paths) == len(names):
                return dict(zip(names, paths, strict=True)), {}
        failures: dict[str, str] = {}
        for index, name in enumerate(names):  # one by one: what fails has a name
            paths, complaint = self._run([name], f"package-{index}")
            if len(paths) == 1:
                built[name] = paths[0]
            else:
                failures[name] = self._meaning(complaint)
        return built, failures

    def _run(self, names: Sequence[str], link: str) -> tuple[list[tuple[str, ...]], str]:
        words = [f"{self._nix.nixpkgs}#{name}" for name in names]
        command = [
            self._nix.program, *_FEATURES, "build", "--json", "--out-link", f"{self._roots}/{link}", "--log-format",
            "internal-json", *words,
        ]  # fmt: skip
        log = _Log(shows=self._shows)
        # Into a file: of a hundred packages it is more than a pipe holds, and nobody reads it before the end.
        with tempfile.TemporaryFile() as output:
            with subprocess.Popen(
                command, cwd="/", env=self._environ, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - there are no threads here
            ) as process:  # fmt: skip
                assert process.stderr is not None  # noqa: S101 - for the type checker
                for line in process.stderr:
                    log.hear(line.decode("utf-8", "replace").rstrip("\n"))
            log.clear()
            if process.returncode:
                return [], log.complaint
            output.seek(0)
            return [tuple(row["outputs"].values()) for row in json.loads(output.read())], ""

    def _meaning(self, complaint: str) -> str:
        lines = [line.strip() for line in complaint.splitlines() if line.strip()]
        line = next((line for line in reversed(lines) if line.startswith("error:")), lines[-1] if lines else "")
        quoted = [line.removeprefix(">").strip() for line in lines if line.startswith(">")]
        if quoted:
            line = f"its last words were `{quoted[-1]}`"
        for sign, meaning in _MEANINGS:
            if sign in complaint:
                return meaning.format(set=f"`{self._nix.nixpkgs}`", line=line.removeprefix("error:").strip())
        return f"could not be had: {line.removeprefix('error:').strip() or 'nix ended without a word'}"


def _end_with_parent() -> None:
    syscalls.call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


class _Log:
    """What Nix tells while it works, one JSON object per line."""

    def __init__(self, *, shows: bool) -> None:
        self._shows = shows
        self._activities: dict[int, str] = {}
        self._errors: list[str] = []
        self._plain: list[str] = []

    @property
    def complaint(self) -> str:
        return "\n".join(_without_colours(text) for text in (self._errors or self._plain))

    def hear(self, line: str) -> None:
        if not line.startswith("@nix "):
            self._plain.append(line)
            return
        try:
            event: dict[str, Any] = json.loads(line[5:])
        except ValueError:
            return
        action = event.get("action")
        if action == "msg" and event.get("level") == 0:
            self._errors.append(str(event.get("raw_msg") or event.get("msg", "")) + "\n" + str(event.get("msg", "")))
        elif action == "start" and event.get("type") in (_COPY, _DOWNLOAD, _BUILD):
            self._activities[event.get("id", 0)] = str(event.get("text", ""))
        elif action == "stop":
            self._activities.pop(event.get("id", 0), None)
        self._show()

    def _show(self) -> None:
        if self._shows and self._activities:
            text = _without_colours(next(reversed(self._activities.values())))
            more = f" (and {len(self._activities) - 1} more)" if len(self._activities) > 1 else ""
            line = console.shorten(text, _WIDTH - len(more)) + more
            os.write(2, f"\r\x1b[K{line}".encode("utf-8", "backslashreplace"))

    def clear(self) -> None:
        if self._shows:
            os.write(2, b"\r\x1b[K")


def _without_colours(text: str) -> str:
    pieces = text.split("\x1b[")
    return pieces[0] + "".join(piece.partition("m")[2] for piece in pieces[1:])


# Packages of nixpkgs for a sandbox: built on the host when the user has agreed, and kept for the next (PKG-01).
#
# Only attributes of the package set that the user (or the build of claudebox) chose are evaluated here, never
# anything of the project. What was resolved is kept with a root for the garbage collector, below ~/.claudebox/nix.


_UNUSED = 60 * 24 * 3600  # seconds after which packages that nobody asked for are left to the garbage collector


def resolve(policy: Policy, nix: Nix, known: Packages, environ: dict[str, str], state: str) -> tuple[str, ...]:
    """Return the directories of programs of the packages that the policy asks for, in their order."""
    names = tuple(request.name for request in policy.packages)
    roots = _directory(state, known.key)
    built, failures = Builder(nix, environ, roots).build(names)
    if failures and known.path is not None:  # offline, for example: what was good yesterday is still there
        reasons = "; ".join(f"{name} {why}" for name, why in failures.items())
        console.warn(f"packages are those of last time: {reasons}")
        return known.path
    if failures and not policy.packages_optional:
        origins = {request.name: request.origin for request in policy.packages}
        first, *more = (f"`{origins[name]}`: package `{name}` {why}" for name, why in failures.items())
        hint = "correct the name, or leave it out; `packages_optional = true` starts without what is unavailable"
        raise ClaudeboxError(first, more=tuple(more), hint=hint)
    directories = tuple(dict.fromkeys(f"{path}/bin" for name in names for path in built.get(name, ())
                                      if os.path.isdir(f"{nix.location.root}{path}/bin")))  # fmt: skip
    if not failures:
        _remember(state, known.key, directories)
        _cleanup(state)
    for name, why in failures.items():
        console.warn(f"package {name} {why}; it is missing inside")
    for name, paths in built.items():
        if not any(f"{path}/bin" in directories for path in paths):
            console.warn(f"package {name} has no programs")
    return directories


def _directory(state: str, key: str) -> str:
    with Closing(open_state(state, "nix")) as parent:
        try:
            os.mkdir(key, 0o700, dir_fd=parent)
        except FileExistsError:
            pass
    return f"{state}/nix/{key}"


def _remember(state: str, key: str, directories: tuple[str, ...]) -> None:
    with Closing(os.open(f"{state}/nix/{key}", OPEN_DIRECTORY)) as directory:
        replace_file(directory, "paths", os.fsencode("".join(f"{path}\n" for path in directories)))


def _cleanup(state: str) -> None:
    """Give up what was not resolved anew for long; it would be again if somebody asked for it."""
    for old in _unused(f"{state}/nix"):
        for name in os.listdir(old):
            os.unlink(f"{old}/{name}")
        os.rmdir(old)


def _unused(parent: str) -> Iterator[str]:
    for name in os.listdir(parent):
        path = f"{parent}/{name}"
        if not os.path.islink(path) and os.path.isdir(path) and time.time() - os.stat(path).st_mtime > _UNUSED:
            yield path
