from __future__ import annotations


def test_a_command_runs_inside_and_its_status_comes_back(box):
    # proves SAND-14
    result = box.sh("pwd; id -u; exit 7")

    assert result.stdout.splitlines() == [box.project, str(box.account.uid)]
    assert result.returncode == 7
