"""`path`: a directory of programs on PATH, read-only, without what lies beside it."""

from __future__ import annotations

import os
from pathlib import Path


def tool(box, path, word):
    return box.write(path, f"#!/bin/sh\necho {word}\n", mode=0o755)


def test_a_directory_of_programs_enters_alone_and_read_only(box):
    # proves TOOL-04, SAND-09
    program = tool(box, f"{box.home}/tools/programs/greet", "hello")
    box.write(f"{box.home}/tools/secret", "CANARY")
    probe = f"greet; echo evil >>{program}; grep -rl CANARY {box.home}; true"
    assert "CANARY" in box.host("cat", f"{box.home}/tools/secret").stdout
    assert "hello" not in box.sh(probe).stdout

    result = box.sh(probe, flags=("--set", f"path={box.home}/tools/programs"))

    assert result.stdout == "hello\n", result.stderr
    assert "evil" not in Path(program).read_text()


def test_a_prefix_with_a_bin_enters_as_a_whole_from_a_file_of_the_user(box):
    # proves TOOL-04
    box.write(f"{box.home}/brew/lib/word", "from the library\n")
    box.write(f"{box.home}/brew/Cellar/x/1/x", "#!/bin/sh\ncat $(dirname $0)/../lib/word\n", mode=0o755)
    box.mkdir(f"{box.home}/brew/bin")
    os.symlink("../Cellar/x/1/x", f"{box.home}/brew/bin/x")
    box.write(f"{box.home}/.claudebox/config.toml", 'path = ["~/brew"]\n')

    result = box.sh('x; case $PATH in *:"$HOME"/brew/bin:*) echo listed; esac')

    assert result.stdout == "from the library\nlisted\n", result.stderr


def test_what_is_visible_already_is_only_named(user_box):
    tool(user_box, "scripts/own", "mine")

    result = user_box.sh("own; echo $PATH", flags=("--set", "path=scripts", "--set", "path=/usr/games"))

    assert result.stdout.startswith(f"mine\n/run/claudebox/bin:{user_box.project}/scripts:"), result.stderr
    assert ":/usr/games:" in result.stdout or not os.path.isdir("/usr/games")


def test_links_that_lead_out_of_it_bring_what_they_lead_to(user_box):
    # proves TOOL-04
    tool(user_box, f"{user_box.home}/elsewhere/greet", "hello")
    user_box.write(f"{user_box.home}/elsewhere/notes", "CANARY")
    user_box.mkdir(f"{user_box.home}/links")
    os.symlink("../elsewhere/greet", f"{user_box.home}/links/greet")
    path = ("--set", f"path={user_box.home}/links")

    alone = user_box.sh("greet", flags=path)

    assert (alone.stdout, "not inside" in alone.stderr) == ("hello\n", False)
    assert user_box.sh(f"ls {user_box.home}/elsewhere", flags=path).stdout == "greet\n"


def test_what_would_expose_something_is_refused(user_box):
    # proves TOOL-04, SAND-05
    user_box.write(f"{user_box.home}/.ssh/id", "CANARY")
    os.symlink(".ssh", f"{user_box.home}/harmless")
    file = tool(user_box, f"{user_box.home}/greet", "hello")
    for path, words in (
        (user_box.home, "would expose"),
        ("/", "would expose"),
        (f"{user_box.home}/harmless", "would expose"),
        ("/proc/self", "would expose"),
        (file, "not a directory"),
        (f"{user_box.home}/absent", "no such file"),
        ("/a:/b", "not one directory"),
    ):
        result = user_box.sh("true", flags=("--set", f"path={path}"))

        assert (result.returncode, words in result.stderr) == (125, True), (path, result.stderr)


def test_a_program_that_is_only_outside_is_named_with_what_brings_it_in(user_box):
    # proves TOOL-04, UX-01, NEW-D5, NEW-D6
    box = user_box
    tool(box, f"{box.home}/venvs/x/bin/formatter", "formatted")
    box.write(f"{box.home}/venvs/x/pyvenv.cfg", "home = /usr/bin\n")
    box.write(f"{box.home}/venvs/x/lib/words", "")
    tool(box, f"{box.home}/open/bin/other", "other")
    os.chmod(f"{box.home}/open/bin", 0o777)
    box.environ["PATH"] = f"{box.home}/venvs/x/bin:{box.home}/open/bin:/usr/bin:/bin"
    strict = ("--profile", "strict")

    for program, flags in (("formatter", strict), ("other", ())):
        said = ""
        for again in range(2):  # in every session, unlike other notes
            missing = box.run(program, flags=flags)
            assert missing.returncode == 127
            said = next((line for line in missing.stderr.splitlines() if f" {program} of ~/" in line), "")
            assert "is not inside: " in said, (again, missing.stderr)
        words = said.rpartition("`--set ")[2].rstrip("`").replace("~", box.home)
        assert box.run(program, flags=(*flags, "--set", words)).stdout != "", said
        shell = box.run("bash", "-c", f"command -v {program} nosuch; {program}; nosuch", flags=flags)
        sentence = said.partition("note ")[2].strip()
        lines = [
            line
            for line in shell.stderr.splitlines()
            if line.startswith(("claudebox: other", "claudebox: form", "bash"))
        ]
        expected = [f"claudebox: {sentence}", f"bash: {program}: command not found", "bash: nosuch: command not found"]
        assert (shell.stdout, lines) == ("", expected), shell.stderr
    box.environ["PATH"] = "/usr/bin:/bin"
    assert "BASH_FUNC" not in box.run("env").stdout
