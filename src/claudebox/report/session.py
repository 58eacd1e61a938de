"""The log and the report of one session, from its start to its end."""

from __future__ import annotations

import os
import time

from claudebox.agent.facts import spell_version
from claudebox.base import console
from claudebox.base.files import read_small
from claudebox.base.process import EVERYTHING, run_limited
from claudebox.report import leftovers
from claudebox.report import log as report_log
from claudebox.report.log import DIRECTORY, SessionLog
from claudebox.undo import snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.git.disarmed import Disarmed
    from claudebox.host.records import Host
    from claudebox.plan.records import Plan
    from claudebox.report.changes import Report
    from claudebox.report.leaks import Result
    from claudebox.report.log import Plain
    from claudebox.run.launch import Steps
    from claudebox.settings.records import Policy


_MOST_NAMES, _LONGEST = 64, 200
UNFINISHED = 1  # the status of a session whose end is not complete
_MEMORY = 4 << 30  # bytes that the report may take
_LOG = 64 << 20  # bytes of a log, at the most
OUT_OF_TIME = 124  # the status that the limit of time gives a session


class SessionReport:
    """Logs one session, and reports on it at the end."""

    def __init__(self, plan: Plan, policy: Policy, host: Host, receipt: str) -> None:
        """Examine killed sessions, and log how this one begins."""
        self._plan, self._policy, self._host, self._receipt = plan, policy, host, receipt
        self._started = time.time()
        self._disarmed = self._looked = False
        self._done: Disarmed | None = None
        self.moved: tuple[str, ...] = ()  # what became of branches
        self.record = SessionLog(host.instance.state, host.instance.name)
        tops = (row.source for row in plan.mounts if row.kind == "bind" and row.role in ("project", "asked"))
        leftovers.catch_up(host.instance, (host.workdir.real, *tops), self.record, leftovers.PATIENCE)
        scope = leftovers.describe(plan, policy, host)
        stubs = frozenset(stub.path for stub in plan.stubs)
        self._leftovers = leftovers.Leftovers(
            scope, host.instance, host.project.protected, stubs, session=self.record.name
        )
        self._unlooked = leftovers.Unlooked(scope, host.instance, self.record.name)
        self._start: dict[str, Plain] = {
            "program": policy.program,
            "agent": policy.agent.name if policy.program == "client" else "",
            "version": spell_version(host.agent.client.version) if host.agent.client is not None else "",
            "project": plan.workdir[:_LONGEST],
            "network": plan.policy.network,
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

    def disarm(self) -> None:
        """Disarm the repositories that were made or changed inside, before anything comes back from there."""
        self._done = self._leftovers.disarm()
        self._disarmed = self._done.is_complete

    def give_up(self, status: int) -> None:
        """Log that the payload did not run."""
        self._unlooked.remove()
        self.record.write("end", {"status": status})

    def conclude(self, status: int, ending: Steps) -> None:
        """Report and log how the session ended, in a process with limited memory."""
        self._looked, failed = run_limited(lambda: self._tell(status, ending), EVERYTHING, _MEMORY)
        ending.failed = failed

    def settle(self, status: int, ending: Steps) -> int:
        """Delete the note if everything was examined, or say how to continue; return the status."""
        if "the report" in ending.failed:
            end: dict[str, Plain] = {"status": status, "failed": tuple(ending.failed)}
            ending.step("the session log", lambda: self.record.write("end", end))
            ending.step("what was disarmed", self._warn_of_disarmed)
        ending.step("the session log", self.record.close)
        agent = self._policy.agent
        if self._policy.program == "client" and agent.upstream.login and not self._host.agent.login.known:
            from claudebox.agent import report as agent_report

            ending.step("a login that was made inside", lambda: agent_report.offer(agent, self._host.instance))
        if self._disarmed and self._looked:
            ending.step("the note of this session", self._unlooked.remove)
            return status
        ending.step("the note of this session", self._unlooked.leave)
        go_on = f"`claudebox changes {self._unlooked.name}` has finished"
        if lost := self._leftovers.find_lost():
            places = ", ".join(console.shorten(path, 200) for path in lost)
            go_on = f"claudebox was started in this directory, which was moved or replaced: {places}"
        said = "not everything that this session left was examined: do not use git or other tools there before"
        console.warn(f"{said} {go_on}")
        return status or UNFINISHED

    def _tell(self, status: int, ending: Steps) -> tuple[bool, list[str]]:
        """Return whether everything was looked at, and which steps failed."""
        step = ending.step
        report = step("looking for changes", self._leftovers.look)
        if report is not None and any(not own.real for own in self._plan.git):
            # Without a repository on the host, the agent's is in our state, and we made the `.git` here.
            report = report.replace(changes=tuple(row for row in report.changes if row.kind.group != ".git"))
        found = step("searching for withheld secrets", lambda: self._search(report))
        end = self._end(status, report, found, ending.failed)
        name = step("writing the session log", lambda: self._write(end, report)) or ""
        step("printing what changed", lambda: self._print_changes(report, name))
        if self._receipt == "always" or (self._receipt == "auto" and end.get("time_limit")):
            step("printing the receipt", lambda: self._print_receipt(name, end))
        elif self._receipt == "auto":
            step("naming what was denied", lambda: self._print_denied(name))
        if found is not None:
            step("printing what was found", lambda: self._print_found(found))
        if self._plan.broker is not None:
            step("reading what the broker wrote down", lambda: self._say_doubts(name))
        return report is not None and not report.is_cut_short, ending.failed

    def _end(self, status: int, report: Report | None, found: Result | None, failed: list[str]) -> dict[str, Plain]:
        counts: dict[str, int] = {}
        for change in report.changes if report is not None else ():
            counts[change.kind.name] = counts.get(change.kind.name, 0) + 1
        hits = found.hits if found is not None else ()
        limits = self._plan.policy.limits
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
            "failed": tuple(failed),
            **({"moved": tuple(row[:_LONGEST] for row in self.moved)} if self.moved else {}),
            **({"disarmed": self._tabulate()[:_MOST_NAMES]} if self._done is not None and self._done.findings else {}),
        }

    def _tabulate(self) -> tuple[tuple[str, str, str], ...]:
        """Return what became of repositories that were made or changed inside."""
        from claudebox.git import disarmed

        return tuple(disarmed.tabulate(self._done, self._host.workdir.real)) if self._done is not None else ()

    def _write(self, end: dict[str, Plain], report: Report | None) -> str:
        if report is not None and not report.is_empty:
            report_log.write_changes(self.record, report)
        self.record.write("end", end)
        name = self.record.name if self.record.descriptor >= 0 else ""
        self.record.close()
        return name

    def _say_doubts(self, name: str) -> None:
        for text in report_log.find_doubts(self._read_lines(name, *report_log.DOUBTFUL)):
            console.warn(text)

    def _read_lines(self, name: str, *marks: bytes) -> list[report_log.Line]:
        return report_log.read_lines(f"{self._host.instance.state}/{DIRECTORY}", name, *marks) if name else []

    def _read_log(self, name: str) -> bytes:
        path = f"{self._host.instance.state}/{DIRECTORY}/{name}"
        return (read_small(path, limit=_LOG) if name else None) or b""

    def _print_changes(self, found: Report | None, name: str) -> None:
        from claudebox.report.changes import Report

        report, resume, price = found or Report(), "", ""
        is_client, agent = self._policy.program == "client", self._policy.agent
        talked = is_client and agent.resume and agent.printing.isdisjoint(self._policy.words)
        if talked and os.isatty(1) and os.isatty(2):
            resume = self._find_resume()
        done, moved = self._done, self.moved
        if report.is_empty and not (resume or moved or (done is not None and done.findings)):
            return
        from claudebox.report import screen

        if (moved or not report.is_empty) and is_client and self._plan.broker is not None and name:
            price = self._find_price(name)
        seconds = time.time() - self._started if is_client else 0.0
        table = self._tabulate()
        more = done.more if done is not None else 0
        has_undo = self._plan.policy.undo is not None and snapshot.is_available()
        see = screen.SEE if has_undo else screen.SEE_IN_LOG
        if branch := self._find_branch():  # the others look at the directory that they are started in
            see = f"see: claudebox review {branch}"
        ending = screen.Ending(report, seconds, price, moved, resume, see, table, more)
        console.write(screen.lines(ending))

    def _find_resume(self) -> str:
        """Return the command that continues the conversation, in the agent's worktree if it has one."""
        from claudebox.agent import report as agent_report

        words = agent_report.find_conversation(self._policy.agent, self._host.instance, self._started)
        named = (self._policy.agent.name,) if self._policy.agent_named else ()
        branch = self._find_branch()
        return " ".join(("claudebox", *(("new", branch) if branch else ()), *named, *words)) if words else ""

    def _find_branch(self) -> str:
        """Return the name of the agent whose worktree the session was in, as a shell takes it."""
        branch = next((own.only for own in self._plan.git if own.only), "")
        if not branch:
            return ""
        import shlex

        from claudebox.git.refs import HEADS

        return shlex.quote(branch.removeprefix(HEADS))

    def _warn_of_disarmed(self) -> None:
        from claudebox.git import disarmed

        for line in disarmed.describe(self._done, self._host.workdir.real) if self._done is not None else ():
            console.warn(line)

    def _find_price(self, name: str) -> str:
        from claudebox.tables.prices import as_dollars

        usage = report_log.sum_usage(self._read_lines(name))
        return f"${as_dollars(usage['price'])}" if usage["price"] else ""

    def _print_denied(self, name: str) -> None:
        if b'"verdict": "denied"' not in self._read_log(name):
            return
        from claudebox.report import denied

        if text := denied.summarise(self._read_lines(name, b'"denied"')):
            console.note(text)

    def _print_found(self, found: Result) -> None:
        from claudebox.report import leaks

        console.write(leaks.lines(found, self._plan.workdir))

    def _search(self, report: Report | None) -> Result | None:
        from claudebox.report import leaks

        files = report.files if report is not None else ()
        return leaks.run(self._plan, self._host, files, self._leftovers.since)

    def _print_receipt(self, name: str, end: dict[str, Plain]) -> None:
        from claudebox.report import receipt as report_receipt

        written = self._read_lines(name) or [{"kind": "start", **self._start}, {"kind": "end", **end}]
        console.write(report_receipt.lines(written, f"{self._host.instance.state}/{DIRECTORY}/{name}" if name else ""))
