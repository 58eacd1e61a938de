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
from tests.conftest import few, need
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


@pytest.mark.parametrize("name", few(sorted(PIECES, key=lambda name: name in SLOW), 15))
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


# A manager of packages in the home, how it is installed there, and what it does outside, inside, and outside again.
TURNS = {
    "pnpm": (
        "npm install --silent --no-audit --no-fund --prefix ~/tools pnpm@9", "tools/node_modules/.bin",
        ("pnpm --silent init && pnpm --silent add ms@2.1.3", "pnpm --silent add is-odd@3.0.1 && pnpm exec which node",
         "pnpm --silent add is-even@1.0.0 && node -e 'require(\"is-odd\"), require(\"ms\")'"),
    ),
    "uv": (
        "python3 -m venv ~/tools && ~/tools/bin/pip install -q uv && mkdir -p ~/.local/share/uv/tools", "tools/bin",
        ("uv init -q --python /usr/bin/python3 && uv add -q idna", "uv add -q attrs && uvx -q pycowsay moo | grep moo",
         "uv run -q python -c 'import attr, idna'"),
    ),
}  # fmt: skip


@pytest.mark.skipif(not os.environ.get("CLAUDEBOX_TEST_WORK"), reason="only `scripts/test --work` asks registries")
@pytest.mark.parametrize("name", TURNS)
def test_what_is_installed_outside_and_inside_in_turn_works(user_box, name):
    # proves TOOL-04, TOOL-05, TOOL-11
    install, path, (first, second, third) = TURNS[name]
    user_box.environ |= {**(dict.fromkeys(AUTHORITIES, BUNDLE) if os.path.exists(BUNDLE) else {}), "UV_NATIVE_TLS": "1"}
    user_box.host("bash", "-c", install, timeout=300).check_returncode()
    user_box.environ["PATH"] = f"{user_box.home}/{path}:/usr/local/bin:/usr/bin:/bin"

    for run, script in ((user_box.host, first), (user_box.run, second), (user_box.host, third)):
        result = run("bash", "-c", script, timeout=300)
        assert result.returncode == 0, (script, result.stdout, result.stderr)
