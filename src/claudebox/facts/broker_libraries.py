"""Where the libraries of the broker lie, in every way in which claudebox can be installed.

The launcher imports none of them. It looks whether they are there, so that a missing one is told before the start.
"""

from __future__ import annotations

import os
import sys

from claudebox import build_paths
from claudebox.errors import ClaudeboxError
from claudebox.files import PACKAGE


def find_libraries() -> tuple[str, ...]:
    """Return the directories that the broker must search: `cryptography` makes the certificates for `[[secrets]]`."""
    for place in _places():
        if os.path.isfile(f"{place}/cryptography/__init__.py"):
            return (place,)
    raise ClaudeboxError(
        "the broker needs the Python library `cryptography` for `[[secrets]]`",
        hint="install it: `pipx reinstall claudebox`, `scripts/libraries` in a checkout, or your distribution's "
        "package `python3-cryptography`",
    )


def _places() -> tuple[str, ...]:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    prefix = os.path.dirname(os.path.dirname(sys.executable))  # of a virtual environment too, even under `-S`
    return (
        *build_paths.LIBRARIES,
        PACKAGE,  # `scripts/install`, and an environment made by an installer
        f"{os.path.dirname(PACKAGE)}/.local/libraries",  # a checkout
        f"{prefix}/lib/{version}/site-packages",
        f"{sys.base_prefix}/lib/{version}/site-packages",
        f"{sys.base_prefix}/local/lib/{version}/dist-packages",  # Debian
        f"{sys.base_prefix}/lib/python3/dist-packages",
        f"{sys.base_prefix}/lib64/{version}/site-packages",  # Fedora
    )
