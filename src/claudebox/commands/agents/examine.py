"""What `--check` says of several agents: which limits can be enforced here, and whether sessions outlive a terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from claudebox.facts import cgroup, programs
from claudebox.files import read_small

if TYPE_CHECKING:
    from typing import Literal

    Words = tuple[Literal["ok", "warning"], str, str]


def describe_limits(path: tuple[str, ...]) -> Words:
    """Return status, detail and remedy about limits."""
    always = "time, processes, scratch: always"
    group = cgroup.find_group(os.getuid(), path)
    if group.problem:
        return "ok", f"{always}; `--memory` and `--cpus` are refused here: {group.problem}", ""
    way = "your systemd" if group.way == "systemd" else group.place
    return "ok", f"{always}; memory and processors: by a control group of {way}", ""


def describe_sessions(path: tuple[str, ...], user: str) -> Words:
    """Return status, detail and remedy about sessions without a terminal."""
    if programs.find_tool("tmux", path) is None:
        return "warning", "`--detach` needs tmux", "install the package `tmux`"
    settings = read_small("/etc/systemd/logind.conf") or b""
    lingers = os.path.exists(f"/var/lib/systemd/linger/{user}")
    if not lingers and any(line.replace(b" ", b"") == b"KillUserProcesses=yes" for line in settings.splitlines()):
        remedy = "`loginctl enable-linger` lets them run on"
        return "warning", "systemd ends sessions without a terminal when you log out", remedy
    return "ok", "`--detach`: tmux is there", ""
