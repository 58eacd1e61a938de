"""Nothing of the host's environment enters unless a rule names it, by whatever way an environment can be read."""

from __future__ import annotations

import json
import os
import subprocess
import uuid

import pytest
from tests.conftest import wait_until
from tests.support.sandbox import PROBES, PYTHON

CANARY = "canary-7f3a"

# Names that carry tokens, among them relatives of those that do enter (A13).
TREACHEROUS = (
    "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "GH_TOKEN", "NPM_TOKEN", "npm_config__authToken", "PIP_INDEX_URL",
    "NIX_CONFIG", "GIT_CONFIG_COUNT", "GIT_CONFIG_VALUE_0",
    "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS",
    "LC_TOKEN", "LC_X", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY",
    "XAUTHORITY", "OLDPWD", "DATABASE_URL", "VAULT_TOKEN", "TERM_PROGRAM_X", "TERMCAP", "EDITOR_TOKEN",
)  # fmt: skip
# Made by claudebox, so a value of the host must not show through (D-04).
MADE = ("USER", "LOGNAME", "SHELL", "XDG_RUNTIME_DIR", "TMPDIR", "PWD", "CLAUDEBOX")
PASSED = ("TERM", "EDITOR", "LANG", "LC_ALL", "LC_TIME", "COLORTERM", "NO_COLOR", "TZ", "LESS", "ANTHROPIC_MODEL")


def variables(output: str) -> dict[str, str]:
    """Read what `env` printed."""
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)


def test_host_variables_do_not_enter_however_they_are_called(box):
    # proves SAND-02, SAND-03, A01, A13
    canaries = {name: f"{CANARY}-{name}" for name in TREACHEROUS}
    canaries["ANTHROPIC_CUSTOM_HEADERS"] = f"X-Header: {CANARY}"  # its form is looked at

    inside = box.sh("env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'", env=canaries)
    control = box.host("env", env=canaries)

    assert control.stdout.count(CANARY) == len(TREACHEROUS)
    assert inside.returncode == 0, inside.stderr
    assert "HOME=" in inside.stdout  # so the environment was read
    assert CANARY not in inside.stdout


def test_no_process_inside_holds_a_host_secret_in_environment_command_line_or_memory(box, naive, probe):
    # proves SAND-02, A01, A02, A03
    script = probe(box, "secrets_of_processes.py")
    word = uuid.uuid4().hex
    halves = (word[:16], word[16:])
    # In the control the secret reaches the process that starts bwrap, and `--clearenv` is all that hides it.
    box.environ["CANARY"] = word

    control = naive(box, PYTHON, script, *halves, options=("--clearenv", "--setenv", "PATH", "/usr/bin"))
    inside = box.run(PYTHON, script, *halves)

    assert "found /proc/1/environ" in control.stdout, control.stderr
    assert "found memory of 1" in control.stdout
    assert inside.returncode == 0, inside.stderr
    lines = inside.stdout.splitlines()
    assert [line for line in lines if line.startswith("found")] == []
    assert int(next(line for line in lines if line.startswith("looked")).split()[1]) >= 8
    assert int(next(line for line in lines if line.startswith("memory ")).split()[1]) > 100_000


def test_first_process_has_no_environment_and_no_mounts_in_its_command_line(box):
    # proves SAND-02, A01, A02
    source = f"{box.base}/extra-mount-source"
    os.mkdir(source)
    box.environ["WANTED"] = "value-that-enters"

    result = box.sh(
        "wc -c </proc/1/environ; tr '\\0' ' ' </proc/1/cmdline",
        flags=("--env", "WANTED", "--mount-ro", f"{source}:/data"),
    )

    size, command_line = result.stdout.split("\n", 1)
    assert int(size) == 0
    assert command_line.startswith("bwrap --args ")
    for leak in ("bind", "setenv", "value-that-enters", source, box.home):
        assert leak not in command_line


def test_other_users_see_no_value_and_no_mount_in_the_process_list(box, background):
    # proves SAND-02, A02
    word = uuid.uuid4().hex
    ready = f"{box.project}/ready"
    extra = box.mkdir(f"{box.base}/extra")
    process = background(
        box, box.program, "-y", "--env", "WANTED", "--mount-ro", f"{extra}:/extra-of-the-host", "--exec", "--",
        "sh", "-c", f"touch ready; read x; echo {word[:8]}", env={"WANTED": word}, stdin=subprocess.PIPE,
    )  # fmt: skip
    wait_until(lambda: os.path.exists(ready), "the session begins")
    listing = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    process.communicate("\n", timeout=20)

    assert process.returncode == 0
    assert word[:8] in listing  # the sandbox was running and is in the list
    assert word not in listing
    assert not [line for line in listing.splitlines() if line.startswith("bwrap") and "extra-of-the-host" in line]


def test_variables_inside_are_exactly_those_that_the_plan_names(box):
    # proves SAND-03, D-04
    given = {name: f"host-{name}" for name in (*PASSED, *MADE)}
    given["ANTHROPIC_API_KEY"] = "host-key"

    plan = json.loads(box.claudebox("--explain", "--json", "--exec", "--", "true", env=given).stdout)
    inside = variables(box.run("env", env=given).stdout)

    named = {row["name"]: row for row in plan["variables"]}
    assert set(inside) - {"PWD"} == set(named)
    assert {name: inside[name] for name in PASSED} == {name: given[name] for name in PASSED}
    assert {row["origin"] for name, row in named.items() if name not in PASSED} == {"claudebox"}
    assert inside["ANTHROPIC_API_KEY"] == "ssh-placeholder"
    assert not [name for name in MADE if inside.get(name) == given[name]]
    assert inside["HOME"] == box.home
    assert inside["PWD"] == box.project
    assert inside["TMPDIR"] == "/tmp"
    assert inside["XDG_RUNTIME_DIR"] == f"/run/user/{box.account.uid}"


def test_unset_variables_are_not_invented(user_box):
    # proves SAND-03
    user_box.environ = {}
    inside = variables(user_box.run("env").stdout)

    assert not {"EDITOR", "LANG", "LC_ALL", "ANTHROPIC_API_KEY", "COLORTERM", "NO_COLOR"} & set(inside)
    assert "TERM" in inside  # set by the fixture: the control


@pytest.mark.parametrize("way", ["flag", "variable"])
def test_named_variables_enter_and_loaders_are_marked(user_box, way):
    # proves D-03, A16
    given = {"WANTED": "some value", "BASH_ENV": "/dev/null", "OTHER": "stays out"}
    flags: tuple[str, ...] = ()
    if way == "flag":
        flags = ("--env", "WANTED", "--env=BASH_ENV", "--env", "NOT_SET")
    else:
        given["CLAUDEBOX_EXTRA_ENV"] = "WANTED, BASH_ENV,,NOT_SET"

    result = user_box.run("env", flags=flags, env=given)

    inside = variables(result.stdout)
    assert result.returncode == 0, result.stderr
    assert inside["WANTED"] == "some value"
    assert inside["BASH_ENV"] == "/dev/null"
    assert not {"OTHER", "NOT_SET", "CLAUDEBOX_EXTRA_ENV"} & set(inside)
    line = next(line for line in result.stderr.splitlines() if line.split()[:2] == ["warning", "BASH_ENV"])
    assert "changes what programs load" in line


def test_strange_names_and_values_in_the_host_environment_do_no_harm(box):
    # proves A14
    strange = {b"a\nb": b"1", b"\xff\xfe": b"2", b"--bind": b"/", b"WANTED": b"\xff\n\x1b]0;x\x07", b"LANG": b"\xe9"}
    environment = {os.fsencode(name): os.fsencode(value) for name, value in box.variables().items()} | strange

    command = [box.program, "-y", "--env", "WANTED", "--exec", "--", "/usr/bin/python3", "-c"]
    script = "import os; print(sorted(os.environb.items()))"
    result = subprocess.run(
        [*command, script], cwd=box.project, env=environment, capture_output=True, check=False, **box.account.demotion
    )

    assert result.returncode == 0, result.stderr
    inside = dict(eval(result.stdout))
    assert inside[b"WANTED"] == strange[b"WANTED"]
    assert inside[b"LANG"] == b"\xe9"
    assert not set(inside) & {b"a\nb", b"\xff\xfe", b"--bind"}
    assert b"\x1b]" not in result.stderr


def test_libraries_that_the_host_preloads_are_not_loaded_by_bwrap(box, naive):
    # proves A15
    mark = f"{box.project}/mark"
    library = f"{box.base}/preload.so"
    source = str(PROBES / "preload.c")
    subprocess.run(["gcc", "-shared", "-fPIC", f'-DMARK="{mark}"', "-o", library, source], check=True)
    box.environ["LD_PRELOAD"] = library

    def loaded() -> list[str]:
        try:
            with open(mark, encoding="utf-8") as file:
                return file.read().split()
        except FileNotFoundError:
            return []

    with open(mark, "w", encoding="utf-8"):  # what gives up root for the box loads it, too
        os.chmod(mark, 0o666)
    naive(box, "/usr/bin/true")
    control = loaded()
    os.unlink(mark)
    result = box.run("/usr/bin/true", **box.account.demotion)

    assert "/usr/bin/bwrap" in control
    assert result.returncode == 0, result.stderr
    # The user's own shell would load it into the interpreter too; nothing that claudebox starts may.
    assert not [program for program in loaded() if "python" not in program]


def test_path_inside_has_no_directory_that_can_be_written(box):
    # proves SAND-10, C25
    script = 'IFS=:; for d in $PATH; do if touch "$d/x" 2>/dev/null; then echo "writable $d"; fi; echo "$d"; done'

    result = box.sh(script, env={"PATH": f"{box.project}:{box.home}/bin:/usr/local/bin:/usr/bin:/bin"})
    control = box.host("sh", "-c", script, env={"PATH": f"{box.project}:/usr/bin:/bin"})

    assert f"writable {box.project}" in control.stdout
    assert "writable" not in result.stdout
    directories = result.stdout.split()
    assert {"/usr/local/bin", "/usr/bin", "/bin"} <= set(directories)
    assert not [directory for directory in directories if directory.startswith((box.base, "/root", "/home"))]


def test_host_name_is_fixed_and_cannot_be_changed(box):
    # proves A17, H11
    result = box.sh("hostname; cat /etc/hostname; uname -n; hostname other; hostname; date -s 2001-01-01 >/dev/null; :")
    control = box.host("hostname")

    assert result.stdout.split() == ["claudebox"] * 4
    assert control.stdout.strip() != "claudebox"
    assert result.stderr.count("hostname: ") == 1
    assert "cannot set date" in result.stderr
