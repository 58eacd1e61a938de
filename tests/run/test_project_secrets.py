"""Secrets that lie in the project: named in the audit, or shadowed by the same keys with harmless values."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tests.support import repositories

MASK = ("--set", "project_secrets=mask")
TOKEN = "ghp_" + "aB3" * 12
SECRET = "s3cr3tValue" + "9zQ" * 5
KEY = f"-----BEGIN PRIVATE KEY-----\n{'MIIEvQ' * 10}\n{'aB3+/x' * 10}\n-----END PRIVATE KEY-----\n"
FILES = {
    ".env": f"# API_KEY=commented\nPORT=3000\nDEBUG=true\nexport API_KEY='{SECRET}' # mine\nURL=postgres://u:{SECRET}@db/x\n"
    f'OTHER={SECRET}\nPEM="{KEY}"\nLAST=1\n',
    ".env.local": f"TOKEN={SECRET}\n",
    ".npmrc": f"registry=https://registry.example.org/\n//registry.example.org/:_authToken={TOKEN}\n",
    ".pypirc": f"[pypi]\nusername = __token__\npassword = pypi-{SECRET}\n",
    ".netrc": f"machine example.org login bob password {SECRET}\n",
    "id_ed25519": KEY,
    "api/server.key": KEY,
    "terraform.tfstate": json.dumps({"version": 4, "outputs": {"db": {"value": SECRET}}, "password": SECRET}),
    "deploy/service-account.json": json.dumps({"type": "service_account", "private_key": KEY}, indent=2),
    "infra/prod.tfvars": f'region = "eu"\ndb_password = "{SECRET}"\n',
    "store.p12": "binary\0" + SECRET,
}
HARMLESS = {
    ".env.example": "API_KEY=put-yours-here\n",
    "cert.pem": "-----BEGIN CERTIFICATE-----\nMIIEvQ\n-----END CERTIFICATE-----\n",
    "keyboard.py": f"KEY = '{SECRET}'\n",
    ".env.test": "PORT=3000\nDEBUG=true\n",
}


@pytest.fixture
def hoard(box):
    """Return a project full of secrets."""
    made = repositories.make(box)
    for path, content in {**FILES, **HARMLESS}.items():
        box.write(path, content)
    made.sh(
        f"git remote add origin https://bob:{TOKEN}@example.org/x.git; git remote add other ssh://git@example.org/x;"
        f"git remote add third https://{TOKEN}@example.org/y; git config http.extraHeader 'X-Token: {SECRET}'"
    )
    return made


def test_secrets_are_named_by_file_and_line_and_never_shown(hoard):
    # proves A20, B13, UX-01
    result = hoard.box.sh("grep -c . .env .npmrc")
    (line,) = [line for line in result.stderr.splitlines() if "secrets in the project" in line]
    for path in FILES:
        assert f"{path}:" in line or f"{path}," in line or f"{path};" in line, path
    for path in HARMLESS:
        assert path not in line
    assert ".env:4,5,6" in line or ".env:4,5,7" in line, line
    assert ".npmrc:2" in line
    assert SECRET not in result.stderr
    assert TOKEN not in result.stderr
    assert "--set project_secrets=mask" in line


def test_masked_secrets_cannot_be_read_inside_and_stay_on_the_host(hoard):
    # proves A20
    box = hoard.box
    names = " ".join(FILES)
    before = {path: Path(box.project, path).read_bytes() for path in (*FILES, ".git/config")}

    inside = box.sh(
        f"cat {names} .git/config; git remote -v; git config http.extraHeader; echo evil >>.env", flags=MASK
    )
    for secret in (SECRET, TOKEN, "MIIEvQ", "aB3+/x"):
        assert secret not in inside.stdout
    assert "Read-only" in inside.stderr
    assert {path: Path(box.project, path).read_bytes() for path in before} == before

    control = box.sh(f"cat {names}", flags=("--set", "project_secrets=allow"))
    assert control.stdout.count(SECRET) >= 7
    assert TOKEN in control.stdout
    assert "secrets in the project" not in control.stderr


def test_a_shadow_has_the_same_keys_and_shapes_so_that_programs_start(hoard):
    # proves A20
    box = hoard.box
    dotenv = box.sh("cat .env", flags=MASK).stdout.splitlines()
    lines = FILES[".env"].splitlines()
    assert len(dotenv) == len(lines)
    assert [line.partition("=")[0] for line in dotenv[1:6]] == [line.partition("=")[0] for line in lines[1:6]]
    assert [len(line) for line in dotenv[1:6]] == [len(line) for line in lines[1:6]]
    assert dotenv[1:3] == ["PORT=3000", "DEBUG=true"]
    assert dotenv[4].startswith("URL=postgres://u:x0xx0x")
    assert dotenv[4].endswith("@db/x")
    assert dotenv[-1] == "LAST=1"
    assert dotenv[3].endswith("' # mine")

    script = (
        "import json; a = json.load(open('terraform.tfstate')); b = json.load(open('deploy/service-account.json'));"
    )
    script += "print(a['version'], len(a['password']), b['type'], b['private_key'].splitlines()[0])"
    out = box.run("python3", "-c", script, flags=MASK).stdout
    assert out == f"4 {len(SECRET)} service_account -----BEGIN PRIVATE KEY-----\n"

    remotes = box.sh("git remote -v; git status --porcelain .npmrc; git log --oneline | wc -l", flags=MASK).stdout
    assert "https://example.org/x.git (fetch)" in remotes
    assert "https://example.org/y (fetch)" in remotes
    assert "ssh://git@example.org/x (push)" in remotes


def test_what_the_host_writes_later_stays_hidden(hoard, running):
    # proves A20
    box = hoard.box
    session = running(box, *MASK, then="cat .env .npmrc")
    hoard.sh("echo LATER=later-secret >>.env; echo later=later-secret >.npmrc")
    output = session.end()
    assert "API_KEY=" in output
    assert "later-secret" not in output
    assert "later-secret" in Path(box.project, ".env").read_text()


def test_a_worktree_does_not_show_the_token_of_its_repository(hoard):
    # proves A20, D14
    box = hoard.box
    hoard.sh("git worktree add -q ../tree")
    box.project = f"{box.base}/tree"
    assert TOKEN in hoard.sh("git remote -v")
    assert TOKEN not in box.sh("git remote -v; cat ../project/.git/config").stdout


def test_new_files_named_like_secrets_are_reported_at_the_end(user_box):
    # proves A20
    repositories.make(user_box)
    said = user_box.sh("mkdir conf; echo K=V >conf/.env.production").stderr
    assert "1 file: conf/.env.production" in said


def test_links_and_traps_named_like_secrets_are_left_alone(user_box):
    # proves C01, C18
    checkout = repositories.make(user_box)
    checkout.sh(
        "mkfifo .npmrc; ln -s /etc/passwd .env; ln -s /oldroot/tmp/x id_rsa; mkdir .pypirc; ln -s nowhere a.pem"
    )
    started = time.monotonic()
    result = user_box.sh("ls -l .env", flags=MASK)
    assert result.returncode == 0, result.stderr
    assert "secrets in the project" not in result.stderr
    assert time.monotonic() - started < 10


def test_a_dry_run_writes_nothing_and_shows_no_value(hoard):
    # proves UX-04
    result = hoard.box.claudebox("--dry-run", *MASK, "--exec", "--", "true")
    assert result.returncode == 0
    assert "--ro-bind-data" in result.stdout
    assert SECRET not in result.stdout
    assert not os.path.exists(f"{hoard.box.home}/.claudebox")


def test_values_that_look_random_are_found_under_harmless_names(user_box):
    # proves A20
    checkout = repositories.make(user_box)
    checkout.sh(
        "git config branch.x.merge refs/heads/feature-0123456789-abcdef; git config user.url https://u@x.example"
    )
    token = f"sq0csp-{'aB3-xY9_zQ' * 4}aaa"
    google = "AIza" + "SyD4fGh7Jk9LmN2pQr5StV8wXyZ1aBcDeF" + "0"
    user_box.write(".env", f"PORT=1\nSQUARE={token}\nWHERE={google}\nPLACE=/srv/data/0123456789abcdef\n")
    said = user_box.sh("true").stderr
    assert ".env:2,3" in said
    assert ".env:2,3," not in said

    shown = user_box.sh("cat .env; git config branch.x.merge", flags=MASK).stdout
    assert "PORT=1\n" in shown
    assert token not in shown
    assert google not in shown
    assert "refs/heads/feature-0123456789-abcdef\n" in shown


def test_a_project_without_suspects_imports_nothing_for_it(user_box):
    # proves SEC-05
    repositories.make(user_box)
    user_box.sh("true")  # the first launch of a project writes the client's configuration
    modules = user_box.host(
        "/usr/bin/python3", "-IS", "-X", "importtime", user_box.program, "-y", "--exec", "--", "true"
    ).stderr
    assert "claudebox.host.secret_files" in modules
    for module in ("claudebox.host.secret_scan", "subprocess", " json\n", "| re\n"):
        assert module not in modules


def test_decoys_do_not_unmask_what_a_limit_would_have_reached(user_box):
    # proves C32, A20, OLD-A5
    user_box.write("zz/deep/er/.env", f"API_KEY={SECRET}\n")
    script = (
        "mkdir -p $(seq -f 'a%g' 1 200); for n in $(seq 1 200); do echo API_KEY=decoy-decoy-decoy-12 >a$n/.env; done;"
        "cat zz/deep/er/.env"
    )
    first = user_box.sh(script, flags=MASK)
    second = user_box.sh("cat zz/deep/er/.env", flags=MASK)
    control = user_box.sh("cat zz/deep/er/.env", flags=("--set", "project_secrets=allow"))

    assert SECRET in control.stdout
    for result in (first, second):
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith("API_KEY=")
        assert SECRET not in result.stdout


@pytest.mark.parametrize(
    "move", ["mv conf a/b/", "mv conf/.env a/b/x", "mv conf node_modules", "mv a conf2; mv conf a"]
)
def test_what_is_masked_cannot_be_moved_out_of_the_way(user_box, move):
    # proves C32, C22, OLD-A5
    user_box.write("conf/.env", f"API_KEY={SECRET}\n")
    user_box.mkdir("a/b")
    user_box.mkdir("node_modules")
    moved = user_box.sh(move, flags=MASK)
    later = user_box.sh("cat $(find . -type f)", flags=MASK)
    control = user_box.sh(f"{move}; cat $(find . -type f)")

    assert "busy" in moved.stderr
    assert "API_KEY=" in later.stdout
    assert SECRET not in later.stdout
    assert SECRET in control.stdout


def test_a_masked_file_is_known_again_under_another_name(user_box):
    # proves C32
    user_box.write("conf/.env", f"API_KEY={SECRET}\n")
    user_box.sh("true", flags=MASK)
    user_box.mkdir("node_modules/x")
    os.rename(f"{user_box.project}/conf/.env", f"{user_box.project}/node_modules/x/notes.txt")
    result = user_box.sh("cat node_modules/x/notes.txt", flags=MASK)

    assert result.stdout.startswith("API_KEY=")
    assert SECRET not in result.stdout


@pytest.mark.parametrize("obstacle", ["closed", "deep"])
def test_what_cannot_be_searched_stops_the_launch_that_masks(user_box, obstacle):
    # proves C32, E16
    if obstacle == "closed":
        user_box.mkdir("shut")
        os.chmod(f"{user_box.project}/shut", 0o311)
    else:
        nest = "i=0; while [ $i -lt 60 ]; do d=$(printf %0100d 0); mkdir $d; cd $d; i=$((i+1)); done"
        user_box.sh(nest)
    result = user_box.sh("echo started", flags=MASK)
    warned = user_box.sh("echo started")
    user_box.host("sh", "-c", "chmod -R u+rwx .; rm -rf ./*")

    assert (result.returncode, result.stdout) == (125, "")
    assert "secrets cannot be masked" in result.stderr
    assert "Traceback" not in result.stderr
    assert warned.stdout == "started\n"


@pytest.mark.root
def test_a_directory_of_another_user_is_closed_inside_too(user_box):
    # proves C32
    os.mkdir(f"{user_box.project}/database", 0o700)

    assert user_box.sh("echo started", flags=MASK).stdout == "started\n"


def test_more_secrets_than_can_be_masked_are_refused_in_one_line(user_box):
    # proves C32, E16
    for number in range(1100):
        user_box.write(f"d{number}/.env", f"API_KEY={SECRET}\n")
    result = user_box.sh("echo started", flags=MASK)

    assert (result.returncode, result.stdout) == (125, "")
    assert "1100 files of the project would have to be masked" in result.stderr


_LONG = {
    "blanks": (".env", "API_KEY=x" + " " * 900_000 + "x\n"),
    "comments": (".env", "API_KEY=x" + "#" * 900_000 + "\n"),
    "quotes": ("credentials.json", '{"' + '\\"' * 400_000),
    "entries": ("credentials.json", json.dumps({f"key{n}": SECRET + str(n) for n in range(22_000)})),
    "deep": ("credentials.json", '{"a":' * 900 + f'{{"password": "{SECRET}"}}' + "}" * 900),
    "deeper": ("credentials.json", '{"a":' * 90_000 + f'{{"password": "{SECRET}"}}' + "}" * 90_000),
    "keys": ("id_rsa", "-----BEGIN " * 80_000),
}


@pytest.mark.parametrize("kind", _LONG)
def test_a_file_made_to_keep_the_launcher_busy_does_not(user_box, kind):
    # proves E16, OLD-A25
    name, content = _LONG[kind]
    user_box.write(name, content)
    for flags in (MASK, ()):
        result = user_box.run("cat", name, flags=flags, timeout=15)
        assert result.returncode == 0, result.stderr[-2000:]
        assert "Traceback" not in result.stderr
        if flags:
            assert SECRET not in result.stdout
