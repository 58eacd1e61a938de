"""Bad and odd input: each gives a line for a user and never a traceback."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess

import pytest

NAMES = [
    "plain", "with space", "new\nline", "quo'te", 'dou"ble', "$(touch hijacked)", "`touch hijacked`", "%s%n",
    "-leading", "--", "\udcff\udcfe", "co:lon", "ta\tb", "back\\slash", "*", "[a]", "esc\x1b[31m", "ünïcödé",
    "bidi\u202e", "#hash", "~", "a=b", "!x", "...", "{a,b}", "x" * 200,
]  # fmt: skip


def failed(result, words: str = "") -> None:
    """Assert a clean failure: 125, one line of error, perhaps a hint, and nothing else."""
    assert result.returncode == 125, (result.returncode, result.stdout, result.stderr)
    assert "Traceback" not in result.stderr
    lines = result.stderr.split("\n")
    assert lines[0].startswith("error: ")
    assert all(line.isprintable() for line in lines)
    assert lines[1:] == [""] or (lines[1] == "" and lines[2].startswith("hint: ")), result.stderr
    assert words in lines[0], lines[0]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--env",), "`--env` needs a value"),
        (("--env", "A B=C"), "`A B` is not the name of a variable"),
        (("--env", "HOME"), "`HOME` is made by claudebox"),
        (("--env", "\udcff"), r"`\xff` is not the name of a variable"),
        (("--env", "x\nerror: y"), r"`x\nerror: y` is not the name of a variable"),
        (("--env", "\x1b]52;c;eA\x07"), r"`\x1b]52;c;eA\x07` is not the name of a variable"),
        (("--mount-rw", "missing\n\x1b"), r"missing\n\x1b`: there is no such file or directory"),
        (("--mount-ro", "/srv:/usr/bin"), "is claudebox's own"),
        (("--mount-ro", "/"), "would expose"),
        (("--network", "lan"), "not `lan`"),
        (("--exec",), "`--exec` needs a command"),
        (("--set", "inherit=../x"), "is not a name in ~/.claude"),
    ],
)
def test_bad_flags_are_refused_in_one_line(user_box, argv, words):
    # proves D-03, EXT-02, B14
    more = ("--exec", "--", "true") if len(argv) > 1 else ()
    failed(user_box.claudebox("-y", *argv, *more), words)


@pytest.mark.parametrize("closed", [(0,), (1, 2), (0, 1, 2)], ids=str)
def test_closed_standard_descriptors_are_filled_inside_and_out(user_box, closed):
    # proves A04
    redirections = " ".join(f"{descriptor}{'<' if descriptor == 0 else '>'}&-" for descriptor in closed)
    inside = 'a=$(cd /proc/$$/fd && readlink 0 1 2); echo "$a" >seen'
    result = user_box.host(
        "sh", "-c", f'"$0" "$@" {redirections}', user_box.program, "-y", "--exec", "--", "sh", "-c", inside
    )

    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    with open(f"{user_box.project}/seen", encoding="utf-8") as file:
        seen = file.read().splitlines()
    for descriptor in closed:
        assert seen[descriptor] == "/dev/null"


@pytest.mark.parametrize(
    "flags", [("--help",), ("--version",), ("--dry-run", "--shell"), ("--explain", "--shell"), ("--check",)]
)
def test_showing_to_nobody_is_no_failure(user_box, flags):
    script = 'exec "$0" "$@" <&- >&- 2>errors'
    result = user_box.host("sh", "-c", script, user_box.program, *flags)

    assert result.returncode in (0, 1) if flags == ("--check",) else result.returncode == 0
    with open(f"{user_box.project}/errors", encoding="utf-8") as file:
        assert file.read() == ""


def test_an_error_to_nobody_is_still_a_status(user_box):
    script = 'exec "$0" "$@" <&- >&- 2>&-'

    assert user_box.host("sh", "-c", script, user_box.program, "-y", "--env").returncode == 125
    assert user_box.host("sh", "-c", 'exec "$0" "$@" >/dev/full', user_box.program, "--help").returncode == 125


@pytest.mark.parametrize("flags", [("-y", "--exec", "--", "true"), ("--explain",), ("--check",)])
def test_a_deleted_working_directory_is_named(user_box, flags):
    # proves SAND-05
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$0" "$@"'
    result = user_box.host("sh", "-c", script, user_box.program, *flags)

    failed(result, "the working directory no longer exists")


@pytest.mark.parametrize("home", [None, "", "relative", "/nonexistent", "/", "/dev/null", "\udcff"])
def test_a_home_that_is_none_falls_back_to_the_accounts(user_box, home):
    environ = user_box.variables()
    environ.pop("HOME")
    if home is not None:
        environ["HOME"] = home
    argv = [user_box.program, "--explain", "--json", "--exec", "--", "true"]  # a launch would write to a real home
    result = subprocess.run(
        argv,
        cwd=user_box.project,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        **user_box.account.demotion,
    )

    assert result.returncode == 0, result.stderr
    variables = {row["name"]: row["value"] for row in json.loads(result.stdout)["variables"]}
    assert variables["HOME"] == pwd.getpwuid(user_box.account.uid).pw_dir


@pytest.mark.parametrize("home", ["/tmp", "/usr"])
def test_a_home_where_the_system_is_inside_is_refused(user_box, home):
    result = user_box.run("true", env={"HOME": home})

    failed(result, f"`{home}` cannot be the home")
    assert "hint: set HOME to a directory of yours" in result.stderr


@pytest.mark.parametrize("name", ["ho:me", "ho\nme", "\udcff$(x)'", "//double"])
def test_an_odd_home_works(user_box, name):
    # proves C11
    home = user_box.mkdir(f"{user_box.base}/{name}")
    result = user_box.sh("cd && pwd; touch x; git config --global user.name", env={"HOME": home})

    assert result.returncode in (0, 1), result.stderr
    assert result.stdout.splitlines() == os.path.normpath(home).splitlines()
    assert sorted(os.listdir(home)) == [".claudebox"]


@pytest.mark.parametrize("name", ["new\nline'$(touch hijacked)", "co:lon\udcffesc\x1b]0;x\x07"])
def test_every_rendering_bears_any_name(client_box, name):
    # proves B12, UX-04
    project = client_box.mkdir(f"{client_box.base}/work/{name}")
    for flags in (("--dry-run",), ("--explain",), ("--explain", "--json"), ("--check",)):
        result = client_box.claudebox(*flags, cwd=project)
        assert result.returncode == 0, (flags, result.stderr)
        assert all(line.isprintable() for line in result.stdout.split("\n"))
        assert result.stderr == ""


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "nonsense"])
def test_no_locale_makes_names_unreadable(user_box, locale):
    # proves C11
    project = user_box.mkdir(f"{user_box.base}/work/ünï\udcff")
    result = user_box.sh("pwd", cwd=project, env={"LC_ALL": locale})

    assert (result.returncode, result.stdout) == (0, f"{project}\n"), result.stderr


def test_a_project_may_hold_files_of_any_kind(user_box):
    # proves C18, C19
    for name in NAMES:
        if name not in ("...", "--"):
            user_box.write(name, "x")
    os.mkfifo(f"{user_box.project}/pipe")
    os.symlink("loop", f"{user_box.project}/loop")
    os.symlink("/nonexistent", f"{user_box.project}/.git")
    result = user_box.run("true")

    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr


def test_more_words_than_bwrap_takes_are_one_line_that_counts_them(user_box):
    # proves E16
    few, many = (user_box.run("sh", "-c", "echo $#", "sh", *["x"] * number) for number in (8000, 9000))

    assert few.stdout == "8000\n", few.stderr
    assert many.returncode == 125
    assert re.search(r"error: the sandbox and its command have 9\d\d\d words, and bwrap takes 9000", many.stderr)


@pytest.mark.parametrize("kilobytes", [18000, 30000])
def test_little_memory_is_one_line(user_box, kilobytes):
    # proves E16, OLD-A30
    script = f'ulimit -v {kilobytes}; exec "$0" -y --exec -- echo ran'
    result = user_box.host("sh", "-c", script, user_box.program)

    assert (result.returncode, result.stdout) == (125, "")
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_a_full_or_closed_home_is_an_error_for_a_user(user_box):
    # proves SAND-14
    os.chmod(user_box.home, 0o555)
    result = user_box.run("true")

    if user_box.account.uid != 0:
        assert result.returncode == 125
        assert "error: " in result.stderr
        assert ".claudebox" in result.stderr
        assert "Traceback" not in result.stderr
