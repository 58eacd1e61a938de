"""Secrets that lie in the project: masked by default, named in the audit, and shown if the user says so."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support import repositories
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from tests.conftest import Box

SHOW = ("--project-secrets", "show")
STRICT = ("--set", "project_secrets=mask")
TOKEN = "ghp_" + "aB3" * 12
SECRET = "s3cr3tValue" + "9zQ" * 5
KEY = f"-----BEGIN PRIVATE KEY-----\n{'MIIEvQ' * 10}\n{'aB3+/x' * 10}\n-----END PRIVATE KEY-----\n"
FILES = {
    ".env": f"# API_KEY=commented\nPORT=3000\nDEBUG=true\nexport API_KEY='{SECRET}' # mine\n"
            f"URL=postgres://u:{SECRET}@db/x\n"
            f'OTHER={SECRET}\nPEM="{KEY}"\nLAST=1\n#STRIPE=sk_live_{SECRET}\n',
    ".env.local": f"TOKEN={SECRET}\n",
    ".env~": f"TOKEN={SECRET}\n",
    ".npmrc": f"registry=https://registry.example.org/\n//registry.example.org/:_authToken={TOKEN}\n",
    ".pypirc": f"[pypi]\nusername = __token__\npassword = pypi-{SECRET}\n",
    ".netrc": f"machine example.org login bob password {SECRET}\n",
    ".pgpass": f"localhost:5432:shop:bob:{SECRET}\n",
    ".htpasswd": f"bob:{SECRET}\n",
    ".vault-token": SECRET,
    ".git-credentials": f"https://bob:{SECRET}@example.org\n",
    "config/master.key": SECRET,
    "config/database.yml": f"production:\n  adapter: postgresql\n  port: 5432\n  password: {SECRET}\n",
    "config/secrets.yml": f"production:\n  keys:\n  - {SECRET}\n",
    "appsettings.json": json.dumps(
        {"ConnectionStrings": {"Shop": f"Server=localhost;Database=Shop;Password={SECRET}"}}
    ),
    "src/main/resources/application.properties": f"server.port=8080\nspring.datasource.password={SECRET}\n",
    "target/classes/application.properties": f"server.port=8080\nspring.datasource.password={SECRET}\n",
    "pip.conf": f"[global]\nindex-url = https://bob:{SECRET}@pypi.example.org/simple\n",
    ".yarnrc.yml": f'nodeLinker: node-modules\nnpmAuthToken: "{SECRET}"\n',
    "id_ed25519": KEY,
    "api/server.key": KEY,
    "terraform.tfstate": json.dumps({"version": 4, "outputs": {"db": {"value": SECRET}}, "password": SECRET}),
    "deploy/service-account.json": json.dumps({"type": "service_account", "private_key": KEY}, indent=2),
    "shop-0123456789ab.json": json.dumps({"type": "service_account", "private_key": KEY}),
    "infra/prod.tfvars": f'region = "eu"\ndb_password = "{SECRET}"\n',
    "store.p12": "binary\0" + SECRET,
}  # fmt: skip
HARMLESS = {
    ".env.example": "API_KEY=put-yours-here\n",
    "cert.pem": "-----BEGIN CERTIFICATE-----\nMIIEvQ\n-----END CERTIFICATE-----\n",
    "keyboard.py": f"KEY = '{SECRET}'\n",
    ".env.test": "PORT=3000\nDEBUG=true\n",
    "package.json": '{"name": "shop"}',
}
HIDDEN = (SECRET, TOKEN, "MIIEvQ" * 10, "aB3+/x")


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


def read_all(box: Box, *flags: str) -> str:
    """Return everything that can be read of the project inside."""
    return box.sh("find . -type f -exec cat {} +; git remote -v; git config http.extraHeader", flags=flags).stdout


@pytest.mark.accounts
def test_secrets_cannot_be_read_inside_and_stay_on_the_host(hoard):
    # proves A20, MASK-01
    box = hoard.box
    os.unlink(f"{box.project}/keyboard.py")  # code is not searched
    hoard.sh(f"GIT_REFLOG_ACTION='pull https://bob:{TOKEN}@example.org/x main' git commit -q --allow-empty -m pulled")
    before = {path: Path(box.project, path).read_bytes() for path in (*FILES, ".git/config")}
    inside = read_all(box)
    for secret in HIDDEN:
        assert secret not in inside
    assert "pull https://example.org/x main: pulled" in inside, "the reflog"
    assert {path: Path(box.project, path).read_bytes() for path in before} == before

    tried = box.sh("echo evil >>.env; rm -f .npmrc; mv config other; ln .env copied; ls")
    assert {path: Path(box.project, path).read_bytes() for path in before} == before
    assert "copied" not in tried.stdout.split()

    control = read_all(box, *SHOW)
    for secret in HIDDEN:
        assert secret in control


def test_masked_files_are_named_with_lines_and_never_with_values(hoard):
    # proves A20, B13, UX-01, MASK-01
    said = hoard.box.claudebox("--explain", "--exec", "--", "true").stdout
    first = hoard.box.sh("grep -i masked /run/claudebox/SANDBOX.md")
    second = hoard.box.sh("true").stderr
    hoard.box.write("new/.env", f"TOKEN={SECRET}\n")
    third = hoard.box.sh("true").stderr
    document = json.loads(hoard.box.claudebox("--explain", "--json", "--exec", "--", "true").stdout)
    rows = [row for row in document["mounts"] if row["access"] in ("copy", "hidden")]
    masked = {row["dest"].removeprefix(f"{hoard.box.project}/") for row in rows}

    assert {*FILES, "new/.env"} <= masked
    assert not masked & set(HARMLESS)
    assert "masked inside: .env:1,4,5,6" in first.stderr
    assert "--project-secrets show" in first.stderr
    assert ".env" in first.stdout, "the agent is told"
    assert f"{len(FILES)} files masked" in second
    assert "masked inside" not in second, "once is enough"
    assert "new/.env" in third or "more" in third
    for secret in HIDDEN:
        assert secret not in said + first.stderr + second + third


def test_a_copy_has_the_same_keys_and_shapes_so_that_programs_start(hoard):
    # proves A20
    box = hoard.box
    dotenv = box.sh("cat .env").stdout.splitlines()
    lines = FILES[".env"].splitlines()
    assert len(dotenv) == len(lines)
    assert [line.partition("=")[0] for line in dotenv[:7]] == [line.partition("=")[0] for line in lines[:7]]
    assert [len(line) for line in dotenv] == [len(line) for line in lines]
    assert dotenv[1:3] == ["PORT=3000", "DEBUG=true"]
    assert dotenv[4].startswith("URL=postgres://u:x1xx1x")
    assert dotenv[4].endswith("@db/x")
    assert "LAST=1" in dotenv
    assert dotenv[3].endswith("' # mine")

    script = (
        "import json; a = json.load(open('terraform.tfstate')); b = json.load(open('deploy/service-account.json'));"
        "c = json.load(open('appsettings.json'))['ConnectionStrings']['Shop'];"
        "print(a['version'], len(a['password']), b['type'], c[:30], b['private_key'].splitlines()[0])"
    )
    out = box.run("python3", "-c", script).stdout
    assert out == f"4 {len(SECRET)} service_account Server=localhost;Database=Shop -----BEGIN PRIVATE KEY-----\n"
    shown = box.sh(
        "cat config/database.yml src/main/resources/application.properties .yarnrc.yml; wc -c <store.p12"
    ).stdout
    for line in ("  adapter: postgresql", "  port: 5432", "server.port=8080", "nodeLinker: node-modules", "0"):
        assert line in shown.splitlines()

    remotes = box.sh("git remote -v; git log --oneline | wc -l").stdout
    assert "https://example.org/x.git (fetch)" in remotes
    assert "https://example.org/y (fetch)" in remotes
    assert "ssh://git@example.org/x (push)" in remotes


@pytest.mark.parametrize("word", ["warn", "allow"])
def test_words_of_earlier_versions_are_refused_with_those_of_today(user_box, word):
    user_box.write(f"{user_box.home}/.claudebox/config.toml", f'project_secrets = "{word}"\n', mode=0o600)
    os.chmod(f"{user_box.home}/.claudebox", 0o700)
    for result in (user_box.run("true"), user_box.run("true", flags=("--project-secrets", word))):
        assert result.returncode == 125
        assert "`show` or `mask`" in result.stderr.splitlines()[0]


def answer(terminal: Terminal, line: str, *answers: tuple[str, str]) -> str:
    """Start a session on a terminal, answer its questions, and return what it has shown."""
    begun = len(terminal.raw())
    terminal.type(line)
    for question, key in answers:
        terminal.expect(question)
        terminal.press(f"{key}\r")
    assert terminal.prompt() == 0
    return terminal.raw()[begun:]


PROCEED, LATER = r"Proceed\? \[Y/n\] ", r"too\? \[y/N\] "


def test_showing_is_remembered_for_this_project_after_a_question(user_box):
    # proves MASK-01, UX-02
    user_box.write(".env", f"API_KEY={SECRET}\n")
    user_box.mkdir(f"{user_box.base}/other")
    user_box.write(f"{user_box.base}/other/.env", f"API_KEY={SECRET}\n")
    plain = f"{user_box.program} --exec -- cat .env"
    show = f"{user_box.program} --project-secrets show --exec -- cat .env"
    mask = f"{user_box.program} --project-secrets mask --exec -- cat .env"
    assert SECRET in user_box.run("cat", ".env", flags=SHOW).stdout
    with Terminal(user_box) as terminal:
        assert SECRET not in answer(terminal, plain, (PROCEED, "y")), "nothing is remembered unattended"
        assert SECRET in answer(terminal, show, (PROCEED, "y"), (LATER, "n"))
        assert SECRET not in answer(terminal, plain, (PROCEED, "y"))
        assert SECRET in answer(terminal, show, (PROCEED, "y"), (LATER, "y"))
        assert SECRET in answer(terminal, plain, (PROCEED, "y")), "never asked again"
        assert SECRET in answer(terminal, show, (PROCEED, "y"))
    assert SECRET in user_box.run("cat", ".env").stdout
    assert SECRET not in user_box.run("cat", ".env", cwd=f"{user_box.base}/other").stdout
    assert SECRET not in user_box.run("cat", ".env", flags=("--profile", "strict")).stdout
    assert "project_secrets: mask -> show" in user_box.claudebox("trust").stdout

    user_box.write(".claudebox.toml", 'project_secrets = "mask"\n')
    assert SECRET not in user_box.run("cat", ".env").stdout, "a project file may tighten"
    os.unlink(f"{user_box.project}/.claudebox.toml")
    with Terminal(user_box) as terminal:
        assert SECRET not in answer(terminal, mask, (PROCEED, "y"))
    assert SECRET not in user_box.run("cat", ".env").stdout, "and taken back without one"
    assert "project_secrets" not in user_box.claudebox("trust").stdout


def test_a_project_file_shows_nothing_unless_it_was_approved(user_box):
    # proves MASK-01, EXT-01
    user_box.write(".env", f"API_KEY={SECRET}\n")
    user_box.write(".claudebox.toml", 'project_secrets = "show"\n')
    result = user_box.run("cat", ".env")

    assert SECRET not in result.stdout
    assert "is not approved" in result.stderr


# Git: what it has committed is readable anyway; what it has not, stays out of it.


def test_what_git_has_committed_is_named_and_not_masked(hoard):
    # proves MASK-01
    box = hoard.box
    hoard.sh("git add -f api/server.key .env; git commit -qm fixtures; echo OTHER=1 >>.env")
    result = box.sh("cat api/server.key; git show HEAD:.env; cat .env; cat config/master.key")
    later = box.sh("true").stderr

    assert KEY in result.stdout
    assert result.stdout.count(f"OTHER={SECRET}") == 1, "only in what was committed"
    assert "in git, and so readable inside: api/server.key" in result.stderr
    assert f"no secrets enter but those of 2 files in git, {len(FILES) - 2} files masked" in later, (
        "one has the same key"
    )


def test_what_only_the_objects_of_git_have_is_masked_and_named_as_readable(box):
    # proves MASK-01
    made = repositories.make(box)
    for name in ("staged", "packed", "kept", "lib/nested"):
        box.write(f"{name}.env", f"API_KEY={SECRET}{name.replace('/', '')}\n")
    made.sh(
        "git add -f staged.env packed.env; git rm -q --cached staged.env; git commit -qm old; git rm -q --cached"
        " packed.env; git commit -qm new; git repack -qad; git init -q lib; git -C lib add -f nested.env"
    )
    result = box.sh("cat *.env lib/*.env; for d in . lib; do git -C $d cat-file --batch-all-objects --batch; done")

    assert result.stdout.count(SECRET) == 3, "only in objects"
    assert f"{SECRET}kept" not in result.stdout
    assert "in git, and so readable inside: lib/nested.env:1, packed.env:1, staged.env:1; masked" in result.stderr
    assert "masked inside: kept.env:1;" in result.stderr


def test_git_inside_neither_sees_nor_commits_fake_values(hoard):
    # proves MASK-01, GIT-04
    box = hoard.box
    box.write("app.env", "API_KEY=\n")
    hoard.sh("git add -f app.env; git commit -qm template")
    box.write("app.env", f"API_KEY={SECRET}\n")
    box.write("src/new.env", f"API_KEY={SECRET}\n")
    script = """
        git status --short app.env src; git diff; git stash; git checkout -q .; git reset -q --hard
        git rm -q --cached app.env; git reset -q; git rm -q --cached app.env; git add -f app.env
        mkdir -p src; echo 1 >src/work.txt; git add -A; git commit -qam work; git status --short
        git add -f src/new.env; git add -f app.env; git commit -qam more; cat app.env
    """
    inside = box.sh(script)
    committed = hoard.sh("git show HEAD --stat --format=%s; git show HEAD:app.env; git status --short app.env")

    assert inside.stdout.splitlines()[-1].startswith("API_KEY=")
    assert SECRET not in inside.stdout
    assert " app.env" not in inside.stdout.replace("API_KEY", "")
    assert "claudebox-masked" in inside.stderr, "what is named is refused"
    assert committed.splitlines()[0] == "work"
    assert "src/work.txt" in committed
    assert "new.env" not in committed
    assert "API_KEY=\n" in committed
    assert " M app.env" in committed, "the user's own change is still there"
    assert Path(box.project, "app.env").read_text() == f"API_KEY={SECRET}\n"


def test_a_repository_that_is_made_inside_does_not_take_fake_values(user_box):
    # proves MASK-01
    user_box.write(".env", f"API_KEY={SECRET}\n")
    user_box.write(f"{user_box.home}/.gitconfig", repositories.GITCONFIG)
    result = user_box.sh("git init -q; echo 1 >a; git add -A; git commit -qm first; git show --stat --format=")

    assert "a |" in result.stdout
    assert ".env" not in result.stdout


def test_tokens_of_nested_repositories_are_masked(hoard):
    # proves MASK-01
    hoard.sh(f"git init -q lib; git -C lib remote add origin https://bob:{TOKEN}@example.org/x.git")
    result = hoard.box.sh("cat lib/.git/config; git -C lib remote -v")

    assert "https://bob:" in result.stdout
    assert TOKEN not in result.stdout
    assert TOKEN in hoard.box.sh("cat lib/.git/config", flags=SHOW).stdout


def test_a_worktree_does_not_show_the_token_of_its_repository(hoard):
    # proves A20, D14
    box = hoard.box
    hoard.sh("git worktree add -q ../tree")
    box.project = f"{box.base}/tree"
    assert TOKEN in hoard.sh("git remote -v")
    assert TOKEN not in box.sh("git remote -v; cat ../project/.git/config").stdout


def test_undo_and_the_report_leave_masked_files_alone(hoard):
    # proves MASK-01, UNDO-02
    box = hoard.box
    before = {path: Path(box.project, path).read_bytes() for path in FILES}
    said = box.sh("echo 1 >made; cat .env >seen", flags=("--set", "undo_keep=5")).stderr
    changes = box.claudebox("changes").stdout
    undone = box.claudebox("undo", "--yes")

    assert undone.returncode == 0, undone.stderr
    assert "made" in changes
    assert not [line for line in (said + changes).splitlines() if ".env" in line and "masked" not in line]
    assert not os.path.exists(f"{box.project}/made")
    assert {path: Path(box.project, path).read_bytes() for path in FILES} == before


# Whatever it is called, and wherever it lies.


def test_other_names_and_places_of_a_masked_file_are_masked(user_box):
    # proves MASK-01, C32
    user_box.write("conf/.env", f"API_KEY={SECRET}\n")
    user_box.write("conf/real.txt", f"API_KEY={SECRET}\n")
    user_box.mkdir("node_modules/x")
    os.link(f"{user_box.project}/conf/.env", f"{user_box.project}/node_modules/x/same.txt")
    os.symlink("conf/real.txt", f"{user_box.project}/.env")
    os.symlink("/etc/hostname", f"{user_box.project}/.npmrc")
    data = f"{user_box.base}/data"
    read = "cat conf/.env node_modules/x/same.txt .env conf/real.txt"
    inside = user_box.sh(read)
    mounted = user_box.sh(f"cat {data}/.env", flags=("--mount-ro", f"conf:{data}"))
    named = user_box.sh(f"cat {data}", flags=("--mount-ro", f"conf/.env:{data}"))

    assert inside.stdout.count("API_KEY=x1xx1x") == 4
    assert SECRET not in inside.stdout + mounted.stdout
    assert mounted.stdout.startswith("API_KEY=x1xx1x")
    assert SECRET in named.stdout, "the user has named the very file"
    assert user_box.sh(read, flags=SHOW).stdout.count(SECRET) == 4


def test_what_the_host_writes_later_stays_hidden(hoard, running):
    # proves A20
    box = hoard.box
    session = running(box, then="cat .env .npmrc")
    hoard.sh("echo LATER=later-secret >>.env; echo later=later-secret >.npmrc")
    output = session.end()
    assert "API_KEY=" in output
    assert "later-secret" not in output
    assert "later-secret" in Path(box.project, ".env").read_text()


def test_two_sessions_mask_and_show_each_by_itself(user_box, running):
    # proves MASK-01, MOUNT-01
    user_box.write(".env", f"API_KEY={SECRET}\n")
    masked = running(user_box, then="cat .env")
    shown = user_box.sh("cat .env; echo 1 >>.env; mv .env elsewhere; mv elsewhere .env", flags=SHOW)
    again = user_box.sh("cat .env")

    assert shown.stdout == f"API_KEY={SECRET}\n"
    assert SECRET not in again.stdout
    assert SECRET not in masked.end()


def test_new_files_named_like_secrets_are_reported_at_the_end(user_box):
    # proves A20
    repositories.make(user_box)
    said = user_box.sh("mkdir conf; echo K=V >conf/.env.production").stderr
    assert "1 file: conf/.env.production" in said


def test_links_and_traps_named_like_secrets_are_left_alone(user_box):
    # proves C01, C18
    checkout = repositories.make(user_box)
    checkout.sh(
        "mkfifo .npmrc; ln -s /etc/passwd .env; ln -s /oldroot/tmp/x id_rsa; mkdir .pypirc; ln -s nowhere a.pem;"
        "ln -s .git/config b.env; ln -s c.env d.env; ln -s d.env c.env"
    )
    started = time.monotonic()
    result = user_box.sh("ls -l .env; git status >/dev/null")
    assert result.returncode == 0, result.stderr
    assert "masked" not in result.stderr
    assert time.monotonic() - started < 10


def test_a_dry_run_writes_nothing_and_shows_no_value(hoard):
    # proves UX-04
    result = hoard.box.claudebox("--dry-run", "--exec", "--", "true")
    assert result.returncode == 0
    assert "--ro-bind-data" in result.stdout
    for secret in HIDDEN:
        assert secret not in result.stdout
    assert not os.path.exists(f"{hoard.box.home}/.claudebox")


def test_a_launch_with_secrets_loads_nothing_dear(user_box):
    # proves MASK-01
    repositories.make(user_box)
    user_box.sh("true")  # the first launch of a project writes the client's configuration
    user_box.write(".env", FILES[".env"])
    modules = user_box.host(
        "/usr/bin/python3", "-IS", "-X", "importtime", user_box.program, "-y", "--exec", "--", "true"
    ).stderr
    assert "claudebox.host.secret_scan" in modules
    for module in ("subprocess", " json\n", "| re\n", "hashlib"):
        assert module not in modules


def test_decoys_do_not_unmask_what_a_limit_would_have_reached(user_box):
    # proves C32, A20, OLD-A5
    user_box.write("zz/deep/er/.env", f"API_KEY={SECRET}\n")
    script = (
        "mkdir -p $(seq -f 'a%g' 1 200); for n in $(seq 1 200); do echo API_KEY=decoy-decoy-decoy-12 >a$n/.env; done;"
        "cat zz/deep/er/.env"
    )
    first = user_box.sh(script)
    second = user_box.sh("cat zz/deep/er/.env")
    control = user_box.sh("cat zz/deep/er/.env", flags=SHOW)

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
    moved = user_box.sh(move)
    later = user_box.sh("cat $(find . -type f)")
    control = user_box.sh(f"{move}; cat $(find . -type f)", flags=SHOW)

    assert "busy" in moved.stderr
    assert "API_KEY=" in later.stdout
    assert SECRET not in later.stdout
    assert SECRET in control.stdout


def test_a_masked_file_is_known_again_under_another_name(user_box):
    # proves C32
    user_box.write("conf/.env", f"API_KEY={SECRET}\n")
    user_box.sh("true")
    user_box.mkdir("node_modules/x")
    os.rename(f"{user_box.project}/conf/.env", f"{user_box.project}/node_modules/x/notes.txt")
    user_box.sh("true", flags=SHOW)
    result = user_box.sh("cat node_modules/x/notes.txt; touch node_modules/x/notes.txt")

    assert len(result.stdout) == len(f"API_KEY={SECRET}\n")
    assert "Read-only" in result.stderr
    assert SECRET not in result.stdout
    os.unlink(f"{user_box.project}/node_modules/x/notes.txt")
    user_box.sh("true")
    state = next(Path(user_box.home, ".claudebox/instances").iterdir())
    assert (state / "masked").read_bytes() == b"", "what is gone is not looked for again"


# A search that cannot be completed.


@pytest.mark.parametrize("obstacle", ["closed", "deep"])
def test_what_cannot_be_searched_is_named_or_stops_the_launch(user_box, obstacle):
    # proves C32, E16, MASK-01
    if obstacle == "closed":
        user_box.mkdir("shut")
        os.chmod(f"{user_box.project}/shut", 0o311)
    else:
        nest = "i=0; while [ $i -lt 60 ]; do d=$(printf %0100d 0); mkdir $d; cd $d; i=$((i+1)); done"
        user_box.sh(nest)
    strict = user_box.sh("echo started", flags=STRICT)
    usual = user_box.sh("echo started")
    shown = user_box.sh("echo started", flags=SHOW)
    user_box.host("sh", "-c", "chmod -R u+rwx .; rm -rf ./*")

    assert (strict.returncode, strict.stdout) == (125, "")
    assert "secrets cannot be masked" in strict.stderr
    assert "Traceback" not in strict.stderr + usual.stderr
    assert usual.stdout == shown.stdout == "started\n"
    assert "was not searched for secrets" in usual.stderr


@pytest.mark.root
def test_a_directory_of_another_user_is_closed_inside_too(user_box):
    # proves C32
    os.mkdir(f"{user_box.project}/database", 0o700)

    result = user_box.sh("echo started", flags=STRICT)
    assert result.stdout == "started\n"
    assert "not searched" not in result.stderr


def test_a_file_that_is_closed_to_its_owner_is_masked(user_box):
    # proves MASK-01
    user_box.write(".env", f"API_KEY={SECRET}\n")
    os.chmod(f"{user_box.project}/.env", 0)

    assert SECRET not in user_box.sh("chmod 600 .env; cat .env").stdout
    assert SECRET in user_box.sh("chmod 600 .env; cat .env", flags=SHOW).stdout


def test_more_secrets_than_can_be_copied_are_empty(user_box):
    # proves C32, E16
    for number in range(1100):
        user_box.write(f"d{number:04}/.env", f"API_KEY={SECRET}\n")
    result = user_box.sh("cat d*/.env; wc -c <d1099/.env")

    assert result.returncode == 0, result.stderr
    assert SECRET not in result.stdout
    assert result.stdout.count("API_KEY=x") == 1000
    assert result.stdout.splitlines()[-1] == "0"
    assert "1100 files hold secrets" in result.stderr


_LONG = {
    "blanks": (".env", "API_KEY=x" + " " * 900_000 + "x\n"),
    "quotes": ("credentials.json", '{"' + '\\"' * 400_000),
    "entries": ("credentials.json", json.dumps({f"key{n}": SECRET + str(n) for n in range(22_000)})),
    "deeper": ("credentials.json", '{"a":' * 90_000 + f'{{"password": "{SECRET}"}}' + "}" * 90_000),
    "keys": ("id_rsa", "-----BEGIN " * 80_000),
    "large": (".env", f"API_KEY={SECRET}\n" * 50_000),
}


@pytest.mark.parametrize("kind", _LONG)
def test_a_file_made_to_keep_the_launcher_busy_does_not(user_box, kind):
    # proves E16, OLD-A25
    name, content = _LONG[kind]
    user_box.write(name, content)
    result = user_box.run("cat", name, timeout=15)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "Traceback" not in result.stderr
    assert SECRET not in result.stdout


@pytest.mark.parametrize("copied", [".env", "none"])
def test_a_new_agent_gets_the_masked_file_as_configured(hoard, copied):
    # proves MASK-01, MANY-01
    box = hoard.box
    words = ("new", "work", "-y", "--copy", copied, "--exec", "--", "sh", "-c", "cat .env; git status --short")
    result = box.claudebox(*words)

    assert SECRET not in result.stdout + result.stderr
    assert ("API_KEY=" in result.stdout) == (copied == ".env")


def test_an_answer_for_a_project_counts_in_its_worktrees(user_box):
    # proves MASK-01, MANY-01
    repositories.make(user_box)
    user_box.write(".env", f"API_KEY={SECRET}\n")
    new = ("new", "work", "-y", "--copy", ".env", "--exec", "--", "cat", ".env")
    before = user_box.claudebox(*new)
    with Terminal(user_box) as terminal:
        show = f"{user_box.program} --project-secrets show --exec -- cat .env"
        answer(terminal, show, (PROCEED, "y"), (LATER, "y"))
    after = user_box.claudebox(*new)

    assert before.stdout.startswith("API_KEY=x")
    assert after.stdout == f"API_KEY={SECRET}\n"


def test_a_masked_file_keeps_its_mode(user_box):
    # proves MASK-01
    user_box.write(".pgpass", f"localhost:5432:shop:bob:{SECRET}\n", mode=0o600)
    user_box.write("bin/start.env", f"API_KEY={SECRET}\n", mode=0o755)

    assert user_box.sh("stat -c %a .pgpass bin/start.env").stdout == "600\n755\n"


def test_a_commit_of_fake_values_moves_no_branch(box):
    # proves MASK-01, GIT-03
    checkout = repositories.make(box)
    checkout.sh("echo .env >.git/info/exclude")
    box.write(".env", f"API_KEY={SECRET}\n")
    forged = "git update-index --add --cacheinfo 100644,$(git hash-object -w --no-filters .env),.env"
    result = box.sh(f"{forged}; git commit -qm fake; git checkout -q -b other HEAD~; echo 1 >a; git commit -qam real")

    assert "main changes `.env`, which is read-only inside: it arrived as claudebox/" in result.stderr
    assert checkout.sh("git log -1 --format=%s main").strip() != "fake"
    assert checkout.sh("git log -1 --format=%s other") == "real\n"  # the control
    assert Path(box.project, ".env").read_text() == f"API_KEY={SECRET}\n"
    assert checkout.sh("git ls-files .env; git reset -q --hard; cat .env") == f"API_KEY={SECRET}\n"
