"""Policy + Host → browsers inside: small programs of claudebox's own that start those of the system."""

from __future__ import annotations

import os

from claudebox.plan import mount_checks
from claudebox.plan.model import Mount, Provision, Variable
from claudebox.tables.agent import CLIENT_DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from claudebox.config.model import Policy
    from claudebox.facts.browsers import Browsers
    from claudebox.facts.host import Host

BROWSERS_INSIDE = "/run/claudebox/ms-playwright"
# A browser confines its pages by namespaces of its own, which cannot be made inside; the sandbox confines all of it.
_BROWSER = '#!/bin/sh\nexec {program} --no-sandbox "$@"\n'


def plan_wrappers(policy: Policy, host: Host) -> Provision:
    """Return what they add to a sandbox."""
    found = host.tools.browsers
    return Provision(
        mounts=tuple(_browsers(host, found)) if found else (),
        variables=tuple(_variables(found)) if found else (),
        warnings=tuple(_warnings(policy, found)) if found else (),
    )


def _browsers(host: Host, found: Browsers) -> Iterator[Mount]:
    for program in found.programs:
        content = _BROWSER.format(program=program).encode()
        dest = f"{CLIENT_DIRECTORY}/{os.path.basename(program)}"
        yield Mount(dest, "file", "starts a browser that is confined by the sandbox", content=content, mode=0o755)
    for path in found.settings:
        yield Mount(path, "ro-bind", "settings of a browser, of the system", path)
    fact = found.downloaded
    if fact is not None and mount_checks.hidden_by(fact, host) is None:
        reason = "browsers that Playwright has downloaded"
        yield Mount(BROWSERS_INSIDE, "ro-bind", reason, fact.real, pinned=fact.identity, role="toolchain")


def _variables(found: Browsers) -> Iterator[Variable]:
    if found.programs:
        program = f"{CLIENT_DIRECTORY}/{os.path.basename(found.programs[0])}"
        for name in ("CHROME_BIN", "CHROME_PATH", "PUPPETEER_EXECUTABLE_PATH"):
            yield Variable(name, program, "claudebox", "the browser")
    if found.downloaded is not None:
        yield Variable("PLAYWRIGHT_BROWSERS_PATH", BROWSERS_INSIDE, "claudebox", "browsers of Playwright, read-only")


def _warnings(policy: Policy, found: Browsers) -> Iterator[str]:
    if not found.programs and found.downloaded is None:
        yield (
            f"{policy.browser}: there is no browser in /usr or /opt, and none of Playwright's in your home; "
            "`npx playwright install chromium` inside puts one into the project's caches"
        )
