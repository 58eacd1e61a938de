"""Hand objects from one sandbox to the other: a pack made in the first, a request to `git receive-pack` in the second.

`receive-pack` is git's own way to take data of strangers: quarantine, fsck, connectivity, compare-and-swap, and an
answer for each ref. Without `atomic`, each ref stands alone.
"""

from __future__ import annotations

import os

from claudebox.files import write_all
from claudebox.launch.git_merge import Move

TYPE_CHECKING = False
if TYPE_CHECKING:
    from claudebox.launch.git_sides import Side

MOVED_MEANWHILE = "it moved meanwhile"
_CAPABILITIES = "report-status delete-refs ofs-delta object-format="
_PACK = ("git", "pack-objects", "--revs", "--stdout", "-q", "--delta-base-offset")
_MOST_ALONE = 50  # refs that are tried one by one after a pack was refused as a whole
_LOST_RACES = ("failed to update ref", "fetch first", "failed to lock", "reference already")


def send(agent: Side, real: Side, moves: list[Move], carried: set[str], *, alone: bool = False) -> dict[str, str]:
    """Send refs, and objects that none of them leads to; return for each ref or object why it was refused, or nothing.

    A ref of ours leads to each such object until `drop_carriers`.
    """
    lacking = real.lacks(sorted(carried))
    first = len(real.carriers)
    carriers = [Move(f"{real.carrier}{first + number}", "", value) for number, value in enumerate(lacking)]
    request = [*moves, *carriers]
    if not request:
        return {}
    wanted = [move.new for move in request if move.new]
    known = sorted(set(real.refs.values()))
    words = "".join(f"{value}\n" for value in (*wanted, *(f"^{value}" for value in known))).encode()
    answers: dict[str, str] = {}
    if agent.box.run(*_PACK, data=words):
        failure = agent.box.message() or "its objects cannot be packed"
    else:
        failure, answers = _receive(agent, real, request)
    real.carriers += [move.name for move in carriers if not failure and not answers.get(move.name)]
    if failure and not alone and len(request) > 1:
        # One bad object would keep everything else inside.
        answers = {}
        for move in moves[:_MOST_ALONE]:
            answers |= send(agent, real, [move], set(), alone=True)
        for value in lacking:
            answers |= send(agent, real, [], {value}, alone=True)
        return {name: answers.get(name, failure) for name in (*(move.name for move in moves), *lacking)}
    said = {move.name: failure or answers.get(move.name, "git did not say why") for move in request}
    return {move.name: said[move.name] for move in moves} | {move.new: said[move.name] for move in carriers}


def _receive(agent: Side, real: Side, request: list[Move]) -> tuple[str, dict[str, str]]:
    """Return why the whole of it failed, or what became of each ref."""
    zero = "0" * max(len(value) for move in request for value in (move.old, move.new))
    object_format = "sha256" if len(zero) == 64 else "sha1"
    entry = real.box.input_file
    os.ftruncate(entry, 0)
    os.lseek(entry, 0, os.SEEK_SET)
    for number, move in enumerate(request):
        row = f"{move.old or zero} {move.new or zero} {move.name}".encode("utf-8", "surrogateescape")
        if number == 0:
            row += f"\0{_CAPABILITIES}{object_format}".encode()
        write_all(entry, b"%04x" % (len(row) + 4) + row)
    write_all(entry, b"0000")
    if any(move.new for move in request):
        _copy(agent.box.output_file, entry)
    real.box.go_on("git", "receive-pack", "--stateless-rpc", real.repository)
    answers: dict[str, str] = {}
    failure = "git receive-pack gave no answer"
    for row in _packets(real.box.output()):
        word, _, rest = row.decode("utf-8", "surrogateescape").rstrip("\n").partition(" ")
        name, _, reason = rest.partition(" ")
        if word == "unpack":
            failure = "" if rest == "ok" else f"{real.box.message() or rest}"
        elif word == "ok":
            answers[name] = ""
        elif word == "ng":
            answers[name] = MOVED_MEANWHILE if reason.startswith(_LOST_RACES) else reason or "refused"
    return failure, answers


def _packets(data: bytes) -> list[bytes]:
    rows = []
    while len(data) >= 4:
        size = int(data[:4], 16)
        rows.append(data[4 : max(size, 4)])
        data = data[max(size, 4) :]
    return rows


def _copy(source: int, target: int) -> None:
    offset, size = 0, os.fstat(source).st_size
    while offset < size:
        done = os.sendfile(target, source, offset, min(size - offset, 1 << 26))
        if not done:
            return
        offset += done
