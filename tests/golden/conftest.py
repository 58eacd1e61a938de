"""`pytest tests/golden --update-golden` writes the files anew; read the difference before you commit it."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Return whether the files are to be written."""
    return bool(request.config.getoption("--update-golden", default=False))
