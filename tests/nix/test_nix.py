"""What claudebox decides about Nix, from values alone."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time

import pytest
from tests.support import hosts

from claudebox.base.errors import ClaudeboxError
from claudebox.network.tiers import TIERS, Tier
from claudebox.nix import facts as nix_facts
from claudebox.nix import plan as nix_plan
from claudebox.nix.records import Daemon, Location, Nix, number
from claudebox.plan import audit, compose
from claudebox.settings import layers, parsers
from claudebox.settings.layers import decide_policy
from claudebox.settings.records import NameRequest, Policy

PROGRAM = "/nix/store/x-nix/bin/nix"


def nix(trusted="no", sandbox="true", version="2.31.5", **changes) -> Nix:
    return Nix(**{"program": PROGRAM, "daemon": Daemon(version, version, trusted, sandbox), **changes})


def judged(policy=None, **changes):
    return nix_plan.decide_access(policy or Policy("exec"), nix(**changes))


def test_an_untrusted_user_of_a_daemon_with_a_sandbox_gets_the_socket():
    # proves SAND-07, NIXSEC-01
    assert judged().kind == "daemon"
    assert "does not trust you" in judged().why


@pytest.mark.parametrize("sandbox", ["false", "relaxed", "unknown"])
def test_builders_without_a_sandbox_close_the_daemon(sandbox):
    # proves NIXSEC-01, G02
    decision = judged(sandbox=sandbox)

    assert decision.kind == "off"
    assert sandbox in decision.why
    assert "sandbox = true" in decision.remedy


def test_a_trusted_user_gets_a_relay_whatever_the_builders_have():
    # proves NIXSEC-01, G01
    for sandbox in ("true", "false", "relaxed"):  # a relay of a trusted user says itself that builders have one
        assert judged(trusted="yes", sandbox=sandbox).kind == "relay"


@pytest.mark.parametrize("trusted", ["yes", "unknown"])
def test_who_may_be_trusted_gets_nothing_of_a_nix_that_has_no_relay(trusted):
    # proves NIXSEC-01, G01
    decision = judged(trusted=trusted, version="2.8.0")

    assert decision.kind == "off"
    assert "2.18" in decision.remedy


def test_what_is_not_known_counts_as_trusted():
    # proves NIXSEC-01
    assert judged(trusted="unknown").kind == "relay"
    assert judged(trusted="unknown", sandbox="unknown").kind == "off"


@pytest.mark.parametrize("tier", ["inet", "none", "new"])
def test_every_tier_but_full_is_without_the_daemon_unless_the_user_said_so(tier, monkeypatch):
    # proves NIXSEC-01, G03
    monkeypatch.setitem(TIERS, "new", Tier("new", "", ""))
    decision = judged(Policy("exec", network=tier))

    assert decision.kind == "off"
    assert "the host's network" in decision.why
    assert 'nix = "daemon"' in decision.remedy
    plainly = judged(Policy("exec", network=tier, nix="daemon", nix_origin="--set nix"))
    assert plainly.kind == "daemon"
    assert any("the host's network" in warning for warning in plainly.warnings)


def test_what_the_user_says_plainly_is_done_with_a_warning():
    # proves NIXSEC-01
    told = judged(Policy("exec", nix="daemon", nix_origin="--set nix"), trusted="yes", sandbox="false")

    assert told.kind == "daemon"
    assert any("root" in warning for warning in told.warnings)
    assert any("sandbox" in warning for warning in told.warnings)
    assert judged(Policy("exec", nix="off"), trusted="no").kind == "off"
    assert judged(Policy("exec", nix="relay", nix_origin="--set nix")).kind == "relay"


def test_what_the_user_says_plainly_and_cannot_be_had_stops_the_launch():
    # proves NIXSEC-01
    with pytest.raises(ClaudeboxError, match="cannot stand in front"):
        judged(Policy("exec", nix="relay", nix_origin="--set nix"), version="2.8.0")
    for kind in ("daemon", "relay"):
        with pytest.raises(ClaudeboxError, match="single-user"):
            judged(Policy("exec", nix=kind, nix_origin="--set nix"), location=Location(problem="it is single-user"))


def test_a_daemon_that_cannot_be_used_is_off_without_an_error():
    # proves NIXSEC-01
    assert judged(location=Location(problem="it is single-user")).why == "it is single-user"
    assert "not found" in judged(program="").why


@pytest.mark.parametrize(("version", "warned"), [
    ("2.8.0", True), ("2.26.3", True), ("2.28.5", True), ("2.28.6", False), ("2.31.3", True), ("2.31.4pre1", False),
    ("2.34.6", True), ("2.34.7", False), ("2.35.0", False), ("", False), ("lix", False), ("3.0.0", False),
])  # fmt: skip
def test_known_holes_of_the_daemon_are_told(version, warned):
    # proves G04
    found = nix_plan.decide_access(Policy("exec"), nix().replace(daemon=Daemon(version, "2.31.5", "no", "true")))

    assert bool(found.warnings) == warned


def test_a_project_file_has_no_say():
    # proves NIXSEC-01, EXT-01
    from claudebox.settings.table import SETTINGS

    rows = {row.key: row.in_files for row in SETTINGS}
    assert rows["nix"] == rows["nixpkgs"] == "user"


def test_the_decision_is_part_of_the_plan_and_of_what_is_shown():
    # proves NIXSEC-01, UX-01
    from claudebox.plan import explain

    host = hosts.debian_with_nix()
    made = compose.make_plan(Policy("exec", ("true",)), host)

    assert made.nix is not None
    assert made.relay is not None
    assert host.nix is not None
    assert made.nix.kind == "relay"
    assert made.relay.directory == host.nix.directory
    for shown in (list(audit.lines(made, None, asking=True)), list(explain.tree(made))):
        assert any("through a relay" in line for line in shown)
    assert json.loads(explain.as_json(made))["nix"]["access"] == "relay"
    text = next(row.content for row in made.mounts if row.dest == "/run/claudebox/SANDBOX.md").decode()
    assert "nix shell" in text
    off = compose.make_plan(Policy("exec", ("true",), network="none"), hosts.debian_with_nix())
    text = next(row.content for row in off.mounts if row.dest == "/run/claudebox/SANDBOX.md").decode()
    assert "its daemon is out of reach on purpose" in text
    assert "host's network back" in text


def test_the_hosts_configuration_caches_and_profiles_of_nix_are_not_mounted():
    # proves G05, NIXSEC-01
    made = compose.make_plan(Policy("exec", ("true",)), hosts.nixos())

    sources = [row.source for row in made.mounts if row.kind in ("bind", "ro-bind")]
    assert not [path for path in sources if path.startswith(("/etc/nix", "/nix/var/nix/profiles", "/nix/var/nix/db"))]
    assert not [path for path in sources if path.startswith((f"{hosts.HOME}/.cache", f"{hosts.HOME}/.config"))]
    assert not [row for row in made.mounts if row.dest == f"{hosts.HOME}/.cache/nix"]  # it is in the project's caches
    made = compose.make_plan(Policy("exec", ("true",), caches="off"), hosts.nixos())
    cache = next(row for row in made.mounts if row.dest == f"{hosts.HOME}/.cache/nix")
    assert cache.source.startswith(f"{hosts.HOME}/.claudebox/instances/")
    assert not next(row for row in made.mounts if row.dest == "/nix/var/nix/daemon-socket").writable


def test_only_loopback_makes_nix_believe_that_it_is_offline_unless_told():
    # proves TOOL-02
    def configuration(**changes):
        made = compose.make_plan(Policy("exec", ("true",), nix="daemon", **changes), hosts.nixos())
        return {row.name: row.value for row in made.variables}["NIX_CONFIG"]

    assert "substitute = true" in configuration(network="none")
    assert "substitute" not in configuration()


@pytest.mark.parametrize("policy", [
    Policy("exec", ("true",), packages=(NameRequest("jq", "--package"),)),
    Policy("exec", ("true",), devshell="--set devshell=true"),
    Policy("exec", ("true",), nix="daemon", nix_origin="--set nix"),
])  # fmt: skip
def test_what_needs_nix_is_refused_where_there_is_none(policy):
    # proves PKG-01
    with pytest.raises(ClaudeboxError, match="needs Nix, and there is none on this machine"):
        compose.make_plan(policy, hosts.debian())


def test_without_nix_nothing_of_it_is_said():
    made = compose.make_plan(Policy("exec", ("true",)), hosts.debian())

    assert made.nix is None
    assert not [row for row in (*made.mounts, *made.variables) if "nix" in repr(row).lower().replace("nix_ssl", "")]


def test_a_dev_shell_needs_the_daemon_and_a_file_of_the_project():
    host = hosts.nixos()
    assert host.nix is not None
    wanted = Policy("exec", ("true",), devshell="--set devshell=true")

    with pytest.raises(ClaudeboxError, match="no dev shell"):
        compose.make_plan(wanted, host)
    ready = host.replace(nix=host.nix.replace(shell="flake.nix"))
    assert compose.make_plan(wanted, ready).command[0] == "/bin/bash"
    with pytest.raises(ClaudeboxError, match="needs Nix there, which is off"):
        compose.make_plan(wanted.replace(network="none"), ready)


def test_versions_are_numbers():
    assert number("2.26.3") == (2, 26, 3)
    assert number("2.31.0pre20250903_abc") == (2, 31, 0)
    assert number("") == (0,)


@pytest.mark.parametrize(("remote", "store", "socket_path"), [
    ("", "/nix/store", "/nix/var/nix/daemon-socket/socket"),
    ("daemon", "/nix/store", "/nix/var/nix/daemon-socket/socket"),
    ("unix:///run/nix/own", "/nix/store", "/run/nix/own"),
    ("unix:///run/nix/own?root=/srv/r", "/srv/r/nix/store", "/run/nix/own"),
    ("unix:///run/nix/own?root=/srv/a%20b", "/srv/a b/nix/store", "/run/nix/own"),
    ("unix://?root=/srv/r", "/srv/r/nix/store", "/nix/var/nix/daemon-socket/socket"),
    ("local?root=/srv/r", "/srv/r/nix/store", "/nix/var/nix/daemon-socket/socket"),
])  # fmt: skip
def test_store_and_socket_are_where_nix_finds_them(remote, store, socket_path):
    # proves SAND-06, SAND-07
    found = nix_facts.find_nix({"NIX_REMOTE": remote})

    assert (found.store, found.socket) == (store, socket_path)


def test_nix_is_found_in_a_profile_that_is_not_on_the_path(tmp_path):
    # proves NIX-03
    program = tmp_path / "store/nix"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert nix_facts.find_program((), str(tmp_path)) != str(program)
    (tmp_path / ".nix-profile/bin").mkdir(parents=True)
    (tmp_path / ".nix-profile/bin/nix").symlink_to(program)

    assert nix_facts.find_program((), str(tmp_path)) == str(program)


def test_a_directory_of_state_elsewhere_has_the_socket_too():
    # proves SAND-07
    assert nix_facts.find_nix({"NIX_STATE_DIR": "/srv/state"}).socket == "/srv/state/daemon-socket/socket"


@pytest.mark.parametrize("name", ["NIX_REMOTE", "NIX_DAEMON_SOCKET_PATH", "NIX_STATE_DIR"])
def test_a_socket_is_not_looked_for_in_the_project(name, tmp_path, monkeypatch):
    # proves NIXSEC-01
    monkeypatch.chdir(tmp_path)
    (tmp_path / "daemon-socket").mkdir()
    value = {"NIX_REMOTE": "unix://daemon-socket/socket", "NIX_STATE_DIR": "."}.get(name, "daemon-socket/socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("daemon-socket/socket")

        assert "not an absolute path" in nix_facts.find_nix({name: value}).problem


def test_a_configuration_of_the_user_says_nothing_about_the_daemon_of_the_machine(tmp_path, monkeypatch):
    # proves G02, NIXSEC-01
    (tmp_path / "system").mkdir()
    (tmp_path / "system/nix.conf").write_text("sandbox = false\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/nix.conf").write_text("sandbox = true\n")
    monkeypatch.setattr(nix_facts, "_CONFIGURATION", str(tmp_path / "system"))

    def asked(where: Location, directory: str) -> Daemon:
        environ = {"NIX_CONF_DIR": str(tmp_path / directory)}
        return nix_facts.read_daemon(where, "/usr/bin/nix", environ)

    assert "reads another" in asked(Location(), "own").problem
    assert "does not answer" in asked(Location(), "system").problem
    assert "does not answer" in asked(Location(socket="/srv/own/socket"), "own").problem


@pytest.mark.parametrize(("lines", "told", "expected"), [
    ("", "no", ("no", "true")),
    ("sandbox = false\n", "no", ("no", "false")),
    ("sandbox = false\nsandbox = true\n", "no", ("no", "false")),  # the worst counts, in whatever order
    ("# sandbox = false\nsandbox = true # false\n", "no", ("no", "true")),
    ("build-use-sandbox = relaxed\n", "yes", ("yes", "relaxed")),
    ("sandbox = odd\n", "no", ("no", "unknown")),
    ("include more.conf\n", "no", ("no", "false")),
    ("!include missing.conf\ninclude nix.conf\n", "no", ("no", "true")),
    ("trusted-users = *\n", "no", ("no", "true")),
    ("", "unknown", ("unknown", "true")),
])  # fmt: skip
def test_configuration_tells_what_the_daemon_does_not(tmp_path, monkeypatch, lines, told, expected):
    # proves NIXSEC-01, G01, G02
    (tmp_path / "nix.conf").write_text(lines)
    (tmp_path / "more.conf").write_text("sandbox = false\n")
    monkeypatch.setattr(nix_facts, "ask_daemon", lambda _path: ("2.31.5", told))
    monkeypatch.setattr(nix_facts, "_started", lambda _path: time.time())
    monkeypatch.setattr("os.getuid", lambda: 65534)  # nobody

    found = nix_facts.read_daemon(Location(socket="/own"), PROGRAM, {"NIX_CONF_DIR": str(tmp_path)})

    assert (found.trusted, found.sandbox, found.problem) == (*expected, "")
    monkeypatch.setattr(nix_facts, "_started", lambda _path: time.time() - 60)
    found = nix_facts.read_daemon(Location(socket="/own"), PROGRAM, {"NIX_CONF_DIR": str(tmp_path)})
    assert (found.trusted, found.sandbox) == ("unknown", "unknown")
    assert "changed after it had started" in found.problem


@pytest.mark.parametrize("lines", [None, "include more.conf\n", "!include more.conf\n"])
@pytest.mark.parametrize("told", ["no", "unknown"])
def test_a_configuration_that_cannot_be_read_says_nothing(tmp_path, monkeypatch, lines, told):
    # proves NIXSEC-01, G01, G02
    conf, more = tmp_path / "nix.conf", tmp_path / "more.conf"
    monkeypatch.setattr(nix_facts, "ask_daemon", lambda _path: ("2.31.5", told))
    monkeypatch.setattr(nix_facts, "_started", lambda _path: time.time())

    def read() -> Daemon:
        return nix_facts.read_daemon(Location(socket="/own"), PROGRAM, {"NIX_CONF_DIR": str(tmp_path)})

    if lines is not None:
        conf.write_text(lines)
        more.mkdir()  # for root everything else can be read
    unread = read()
    assert (unread.trusted, unread.sandbox) == (told, "unknown")
    assert str(conf if lines is None else more) in unread.problem

    conf.write_text("")
    assert read().sandbox == "true"


def test_a_configuration_that_was_moved_into_place_is_as_young_as_the_move(tmp_path, monkeypatch):
    # proves NIXSEC-01, G02
    conf = tmp_path / "nix.conf"
    conf.write_text("sandbox = true\n")
    os.utime(conf, (1, 1))
    monkeypatch.setattr(nix_facts, "ask_daemon", lambda _path: ("2.31.5", "no"))
    for age, sandbox in ((0, "true"), (60, "unknown")):
        monkeypatch.setattr(nix_facts, "_started", lambda _path, age=age: time.time() - age)
        found = nix_facts.read_daemon(Location(socket="/own"), PROGRAM, {"NIX_CONF_DIR": str(tmp_path)})
        assert found.sandbox == sandbox


def test_the_version_of_the_client_is_that_of_its_store_path_or_of_the_daemon(tmp_path, monkeypatch):
    monkeypatch.setattr(nix_facts, "ask_daemon", lambda _path: ("2.8.0", "no"))
    where = Location(socket="/own")
    for program, version in (
        ("/nix/store/abc-nix-2.31.5/bin/nix", "2.31.5"),
        ("/usr/bin/nix", "2.8.0"),
        (PROGRAM, "2.8.0"),
    ):
        assert nix_facts.read_daemon(where, program, {"NIX_CONF_DIR": str(tmp_path)}).client == version


@pytest.mark.parametrize("remote", [
    "ssh-ng://builder", "https://cache.example.org", "unix:///run/s?root=/r&state=/x", "unix:///run/s?root=relative",
    "unix:///run/s?root=%zz", "dummy://", "local?root=/r&real=/x",
])  # fmt: skip
def test_a_store_of_an_unknown_kind_closes_the_daemon(remote):
    # proves NIXSEC-01
    found = nix_facts.find_nix({"NIX_REMOTE": remote})

    assert "NIX_REMOTE" in found.problem
    assert (found.store, found.root) == ("/nix/store", "")


def test_the_name_of_a_store_survives_being_written_down():
    for root in ("/srv/r", "/srv/a b", "/srv/ä&x=1", "/srv/100%"):
        remote = Location(f"{root}/nix/store", root, "/run/s").remote
        assert nix_facts.find_nix({"NIX_REMOTE": remote}).root == root


def test_the_directory_of_a_socket_is_bound_only_if_nothing_else_is_in_it(tmp_path):
    # proves SAND-04, NIXSEC-01
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        alone = nix_facts.find_nix({"NIX_DAEMON_SOCKET_PATH": str(tmp_path / "socket")})
        (tmp_path / "secret").touch()
        beside = nix_facts.find_nix({"NIX_DAEMON_SOCKET_PATH": str(tmp_path / "socket")})

    assert alone.problem == ""
    assert "more than the socket" in beside.problem
    assert "not a socket" in nix_facts.find_nix({"NIX_DAEMON_SOCKET_PATH": str(tmp_path / "secret")}).problem
    assert "single-user" in nix_facts.find_nix({"NIX_DAEMON_SOCKET_PATH": str(tmp_path / "missing")}).problem


def numbers(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


@pytest.mark.parametrize(("answer", "expected"), [
    (numbers(0x6478696F, 0x126, 6) + b"2.31.5\0\0" + numbers(2), "no"),
    (numbers(0x6478696F, 0x126, 6) + b"2.31.5\0\0" + numbers(1), "yes"),
    (numbers(0x6478696F, 0x126, 6) + b"2.31.5\0\0" + numbers(0), "unknown"),
    (numbers(0x6478696F, 0x122, 5) + b"2.8.0\0\0\0", "unknown"),
    (numbers(0x6478696F, 0x120), "unknown"),
    (numbers(0x6478696F, 0x126, 1 << 60), None),
    (numbers(0x6478696F), None),
    (numbers(1, 0x126), None),
    (b"", None),
], ids=["untrusted", "trusted", "silent", "old", "older", "endless", "cut", "other", "mute"])  # fmt: skip
def test_a_daemon_is_asked_by_its_own_protocol(tmp_path, answer, expected):
    # proves NIXSEC-01, G01
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()

        def serve() -> None:
            peer, _ = server.accept()
            with peer, contextlib.suppress(OSError):  # whoever has heard enough hangs up
                peer.sendall(answer)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(4096):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            if expected is None:
                with pytest.raises(OSError):
                    nix_facts.ask_daemon(str(tmp_path / "socket"))
            else:
                assert nix_facts.ask_daemon(str(tmp_path / "socket"))[1] == expected
        finally:
            thread.join(10)


COMMIT = "61b7c44c4073f0b827768aff0049561b5110ea5a"


@pytest.mark.parametrize(("reference", "pinned"), [
    ("nixpkgs", False), ("flake:nixpkgs", False), ("path:/nix/store/abc-source", True), ("path:/home/a/nixpkgs", False),
    ("github:NixOS/nixpkgs", False), ("github:NixOS/nixpkgs/nixos-unstable", False),
    (f"github:NixOS/nixpkgs/{COMMIT}", True),
])  # fmt: skip
def test_references_to_package_sets(reference, pinned):
    # proves PKG-01
    assert parsers.well_formed(reference)
    assert parsers.pinned(reference) == pinned
    registry = json.loads(parsers.registry(reference))
    assert registry["version"] == 2
    if pinned:
        assert registry["flakes"][0]["from"] == {"type": "indirect", "id": "nixpkgs"}


@pytest.mark.parametrize("reference", [
    "", "-x", ".", "./here", "/nix/store/x", "path:relative", "path:/a/../b", "git+file:///srv", "https://x/y.tar.gz",
    "github:x", "github:a/b/c/d", 'path:/a"b', "nixpkgs#hello", "path:/a b", "path:/a?dir=b", "flake:a:b",
])  # fmt: skip
def test_what_is_no_reference_to_a_package_set(reference):
    # proves PKG-01
    assert not parsers.well_formed(reference)
    if reference:
        with pytest.raises(ClaudeboxError, match="is not a package set"):
            decide_policy(
                layers.read_settings(["--set", f"nixpkgs={reference}", "-y", "--exec", "--", "true"], {}),
                home="/h",
                workdir="/w",
            )


@pytest.mark.parametrize("name", ["github:a/b", "nixpkgs#x", "../x", "/x", "a b", "a?b", "-f", "", "x;y", "${x}", "ä"])
def test_a_package_is_an_attribute_and_nothing_that_could_name_other_code(name):
    # proves PKG-01
    with pytest.raises(ClaudeboxError):
        decide_policy(
            layers.read_settings(["--package", name, "-y", "--exec", "--", "true"], {}), home="/h", workdir="/w"
        )
