"""`scripts/run`, the first command of a newcomer."""

from __future__ import annotations

import shutil

from tests.client.conftest import equip
from tests.conftest import REPOSITORY


def test_run_plays_the_demonstration_where_nobody_is_logged_in(user_box, checkout, real_client):
    # proves SAND-02, SAND-09
    shutil.copytree(REPOSITORY / "scripts", f"{checkout}/scripts", dirs_exist_ok=True)
    equip(user_box, real_client)

    result = user_box.host(f"{checkout}/scripts/run", timeout=120)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "nobody is logged in" in result.stderr
    assert result.stdout.count("\nheld ") >= 8
    assert result.stdout.count("\ndone ") >= 4
    assert "broken" not in result.stdout
