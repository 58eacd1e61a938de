"""Which sockets of this machine could answer inside, as the kernel lists them."""

from __future__ import annotations

import os
import socket

import pytest

from claudebox.base.state import Instance
from claudebox.host import machine, sockets


def test_only_sockets_that_can_answer_are_looked_for(tmp_path):
    # proves C33
    path = f"{tmp_path}/s"
    listener, datagrams = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with listener, datagrams, socket.socket(socket.AF_UNIX) as caller:
        listener.bind(path)
        datagrams.bind(f"{tmp_path}/d")
        bound_only = {row.name for row in sockets._bound() or ()}
        listener.listen()
        caller.connect(path)
        with listener.accept()[0]:
            listening = {row.name for row in sockets._bound() or ()}
            listener.close()
            os.unlink(path)
            connected = {row.name for row in sockets._bound() or ()}

    assert {path, f"{tmp_path}/d"} <= bound_only & listening
    assert path not in connected  # nobody finds it: a search of the project would be for nothing
    assert f"{tmp_path}/d" in connected


@pytest.fixture
def search(tmp_path, monkeypatch):
    """Return a search of a project, among the sockets of this test alone, that may walk or not."""
    bound, walk = sockets._bound, sockets._walk
    instance = Instance("", f"{tmp_path}/state", "i")
    for directory in (f"{tmp_path}/project/deep", instance.directory):
        os.makedirs(directory)
    monkeypatch.setattr(
        sockets, "_bound", lambda: [row for row in bound() or () if row.name.startswith((str(tmp_path), "own-"))]
    )

    def find(*, walking: bool, sources: tuple[str, ...] = ()) -> tuple[str, ...]:
        def refuse(*_: object, **_named: object) -> str:
            raise AssertionError("the project was walked")

        monkeypatch.setattr(sockets, "_walk", walk if walking else refuse)
        mounts = machine.read_mounts()
        found = sockets.find_sockets(
            f"{tmp_path}/project", sources, mounts, strict=True, instance=instance, home="/nowhere"
        )
        with open(f"{instance.directory}/{sockets.REMEMBERED}", "w", encoding="ascii") as file:
            file.write("\n".join(found.elsewhere))
        return found.paths

    return find


def test_a_project_is_walked_once_for_a_socket_that_is_gone(tmp_path, search):
    # proves C33, E16
    with socket.socket(socket.AF_UNIX) as gone, socket.socket(socket.AF_UNIX) as moved:
        gone.bind(f"{tmp_path}/gone")
        os.unlink(f"{tmp_path}/gone")
        with pytest.raises(AssertionError, match="walked"):
            search(walking=False)
        assert (search(walking=True), search(walking=False)) == ((), ())
        with pytest.raises(AssertionError, match="walked"):  # somewhere else nobody has looked
            search(walking=False, sources=(f"{tmp_path}/state",))
        moved.bind(f"{tmp_path}/moved")
        os.rename(f"{tmp_path}/moved", f"{tmp_path}/project/deep/s")

        assert search(walking=True) == (f"{tmp_path}/project/deep/s",)
        with pytest.raises(AssertionError, match="walked"):  # one that is there is looked for every time
            search(walking=False)


def test_a_relative_name_is_found_where_its_process_is(tmp_path, search, monkeypatch):
    # proves C33
    monkeypatch.chdir(tmp_path / "project/deep")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("own-socket")

        assert search(walking=False) == (f"{tmp_path}/project/deep/own-socket",)


def real_device(path):
    """Return the device of a path as the kernel numbers it."""
    number = machine.mount_of(str(path))
    return next(row.device for row in machine.read_mounts() if row.number == number)


def test_the_device_of_a_directory_is_that_of_the_mount_it_lies_in(tmp_path):
    # proves C19
    mounts = machine.read_mounts()
    table = sockets._Mounts(mounts)
    for root in (str(tmp_path), "/proc/self", "/dev", "/"):
        assert real_device(root) in table.devices([root]), root
    assert table.devices(["/proc"]) < table.devices(["/"]) == {row.device for row in mounts}
    assert table.devices([f"{tmp_path}/missing"]) == set(), "it cannot be told"


def test_a_mount_that_another_covers_does_not_count(tmp_path):
    # proves C19
    covered = machine.MountRow(-2, 4095 << 20 | 1, str(tmp_path), "tmpfs")

    assert sockets._Mounts((*machine.read_mounts(), covered)).devices([str(tmp_path)]) >= {real_device(tmp_path)}
