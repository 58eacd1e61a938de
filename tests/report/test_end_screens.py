"""How a session of ordinary work ends on the screen, with the real tools of three languages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.conftest import need
from tests.support import repositories

PYTHON = {
    "files": {
        "src/app.py": "import util\n\nprint(util.word())\n",
        "src/util.py": "def word():\n    return 'one'\n",
        "tests/test_util.py": "import unittest\n\nclass Test(unittest.TestCase):\n    def test_it(self): pass\n",
        "README.md": "# app\n",
        ".gitignore": ".venv/\n",
    },
    "script": "python3 -m venv .venv; .venv/bin/python src/app.py; .venv/bin/python -m unittest discover -q tests 2>&1;"
    "sed -i s/one/two/ src/util.py; echo 'print(1)' >>src/app.py; echo more >>README.md; .venv/bin/python src/app.py;"
    "git commit -qam one; echo >>README.md; git commit -qam two",
    "screen": """\
claudebox: main +2 commits (HASH..HASH) · 3 files: README.md, src/app.py, src/util.py
           build output: .venv/ COUNT files · see: claudebox log changes
""",
}
NODE = {
    "files": {
        "dep/package.json": '{"name": "dep", "version": "1.0.0", "bin": {"dep": "cli.js"}}',
        "dep/cli.js": "#!/usr/bin/env node\n",
        "dep/index.js": "module.exports = 1\n",
        "package.json": '{"name": "app", "version": "1.0.0"}\n',
        "index.js": "console.log(0)\n",
        "index.test.js": "require('node:test')('it', () => {})\n",
        ".gitignore": "node_modules\n*.tgz\n",
    },
    "script": "npm pack --silent ./dep >/dev/null; npm install --silent --offline --no-audit --no-fund ./dep-1.0.0.tgz;"
    "echo \"console.log(require('dep'))\" >index.js; node index.js; node --test >/dev/null; git add -A;"
    "git commit -qm 1",
    "screen": """\
claudebox: main +1 commit (HASH..HASH) · 3 files: package.json, package-lock.json, index.js
           build output: node_modules/ COUNT files, 1 ignored file · see: claudebox log changes
""",
}
RUST = {
    "files": {
        "Cargo.toml": '[package]\nname = "app"\nversion = "1.0.0"\nedition = "2021"\n',
        "src/main.rs": 'fn main() { println!("one") }\n',
        ".gitignore": "/target\n",
    },
    "script": "sed -i s/one/two/ src/main.rs; cargo build --offline -q; ./target/debug/app; git add -A;"
    "git commit -qm two",
    "screen": """\
claudebox: main +1 commit (HASH..HASH) · 2 files: Cargo.lock, src/main.rs
           build output: target/ COUNT files · see: claudebox log changes
""",
}


@pytest.fixture(scope="module")
def rust():
    """Return flags that bring a real cargo in: the system's, or a copy of one that rustup has installed."""
    if shutil.which("cargo", path="/usr/local/bin:/usr/bin:/bin"):
        yield ()
        return
    found = sorted(Path.home().glob(".rustup/toolchains/*/bin/cargo"))
    need(found, "cargo")
    with tempfile.TemporaryDirectory(prefix="claudebox-rust-") as place:
        os.chmod(place, 0o755)
        toolchain = found[-1].parent.parent
        for part in ("bin/cargo", "bin/rustc", "lib"):
            os.makedirs(os.path.dirname(f"{place}/{part}"), exist_ok=True)
            subprocess.run(["cp", "-a", "--link", f"{toolchain}/{part}", f"{place}/{part}"], check=True)
        yield ("--set", f"path={place}/bin", "--mount-ro", place)


def end_of(box, example, flags: tuple[str, ...] = ()) -> str:
    box.write(f"{box.home}/.gitconfig", repositories.GITCONFIG)
    for name, content in example["files"].items():
        box.write(name, content)
    box.host("sh", "-c", "git init -q -b main; git add -A; git commit -qm begin").check_returncode()
    result = box.sh(f"set -e; {example['script']}", flags=flags, timeout=120)
    assert result.returncode == 0, result.stderr
    said: str = result.stderr[result.stderr.index("claudebox: main") :]
    return re.sub(r"\b[0-9a-f]{7}\b", "HASH", re.sub(r"/ \d+ files", "/ COUNT files", said))


def test_a_session_with_python_ends_in_two_lines(user_box):
    # proves SHOW-01, NEW-E11
    assert end_of(user_box, PYTHON) == PYTHON["screen"]


def test_a_session_with_node_ends_in_three_lines(user_box):
    # proves SHOW-01, NEW-D9
    need(shutil.which("npm", path="/usr/local/bin:/usr/bin:/bin"), "npm")
    assert end_of(user_box, NODE) == NODE["screen"]


def test_a_session_with_rust_ends_in_two_lines(user_box, rust):
    # proves SHOW-01
    assert end_of(user_box, RUST, rust) == RUST["screen"]
