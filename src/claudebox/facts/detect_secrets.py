"""Runs detect-secrets over files in a process of its own: paths as arguments, one line of JSON per file.

Not part of a launch: its rules for the values of dozens of services are kept by others, it is slow to import, and it
reads what a hostile repository wrote, so it gets a time limit and can be killed. Only numbers of lines come out.
"""

from __future__ import annotations

import json
import logging
import sys


def main(paths: list[str]) -> int:
    """Report the lines of each file that hold a secret; 3 where detect-secrets is not installed."""
    try:
        from detect_secrets.core.scan import scan_file  # noqa: PLC0415 - optional
        from detect_secrets.settings import default_settings  # noqa: PLC0415
    except ImportError:
        return 3
    logging.disable()
    with default_settings():
        for path in paths:
            lines = sorted({secret.line_number for secret in scan_file(path)})
            sys.stdout.write(json.dumps([path, lines]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
