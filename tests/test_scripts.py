from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest
from tests.conftest import REPOSITORY, need

pytestmark = pytest.mark.process

SCRIPTS = sorted(
    path for place in ("scripts", "bench", ".ci") for path in (REPOSITORY / place).iterdir() if path.is_file()
)


def test_arguments_of_run_go_to_claudebox(user_box, checkout):
    shutil.copytree(REPOSITORY / "scripts", f"{checkout}/scripts", dirs_exist_ok=True)

    result = user_box.host(f"{checkout}/scripts/run", "-y", "--exec", "--", "pwd")

    assert result.stdout == f"{user_box.project}\n", result.stderr


def test_set_up_does_nothing_when_nothing_is_missing(tmp_path):
    """With package managers that refuse: what would be installed is a failure here, and not a change of the machine."""
    need((REPOSITORY / ".venv/stamp").exists(), "environment made by scripts/setup --test")
    before = (REPOSITORY / ".venv/stamp").stat().st_mtime_ns
    for name in ("apt-get", "npm", "uv", "dnf", "pacman"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} was called >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    result = subprocess.run(
        [REPOSITORY / "scripts/setup", "--test"], capture_output=True, encoding="utf-8", check=False,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert (REPOSITORY / ".venv/stamp").stat().st_mtime_ns == before


def test_an_unknown_argument_of_set_up_is_refused():
    result = subprocess.run(
        [REPOSITORY / "scripts/setup", "--tests"], capture_output=True, encoding="utf-8", check=False
    )

    assert result.returncode == 2
    assert "usage: scripts/setup" in result.stderr


@pytest.fixture
def clone(tmp_path):
    """Return a clone of what is committed here, with somebody to commit as."""
    target = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(REPOSITORY), str(target)], check=True)
    for key, value in (("user.name", "Ann"), ("user.email", "ann@example.com")):
        subprocess.run(["git", "-C", str(target), "config", key, value], check=True)
    return target


def _release(clone, *words):
    return subprocess.run([clone / "scripts/release", *words], capture_output=True, encoding="utf-8", check=False)


def test_a_release_is_a_version_a_section_and_a_tag(clone):
    changes = clone / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("## Unreleased\n", "## Unreleased\n\n- One thing.\n", 1))
    subprocess.run(["git", "-C", str(clone), "commit", "-qam", "docs: Say one thing"], check=True)
    result = _release(clone, "9.8.7")

    assert result.returncode == 0, result.stderr
    shown = subprocess.run(
        ["git", "-C", str(clone), "show", "-s", "--format=%s", "v9.8.7^{commit}"],
        capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    assert shown.stdout == "release: Version 9.8.7\n"
    assert '__version__ = "9.8.7"' in (clone / "src/claudebox/__init__.py").read_text()
    text = changes.read_text()
    assert text.index("## Unreleased") < text.index("## 9.8.7 - ") < text.index("- One thing.")
    assert "9.8.7" in (clone / "man/claudebox.1").read_text()
    assert "exists" in _release(clone, "9.8.7").stderr
    assert "nothing is listed" in _release(clone, "9.8.8").stderr


@pytest.mark.slow
@pytest.mark.parametrize("word", ["", "v1.0.0", "1.0", "1.0.0-rc1", "1.0.0; true"])
def test_a_release_needs_a_version(clone, word):
    result = _release(clone, word)

    assert result.returncode == 1
    assert "usage: scripts/release" in result.stderr


@pytest.mark.parametrize(
    ("tool", "command"),
    [
        ("dnf", "sudo dnf install bubblewrap git"),
        ("pacman", "sudo pacman -S --needed bubblewrap git"),
        ("apt-get", "as root: apt-get install --no-install-recommends bubblewrap git"),
    ],
)
def test_set_up_names_what_is_missing_on_other_distributions(tool, command, user_box, checkout):
    """A PATH without bwrap and git, and with one package manager, as that distribution would have it."""
    shutil.copytree(REPOSITORY / "scripts", f"{checkout}/scripts", dirs_exist_ok=True)
    bare = user_box.mkdir(f"{user_box.base}/bare")
    for name in ("sh", "cat", "dirname", "id", "sed", "sort", "tr", "python3"):
        os.symlink(shutil.which(name, path="/usr/bin:/bin") or name, f"{bare}/{name}")
    user_box.write(f"{bare}/{tool}", "#!/bin/sh\nexit 1\n", mode=0o755)

    result = user_box.host(f"{bare}/sh", f"{checkout}/scripts/setup", env={"PATH": bare})

    assert result.returncode == 1
    assert command in result.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_without_a_suffix_can_be_executed(script):
    assert script.suffix or os.access(script, os.X_OK)


def test_the_matrix_says_what_it_does_and_what_it_lacks(user_box, checkout):
    # proves HOST-20
    shutil.copytree(REPOSITORY / "scripts", f"{checkout}/scripts", dirs_exist_ok=True)
    program = f"{checkout}/scripts/matrix"

    shown = user_box.host(program, "--help")
    refused = user_box.host(program, "test", "trixie")
    unknown = user_box.host(program, "test", "woody")
    missing = user_box.host(program, "python", "3.1")

    assert "scripts/matrix run trixie" in shown.stdout
    assert (refused.returncode, refused.stderr) == (
        1, "matrix: error: root trees are made and entered as root: run this with sudo\n",
    )  # fmt: skip
    assert "invalid choice: 'woody'" in unknown.stderr
    assert missing.stderr == "matrix: error: there is no Python 3.1 in /usr/bin, of pyenv, or of uv\n"


@pytest.mark.root
def test_a_tree_is_entered_as_a_machine_of_its_own(tmp_path):
    """The tree is this machine's, by binds; the control is a chroot of it, in which no user namespace can be made."""
    # proves HOST-20
    tree = tmp_path / "machine"
    for name in ("etc", "proc", "sys", "dev", "run", "tmp", "usr", "root"):
        (tree / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        os.symlink(os.readlink(f"/{name}"), tree / name)
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nann:x:4242:4242::/:/bin/sh\n")
    inside = "id -u; hostname; ls /proc | grep -c '^[0-9]'; unshare --user true && echo namespace; exit 7"
    argv = [REPOSITORY / "scripts/machine.py", "--bind", "/usr=/usr", tree, "ann", "/tmp", "sh", "-c", inside]

    result = subprocess.run([sys.executable, "-I", *argv], capture_output=True, encoding="utf-8", check=False)
    mount = 'mount --bind /usr "$1/usr" && chroot "$1" unshare --user true'
    control = subprocess.run(["unshare", "--mount", "sh", "-c", mount, "-", tree], capture_output=True, check=False)

    uid, name, processes, last = result.stdout.split()
    assert (uid, name, last) == ("4242", "machine", "namespace"), result.stderr
    assert int(processes) < 8
    assert result.returncode == 7
    assert control.returncode != 0
    assert not os.listdir(tree / "dev")


def test_every_test_of_the_gate_on_debian_13_is_there():
    # proves HOST-20
    spec = importlib.util.spec_from_file_location("matrix", REPOSITORY / "scripts/matrix.py")
    assert spec is not None
    assert spec.loader is not None
    matrix = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(matrix)
    for name in matrix.GATE_TESTS:
        file, _, function = name.removeprefix("--ignore=").partition("::")
        assert (REPOSITORY / file).exists(), name
        if file.endswith(".py"):
            text = (REPOSITORY / file).read_text()
            assert not function or f"def {function}(" in text, name
            assert function or not re.search(r"def test_\w+\([^)]*\b(compiled|probe)\b", text), f"{name}: gcc"
