"""Draw the beginning of the page of an example session, light and dark, in a real browser."""

from __future__ import annotations

import base64
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.browser import Browser

TOP = Path(__file__).resolve().parent.parent
WIDTH, HEIGHT, SCALE = 1040, 1182, 2  # pixels of the page, down to the first commit; pixels of the picture for each
# Returns the 256 most frequent colours of a picture, and for each pixel the nearest of them.
REDUCE = """(async () => {
  const image = await createImageBitmap(await (await fetch("data:image/png;base64,%s")).blob());
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const data = new Uint32Array(canvas.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const colour of data) counts.set(colour, (counts.get(colour) || 0) + 1);
  const palette = [...counts].sort((one, other) => other[1] - one[1]).slice(0, 256).map(([colour]) => colour);
  const parts = (colour) => [colour & 255, colour >> 8 & 255, colour >> 16 & 255];
  const apart = (one, other) => parts(one).reduce((sum, part, at) => sum + (part - parts(other)[at]) ** 2, 0);
  const nearest = new Map([...counts.keys()].map((colour) => [colour, palette.reduce(
    (best, other, at) => apart(colour, other) < apart(colour, palette[best]) ? at : best, 0)]));
  let pixels = "";
  for (const colour of data) pixels += String.fromCharCode(nearest.get(colour));
  return [image.width, palette.flatMap(parts), btoa(pixels)];
})()"""


def reduce_colours(browser: Browser, picture: bytes) -> bytes:
    """Return a picture of few colours as a PNG with a palette, half as large."""
    from tests.support.png import write_png

    browser.ask("Page.navigate", url="about:blank")
    width, palette, pixels = browser.evaluate(REDUCE % base64.b64encode(picture).decode())
    return write_png(width, base64.b64decode(pixels), bytes(palette))


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
            content = reduce_colours(browser, browser.picture(whole=True, scale=SCALE, most=HEIGHT))
            (TOP / "docs" / name).write_bytes(content)
            print(f"wrote {name}: {len(content)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
