"""`--verify` reports the truth: everything held in a real launch, and each broken protection as broken."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import every_case, wait_until
from tests.run.test_stubs import entries, journal
from tests.support import repositories

PROMISES = [
    "environment", "arguments", "memory", "descriptors", "redirected", "keyrings", "hidden", "secrets", "login",
    "credential", "held_secrets", "sockets", "masked", "abstract", "listeners", "domains", "processes",
    "shared_memory", "terminal", "user_namespaces", "kernel_surface", "privileges", "limits", "names",
    "read_only", "settings", "project", "protected", "survivors",
]  # fmt: skip
DRIVER = """
import json, os, sys
sys.path.insert(0, {source!r})
from claudebox.commands import rehearsal
from claudebox.commands.verify import verify
from claudebox.settings.layers import parse_arguments
from claudebox.run import prepare, terminal
from claudebox.plan import explain
from claudebox.plan.records import Mount, Variable
from claudebox.network.records import AllowedDomain
from claudebox.agent.claude import CLAUDE
HOME = os.environ["HOME"]
NOTHING = bytes.fromhex("060000000000ff7f")  # a filter that allows everything
def spec(plan):
    return json.loads(next(row.content for row in plan.mounts if row.dest.endswith("probe.json")))
def without(plan, *namespaces):
    return plan.replace(namespaces=tuple(name for name in plan.namespaces if name not in namespaces))
def rows(plan, keep=lambda row: True, more=()):
    return plan.replace(mounts=tuple(sorted((*filter(keep, plan.mounts), *more), key=lambda row: row.dest.split("/"))))
def show(path):
    return Mount(path, "ro-bind", "broken on purpose", path)
def held(plan):
    return plan.broker.models[0].login
def changed(plan, dest, **what):
    return plan.replace(mounts=tuple(r.replace(**what) if r.dest == dest else r for r in plan.mounts))
def listed(plan, name):
    proxy = plan.broker.proxy.replace(domains=(AllowedDomain(name, "broken on purpose"),))
    return plan.replace(broker=plan.broker.replace(proxy=proxy))
def open_more(plan, canaries):
    prepared = prepare.prepare(plan)
    return prepared.replace(descriptors=(*prepared.descriptors, prepare.own(os.dup(canaries.descriptor))))
def as_they_are(plan):
    terminal._carry = lambda descriptors, filtered: None
    return plan
environ = dict(os.environ)
found = verify.examine(environ, rehearsal.read_examined(parse_arguments(["--verify", *{flags!r}]), environ), {seam})
print(json.dumps({{row.promise: [row.status, row.detail] for row in found}}))
"""


SECRETIVE = """\
network = "allow"
allow_domains = ["api.example.org"]
[[secrets]]
env = "SERVICE_TOKEN"
hosts = ["api.example.org"]
from = "env:SERVICE_TOKEN"
"""


@dataclass(frozen=True)
class Break:
    """A protection to take away, and the promises that are then broken."""

    seam: str
    broken: str
    flags: tuple[str, ...] = ()


BREAKS = {
    "a variable of the host enters": Break(
        "alter=lambda p: p.replace(variables=(*p.variables, Variable('X', os.environ['CLAUDEBOX_CANARY'], 'x', 'x')))",
        "environment memory",
    ),
    "a value stands in the arguments": Break(
        "alter=lambda p: p.replace(command=(*p.command, os.environ['CLAUDEBOX_CANARY']))", "arguments memory"
    ),
    "a descriptor is inherited": Break("prepare=open_more", "descriptors"),
    "files are handed in": Break("alter=as_they_are", "redirected"),
    "nothing is filtered": Break(
        "alter=lambda p: p.replace(seccomp=NOTHING)", "keyrings terminal kernel_surface"
    ),
    "nothing is filtered and namespaces are allowed": Break(
        "alter=lambda p: p.replace(seccomp=NOTHING, disable_userns=False)",
        "keyrings terminal kernel_surface user_namespaces",
    ),
    "a hidden place is shown": Break("alter=lambda p: rows(p, more=[show(os.environ['HOME'] + '/.ssh')])", "hidden"),
    "a planted secret is shown": Break("alter=lambda p: rows(p, more=[show(spec(p)['secrets'][-1])])", "secrets"),
    "the host's login is shown": Break(
        "alter=lambda p: changed(p, CLAUDE.login + '/store', kind='ro-bind', source=HOME + '/.claude')",
        "login",
    ),
    "what the broker holds enters as a variable": Break(
        "alter=lambda p: p.replace(variables=(*p.variables, Variable('X', open(held(p)).read(), 'x', 'x')))",
        "credential environment",
    ),
    "what the broker holds enters as a file": Break(
        "alter=lambda p: rows(p, more=[Mount('/run/claudebox/x', 'ro-bind', 'broken', held(p))])", "credential"
    ),
    "a socket is shown": Break("alter=lambda p: rows(p, more=[show(spec(p)['sockets'][0])])", "sockets"),
    "a socket of the project is not masked": Break(
        "alter=lambda p: rows(p, lambda row: row.dest not in spec(p)['sockets'])", "sockets"
    ),
    "a file with a secret is not masked": Break(
        "alter=lambda p: rows(p, lambda row: row.kind != 'copy')", "masked", ("--set", "project_secrets=mask")
    ),
    "abstract sockets are not scoped": Break("alter=lambda p: p.replace(scoped=False)", "abstract"),
    "the network is shared": Break("alter=lambda p: without(p, 'net')", "listeners settings", ("--network", "none")),
    "every name may be reached": Break(
        "alter=lambda p: listed(p, 'claudebox.invalid')", "domains", ("--network", "allow")
    ),
    "addresses may be reached": Break(
        "alter=lambda p: without(p, 'net').replace(link=None)", "listeners domains settings", ("--network", "allow")
    ),
    "processes of the host are listed": Break(
        "alter=lambda p: changed(p, '/proc', kind='bind', source='/proc')", "arguments privileges"
    ),
    "shared memory is shared": Break("alter=lambda p: without(p, 'ipc')", "shared_memory"),
    "nothing is masked": Break("alter=lambda p: rows(p, lambda row: row.kind != 'mask')", "names keyrings sockets"),
    "something read-only is writable": Break(
        "alter=lambda p: changed(p, os.environ['EXTRA'], kind='bind')", "read_only settings", ("--mount-ro", "../extra")
    ),
    "something else is mounted": Break(
        "alter=lambda p: changed(p, os.environ['EXTRA'], source='/usr/bin', pinned=None)", "settings",
        ("--mount-ro", "../extra"),
    ),
    "a variable has another value": Break(
        "alter=lambda p: p.replace(variables=tuple(r.replace(value='other') if r.name == 'PAGER' else r "
        "for r in p.variables))", "settings", ("--env", "PAGER=cat")
    ),
    "the value of a secret enters": Break(
        "alter=lambda p: p.replace(variables=(*p.variables, Variable('X', spec(p)['held'][::-1], 'x', 'x')))",
        "held_secrets environment", ("--profile", "secretive")
    ),
    "something more is writable": Break(
        "alter=lambda p: rows(p, more=[Mount('/srv', 'bind', 'broken', os.environ['EXTRA'])])", "read_only"
    ),
    "the project is read-only": Break("alter=lambda p: changed(p, p.workdir, kind='ro-bind')", "project"),
    "nothing is protected": Break(
        "alter=lambda p: rows(p, lambda row: row.role != 'protected')", "protected read_only"
    ),
    "what is missing is not protected": Break(
        "alter=lambda p: rows(p, lambda row: not row.dest.endswith('.mcp.json'))", "protected read_only"
    ),
}  # fmt: skip


def prepare(box):
    """Give the box what the promises are about."""
    repositories.make(box)
    box.write(f"{box.home}/.ssh/id", "key")
    login = {"claudeAiOauth": {"accessToken": "a", "refreshToken": "r", "expiresAt": 1}}
    box.write(f"{box.home}/.claude/.credentials.json", json.dumps(login))
    box.environ["EXTRA"] = box.mkdir(f"{box.base}/extra")
    box.environ["TMPDIR"] = box.mkdir(f"{box.base}/t")
    box.environ["SERVICE_TOKEN"] = "the-value-that-stays-outside"
    box.write(f"{box.home}/.claudebox/profiles/secretive.toml", SECRETIVE)
    for directory in (f"{box.home}/.claudebox", f"{box.home}/.claudebox/profiles"):
        os.chmod(directory, 0o700)


@pytest.mark.accounts
@pytest.mark.parametrize("tier", ["full", "allow", "none", "secretive"])
def test_every_promise_is_held_by_a_real_launch_and_nothing_is_left(box, tier):
    # proves SEC-05, E08, SECR-01
    prepare(box)
    before = entries(box.base)
    flags: tuple[str, ...] = ("--profile", "secretive") if tier == "secretive" else ("--network", tier)
    flags += ("--set", "project_secrets=mask") if tier in ("none", "secretive") else ()
    result = box.claudebox("--verify", "--json", *flags)
    assert result.stdout, result.stderr
    report = json.loads(result.stdout)
    rows = {row["promise"]: row for row in report["promises"]}

    assert result.returncode == 0, result.stdout
    assert report["ok"]
    assert list(rows) == PROMISES
    open_by_design = {
        "full": {"listeners", "domains", "held_secrets", "masked"},
        "allow": {"held_secrets", "masked"},
        "none": {"domains", "held_secrets"},
        "secretive": set(),
    }[tier]
    assert {name for name, row in rows.items() if row["status"] != "held"} == open_by_design
    assert all(row["proves"] for row in rows.values())
    # Where sessions find each other stays: another one may have come to use it.
    left = {entry for entry in entries(box.base) if "/.claudebox/live" not in entry}
    assert left == before
    assert journal(box) == []


def explained(result):
    """Return the rows of a plan that a setting can change."""
    document = json.loads(result.stdout)
    mounts = {row["dest"]: row["access"] for row in document["mounts"] if "/probe." not in row["dest"]}
    return document["network"], mounts, {row["name"]: row["value"] for row in document["variables"]}


@pytest.mark.parametrize(
    "flags",
    [(), ("--profile", "secretive"), ("--profile", "strict"), ("--network", "none", "--mount-ro", "../extra")],
    ids=["nothing", "a profile", "a built-in profile", "flags"],
)
def test_what_is_verified_is_what_a_launch_gets(user_box, flags):
    # proves HOUSE-01, E07
    prepare(user_box)
    user_box.write(f"{user_box.home}/.claudebox/config.toml", f'allow = [".vscode"]\n[env]\nPAGER = "{flags!r}"\n')
    launched = user_box.claudebox("--explain", "--json", *flags, "--exec", "--", "true")
    assert launched.returncode == 0, launched.stderr
    code = DRIVER.format(
        source=f"{os.path.dirname(os.path.dirname(user_box.program))}/src",
        flags=flags,
        seam="alter=lambda p: print(explain.as_json(p)) or sys.exit(0)",
    )
    verified = user_box.host("/usr/bin/python3", "-ISc", f"{code}")

    network, mounts, variables = explained(verified)
    planted = {dest for dest in mounts if "/.canary-" in dest}
    assert planted
    mounts = {dest: access for dest, access in mounts.items() if dest not in planted}
    assert (network, mounts, variables) == explained(launched)
    assert variables["PAGER"] == repr(flags)


def test_files_and_profile_are_examined_and_named(user_box):
    # proves HOUSE-01, PROF-01, UX-05
    prepare(user_box)
    user_box.write(f"{user_box.home}/.claudebox/config.toml", 'network = "none"\n')
    user_box.write(".claudebox.toml", 'network = "full"\n')
    report = user_box.claudebox("--verify", "--json")
    wanted = {"project": user_box.project, "profile": None, "network": "none",
              "files": ["~/.claudebox/config.toml", ".claudebox.toml"]}  # fmt: skip
    assert json.loads(report.stdout)["examined"] == wanted
    assert ".claudebox.toml is not approved" in report.stderr
    assert json.loads(user_box.claudebox("--check", "--json").stdout)["examined"] == wanted

    for verb in ("--verify", "--check"):
        lines = user_box.claudebox(verb, "--profile", "strict").stdout.splitlines()
        assert lines[0] == f"project   {user_box.project}"
        assert lines[1].startswith("settings  ~/.claudebox/config.toml, built-in strict.toml, .claudebox.toml")
        assert lines[1].endswith("profile strict (from --profile)")
        assert lines[2].startswith("network   ")


def test_verify_runs_no_command_of_the_user_and_uses_none_of_their_values(user_box):
    # proves SECR-01, HOUSE-01
    prepare(user_box)
    ran = user_box.mkdir(f"{user_box.base}/ran")
    command = f"command:touch {ran}/$1"
    text = SECRETIVE.replace("env:SERVICE_TOKEN", command)
    text += f'[git_credential]\nhost = "git.example.org"\ntoken = "{command} git"\n'
    user_box.write(f"{user_box.home}/.claudebox/profiles/secretive.toml", text)
    result = user_box.claudebox("--verify", "--json", "--profile", "secretive")
    rows = {row["promise"]: row for row in json.loads(result.stdout)["promises"]}

    assert rows["held_secrets"]["status"] == "held", rows["held_secrets"]
    assert os.listdir(ran) == []
    started = user_box.sh("true", flags=("--profile", "secretive"))
    assert "gave no token" in started.stderr  # the control: a launch runs it
    assert os.listdir(ran) != []


@pytest.mark.parametrize(
    ("flags", "config"),
    [
        (("--profile", "no-such"), ""),
        ((), "network = 5\n"),
        ((), 'profile = "no-such"\n'),
        (("--env", "A B"), ""),
        (("--mount-ro", "~/.ssh"), ""),
        (("--mount-ro", "/nonexistent"), ""),
        (("--network", "full", "--profile", "secretive"), ""),
    ],
)
def test_verify_and_check_fail_as_the_launch_does(user_box, flags, config):
    # proves HOUSE-01, UX-05
    prepare(user_box)
    if config:
        user_box.write(f"{user_box.home}/.claudebox/config.toml", config)
    before = entries(user_box.base)
    launch = user_box.claudebox("-y", *flags, "--exec", "--", "true")
    verify = user_box.claudebox("--verify", *flags)
    check = user_box.claudebox("--check", *flags)

    assert launch.returncode == 125
    assert (verify.returncode, verify.stderr, verify.stdout) == (125, launch.stderr, "")
    message = launch.stderr.splitlines()[0].removeprefix("error: ")
    assert check.returncode in (1, 125)
    assert message in (check.stderr if check.returncode == 125 else check.stdout)
    assert entries(user_box.base) == before


def test_the_report_is_one_line_per_promise_with_a_summary(user_box):
    # proves SEC-05
    prepare(user_box)
    result = user_box.claudebox("--verify")
    lines = result.stdout.splitlines()
    assert len([line for line in lines if line.startswith(("held", "BROKEN", "not testable"))]) == len(PROMISES)
    assert lines[-1] == f"{len(PROMISES) - 4} promises held, 0 broken, 4 not testable here"
    assert all(line.isprintable() for line in lines)


@every_case("name", BREAKS, as_root=8)
def test_a_broken_protection_is_reported_as_broken(box, name):
    # proves SEC-05, E08
    prepare(box)
    case = BREAKS[name]
    source = f"{os.path.dirname(os.path.dirname(box.program))}/src"
    code = DRIVER.format(source=source, flags=case.flags, seam=case.seam)
    result = box.host("/usr/bin/python3", "-ISc", code)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    broken = {promise for promise, (status, _) in found.items() if status == "broken"}
    assert broken == set(case.broken.split()), found


def test_processes_that_are_shared_start_nothing(box):
    # proves E08, A06
    prepare(box)
    source = f"{os.path.dirname(os.path.dirname(box.program))}/src"
    code = DRIVER.format(source=source, flags=(), seam="alter=lambda p: without(p, 'pid')")
    code = f"import claudebox.run.start; claudebox.run.start._FILTER_TIMEOUT = 1\n{code}"
    result = box.host("/usr/bin/python3", "-ISc", f"import sys; sys.path.insert(0, {source!r})\n{code}")
    assert result.returncode == 1
    assert "nothing was started" in result.stderr


def test_a_process_that_outlives_its_sandbox_is_found_and_ended(user_box, background):
    # proves SAND-15, E12
    from claudebox.commands.verify import verify as verify_verify

    assert not verify_verify._survives("leftover-none")
    left = background(user_box, "/usr/bin/python3", "-ISc", "import time; time.sleep(60)", "leftover-found")
    # A program that was just started has no arguments yet for a moment.
    wait_until(lambda: verify_verify._has_argument(str(left.pid), "leftover-found"), "the process has its arguments")
    assert verify_verify._survives("leftover-found")
    assert left.wait(timeout=30) == -9


def test_the_probe_outside_of_a_sandbox_finds_everything_broken(box, background):
    # proves SEC-05
    probe = f"{os.path.dirname(os.path.dirname(box.program))}/src/claudebox/commands/verify/probe.py"
    spec = {"token": "nekot", "leftover": "x", "variables": {}, "hidden": [], "read_only": [box.home], "writable": [],
            "workdir": "/nonexistent", "project": "/nonexistent", "protected": [box.write("protected")],
            "process": background(box, "sleep", "60").pid}  # fmt: skip
    result = box.host("/usr/bin/python3", "-IS", probe, box.write("spec", json.dumps(spec)), env={"A": "token"})
    rows = {row["promise"]: row["status"] for row in map(json.loads, result.stdout.splitlines())}
    for promise in ("environment", "keyrings", "terminal", "kernel_surface", "privileges", "limits", "names",
                    "processes", "read_only", "project", "protected"):  # fmt: skip
        assert rows[promise] == "broken", promise


# A library that stays open from the import of ctypes on, as libffi 3.8 keeps its own.
KEPT_OPEN = """
import importlib.abc, json, os, runpy, sys
class Library(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "ctypes":
            os.open("/etc/passwd", os.O_RDONLY | os.O_CLOEXEC)
sys.meta_path.insert(0, Library())
sys.argv = ["probe", sys.argv[2]]
runpy.run_path({probe!r}, run_name="__main__")
"""


def test_neither_a_library_that_stays_open_nor_a_number_0_misleads_the_probe(user_box):
    # proves HOST-24
    probe = f"{os.path.dirname(os.path.dirname(user_box.program))}/src/claudebox/commands/verify/probe.py"
    spec = {
        "token": "nekot",
        "leftover": "x",
        "variables": {},
        "hidden": [],
        "read_only": [],
        "writable": [],
        "workdir": "/nonexistent",
        "project": "/nonexistent",
        "protected": [],
        "shared_memory": 0,
    }  # fmt: skip - which is the first number of a machine
    words = ("-", user_box.write("spec", json.dumps(spec)))
    script = user_box.write("driver.py", KEPT_OPEN.format(probe=probe))

    result = user_box.host("/usr/bin/python3", "-IS", script, *words)
    rows = {row["promise"]: row["status"] for row in map(json.loads, result.stdout.splitlines())}

    assert rows["keyrings"] != "untestable", result.stderr  # so that ctypes was used in the end
    assert rows["descriptors"] == "held"
    assert rows["shared_memory"] != "untestable"


def test_a_probe_that_does_not_answer_holds_nothing(user_box):
    # proves E08
    prepare(user_box)
    source = f"{os.path.dirname(os.path.dirname(user_box.program))}/src"
    seam = "alter=lambda p: p.replace(command=('/bin/true',))"
    code = DRIVER.format(source=source, flags=(), seam=seam)
    found = json.loads(user_box.host("/usr/bin/python3", "-ISc", code).stdout.splitlines()[-1])
    assert {status for status, _ in found.values()} == {"broken"}


def test_without_python_inside_nothing_is_called_held(user_box):
    # proves SEC-05
    prepare(user_box)
    source = f"{os.path.dirname(os.path.dirname(user_box.program))}/src"
    code = DRIVER.format(source=source, flags=(), seam="")
    code = code.replace("environ = dict", "verify._python = lambda _: ''\nenviron = dict")
    result = user_box.host("/usr/bin/python3", "-ISc", code)
    assert "`--verify` needs Python inside" in result.stderr


def test_a_project_that_the_user_cannot_write_breaks_no_promise(user_box):
    # proves SEC-05, SAND-05
    os.chmod(user_box.project, 0o555)
    result = user_box.claudebox("--verify", "--network", "none")
    os.chmod(user_box.project, 0o755)
    assert result.returncode == 0, result.stdout
    assert "not testable  the project is writable (SAND-05): you cannot write the project either" in result.stdout


def test_a_directory_that_is_no_project_is_not_verified(user_box):
    # proves SAND-05
    result = user_box.claudebox("--verify", cwd=user_box.home)
    assert result.returncode == 125
    assert "cannot be a project" in result.stderr or "contains your home" in result.stderr
    assert not Path(user_box.home, ".claudebox").exists()
    assert shutil.which("bwrap")
