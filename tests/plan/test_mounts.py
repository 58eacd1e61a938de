from __future__ import annotations

import pytest
from tests.support import hosts

from claudebox.plan import compose
from claudebox.plan.mounts import plan_mounts
from claudebox.plan.records import Mount
from claudebox.settings.records import Policy


def rows(host, policy: Policy | None = None) -> dict[str, Mount]:
    return {row.dest: row for row in plan_mounts(policy or Policy("client"), host)}


@pytest.fixture(params=sorted(hosts.ALL))
def host(request):
    """Return a host of each distribution."""
    return hosts.ALL[request.param]()


def test_a_sandbox_has_its_own_kernel_views_and_temporary_places(host):
    # proves SAND-11, SEC-02
    table = rows(host)

    assert table["/proc"].kind == "proc"
    assert table["/dev"].kind == "dev"
    for dest, mode in (("/dev/shm", 0o1777), ("/run/user/1000", 0o700)):
        assert (table[dest].kind, table[dest].mode) == ("tmpfs", mode)
        assert table[dest].size > 0


def test_only_the_project_is_writable_and_stays(host):
    # proves SAND-04, SAND-05
    writable = [row for row in plan_mounts(Policy("client"), host) if row.kind == "bind"]

    assert writable == [
        Mount(hosts.PROJECT, "bind", "the project", hosts.PROJECT, pinned=hosts.identity(hosts.PROJECT), role="project")
    ]


def test_nothing_of_the_host_is_visible_beyond_programs_etc_and_the_project(host):
    # proves SAND-04, SAND-06, SAND-09, A18
    shown = {row.source for row in plan_mounts(Policy("client"), host) if row.kind in ("bind", "ro-bind")}
    system = {"/usr", "/opt", "/nix/store", "/bin", "/lib", "/sbin", hosts.PROJECT}

    assert shown <= system | {real for _, real, _ in host.system.etc} | {host.system.ca_bundle.real}
    assert not any(path.startswith((f"{hosts.HOME}/.", "/run/user", "/var/run", "/root")) for path in shown)


def test_a_merged_usr_is_bound_once_and_linked_to():
    # proves SAND-06
    table = rows(hosts.debian())

    assert table["/usr"] == Mount("/usr", "ro-bind", "programs of the system", "/usr")
    assert (table["/bin"].kind, table["/bin"].source) == ("symlink", "usr/bin")
    assert (table["/opt"].kind, table["/opt"].source) == ("ro-bind", "/opt")


def test_an_unmerged_usr_has_every_root_bound():
    # proves SAND-06
    table = rows(hosts.unmerged())

    for root in ("/usr", "/bin", "/lib", "/sbin"):
        assert (table[root].kind, table[root].source) == ("ro-bind", root)
    assert "/opt" not in table


def test_nixos_shows_the_store_and_what_scripts_expect():
    # proves SAND-06, NIX-03
    table = rows(hosts.nixos())

    assert (table["/nix/store"].kind, table["/nix/store"].source) == ("ro-bind", "/nix/store")
    assert "/usr" not in table
    assert "/nix/var" not in table
    assert table["/bin/sh"].kind == table["/usr/bin/env"].kind == "symlink"
    assert table["/bin/sh"].source.startswith("/nix/store/")


def test_the_certificates_appear_at_one_place_on_every_distribution(host):
    # proves SAND-13
    found = rows(host)
    bundle = found["/run/claudebox/ca-bundle.crt"]

    if bundle.kind == "symlink":  # to where a directory shows it
        bundle = next(row.replace(source=bundle.source.replace(row.dest, row.source, 1)) for row in found.values()
                      if row.kind == "ro-bind" and bundle.source.startswith(f"{row.dest}/"))  # fmt: skip
    assert (bundle.kind, bundle.source) == ("ro-bind", host.system.ca_bundle.real)


def test_the_usual_place_of_certificates_is_not_a_directory_of_dead_links():
    # proves SAND-13
    nixos = rows(hosts.nixos())
    assert "/etc/ssl/certs" not in nixos
    assert nixos["/etc/ssl/certs/ca-certificates.crt"].source == "/run/claudebox/ca-bundle.crt"

    fedora = rows(hosts.fedora())
    assert fedora["/etc/ssl/certs"].source == "/etc/pki/tls/certs"
    assert fedora["/etc/pki/ca-trust/extracted"].kind == "ro-bind"

    arch = rows(hosts.arch())
    assert arch["/etc/ssl/cert.pem"].source == "/etc/ca-certificates/extracted/tls-ca-bundle.pem"


def test_parts_of_etc_that_lead_to_visible_places_are_links_and_the_rest_is_bound():
    # proves SAND-06
    table = rows(hosts.debian())

    assert (table["/etc/localtime"].kind, table["/etc/localtime"].source) == ("symlink", "/usr/share/zoneinfo/Etc/UTC")
    assert (table["/etc/alternatives"].kind, table["/etc/alternatives"].source) == ("ro-bind", "/etc/alternatives")


def test_etc_is_made_by_claudebox_and_knows_two_accounts_and_the_user(host):
    # proves A18
    table = rows(host)
    shell = "/bin/bash" if host.system.bash else "/bin/sh"

    assert table["/etc/passwd"].content.decode().splitlines() == [
        f"root:x:0:0:root:/root:{shell}",
        f"alice:x:1000:1000:alice:{hosts.HOME}:{shell}",
        f"nobody:x:65534:65534:nobody:/:{shell}",
    ]
    assert table["/etc/group"].content.decode().splitlines() == ["root:x:0:", "alice:x:1000:", "nogroup:x:65534:"]
    assert b"claudebox" in table["/etc/hosts"].content
    assert table["/etc/hostname"].content == b"claudebox\n"


def test_root_is_listed_once():
    table = rows(hosts.debian(uid=0, gid=0, user="root", home="/root"))

    assert table["/etc/passwd"].content.count(b":x:0:") == 1
    assert table["/etc/group"].content.count(b"root") == 1


def test_names_that_are_not_utf8_do_not_stop_the_accounts():
    # proves C11
    table = rows(hosts.debian(home="/home/\udcff", user="\udcfe"))

    assert b"\xfe:x:1000:1000:\xfe:/home/\xff:" in table["/etc/passwd"].content


def test_the_network_none_has_an_empty_resolv_conf():
    # proves SAND-12
    assert rows(hosts.debian(), Policy("client", network="none"))["/etc/resolv.conf"].content == b""
    assert b"192.0.2.53" in rows(hosts.debian())["/etc/resolv.conf"].content


def test_git_inside_knows_the_user_and_nothing_else():
    # proves GIT-01, GIT-02, D24
    config = rows(hosts.debian())[f"{hosts.HOME}/.gitconfig"]

    assert config.kind == "file"
    assert config.content.decode().split() == (
        [
            "[safe]",
            "directory",
            "=",
            '"*"',
            "[user]",
            "name",
            "=",
            '"Alice',
            'Example"',
            "email",
            "=",
            '"alice@example.org"',
        ]
    )


def test_what_tells_too_much_is_masked():
    # proves A09
    table = rows(hosts.debian())

    assert {dest for dest, row in table.items() if row.kind == "mask"} == {
        "/proc/keys", "/proc/key-users", "/proc/cmdline",
    }  # fmt: skip


def test_a_socket_in_the_project_is_masked():
    # proves C19
    socket = f"{hosts.PROJECT}/tmux.sock"

    plan = compose.make_plan(Policy("exec", ("true",)), hosts.debian(sockets=(socket,)))
    assert [row.kind for row in plan.mounts if row.dest == socket] == ["mask"]


def test_memory_is_shared_out_with_a_smallest_size():
    # proves H09
    assert rows(hosts.debian())["/dev/shm"].size == 2 << 30
    assert rows(hosts.unmerged())["/dev/shm"].size == 256 << 20


def test_every_row_has_a_reason(host):
    assert all(row.reason for row in plan_mounts(Policy("client"), host))
