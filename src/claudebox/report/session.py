"""The record of a session from its start to its end, and what is told at the end.

Everything dear is imported after the program inside has ended, and only if there is something to do with it.
"""

from __future__ import annotations

import os
import time

from claudebox import console
from claudebox.launch.session_log import DIRECTORY, SessionLog
from claudebox.tables.secret_patterns import looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.config.model import Policy
    from claudebox.facts.host import Host
    from claudebox.launch.session_log import Plain
    from claudebox.plan.model import Plan
    from claudebox.report.changes import Report
    from claudebox.report.leaked_values import Result

_MOST_NAMES, _MOST_PATHS, _LONGEST = 128, 64, 300


class Aftermath:
    """One session, as it will be remembered."""

    def __init__(self, plan: Plan, policy: Policy, host: Host) -> None:
        """Write down how it begins."""
        self._plan, self._policy, self._host = plan, policy, host
        self._started = time.time()
        self.record = SessionLog(host.instance.state, host.instance.name)
        self._start: dict[str, Plain] = {
            "program": policy.program,
            "project": plan.workdir[:_LONGEST],
            "network": plan.network,
            "variables": tuple(
                {"name": row.name[:_LONGEST], "origin": row.origin[:_LONGEST]} for row in plan.variables[:_MOST_NAMES]
            ),
            "withheld": len(plan.withheld),
            "withheld_names": tuple(name[:_LONGEST] for name in plan.withheld[:_MOST_NAMES]),
            "secrets": tuple(
                {"name": row.env, "hosts": tuple(f"{name}:{port}" for name, port in row.hosts[:_MOST_NAMES])}
                for row in plan.secrets
            ),
        }
        self.record.write("start", self._start)

    @property
    def started(self) -> float:
        """Return when it began."""
        return self._started

    def conclude(self, status: int, receipt: str) -> None:
        """Look at what was left behind, write down how it ended, and tell the person; the status stays what it is."""
        try:
            self._conclude(status, receipt)
        except OSError as error:
            console.warn(f"what the session has left behind could not be looked at: {error.strerror or error}")

    def _conclude(self, status: int, receipt: str) -> None:
        report = self._sweep()
        found = self._search(report) if self._has_values() else None
        end: dict[str, Plain] = {
            "status": status,
            "seconds": round(time.time() - self._started, 1),
            "changed": {kind: len(rows) for kind, rows in report.found.items() if rows},
            "changed_paths": tuple(sorted(row[:_LONGEST] for rows in report.found.values() for row in rows))[
                :_MOST_PATHS
            ],
            "searched": found is not None,
            "found": tuple(
                {"name": hit.name, "path": hit.path[:_LONGEST], "line": hit.line}
                for hit in (found.hits[:_MOST_PATHS] if found is not None else ())
            ),
        }
        self.record.write("end", end)
        name = self.record.name if self.record.descriptor >= 0 else ""
        self.record.close()
        if receipt == "always" or (receipt == "auto" and self._policy.program != "exec" and os.isatty(2)):
            self._print_receipt(name, end)
        console.write(report.lines())
        if found is not None:
            from claudebox.report import leaked_values  # noqa: PLC0415

            console.write(leaked_values.lines(found, self._plan.workdir))

    def _sweep(self) -> Report:
        from claudebox import state  # noqa: PLC0415 - loaded already
        from claudebox.report import changes  # noqa: PLC0415 - not before bwrap is at work

        standing = frozenset(path for _, path in state.recorded_stubs(self._host.instance))
        git_dir = self._host.repository.git_dir if self._host.repository else ""
        look = changes.Sweep(self._host.workdir.real, self._started)
        return look.run(self._host.guarded, git_dir, standing)

    def _has_values(self) -> bool:
        """Tell whether there is anything that could be found."""
        if self._host.login.known or self._host.held_secrets:
            return True
        inside = {row.value for row in self._plan.variables}
        return any(value not in inside and looks_secret(name, value) for name, value in self._host.environ.items())

    def _search(self, report: Report) -> Result:
        from claudebox.report import leaked_values  # noqa: PLC0415 - off the launch path

        return leaked_values.run(self._plan, self._host, report.changed, self._started)

    def _print_receipt(self, name: str, end: dict[str, Plain]) -> None:
        from claudebox.report import receipt  # noqa: PLC0415

        directory = f"{self._host.instance.state}/{DIRECTORY}"
        written = receipt.read(directory, name) if name else [{"kind": "start", **self._start}, {"kind": "end", **end}]
        console.write(receipt.lines(written, f"{directory}/{name}" if name else ""))
