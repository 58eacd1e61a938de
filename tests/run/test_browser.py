"""Browsers inside: the documented command takes a picture of a page that is served inside."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from pathlib import Path

import pytest
from tests.conftest import need

pytestmark = pytest.mark.slow

PAGE = '<body style="margin:0;background:rgb(12,200,34)"><script>document.title = 6 * 7</script></body>'
SERVED = """
python3 -m http.server --bind 127.0.0.1 {port} >/dev/null 2>&1 &
for i in $(seq 100); do curl -s http://127.0.0.1:{port}/ >/dev/null && break; sleep 0.05; done
chromium --headless --screenshot=page.png --window-size=200,100 http://127.0.0.1:{port}/ 2>errors || cat errors
kill %1
"""


def first_pixel(path):
    """Return the colour of the first pixel of a PNG with one byte per channel."""
    data = Path(path).read_bytes()
    depth, kind = data[24], data[25]
    assert (depth, kind in (2, 6)) == (8, True)
    parts, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        parts += data[at + 8 : at + 8 + length] if data[at + 4 : at + 8] == b"IDAT" else b""
        at += 12 + length
    return tuple(zlib.decompress(parts)[1:4])


def test_a_page_that_is_served_inside_becomes_a_picture(user_box):
    # proves TOOL-08
    need(shutil.which("chromium"), "Chromium")
    user_box.write("index.html", PAGE)
    script = SERVED.format(port=8391)

    without = user_box.sh(script, flags=("--network", "none"))
    assert not os.path.exists(f"{user_box.project}/page.png"), without.stderr
    result = user_box.sh(script, flags=("--set", "browser=true", "--network", "none"))

    assert os.path.exists(f"{user_box.project}/page.png"), result.stdout + result.stderr
    assert first_pixel(f"{user_box.project}/page.png") == (12, 200, 34)


def test_browsers_of_playwright_enter_read_only_and_programs_find_them(user_box):
    # proves TOOL-08
    user_box.write(f"{user_box.home}/.cache/ms-playwright/chromium-1/chrome", "#!/bin/sh\necho page\n", mode=0o755)
    user_box.write(f"{user_box.home}/.cache/other", "CANARY")
    probe = '"$PLAYWRIGHT_BROWSERS_PATH"/chromium-1/chrome; touch "$PLAYWRIGHT_BROWSERS_PATH"/x; ls ~/.cache'

    result = user_box.sh(
        probe,
        flags=(
            "--set",
            "browser=true",
        ),
    )

    assert result.stdout == "page\n", result.stderr
    assert "Read-only" in result.stderr
