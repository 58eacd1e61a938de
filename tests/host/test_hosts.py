"""The hand-built hosts stand for real ones: here they are compared with what the reader finds on this machine."""

from __future__ import annotations

import os
import shutil

import pytest
from tests.conftest import need
from tests.support import hosts

from claudebox.base.files import read_small
from claudebox.host import gather, programs
from claudebox.host import records as host_records
from claudebox.settings.records import MountRequest, Policy
from claudebox.tables import paths as tables_paths


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return what the reader finds on this machine, with a home and a project of the test."""
    need(shutil.which("bwrap"), "bubblewrap")
    home, project = tmp_path / "home", tmp_path / "home/project"
    (home / ".ssh").mkdir(parents=True)
    project.mkdir()
    monkeypatch.chdir(project)
    policy = Policy(
        "client",
        mounts=(
            MountRequest(str(home), "/mnt/home", writable=False, origin="--mount-ro"),
            MountRequest("/nonexistent", f"{project}/new", writable=False, origin="--mount-ro"),
            MountRequest("/srv", str(project), writable=False, origin="--mount-ro"),
        ),
    )
    return gather.read_host(policy, {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "xterm"})


def test_a_host_of_this_file_has_every_fact_of_a_real_one(here):
    for build in hosts.ALL.values():
        made = build()
        for name in host_records.Host._fields:
            real, told = getattr(here, name), getattr(made, name)
            assert isinstance(real, type(told)) or real is None or told is None, name
            for field in getattr(told, "_fields", ()) if real is not None else ():
                pair = getattr(real, field), getattr(told, field)
                assert isinstance(pair[0], type(pair[1])) or None in pair, f"{name}.{field}"


def test_the_debian_of_this_file_is_laid_out_like_a_real_one(here):
    # proves SAND-06, SAND-13
    need(b"ID=debian" in (read_small("/etc/os-release", follow=True) or b""), "Debian")
    made = hosts.debian()

    assert (here.system.usr, here.system.opt, here.system.store) == (
        made.system.usr,
        made.system.opt,
        made.system.store or ("/nix/store" if os.path.isdir("/nix/store") else ""),
    )
    assert set(here.system.roots) <= set(made.system.roots)
    assert {("/bin", "usr/bin"), ("/lib", "usr/lib"), ("/sbin", "usr/sbin")} <= set(here.system.roots)
    rows = {path: (real, why) for path, real, why in made.system.etc}
    for path, real, why in here.system.etc:
        if path in rows and path != "/etc/localtime":
            assert rows[path] == (real, why)
    assert "/etc/alternatives" in {path for path, _, _ in here.system.etc}
    assert here.system.ca_bundle is None or here.system.ca_bundle.real == "/etc/ssl/certs/ca-certificates.crt"


def test_the_reader_judges_by_identity(here, tmp_path):
    # proves SAND-05
    home = os.stat(tmp_path / "home")

    assert here.places.home.identity == (home.st_dev, home.st_ino)
    assert here.places.home.identity in here.workdir.lineage
    assert here.places.home.identity in [place.identity for place in here.places.not_projects]
    assert [hidden.why for hidden in here.places.hidden if hidden.fact.path == f"{tmp_path}/home/.ssh"] == ["SSH keys"]


def test_the_reader_looks_at_what_was_asked_for_and_at_where_it_would_stand(here, tmp_path):
    # proves EXT-02
    assert here.mounted.sources[f"{tmp_path}/home"].kind == "directory"
    assert here.mounted.sources["/nonexistent"].kind == "missing"
    project = here.workdir.real
    assert here.mounted.destinations == {
        "/mnt/home": host_records.Destination(),
        f"{project}/new": host_records.Destination(),
        project: host_records.Destination(exists=True, directory=True),
    }


def test_a_destination_behind_a_link_is_noticed(tmp_path, monkeypatch):
    # proves C01, C02
    need(shutil.which("bwrap"), "bubblewrap")
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project/link").symlink_to("/oldroot")
    monkeypatch.chdir(tmp_path / "project")
    dest = f"{tmp_path}/project/link/x"
    policy = Policy("client", mounts=(MountRequest("/srv", dest, writable=False, origin="--mount-ro"),))

    found = gather.read_host(policy, {"HOME": f"{tmp_path}/home", "PATH": "/usr/bin"})
    assert found.mounted.destinations[dest] == host_records.Destination(through_link=True)


def test_the_bwrap_of_this_machine_can_be_used(here):
    # proves UX-05, E09
    assert os.path.isabs(here.bwrap.path)
    assert here.bwrap.problem is None


@pytest.fixture
def fake_bwrap(tmp_path, monkeypatch):
    """Return what puts a bwrap of this test in place of the system's."""
    monkeypatch.setattr(programs, "_TRUSTED", ())

    every = f" {'  '.join(programs.BWRAP_NEEDED)} ".encode()

    def put(mode: int, content: bytes = every) -> str:
        path = tmp_path / "bwrap"
        path.write_bytes(content)
        try:
            path.chmod(mode)
        except PermissionError:  # in the sandbox of a build with Nix
            need(condition=False, what="way to make a program setuid")
        return str(programs.find_bwrap((str(tmp_path),)).problem or "")

    return put


def test_a_bwrap_that_is_privileged_replaceable_or_old_is_refused(fake_bwrap):
    # proves E09, UX-05
    assert "is setuid" in fake_bwrap(0o4755)
    assert "is setuid" in fake_bwrap(0o2755)
    assert "can be replaced" in fake_bwrap(0o775)
    assert "can be replaced" in fake_bwrap(0o757)
    assert "does not know `--disable-userns`" in fake_bwrap(0o755, b" --args  --cap-drop  --die-with-parent  --perms ")
    assert fake_bwrap(0o755) == ""


def test_without_bwrap_the_user_is_told_how_to_get_it(monkeypatch):
    # proves UX-05
    monkeypatch.setattr(programs, "_TRUSTED", ())
    problem = programs.find_bwrap(()).problem

    assert problem is not None
    assert "not installed" in problem.message
    assert "apt" in problem.hint


def test_the_tables_of_places_hide_what_was_promised():
    # proves SAND-09
    promised = {
        ".ssh", ".gnupg", ".aws", ".config/gcloud", ".config/gh", ".kube", ".docker", ".netrc", ".npmrc", ".pypirc",
        ".config/sops", ".config/age", ".password-store", ".local/share/keyrings", ".mozilla", ".config/google-chrome",
        ".bash_history", ".zsh_history", "/var/lib/tailscale", ".claude", ".claudebox",
    }  # fmt: skip

    assert promised <= {path for path, _ in tables_paths.HIDDEN}
    assert {name for name, _ in tables_paths.AGENT_SOCKETS} >= {
        "SSH_AUTH_SOCK",
        "DBUS_SESSION_BUS_ADDRESS",
        "XDG_RUNTIME_DIR",
    }
    assert all(why for _, why in tables_paths.HIDDEN)
