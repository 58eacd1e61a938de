"""Bounds for hypothesis: the whole folder is part of every run of the suite, so it takes seconds."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from tests.conftest import IN_CI

settings.register_profile(
    "claudebox",
    deadline=None,  # two workers share the machine
    max_examples=100,
    database=None,
    derandomize=IN_CI,  # a failure there must be one that everybody can repeat
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("claudebox")
