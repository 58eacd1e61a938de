"""Directories that must stay where they are because something masked lies in them."""

from __future__ import annotations

from claudebox.host import paths as host_paths


def test_directories_above_what_is_masked_stay_but_not_those_of_git(tmp_path):
    # proves C22, C32, C33
    for name in ("a/b", "sub/.git/x", ".git"):
        (tmp_path / name).mkdir(parents=True)
    names = ("a/b/s", "a/t", "sub/.git/x/s", ".git/s", "top")
    held = [row.path for row in host_paths.pin_above([f"{tmp_path}/{name}" for name in names], str(tmp_path))]

    assert held == [f"{tmp_path}/{name}" for name in ("a", "a/b", "sub")]
    assert [row.identity for row in host_paths.pin_above([f"{tmp_path}/a/t"], str(tmp_path))] == [
        ((tmp_path / "a").stat().st_dev, (tmp_path / "a").stat().st_ino)
    ]


def test_what_lies_elsewhere_holds_nothing(tmp_path):
    # proves C22
    assert list(host_paths.pin_above(["/etc/passwd", f"{tmp_path}-beside/x/y"], str(tmp_path))) == []
