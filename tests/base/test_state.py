from __future__ import annotations

from pathlib import Path

import pytest

from claudebox.base import state
from claudebox.base.errors import ClaudeboxError

pytestmark = pytest.mark.pure


@pytest.fixture
def instance(tmp_path):
    return state.locate(str(tmp_path), "/a/project")


def test_state_carries_its_format_and_without_one_it_is_that_of_an_earlier_version(instance):
    Path(instance.state).mkdir(mode=0o700)

    state.create(instance)
    state.create(instance)

    assert int(Path(instance.state, "format").read_text()) == state._FORMAT


@pytest.mark.parametrize("content", [f"{state._FORMAT + 1}\n", "", "other"])
def test_state_of_a_later_version_is_left_alone(instance, content):
    state.create(instance)
    Path(instance.state, "format").write_text(content)
    Path(instance.directory, "project").unlink()

    with pytest.raises(ClaudeboxError, match="later version"):
        state.create(instance)

    assert not Path(instance.directory, "project").exists()
