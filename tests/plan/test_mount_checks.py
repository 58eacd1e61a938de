from __future__ import annotations

import pytest
from tests.support import hosts
from tests.support.hosts import HOME, PROJECT, fact

from claudebox.base.errors import ClaudeboxError
from claudebox.git.facts import Repository
from claudebox.host.records import Destination, covers
from claudebox.plan import asked_mounts, mount_checks
from claudebox.settings.records import MountRequest, Policy


def asked(source: str, dest: str = "", *, writable: bool = False) -> MountRequest:
    return MountRequest(source, dest or source, writable, "--mount-rw" if writable else "--mount-ro")


def plan(*requests: MountRequest, facts=(), there=(), unsafe: bool = False, **changes):
    policy = Policy("client", mounts=requests, unsafe_mounts=unsafe)
    host = hosts.asking(hosts.debian(**changes), policy, *facts, there=there)
    return list(asked_mounts.plan_mounts(policy, host))


@pytest.mark.parametrize(
    "path", [PROJECT, f"{HOME}/src/deep/project", "/srv/www", "/tmp/work", "/run/media/usb/project"]
)
def test_a_project_may_lie_almost_anywhere(path):
    # proves SAND-05
    mount_checks.check_workdir(hosts.debian(workdir=fact(path)))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (HOME, "cannot be a project"),
        ("/", "cannot be a project"),
        ("/home", "cannot be a project"),
        ("/tmp", "cannot be a project"),
        ("/etc", "cannot be a project"),
        (f"{HOME}/.config", "cannot be a project"),
        ("/etc/nginx", "belongs to the system"),
        ("/run/user/1000", "belongs to the system"),
        ("/proc/self", "belongs to the system"),
        ("/dev/pts", "belongs to the system"),
        (f"{HOME}/.ssh", "would expose .*SSH keys"),
        (f"{HOME}/.ssh/keys", "would expose .*SSH keys"),
        (f"{HOME}/.config/gh", "would expose .*GitHub token"),
        (f"{HOME}/.claude", "would expose"),
    ],
)
def test_a_working_directory_that_would_expose_home_or_system_is_refused(path, message):
    # proves SAND-05, C07, C08
    with pytest.raises(ClaudeboxError, match=message) as caught:
        mount_checks.check_workdir(hosts.debian(workdir=fact(path)))

    assert caught.value.status == 125
    assert caught.value.hint


def test_an_ancestor_of_the_home_is_refused_even_if_no_table_names_it():
    # proves C08
    home = fact("/data/people/alice")
    host = hosts.debian(workdir=fact("/data"), home=home.path, home_fact=home)

    with pytest.raises(ClaudeboxError, match="contains your home"):
        mount_checks.check_workdir(host)


@pytest.mark.parametrize("real", [HOME, f"{HOME}/.ssh", "/etc", "/"])
def test_a_link_or_a_bind_mount_is_judged_by_what_it_is(real):
    # proves SAND-05, C06
    with pytest.raises(ClaudeboxError):
        mount_checks.check_workdir(hosts.debian(workdir=fact("/srv/innocent", real=real)))


def test_a_working_directory_above_something_hidden_is_refused():
    # proves C08
    with pytest.raises(ClaudeboxError, match=r"would expose `/home/alice/\.config/gh`"):
        mount_checks.check_workdir(hosts.debian(workdir=fact(f"{HOME}/.config"), not_projects=()))


def test_a_mount_becomes_a_pinned_row_of_what_the_path_really_is():
    # proves EXT-02, C10
    (row,) = plan(asked("/srv/link", "/data"), facts=[fact("/srv/link", real="/srv/real")])

    assert (row.kind, row.source, row.dest, row.pinned) == (
        "ro-bind",
        "/srv/real",
        "/data",
        hosts.identity("/srv/real"),
    )
    assert row.reason == "asked for with --mount-ro"
    assert plan(asked("/srv/x", writable=True))[0].kind == "bind"


@pytest.mark.parametrize(
    ("kind", "message"),
    [("missing", "there is no such file or directory"), ("other", "only files, directories and sockets")],
)
def test_a_source_that_cannot_be_mounted_is_refused(kind, message):
    # proves EXT-02
    with pytest.raises(ClaudeboxError, match=f"`--mount-ro /srv/x`: {message}"):
        plan(asked("/srv/x"), facts=[fact("/srv/x", kind)])


EXPOSING = [
    fact("/"),
    fact("/home"),
    fact(HOME),
    fact(f"{HOME}/.ssh"),
    fact(f"{HOME}/.ssh/id_ed25519", "file"),
    fact(f"{HOME}/.config"),
    fact(f"{HOME}/.bash_history", "file"),
    fact(f"{HOME}/.claude"),
    fact(f"{HOME}/.claudebox/instances"),
    fact("/etc"),
    fact("/etc/shadow", "file"),
    fact("/etc/ssh"),
    fact("/proc"),
    fact("/sys/kernel"),
    fact("/dev"),
    fact("/run"),
    fact("/run/user/1000"),
    fact("/run/docker.sock", "socket"),
    fact("/srv/app.sock", "socket"),
    fact("/srv/link", real=f"{HOME}/.ssh"),
]


@pytest.mark.parametrize("source", EXPOSING, ids=lambda source: source.path)
def test_a_mount_that_exposes_what_is_hidden_needs_to_be_called_unsafe(source):
    # proves EXT-02, SAND-09, C26
    with pytest.raises(ClaudeboxError, match="--mount-ro") as caught:
        plan(asked(source.path, "/mnt/x"), facts=[source])
    assert "--set unsafe_mounts=true" in caught.value.hint

    (row,) = plan(asked(source.path, "/mnt/x"), facts=[source], unsafe=True)
    assert row.source == source.real


@pytest.mark.parametrize("path", ["/etc/nginx", "/run/media/usb", "/dev/shm/data", "/srv", f"{HOME}/other", "/opt/x"])
def test_ordinary_places_can_be_mounted(path):
    # proves EXT-02
    assert plan(asked(path, "/mnt/x"))[0].source == path


RESERVED = [
    "/", "/usr", "/usr/bin", "/usr/local/bin/x", "/bin", "/lib64", "/proc", "/proc/self", "/dev", "/dev/shm", "/run",
    "/run/claudebox", "/run/claudebox/bin/claude", "/run/user/1000", "/nix", "/nix/store/x", "/sys", "/sbin",
    f"{HOME}/.claude", f"{HOME}/.claude/settings.json",
]  # fmt: skip


@pytest.mark.parametrize("unsafe", [False, True])
@pytest.mark.parametrize("dest", RESERVED)
def test_a_destination_that_is_claudeboxes_own_is_refused_always(dest, unsafe):
    # proves C27
    with pytest.raises(ClaudeboxError, match="is claudebox's own"):
        plan(asked("/srv/x", dest), unsafe=unsafe)


@pytest.mark.parametrize("dest", [HOME, "/home", PROJECT, "/etc", "/tmp"])
def test_a_destination_that_would_cover_the_sandbox_is_refused(dest):
    # proves C27
    with pytest.raises(ClaudeboxError, match=r"would cover the|is claudebox's own"):
        plan(asked("/srv/x", dest), unsafe=True)


@pytest.mark.parametrize("dest", ["/data", f"{HOME}/data", "/tmp/data", "/etc/app.conf", "/home/alice2", "/usrlocal"])
def test_other_destinations_are_free(dest):
    # proves C27
    assert plan(asked("/srv/x", dest))[0].dest == dest


def test_a_destination_in_the_project_must_stand_there_already():
    # proves C01, C21
    inside = f"{PROJECT}/vendor"
    with pytest.raises(ClaudeboxError, match="would have to be created in the project"):
        plan(asked("/srv/x", inside))
    assert plan(asked("/srv/x", inside), there=[inside])[0].dest == inside


def test_a_destination_behind_a_link_of_the_project_is_refused():
    # proves C01, C02
    inside = f"{PROJECT}/link/x"
    policy = Policy("client", mounts=(asked("/srv/x", inside),), unsafe_mounts=True)
    host = hosts.asking(hosts.debian(), policy)
    host = hosts.changed(host, destinations={inside: Destination(through_link=True)})

    with pytest.raises(ClaudeboxError, match="leads through a link in the project"):
        list(asked_mounts.plan_mounts(policy, host))


def test_a_file_cannot_stand_on_a_directory():
    inside = f"{PROJECT}/vendor"
    with pytest.raises(ClaudeboxError, match="is a directory and the source is not"):
        plan(asked("/srv/x", inside), facts=[fact("/srv/x", "file")], there=[inside])


def test_a_destination_in_opt_must_stand_there_already():
    with pytest.raises(ClaudeboxError, match="would have to be created in /opt"):
        plan(asked("/srv/x", "/opt/x"))
    assert plan(asked("/srv/x", "/opt/x"), opt=False)[0].dest == "/opt/x"


def test_a_destination_in_a_directory_of_etc_must_stand_there_already():
    inside = "/etc/alternatives/x"
    with pytest.raises(ClaudeboxError, match="would have to be created in `/etc/alternatives`"):
        plan(asked("/srv/x", inside))
    assert plan(asked("/srv/x", inside), there=[inside])[0].dest == inside


def test_a_mount_within_another_must_stand_there_already():
    # proves C01
    outer, inner = asked("/srv/data", writable=True), asked("/srv/x", "/srv/data/x")
    with pytest.raises(ClaudeboxError, match="would have to be created in `/srv/data`"):
        plan(outer, inner)

    rows = plan(outer, inner, there=["/srv/data/x"])
    assert [row.dest for row in rows] == ["/srv/data", "/srv/data/x"]


def test_a_mount_behind_a_link_in_another_mount_is_refused():
    # proves C01
    policy = Policy("client", mounts=(asked("/srv/data", writable=True), asked("/srv/x", "/srv/data/link/x")))
    host = hosts.asking(hosts.debian(), policy)
    host = hosts.changed(
        host, destinations={**host.mounted.destinations, "/srv/data/link/x": Destination(through_link=True)}
    )

    with pytest.raises(ClaudeboxError, match="leads through a link in `/srv/data`"):
        list(asked_mounts.plan_mounts(policy, host))


def test_a_mount_within_a_mount_that_has_another_name_inside_is_refused():
    # proves C01
    with pytest.raises(ClaudeboxError, match="lies in `/mnt/data`, which is another mount"):
        plan(asked("/srv/data", "/mnt/data"), asked("/srv/x", "/mnt/data/x"), there=["/mnt/data/x"])


def test_nothing_can_be_mounted_into_a_repository_that_lies_elsewhere():
    # proves C01, D14
    repository = Repository(PROJECT, directory=hosts.git_directory("/home/alice/main/.git", PROJECT))
    with pytest.raises(ClaudeboxError, match="is claudebox's own"):
        plan(asked("/srv/x", "/home/alice/main/.git/objects/x"), repository=repository)


def test_covering_is_by_whole_names():
    assert covers("/a", "/a")
    assert covers("/a", "/a/b")
    assert covers("/", "/a")
    assert not covers("/a", "/ab")
    assert not covers("/a/b", "/a")
