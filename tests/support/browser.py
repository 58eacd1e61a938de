"""A real Chromium without a window, over its debugging pipe: what a page looks like, and all that it tries to do."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from tests.conftest import need

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--font-render-hinting=none", "--disable-lcd-text", "--force-device-scale-factor=1",
)  # fmt: skip
PATIENCE = 60.0
# Letters look the same wherever these files are, whatever else is installed. Debian's fontconfig brings them.
FONTS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf")
FONT_PLACES = ("/usr/share/fonts/truetype/dejavu", "/usr/share/fonts/dejavu-sans-fonts", "/usr/share/fonts/TTF")
FONT_CONFIGURATION = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{0}</dir>
  <cachedir>{0}/cache</cachedir>
  <alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


class Browser:
    """One browser with one page; use it with `with`."""

    def __init__(self) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or ""
        need(program, "Chromium (the package `chromium`)")
        places = [place for place in FONT_PLACES if all(os.path.exists(f"{place}/{name}") for name in FONTS)]
        need(places, "the DejaVu fonts (the package `fonts-dejavu-core`)")
        self._directory = tempfile.mkdtemp(prefix="claudebox-browser-")
        fonts = f"{self._directory}/fonts"
        os.mkdir(fonts)
        for name in FONTS:
            shutil.copy(f"{places[0]}/{name}", fonts)
        Path(f"{fonts}/fonts.conf").write_text(FONT_CONFIGURATION.format(fonts), encoding="utf-8")
        (there, self._write), (self._read, back) = os.pipe(), os.pipe()

        def hand_over() -> None:
            for number, held in ((3, os.dup(there)), (4, os.dup(back))):
                os.dup2(held, number, inheritable=True)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self._directory}", "about:blank"], preexec_fn=hand_over,  # noqa: PLW1509
            close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "HOME": self._directory, "LANG": "C.UTF-8", "TZ": "UTC",
                 "FONTCONFIG_FILE": f"{fonts}/fonts.conf"},
        )  # fmt: skip
        os.close(there)
        os.close(back)
        self._held, self._number = b"", 0
        self.events: list[dict[str, Any]] = []
        self._session = ""
        pages = [row for row in self.ask("Target.getTargets")["targetInfos"] if row["type"] == "page"]
        self._session = self.ask("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Audits"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._directory, ignore_errors=True)

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command of the debugging protocol, and return its answer."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._write, content) :]
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = self._receive(deadline - time.monotonic())
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result
        raise AssertionError(f"Chromium gave no answer to {method}")

    def _receive(self, patience: float) -> dict[str, Any]:
        """Return the next message, nothing if there is none in time; keep events."""
        while b"\0" not in self._held:
            if not select.select([self._read], [], [], max(0.0, patience))[0]:
                return {}
            piece = os.read(self._read, 1 << 20)
            assert piece, "Chromium has ended"
            self._held += piece
        text, _, self._held = self._held.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def wait(self, seconds: float) -> None:
        """Collect events for a while."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._receive(left)

    def show(
        self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> None:
        """Open a file in a window of this size, and wait until all of it is there."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme, still])
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.open(path)
        deadline = time.monotonic() + PATIENCE
        while not self.named("Page.loadEventFired"):
            assert time.monotonic() < deadline, "the page did not load"
            self._receive(deadline - time.monotonic())

    def open(self, path: Path) -> None:
        """Go to a file without waiting for anything."""
        self.events.clear()
        self.ask("Page.navigate", url=path.as_uri())

    def named(self, *methods: str) -> list[dict[str, Any]]:
        """Return the parameters of events."""
        return [row["params"] for row in self.events if row["method"] in methods]

    def evaluate(self, expression: str) -> Any:
        """Run a script in the page; its policy does not apply to that."""
        result = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def picture(self, *, whole: bool = False, scale: float = 1.0, most: int = 12_000) -> bytes:
        """Return what is seen, as PNG; with `whole` the page to its end, or to so many pixels."""
        clip = {}
        if whole:
            size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
            height = min(size["height"], most)
            clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": height, "scale": scale}}
        return base64.b64decode(
            self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)["data"]
        )

    def deeds(self, path: Path) -> list[str]:
        """Return all that a page tried besides showing itself: scripts, requests, navigation, windows, dialogs."""
        asked = [row["request"]["url"] for row in self.named("Network.requestWillBeSent")]
        found = [f"request {url[:200]}" for url in asked if not url.startswith("data:image/") and url != path.as_uri()]
        found += [f"frame {row['frame']['url']}" for row in self.named("Page.frameNavigated")
                  if row["frame"]["url"].partition("#")[0] != path.as_uri() or "parentId" in row["frame"]]  # fmt: skip
        found += [f"wants to go to {row['url']}" for row in self.named("Page.frameRequestedNavigation")]
        found += [f"says {row['args']}" for row in self.named("Runtime.consoleAPICalled")]
        found += [f"fails {row['exceptionDetails']['text']}" for row in self.named("Runtime.exceptionThrown")]
        found += ["dialog" for _ in self.named("Page.javascriptDialogOpening")]
        found += ["window" for _ in self.named("Page.windowOpen")]
        found += [f"refused: {row['entry']['text'][:300]}" for row in self.named("Log.entryAdded")]
        found += [f"policy: {json.dumps(row['issue']['details'])[:300]}" for row in self.named("Audits.issueAdded")
                  if row["issue"]["code"] == "ContentSecurityPolicyIssue"]  # fmt: skip
        return found
