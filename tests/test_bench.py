from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from tests.conftest import REPOSITORY, need

pytestmark = [pytest.mark.process, pytest.mark.slow]

# What bench/launch aims at is stricter. Another worker computes beside this one, so that there is much room here: only
# a launch that has become several times as slow is noticed.
ROOM = 3


@pytest.fixture(scope="module")
def measured():
    need(shutil.which("bwrap"), "bubblewrap")
    result = subprocess.run(
        [sys.executable, "-I", REPOSITORY / "bench/launch.py", "--rounds=9", "--mounts=0,200", "--no-peers", "--json"],
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert result.stdout, result.stderr
    return json.loads(result.stdout)


def test_a_launch_costs_little_more_than_its_parts(measured):
    own, shim = (row for row in measured["targets"] if row["name"].endswith("/ (python + bwrap)"))

    assert own["value"] <= own["limit"] * ROOM
    assert shim["value"] <= shim["limit"] * ROOM


def test_the_supervisor_is_small(measured):
    assert 0 < measured["resident_kib"] <= 16 * 1024


def test_many_mounts_cost_little_more_than_bwrap_takes_for_them(measured):
    row = next(row for row in measured["targets"] if "200 extra mounts" in row["name"])

    assert row["value"] <= ROOM * row["limit"]


def test_a_benchmark_of_the_network_says_what_it_lacks():
    result = subprocess.run(
        ["/usr/bin/env", "-i", "PATH=/nonexistent", sys.executable, REPOSITORY / "bench/proxy.py"],
        capture_output=True, encoding="utf-8", check=False, timeout=60,
    )  # fmt: skip

    assert result.returncode == 1
    assert result.stderr == "this benchmark needs bwrap, ip, socat: bench/setup installs what it compares with\n"
