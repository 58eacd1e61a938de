from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY, need

import claudebox

pytestmark = pytest.mark.process

PIP = (sys.executable, "-I", "-m", "pip", "--quiet", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def place():
    """Return a directory that every account can enter."""
    with tempfile.TemporaryDirectory(prefix="claudebox-package-") as directory:
        os.chmod(directory, 0o755)
        yield directory


@pytest.fixture(scope="module")
def wheel(place):
    """Return a wheel, built with the locked backend and without an index."""
    _run(*PIP, "wheel", "--no-index", "--no-build-isolation", "--no-deps", "--wheel-dir", place, str(REPOSITORY))
    return f"{place}/claudebox-{claudebox.__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def index(place, wheel):
    """Return variables that make every installer take the wheel, and empty libraries, from one directory."""
    for name, version in (("cryptography", "50.0.0"),):
        stem = f"{name}-{version}"
        files = {
            f"{name}.py": "",
            f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{path},,\n" for path in (*files, f"{stem}.dist-info/RECORD"))
        with zipfile.ZipFile(f"{place}/{stem}-py3-none-any.whl", "w") as archive:
            for path, content in {**files, f"{stem}.dist-info/RECORD": record}.items():
                archive.writestr(path, content)
    assert os.path.dirname(wheel) == place
    home = os.path.join(place, "home")
    os.makedirs(home, exist_ok=True)
    return {
        "HOME": home, "PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": place,
        "UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": place,
        "PIPX_HOME": f"{place}/pipx", "PIPX_BIN_DIR": f"{place}/pipx-bin",
        "UV_TOOL_DIR": f"{place}/uv", "UV_TOOL_BIN_DIR": f"{place}/uv-bin",
    }  # fmt: skip


@pytest.fixture(
    scope="module", params=["venv", *(pytest.param(name, marks=pytest.mark.slow) for name in ("user", "pipx", "uv"))]
)
def installed(request, place, index):
    """Return the command that an installer makes, and where its modules lie."""
    tools = os.path.dirname(sys.executable)
    if request.param == "venv":
        _run("/usr/bin/python3", "-I", "-m", "venv", "--without-pip", f"{place}/venv")
        _run(*PIP, "--python", f"{place}/venv/bin/python", "install", "claudebox", env=index)
        return f"{place}/venv/bin/claudebox"
    if request.param == "user":  # no interpreter lies beside the command
        options = ("--user", "--ignore-installed", "--break-system-packages")
        _run(*PIP, "--python", "/usr/bin/python3", "install", *options, "claudebox", env=index)
        return f"{index['HOME']}/.local/bin/claudebox"
    if request.param == "pipx":
        _run(f"{tools}/pipx", "install", "--quiet", "--python", "/usr/bin/python3", "claudebox", env=index)
        return f"{place}/pipx-bin/claudebox"
    _run(f"{tools}/uv", "tool", "install", "--quiet", "--python", "/usr/bin/python3", "claudebox", env=index)
    return f"{place}/uv-bin/claudebox"


@pytest.fixture(scope="module")
def prefix(place):
    """Return a prefix that `scripts/install` filled."""
    _run(str(REPOSITORY / "scripts/install"), "--prefix", f"{place}/prefix")
    return f"{place}/prefix"


def _run(*argv: str, env: dict[str, str] | None = None) -> None:
    result = subprocess.run(argv, capture_output=True, encoding="utf-8", env=env, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_wheel_holds_every_module_and_nothing_else(wheel):
    # proves SAND-01
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    modules = {
        path.relative_to(REPOSITORY / "src").as_posix()
        for path in (REPOSITORY / "src/claudebox").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert modules <= names
    assert {name.split("/")[0].rpartition(".")[2] for name in names - modules} == {"dist-info", "data"}
    assert not any(name.endswith("entry_points.txt") for name in names)  # Python would start it with PYTHONPATH
    assert {name.partition(".data/")[2].rpartition("/")[2] for name in names if ".data/" in name} == {
        "claudebox", "claudebox.1", "claudebox.fish", "_claudebox",
    }  # fmt: skip
    assert any(name.endswith("LICENSE") for name in names)
    wanted = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    plain = [line.split()[1].partition(">")[0].partition("<")[0] for line in wanted if "extra ==" not in line]
    assert plain == ["cryptography"]  # of the broker; tests/test_startup.py sees that a launch does not import it


def test_the_source_archive_is_complete_enough_to_install_from(place):
    program = f"from hatchling import build; print(build.build_sdist({place!r}))"
    result = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=REPOSITORY, capture_output=True, encoding="utf-8", check=True
    )
    with tarfile.open(f"{place}/{result.stdout.strip()}") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    wanted = {"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "pyproject.toml", "man/claudebox.1",
              "completions/_claudebox", "scripts/install", "bin/claudebox", "src/claudebox/cli.py", "flake.nix",
              "flake.lock", "package.nix"}  # fmt: skip
    assert wanted - names == set()
    assert not {name for name in names if "__pycache__" in name or (name.startswith(".") and name != ".gitignore")}


def test_the_command_of_an_installer_starts_a_sandbox(user_box, installed):
    # proves SAND-01
    version = user_box.host(installed, "--version")
    inside = user_box.host(installed, "-y", "--exec", "--", "sh", "-c", "exit 7")

    assert version.stdout == f"claudebox {claudebox.__version__}\n", version.stderr
    assert inside.returncode == 7, inside.stderr


@pytest.mark.parametrize("path", [":", ".", "PROJECT", "PROJECT:"])
def test_the_command_of_an_installer_imports_nothing_of_the_project(user_box, installed, path):
    # proves HOUSE-02, E03
    modules = ("claudebox", "gc", "json", "os", "re", "site", "sitecustomize", "usercustomize", "stat", "sys")
    for name in modules:
        user_box.write(f"{name}.py", "open('hijacked', 'w')")
    user_box.write("readlink", "#!/bin/sh\ntouch hijacked\n", mode=0o755)
    shutil.copy2(f"{user_box.project}/readlink", f"{user_box.project}/python3")
    hostile = {"PYTHONPATH": path.replace("PROJECT", user_box.project), "PATH": f".:{user_box.variables()['PATH']}"}
    control = user_box.host("/usr/bin/python3", "-c", "import json", env=hostile)
    assert os.path.exists(f"{user_box.project}/hijacked"), control.stderr
    os.unlink(f"{user_box.project}/hijacked")

    result = user_box.host(installed, "-y", "--exec", "--", "sh", "-c", "exit 7", env=hostile)
    shown = user_box.host(installed, "--explain", "--json", "--exec", "--", "true", env=hostile)

    assert (result.returncode, shown.returncode) == (7, 0), result.stderr + shown.stderr
    assert not os.path.exists(f"{user_box.project}/hijacked")


def test_the_command_of_an_installer_says_so_if_its_python_is_gone(user_box, installed):
    lone = user_box.write(f"{user_box.base}/bin/claudebox", Path(installed).read_bytes(), mode=0o755)
    result = user_box.host(lone, "--version")

    assert result.returncode == 125
    assert "the Python that claudebox was installed for is gone" in result.stderr
    assert "reinstall" in result.stderr


def test_the_installed_command_starts_a_sandbox(box, prefix):
    # proves SAND-01
    inside = box.host(f"{prefix}/bin/claudebox", "-y", "--exec", "--", "sh", "-c", "exit 7")

    assert inside.returncode == 7, inside.stderr


_ASK = (
    "import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(30); s.connect('/run/claudebox/api.sock'); "
    "s.sendall(b'GET /nothing HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n'); print(s.recv(99).split()[1].decode())"
)


def test_the_broker_of_every_installation_answers(user_box, prefix, installed):
    # proves SAND-01, AUTH-01
    ask = ("-y", "--network", "none", "--exec", "--", "/usr/bin/python3", "-c", _ASK)
    key = {"ANTHROPIC_API_KEY": "sk-of-a-test"}
    of_prefix = user_box.host(f"{prefix}/bin/claudebox", *ask, env=key)
    of_installer = user_box.host(installed, *ask, env=key)

    assert of_prefix.stdout == "403\n", of_prefix.stderr
    assert of_installer.stdout == "403\n", of_installer.stderr


def test_the_way_to_the_model_needs_no_library(user_box, place):
    target = f"{place}/bare"
    _run(str(REPOSITORY / "scripts/install"), "--without-libraries", f"--prefix={target}")
    ask = ("-y", "--network", "none", "--exec", "--", "/usr/bin/python3", "-c", _ASK)

    result = user_box.host(f"{target}/bin/claudebox", *ask, env={"ANTHROPIC_API_KEY": "sk-of-a-test"})

    assert result.stdout == "403\n", result.stderr


def test_the_installed_command_imports_nothing_of_the_project(user_box, prefix):
    # proves E03
    for name in ("os", "json", "site", "claudebox", "stat"):
        user_box.write(f"{name}.py", "open('hijacked', 'w')")
    hostile = {"PYTHONPATH": user_box.project, "PYTHONSTARTUP": f"{user_box.project}/os.py"}

    control = user_box.host("/usr/bin/python3", "-c", "import json", env=hostile)
    assert os.path.exists(f"{user_box.project}/hijacked"), control.stderr
    os.unlink(f"{user_box.project}/hijacked")
    result = user_box.host(f"{prefix}/bin/claudebox", "-y", "--exec", "--", "true", env=hostile)

    assert result.returncode == 0, result.stderr
    assert not os.path.exists(f"{user_box.project}/hijacked")


def test_installing_again_leaves_no_old_module_behind(place):
    target = f"{place}/twice"
    os.makedirs(f"{target}/lib/claudebox/claudebox")
    old = f"{target}/lib/claudebox/claudebox/old.py"
    with open(old, "w", encoding="utf-8"):
        pass

    _run(str(REPOSITORY / "scripts/install"), f"--prefix={target}")

    assert not os.path.exists(old)


def test_an_installation_is_readable_by_all_and_writable_by_its_owner_alone(prefix):
    seen = 0
    for base, directories, files in os.walk(prefix):
        for name in (*directories, *files):
            mode = os.lstat(os.path.join(base, name)).st_mode
            executable = stat.S_ISDIR(mode) or base.endswith(("/bin", "/gate"))
            assert stat.S_IMODE(mode) == (0o755 if executable else 0o644), name
            seen += 1

    assert seen > 40
    assert os.path.exists(f"{prefix}/share/man/man1/claudebox.1")


@pytest.mark.parametrize("name", ["broker", "test"])
def test_the_lock_names_versions_and_hashes_and_no_address(name):
    lines = (REPOSITORY / f"requirements/{name}.txt").read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith((" ", "#"))]

    assert len(packages) > 2
    assert all("==" in line and line.endswith("\\") for line in packages)
    assert not [line for line in lines if "://" in line or line.startswith("--")]


def test_every_direct_requirement_is_in_the_lock():
    need(REPOSITORY.joinpath("requirements/test.in").exists(), "requirements/test.in")
    wanted = {
        line.split()[0].replace("_", "-")
        for line in (REPOSITORY / "requirements/test.in").read_text().splitlines()
        if line and not line.startswith("#")
    }
    locked = {line.partition("==")[0] for line in (REPOSITORY / "requirements/test.txt").read_text().splitlines()}

    assert wanted - locked == set()
