"""`--verify` reports the truth: everything held in a real launch, and each broken protection as broken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.run.test_stubs import entries, journal
from tests.support import repositories

from claudebox.commands.verify.probe import PROMISES

WITHOUT_NIX = [name for name in PROMISES if name != "nix_daemon"]
DRIVER = """
import json, os, subprocess, sys, tempfile
sys.path.insert(0, {source!r})
from claudebox.commands import rehearsal
from claudebox.commands.verify import verify
from claudebox.settings.layers import parse_arguments
from claudebox.run import start, terminal
from claudebox.plan import explain
from claudebox.plan.records import Mount, Variable
from claudebox.network.records import AllowedDomain
from claudebox.agent.claude import CLAUDE
HOME = os.environ["HOME"]
def spec(plan):
    return json.loads(next(row.content for row in plan.mounts if row.dest.endswith("probe.json")))
def without(plan, *namespaces):
    return plan.replace(namespaces=tuple(name for name in plan.namespaces if name not in namespaces))
def rows(plan, keep=lambda row: True, more=()):
    return plan.replace(mounts=tuple(sorted((*filter(keep, plan.mounts), *more), key=lambda row: row.dest.split("/"))))
def show(path, at="", kind="ro-bind"):
    return Mount(at or path, kind, "broken on purpose", path)
def changed(plan, dest, **what):
    return plan.replace(mounts=tuple(r.replace(**what) if r.dest == dest else r for r in plan.mounts))
{code}
environ = dict(os.environ)
found = verify.examine(environ, rehearsal.read_examined(parse_arguments(["--verify", *{flags!r}]), environ), {seam})
print(json.dumps({{row.promise: [row.status, row.detail] for row in found}}))
"""
SECRETIVE = """\
network = "allow"
allow_domains = ["api.example.org"]
project_secrets = "mask"
[[secrets]]
env = "SERVICE_TOKEN"
hosts = ["api.example.org"]
from = "env:SERVICE_TOKEN"
"""


def prepare(box):
    """Give the box what the promises are about."""
    repositories.make(box)
    box.write(f"{box.home}/.ssh/id", "key")
    box.write("app/.env", "TOKEN=real-0Va1ue-of-the-user\n")
    login = {"claudeAiOauth": {"accessToken": "a", "refreshToken": "r", "expiresAt": 1}}
    box.write(f"{box.home}/.claude/.credentials.json", json.dumps(login))
    box.environ["EXTRA"] = box.mkdir(f"{box.base}/extra")
    box.environ["TMPDIR"] = box.mkdir(f"{box.base}/t")
    box.environ["SERVICE_TOKEN"] = "the-value-that-stays-outside"
    box.write(f"{box.home}/.claudebox/profiles/secretive.toml", SECRETIVE)
    for directory in (f"{box.home}/.claudebox", f"{box.home}/.claudebox/profiles"):
        os.chmod(directory, 0o700)


def drive(box, *flags, code="", seam=""):
    """Run `--verify` with a change."""
    source = f"{os.path.dirname(os.path.dirname(box.program))}/src"
    return box.host(
        "/usr/bin/python3", "-ISc", DRIVER.format(source=source, flags=flags, code=code, seam=seam), close_fds=False
    )


def broken(result):
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    return {promise for promise, (status, _) in found.items() if status == "broken"}, found


@pytest.mark.accounts
@pytest.mark.parametrize("tier", ["full", "none", "secretive"])
def test_every_promise_is_held_by_a_real_launch_and_nothing_is_left(box, tier):
    # proves SEC-05, E08, SECR-01
    prepare(box)
    before = entries(box.base)
    flags = ("--profile", "secretive") if tier == "secretive" else ("--network", tier)
    result = box.claudebox("--verify", "--json", *flags)
    assert result.stdout, result.stderr
    report = json.loads(result.stdout)
    rows = {row["promise"]: row for row in report["promises"]}

    assert result.returncode == 0, result.stdout
    assert "claudebox:" not in result.stderr, "what the probe tried is in the report alone"
    assert report["ok"]
    assert list(rows) == WITHOUT_NIX
    open_by_design = {
        "full": {"listeners", "domains", "held_secrets"},
        "none": {"domains", "held_secrets"},
        "secretive": set(),
    }[tier]
    assert {name for name, row in rows.items() if row["status"] != "held"} == open_by_design
    assert all(row["proves"] for row in rows.values())
    # Where sessions find each other stays: another one may have come to use it.
    left = {entry for entry in entries(box.base) if "/.claudebox/live" not in entry}
    assert left == before
    assert journal(box) == []


def test_values_of_masked_files_are_looked_for_in_files_and_in_git(user_box):
    # proves MASK-01
    prepare(user_box)
    checkout = repositories.Checkout(user_box)
    value = "s3cr3t-0f-the-user"

    def verify(*flags: str) -> tuple[int, dict[str, str]]:
        result = user_box.claudebox("--verify", "--json", *flags)
        rows = {row["promise"]: row for row in json.loads(result.stdout)["promises"]}
        assert value not in result.stdout
        return result.returncode, rows["masked"]

    user_box.write("app/.env", f"TOKEN={value}\n")
    assert verify()[1]["status"] == "held"
    assert verify("--project-secrets", "show")[1]["status"] == "untestable"
    user_box.write("notes.txt", f"the token is {value}, I think\n")
    status, row = verify()
    assert (status, row["status"]) == (1, "broken")
    assert row["detail"] == f"the value at .env:1 can be read in {user_box.project}/notes.txt"
    checkout.sh("git add notes.txt; git commit -qm oops; git rm -q notes.txt; git commit -qm undo; git gc -q")
    assert verify()[1]["detail"] == "the value at .env:1 can be read in an object of git"
    user_box.write("app/.env", f"TOKEN={value[::-1]}\n")
    assert verify()[1]["status"] == "held", "once it is replaced"


@pytest.mark.parametrize(("tier", "agent"), [("full", "opencode"), ("none", "codex"), ("allow", "gemini")])
def test_the_key_or_login_of_another_agent_is_not_inside_either(user_box, tier, agent):
    # proves AUTH-01
    user_box.write(f"{user_box.home}/.codex/auth.json", json.dumps({"OPENAI_API_KEY": "k" * 20}), mode=0o600)
    tokens = {"access_token": "a" * 20, "refresh_token": "r" * 20, "expiry_date": 1 << 43}
    user_box.write(f"{user_box.home}/.gemini/oauth_creds.json", json.dumps(tokens), mode=0o600)
    env = {"ANTHROPIC_API_KEY": "sk-ant", "OPENAI_API_KEY": "sk-x"} if agent == "opencode" else {}
    result = user_box.claudebox("--verify", "--json", "--network", tier, agent, env=env)
    rows = {row["promise"]: row["status"] for row in json.loads(result.stdout)["promises"]}

    assert result.returncode == 0, result.stdout
    assert rows["credential"] == "held"


ON_THE_HOST = """
def run_on_the_host(planned, values):
    paths = []
    with tempfile.TemporaryDirectory() as place:
        for row in planned.plan.mounts:
            if row.dest.startswith("/run/claudebox/probe."):
                paths.append(f"{place}/{os.path.basename(row.dest)}")
                open(paths[-1], "wb").write(row.content.replace(b'"/run", "/etc", "/tmp", "/dev/shm", ', b""))
        subprocess.run(["/usr/bin/python3", "-IS", *sorted(paths, reverse=True)], close_fds=False)
"""


@pytest.mark.accounts
def test_on_the_host_every_probe_finds_what_it_looks_for(box):
    # proves SEC-05
    prepare(box)
    found, rows = broken(drive(box, "--profile", "secretive", code=ON_THE_HOST, seam="try_out=run_on_the_host"))

    # A secret has no file on the host, and a login is elsewhere there.
    assert set(WITHOUT_NIX) - found == {"login", "held_secrets", "memory", "project"}, rows
    assert "still running" in rows["survivors"][1]


# Protections that are taken away in one launch, and the promises that are then broken.
BREAKS = {
    "what enters": (
        """def alter(plan):
    terminal._carry = lambda descriptors, filtered: None  # files are handed in
    home = os.environ["HOME"]
    plan = plan.replace(variables=(*plan.variables, Variable("X", os.environ["CLAUDEBOX_CANARY"], "x", "x"),
                                   Variable("Y", spec(plan)["held"][::-1], "x", "x")))
    plan = changed(plan, CLAUDE.extras.login + "/store", kind="ro-bind", source=home + "/.claude")
    plan = rows(plan, lambda row: row.kind != "copy" and row.dest not in spec(plan)["sockets"],
                [show(plan.broker.models[0].login, "/run/claudebox/x"), show(home + "/.ssh")])
    proxy = plan.broker.proxy.replace(domains=(AllowedDomain("claudebox.invalid", "broken on purpose"),))
    return plan.replace(broker=plan.broker.replace(proxy=proxy))
""",
        ("--profile", "secretive"),
        "environment memory held_secrets login masked sockets credential hidden domains redirected",
    ),
    "what is closed": (
        """def alter(plan):
    nothing = bytes.fromhex("060000000000ff7f")  # a filter that allows everything
    plan = without(plan, "net", "ipc").replace(seccomp=nothing, disable_userns=False, scoped=False)
    plan = changed(plan, os.environ["EXTRA"], kind="bind")
    plan = plan.replace(variables=tuple(r.replace(value="other") if r.name == "PAGER" else r for r in plan.variables))
    return rows(plan, lambda row: row.role != "protected" and row.kind != "mask",
                [show(os.environ["EXTRA"], "/srv", "bind")])
""",
        ("--network", "none", "--mount-ro", "../extra", "--env", "PAGER=cat"),
        """keyrings terminal kernel_surface user_namespaces abstract listeners settings shared_memory names sockets
        read_only protected""",
    ),
    "the processes": (
        "def alter(plan):\n    return changed(plan, '/proc', kind='bind', source='/proc')", (),
        "environment privileges",
    ),
    "a mount": (
        "def alter(plan):\n    return changed(plan, os.environ['EXTRA'], source='/usr/bin', pinned=None)",
        ("--mount-ro", "../extra"), "settings",
    ),
    "the project": (
        """def alter(plan):
    plan = rows(plan, lambda row: not row.dest.startswith(f"{plan.workdir}/"))
    return changed(plan, plan.workdir, kind="ro-bind").replace(stubs=())
""",
        (), "project protected sockets masked",
    ),
    "what is missing": (
        "def alter(plan):\n    return rows(plan, lambda row: not row.dest.endswith('.mcp.json'))", (),
        "protected read_only",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_broken_protections_are_reported_as_broken(box, name):
    # proves SEC-05, E08
    prepare(box)
    code, flags, promises = BREAKS[name]
    found, rows = broken(drive(box, *flags, code=code, seam="alter=alter"))
    assert found == set(promises.split()), rows


def test_processes_that_are_shared_start_nothing(box):
    # proves E08, A06
    prepare(box)
    result = drive(box, code="start._FILTER_TIMEOUT = 1", seam="alter=lambda p: without(p, 'pid')")
    assert result.returncode == 1
    assert "nothing was started" in result.stderr


def explained(result):
    """Return the rows of a plan that a setting can change."""
    document = json.loads(result.stdout)
    mounts = {row["dest"]: row["access"] for row in document["mounts"] if "/probe." not in row["dest"]}
    return document["network"], mounts, {row["name"]: row["value"] for row in document["variables"]}


def test_what_is_verified_is_what_a_launch_gets(user_box):
    # proves HOUSE-01, E07
    prepare(user_box)
    user_box.write(f"{user_box.home}/.claudebox/config.toml", 'allow = [".vscode"]\n[env]\nPAGER = "cat"\n')
    flags = ("--profile", "secretive", "--mount-ro", "../extra")
    launched = user_box.claudebox("--explain", "--json", *flags, "--exec", "--", "true")
    assert launched.returncode == 0, launched.stderr
    verified = drive(user_box, *flags, seam="alter=lambda p: print(explain.as_json(p)) or sys.exit(0)")

    network, mounts, variables = explained(verified)
    planted = {dest for dest in mounts if "/.canary-" in dest}
    assert planted
    mounts = {dest: access for dest, access in mounts.items() if dest not in planted}
    assert (network, mounts, variables) == explained(launched)
    assert variables["PAGER"] == "cat"


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
    [(("--profile", "no-such"), ""), ((), "network = 5\n"), (("--mount-ro", "~/.ssh"), "")],
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
    # proves SEC-05, SAND-05
    prepare(user_box)
    os.chmod(user_box.project, 0o555)
    result = user_box.claudebox("--verify")
    os.chmod(user_box.project, 0o755)
    assert result.returncode == 0, result.stdout  # a project that the user cannot write breaks no promise
    lines = result.stdout.splitlines()
    assert len([line for line in lines if line.startswith(("held", "BROKEN", "not testable"))]) == len(WITHOUT_NIX)
    assert lines[-1] == f"{len(WITHOUT_NIX) - 6} promises held, 0 broken, 6 not testable here"
    assert "not testable  the project is writable (SAND-05): you cannot write the project either" in lines
    assert all(line.isprintable() for line in lines)


# A library that stays open from the import of ctypes on, as libffi 3.8 keeps its own.
KEPT_OPEN = """
import importlib.abc, os, runpy, sys
class Library(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "ctypes":
            os.open("/etc/passwd", os.O_RDONLY | os.O_CLOEXEC)
sys.meta_path.insert(0, Library())
probe = runpy.run_path({probe!r})
probe["PROMISES"] = {{name: probe["PROMISES"][name] for name in ("descriptors", "keyrings", "shared_memory")}}
probe["main"].__globals__.update(probe)
probe["main"](sys.argv[1])
"""


def test_neither_a_library_that_stays_open_nor_a_number_0_misleads_the_probe(user_box):
    # proves HOST-24
    probe = f"{os.path.dirname(os.path.dirname(user_box.program))}/src/claudebox/commands/verify/probe.py"
    spec = user_box.write("spec", json.dumps({"shared_memory": 0}))  # which is the first number of a machine
    script = user_box.write("driver.py", KEPT_OPEN.format(probe=probe))

    result = user_box.host("/usr/bin/python3", "-IS", script, spec)
    rows = {row["promise"]: row["status"] for row in map(json.loads, result.stdout.splitlines())}

    assert rows["keyrings"] != "untestable", result.stderr  # so that ctypes was used in the end
    assert rows["descriptors"] == "held"
    assert rows["shared_memory"] != "untestable"


def test_a_probe_that_does_not_answer_holds_nothing(user_box):
    # proves E08
    prepare(user_box)
    found, _ = broken(drive(user_box, seam="alter=lambda p: p.replace(command=('/bin/true',))"))
    assert found == set(WITHOUT_NIX)


def test_without_python_inside_nothing_is_called_held(user_box):
    # proves SEC-05
    prepare(user_box)
    result = drive(user_box, code="verify._python = lambda _: ''")
    assert "`--verify` needs Python inside" in result.stderr


def test_a_directory_that_is_no_project_is_not_verified(user_box):
    # proves SAND-05
    result = user_box.claudebox("--verify", cwd=user_box.home)
    assert result.returncode == 125
    assert "cannot be a project" in result.stderr or "contains your home" in result.stderr
    assert not Path(user_box.home, ".claudebox").exists()
