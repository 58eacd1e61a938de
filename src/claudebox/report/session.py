"""A session from its start to its end: what is written to its log, and what is said at the end.

Expensive imports wait until the payload has ended, and until there is something to do with them.
"""

from __future__ import annotations

import os
import time

from claudebox import console, state
from claudebox.files import OPEN_DIRECTORY, Closing
from claudebox.report import changes, listing
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
    from claudebox.report.sweep import Listing

    T = TypeVar("T")

_MOST_NAMES, _LONGEST = 64, 200
_MAYBE_LINKS = ("link", "reported", "secret")  # kinds of changes that a link may be of
OUT_OF_TIME = 124  # the status that the limit of time gives a session


class SessionReport:
    """One session, as it will be remembered."""

    def __init__(self, plan: Plan, policy: Policy, host: Host) -> None:
        """Write down how it begins."""
        self._plan, self._policy, self._host = plan, policy, host
        self._started = time.time()
        self._failed: list[str] = []
        state_directory = host.instance.directory
        self._beginning = listing.begin(host.workdir.real, state_directory)
        # Other directories that the user lets the agent write to.
        roots = {row.source for row in plan.mounts if row.kind == "bind" and row.role == "asked"}
        self._mounts = [(root, listing.begin(root, state_directory)) for root in sorted(roots) if os.path.isdir(root)]
        self._listings: dict[str, Listing] = {}
        self.record = SessionLog(host.instance.state, host.instance.name)
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
        report = self.part("looking for changes", self._look)
        found = self.part("searching for withheld secrets", lambda: self._search(report))
        self.part("putting aside what git would run", lambda: self._disarm(report))
        end = self._end(status, report, found)
        name = self.part("writing the session log", lambda: self._write(end, report)) or ""
        if receipt == "always" or (receipt == "auto" and self._policy.program != "exec" and os.isatty(2)):
            self.part("printing the receipt", lambda: self._print_receipt(name, end))
        if report is not None:
            self.part("printing what changed", lambda: self._print_changes(report))
        if found is not None:
            self.part("printing what was found", lambda: self._print_found(found))
        self.part("keeping the list of files", self._keep)

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
        if report is not None and report.harmless:
            counts["harmless"] = sum(map(len, report.harmless.values()))
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
            from claudebox.report import log_rows  # noqa: PLC0415 - only if there is something to write

            log_rows.write(self.record, report)
        self.record.write("end", end)
        name = self.record.name if self.record.descriptor >= 0 else ""
        self.record.close()
        return name

    def _print_changes(self, report: Report) -> None:
        if not report.is_empty:
            from claudebox.report import screen  # noqa: PLC0415 - only if there is something to say

            console.write(screen.lines(report))

    def _print_found(self, found: Result) -> None:
        from claudebox.report import leaked_values  # noqa: PLC0415

        console.write(leaked_values.lines(found, self._plan.workdir))

    def _look(self) -> Report:
        host = self._host
        workdir = host.workdir.real
        git_dir = host.repository.common_dir if host.repository is not None else ""
        stubs = frozenset(stub.path for stub in self._plan.stubs)
        standing = frozenset(path for _, path in state.recorded_stubs(host.instance))
        places = changes.Places(workdir, git_dir, host.guarded, stubs, standing, host.home)
        limit = time.monotonic() + changes.BUDGET
        report = changes.look(places, self._beginning)
        self._listings[workdir] = report.listing
        for root, beginning in self._mounts:
            git_dir = next((row.common_dir for row in host.more_repositories if row.root == root), "")
            places = changes.Places(root, git_dir, host.guarded, stubs, standing, host.home)
            other = changes.look(places, beginning, budget=limit - time.monotonic())
            self._listings[root] = other.listing
            report = changes.join(report, root, other)
        return report

    def _disarm(self, report: Report | None) -> None:
        """Put aside what git of the host would run of repositories that were made inside, or changed."""
        if report is None:
            return
        links = [os.path.join(self._plan.workdir, row.path) for row in report.changes if row.kind.name in _MAYBE_LINKS]
        if not (links or report.in_git or report.git_shapes):
            return
        from claudebox.report import nested_git  # noqa: PLC0415 - only where something changed in one

        repository = self._host.repository
        ours = (*((repository, *repository.nested) if repository is not None else ()), *self._host.more_repositories)
        known = (row.common_dir for row in ours if row.common_dir)
        shapes, roots = report.git_shapes, tuple(root for root, _ in self._mounts)
        lines = nested_git.disarm(
            self._plan.workdir, report.in_git, shapes, self._is_writable, known, report.standing_configs, roots
        )
        lines += nested_git.put_links_aside(self._plan.workdir, links, self._is_hidden)
        for line in lines:
            console.warn(line)

    def _is_hidden(self, path: str) -> bool:
        """Return whether the agent could change a path of the host that nobody has looked at."""
        roots = (self._plan.workdir, *(root for root, _ in self._mounts))
        return self._is_writable(path) and not any(f"{path}/".startswith(f"{root}/") for root in roots)

    def _is_writable(self, path: str) -> bool:
        """Return whether the agent could change a path of the host."""
        mounts = {row.dest: row for row in self._plan.mounts}
        for row in mounts.values():
            if row.kind != "bind" or not f"{path}/".startswith(f"{row.source}/"):
                continue
            inside = row.dest + path[len(row.source) :]
            while inside not in mounts:  # the innermost mount is what is there
                inside = inside.rpartition("/")[0]
            if inside == row.dest:
                return True
        return False

    def _keep(self) -> None:
        with Closing(os.open(self._host.instance.directory, OPEN_DIRECTORY)) as directory:
            for root, names in self._listings.items():
                listing.keep(root, directory, names)

    def _has_values(self) -> bool:
        """Return whether there is anything that could be found."""
        if self._host.login.known or self._host.held_secrets:
            return True
        inside = {row.value for row in self._plan.variables}
        return any(value not in inside and looks_secret(name, value) for name, value in self._host.environ.items())

    def _search(self, report: Report | None) -> Result | None:
        if not self._has_values():
            return None
        from claudebox.report import leaked_values  # noqa: PLC0415 - off the launch path

        files = report.files if report is not None else ()
        return leaked_values.run(self._plan, self._host, files, listing.since(self._beginning)[0])

    def _print_receipt(self, name: str, end: dict[str, Plain]) -> None:
        from claudebox.report import receipt  # noqa: PLC0415

        directory = f"{self._host.instance.state}/{DIRECTORY}"
        written = receipt.read(directory, name) if name else [{"kind": "start", **self._start}, {"kind": "end", **end}]
        console.write(receipt.lines(written, f"{directory}/{name}" if name else ""))
