"""A session from its start to its end: what is written to its log, and what is said at the end.

Expensive imports wait until the payload has ended, and until there is something to do with them.
"""

from __future__ import annotations

import os
import time

from claudebox import console
from claudebox.files import read_small
from claudebox.report import leftovers
from claudebox.report.session_log import DIRECTORY, SessionLog
from claudebox.tables.secret_patterns import looks_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from claudebox.config.model import Policy
    from claudebox.facts.host import Host
    from claudebox.plan.model import Plan
    from claudebox.report.changes import Report
    from claudebox.report.leaked_values import Result
    from claudebox.report.session_log import Plain

    T = TypeVar("T")

_MOST_NAMES, _LONGEST = 64, 200
_LOG = 64 << 20  # bytes of a log, at the most
OUT_OF_TIME = 124  # the status that the limit of time gives a session


class SessionReport:
    """One session, as it will be remembered."""

    def __init__(self, plan: Plan, policy: Policy, host: Host) -> None:
        """Write down how it begins."""
        self._plan, self._policy, self._host = plan, policy, host
        self._started = time.time()
        self._failed: list[str] = []
        self.record = SessionLog(host.instance.state, host.instance.name)
        tops = (row.source for row in plan.mounts if row.kind == "bind" and row.role in ("project", "asked"))
        leftovers.catch_up(host.instance, (host.workdir.real, *tops), self.record)
        scope = leftovers.describe(plan, policy, host)
        stubs = frozenset(stub.path for stub in plan.stubs)
        self._leftovers = leftovers.Leftovers(scope, host.instance, host.guarded, stubs, session=self.record.name)
        self._unlooked = leftovers.Unlooked(scope, host.instance, self.record.name)
        self._start: dict[str, Plain] = {
            "program": policy.program,
            "project": plan.workdir[:_LONGEST],
            "network": plan.network,
            "variables": tuple(
                {"name": row.name[:_LONGEST], "origin": row.origin[:_LONGEST]} for row in plan.variables[:_MOST_NAMES]
            ),
            "budget": plan.budget,
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
        """Look at what was left behind, write down how it ended, and say so; the status stays what it is.

        Each part stands for itself: one that fails is named, and the others go on.
        """
        report = self.part("looking for changes", self._leftovers.look)
        found = self.part("searching for withheld secrets", lambda: self._search(report))
        end = self._end(status, report, found)
        name = self.part("writing the session log", lambda: self._write(end, report)) or ""
        if report is not None:
            self.part("printing what changed", lambda: self._print_changes(report, name))
        if receipt == "always" or (receipt == "auto" and self._is_notable(name, end)):
            self.part("printing the receipt", lambda: self._print_receipt(name, end))
        if found is not None:
            self.part("printing what was found", lambda: self._print_found(found))
        self._unlooked.remove()
        if self._plan.broker is not None:
            self.part("reading what the broker wrote down", lambda: self._say_doubts(name))

    def disarm(self) -> None:
        """Disarm the repositories that were made or changed inside, before anything comes back from there."""
        self.part("disarming repositories", self._disarm)

    def _disarm(self) -> None:
        from claudebox.git import disarm

        for line in disarm.describe(self._leftovers.disarm(), self._host.workdir.real):
            console.warn(line)

    def give_up(self, status: int) -> None:
        """Write down that the payload did not run."""
        self.record.write("end", {"status": status})
        self._unlooked.remove()

    def part(self, name: str, action: Callable[[], T]) -> T | None:
        """Do one part of the end; what fails is named, and the rest goes on."""
        try:
            return action()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it was, the rest of the end goes on
            self._failed.append(name)
            problem = error.strerror if isinstance(error, OSError) else ""
            console.warn(f"the end of this session is not complete: {name} failed: {problem or type(error).__name__}")
            return None

    def _end(self, status: int, report: Report | None, found: Result | None) -> dict[str, Plain]:
        counts: dict[str, int] = {}
        for change in report.changes if report is not None else ():
            counts[change.kind.name] = counts.get(change.kind.name, 0) + 1
        hits = found.hits if found is not None else ()
        limits = self._plan.limits
        late = limits is not None and status == OUT_OF_TIME and 0 < limits.seconds <= time.time() - self._started
        return {
            "status": status,
            **({"time_limit": limits.seconds} if limits is not None and late else {}),
            "seconds": round(time.time() - self._started, 1),
            "changed": counts,
            "unseen": len(report.unseen) if report is not None else 0,
            "searched": found is not None,
            "unsearched": len(found.unsearched) if found is not None else 0,
            "found": tuple({"name": hit.name, "path": hit.path[-_LONGEST:], "line": hit.line} for hit in hits[:64]),
            "failed": tuple(self._failed),
        }

    def _write(self, end: dict[str, Plain], report: Report | None) -> str:
        if report is not None and not report.is_empty:
            from claudebox.report import log_rows

            log_rows.write(self.record, report)
        self.record.write("end", end)
        name = self.record.name if self.record.descriptor >= 0 else ""
        self.record.close()
        return name

    def _say_doubts(self, name: str) -> None:
        """Say last why the log does not tell everything."""
        from claudebox.report import log_reader

        lines = log_reader.read_lines(f"{self._host.instance.state}/{DIRECTORY}", name, *log_reader.DOUBTFUL)
        for text in log_reader.find_doubts(lines):
            console.warn(text)

    def _print_changes(self, report: Report, name: str) -> None:
        """Say what came of it; where nothing did, only how to resume."""
        resume = price = ""
        is_client = self._policy.program == "client" and not self._policy.command
        if is_client and os.isatty(1) and os.isatty(2):
            from claudebox.report import resume_hint

            resume = resume_hint.find_conversation(self._host.instance, self._started)
        if report.is_empty and not resume:
            return
        from claudebox.report import screen

        if not report.is_empty and is_client and self._plan.broker is not None and name:
            price = self._find_price(name)
        seconds = time.time() - self._started if is_client else 0.0
        console.write(screen.lines(screen.Ending(report, seconds, price, (), resume), console.columns()))

    def _find_price(self, name: str) -> str:
        from claudebox.report import log_reader
        from claudebox.tables.prices import as_dollars

        usage = log_reader.sum_usage(log_reader.read_lines(f"{self._host.instance.state}/{DIRECTORY}", name))
        return f"${as_dollars(usage['price'])}" if usage["price"] else ""

    def _is_notable(self, name: str, end: dict[str, Plain]) -> bool:
        """Return whether a receipt is worth printing unasked: something was denied, or ended by a limit."""
        if end.get("time_limit"):
            return True
        content = read_small(f"{self._host.instance.state}/{DIRECTORY}/{name}", limit=_LOG) if name else None
        return content is not None and b'"verdict": "denied"' in content

    def _print_found(self, found: Result) -> None:
        from claudebox.report import leaked_values

        console.write(leaked_values.lines(found, self._plan.workdir))

    def _has_values(self) -> bool:
        """Return whether there is anything that could be found."""
        if self._host.login.known or self._host.held_secrets:
            return True
        inside = {row.value for row in self._plan.variables}
        return any(value not in inside and looks_secret(name, value) for name, value in self._host.environ.items())

    def _search(self, report: Report | None) -> Result | None:
        if not self._has_values():
            return None
        from claudebox.report import leaked_values

        files = report.files if report is not None else ()
        return leaked_values.run(self._plan, self._host, files, self._leftovers.since)

    def _print_receipt(self, name: str, end: dict[str, Plain]) -> None:
        from claudebox.report import log_reader, receipt

        directory = f"{self._host.instance.state}/{DIRECTORY}"
        lines = [{"kind": "start", **self._start}, {"kind": "end", **end}]
        written = log_reader.read_lines(directory, name) if name else lines
        console.write(receipt.lines(written, f"{directory}/{name}" if name else ""))
