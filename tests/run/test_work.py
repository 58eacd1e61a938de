"""Inside is as outside: pieces of real work have the same output, status and results, as an ordinary user.

What needs a registry or much time runs with `scripts/test --work` only.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import need
from tests.run.pieces import HEAVY, LIGHT, Piece

# Who lives behind a registry with an authority of its own has to tell each program; those of the system do no harm.
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
AUTHORITIES = ("NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
SLOW = ("java", "venv and pip")
PIECES = {**LIGHT, **(HEAVY if os.environ.get("CLAUDEBOX_TEST_WORK") else {})}


def prepare(box, piece: Piece) -> None:
    """Make the project anew, with what the piece starts from."""
    shutil.rmtree(box.project)
    box.mkdir(box.project)
    for name, content in piece.files.items():
        box.write(name, content)


def outcome(box, piece: Piece, result) -> tuple[object, ...]:
    files = [Path(box.project, name).read_bytes() for name in piece.results]
    return result.returncode, result.stdout, files


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in sorted(PIECES)]
)
def test_a_piece_of_work_is_the_same_inside(user_box, name):
    # proves TOOL-11, SAND-06
    piece = PIECES[name]
    for program in piece.needs:
        need(shutil.which(program, path=user_box.variables()["PATH"]), program)
    user_box.environ.update(dict.fromkeys(AUTHORITIES, BUNDLE) if name in HEAVY and os.path.exists(BUNDLE) else {})
    prepare(user_box, piece)
    started = time.monotonic()
    outside = user_box.host("bash", "-c", piece.script, timeout=300)
    between = time.monotonic()
    expected = outcome(user_box, piece, outside)
    prepare(user_box, piece)
    again = time.monotonic()

    inside = user_box.run("bash", "-c", piece.script, flags=piece.flags, timeout=300)

    sys.stderr.write(f"{name}: {between - started:.2f} s outside, {time.monotonic() - again:.2f} s inside\n")
    assert outside.returncode == piece.status, outside.stdout + outside.stderr
    assert expected[1] or piece.status, "a piece that prints nothing shows nothing"
    assert outcome(user_box, piece, inside) == expected, inside.stderr
