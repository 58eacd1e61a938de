"""The changes of a session in its log: every path, the most dangerous first, in lines that stay readable."""

from __future__ import annotations

from claudebox.report.kinds import HEADINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.report.changes import Report
    from claudebox.report.session_log import Plain, SessionLog

KIND = "changes"
_MOST_BYTES = 8 << 20
_LINE = 20_000  # characters of names in a line; each takes up to twelve bytes there
_LONGEST = 8192


def write(record: SessionLog, report: Report) -> None:
    """Write everything down, as far as there is room for it."""
    left = _MOST_BYTES
    for what, directory, names in _rows(report):
        piece: list[str] = []
        size = 0
        for name in (*names, ""):
            if piece and (not name or size + len(name) > _LINE):
                row: dict[str, Plain] = {"what": what, "in": directory[-_LONGEST:], "names": tuple(piece)}
                left -= record.write(KIND, row)
                piece, size = [], 0
                if left < 0:
                    record.write(KIND, {"what": "full", "in": "", "names": ()})
                    return
            piece.append(name[-_LONGEST:])
            size += len(name)


def _rows(report: Report) -> Iterator[tuple[str, str, list[str]]]:
    """Yield kind, directory and names; what became of a name stands behind it."""
    yield from (("not looked at", path, [why]) for path, why in report.unseen)
    for kind in HEADINGS:
        grouped: dict[str, list[str]] = {}
        for change in report.changes:
            if change.kind.name == kind:
                path = change.path.rstrip("/")
                directory = path.rpartition("/")[0]
                name = change.path[len(directory) + 1 if directory else 0 :]
                grouped.setdefault(directory, []).append(f"{name} ({change.how})" if change.how else name)
        yield from ((kind, directory, grouped[directory]) for directory in sorted(grouped, key=_depth))


def _depth(path: str) -> tuple[int, str]:
    return path.count("/") + bool(path), path
