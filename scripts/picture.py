"""Draw the beginning of the page of an example session, light and dark, in a real browser."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
WIDTH, HEIGHT = 1120, 1230  # pixels: down to the first commit


def main() -> int:
    """Write both pictures."""
    sys.path[:0] = [str(TOP), str(TOP / "src")]
    from tests.review.examples import a_fix
    from tests.support.browser import Browser

    from claudebox.review.session_page import render_session

    os.environ["TZ"] = "UTC"
    time.tzset()
    with Browser() as browser, tempfile.TemporaryDirectory() as directory:
        page = Path(directory, "page.html")
        page.write_bytes(render_session(a_fix()))
        for name, dark in (("review.png", False), ("review-dark.png", True)):
            browser.show(page, width=WIDTH, height=HEIGHT, dark=dark)
            content = browser.picture()
            (TOP / "docs" / name).write_bytes(content)
            print(f"wrote {name}: {len(content)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
