"""Agents of the user's own: rows in ~/.claudebox/agents, what they may say, and that they count as built-in ones do."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY
from tests.support import hosts
from tests.support.models import SAID, Models

from claudebox.agent import kinds
from claudebox.agent.record import AgentKind, LoginFile, Seed, Upstream
from claudebox.base.errors import ClaudeboxError
from claudebox.plan import compose
from claudebox.settings.files import SettingsReader
from claudebox.settings.layers import parse_arguments
from claudebox.settings.records import Policy

KEY = "tinker-key-of-the-tests-Vq7Zr2Lx9Tn4Kd8Wb3"
# An agent as somebody may have written it: a loop of Chat Completions with one tool.
TINKER = r"""#!/usr/bin/python3
import json, os, subprocess, sys, urllib.request
home, words = os.environ["HOME"], sys.argv[1:]
assert words[0] == "--yes", words
told = open(home + "/.tinker/INSTRUCTIONS.md").read()
messages = [{"role": "system", "content": told}, {"role": "user", "content": words[-1]}]
shape = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
tools = [{"type": "function", "function": {"name": "bash", "parameters": shape}}]
while True:
    body = json.dumps({"model": "gpt-4o", "messages": messages, "tools": tools}).encode()
    headers = {"authorization": "Bearer " + os.environ["TINKER_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["TINKER_URL"] + "/chat/completions", body, headers)
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(said)
    if not said.get("tool_calls"):
        break
    for call in said["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        result = subprocess.run(command, shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.stdout + result.stderr})
print(said["content"])
with open(home + "/.tinker/history", "a") as history:
    history.write(os.getcwd() + "\n")
print(open(home + "/.tinker/history").read())
"""
# What the agent's shell looks at: whether the key is anywhere, and what it can do to what tinker obeys.
LOOK = (
    "env | grep -c 4Kd8Wb[3] >seen; cat /proc/*/environ | grep -ac 4Kd8Wb[3] >>seen; "
    "grep -rac 4Kd8Wb[3] $HOME /run/claudebox 2>/dev/null | grep -v :0 >>seen; "
    "echo evil >>.tinker.toml; mkdir -p .codex; ls ~/.tinker ~/.claudebox >>seen 2>&1; true"
)


def example():
    """Return the example of the documentation."""
    page = (REPOSITORY / "docs/guide.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"agents/tinker\.toml -->\n```toml\n(.*?)```", page, re.DOTALL)
    return text


@pytest.fixture
def own_box(user_box):
    """Return a box with the example and its program."""
    user_box.write(f"{user_box.home}/.local/bin/tinker", TINKER, mode=0o755)
    user_box.write(f"{user_box.home}/.claudebox/agents/tinker.toml", example())
    return user_box


def test_the_example_of_the_documentation_runs_with_its_key_outside(own_box):
    # proves ANY-01, AUTH-01
    own_box.write(".tinker.toml", "test = 'true'\n")
    with Models(KEY, command=LOOK) as models:
        env = {"TINKER_KEY": KEY, "OPENAI_BASE_URL": f"{models.address}/v1"}
        result = own_box.claudebox("-y", "--network", "none", "tinker", "--json", "Look around", env=env)
        other = own_box.mkdir(f"{own_box.base}/other")
        elsewhere = own_box.claudebox("-y", "--network", "none", "tinker", "Again", env=env, cwd=other)

    assert result.returncode == 0, result.stderr
    assert SAID in result.stdout
    assert all(KEY in headers["authorization"] for _, headers, _ in models.requests)
    bodies = b"".join(body for _, _, body in models.requests)
    assert KEY.encode() not in bodies
    assert b"You run in a claudebox sandbox" in bodies
    seen = Path(own_box.project, "seen").read_text().split("\n")
    assert seen[:2] == ["0", "0"]
    assert not any(KEY in line or "tinker.toml" in line for line in seen)
    assert Path(own_box.project, ".tinker.toml").read_text() == "test = 'true'\n"
    assert not os.path.lexists(f"{own_box.project}/.codex")
    assert not os.path.lexists(f"{own_box.home}/.tinker")
    assert elsewhere.stdout.split()[-1] == other  # a history of its own


def test_what_an_own_agent_obeys_is_protected_and_its_login_hidden_whichever_agent_runs(own_box):
    # proves ANY-06, SAND-09
    own_box.write(f"{own_box.home}/.tinker/login", "secret")
    result = own_box.sh("echo evil >.tinker.toml; cat ~/.tinker/login")
    shown = own_box.claudebox("--explain", "--mount-ro", f"{own_box.home}/.tinker", "--exec", "true")

    assert "No such file" in result.stderr
    assert os.path.lexists(f"{own_box.project}/.tinker.toml.claudebox"), result.stderr
    assert not os.path.lexists(f"{own_box.project}/.tinker.toml")
    assert shown.returncode == 125
    assert "tinker's login and conversations" in shown.stderr


def test_an_own_agent_is_one_everywhere(own_box):
    # proves ANY-05
    missing = f"{own_box.home}/.local/bin/tinker"
    os.unlink(missing)
    result = own_box.claudebox("-y", "tinker", "hello")
    chosen = own_box.claudebox("--explain", env={"CLAUDEBOX_AGENT": "tinker"})

    assert result.returncode == 127
    assert "pipx install tinker-agent" in result.stderr
    assert "not installed: pipx install tinker-agent" in own_box.claudebox("help", "agents").stdout
    assert "tinker\tstart this agent" in own_box.claudebox("help", "complete", "--", "tin").stdout
    assert "pipx install tinker-agent" in chosen.stderr


def test_a_row_in_a_project_of_dotfiles_is_read_only_inside(own_box):
    # proves C09
    agents = f"{own_box.home}/.claudebox/agents"
    shutil.move(agents, f"{own_box.project}/agents")
    os.symlink(f"{own_box.project}/agents", agents)
    result = own_box.sh("echo evil >>agents/tinker.toml; echo evil >agents/other.toml; mv agents x; touch works")

    assert os.path.exists(f"{own_box.project}/works")
    assert Path(own_box.project, "agents/tinker.toml").read_text() == example(), result.stderr
    assert os.listdir(f"{own_box.project}/agents") == ["tinker.toml"]


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a row: `read(text, name)`."""
    home = tmp_path / "home"

    def read_text(text, name="mine"):
        directory = home / ".claudebox/agents"
        directory.mkdir(parents=True, exist_ok=True)
        for other in directory.iterdir():
            other.unlink()
        (directory / f"{name}.toml").write_text(text)
        os.chmod(directory / f"{name}.toml", 0o644)
        SettingsReader(str(home)).add_agents()
        return kinds.find_kind(name)

    yield read_text
    kinds.add_own(())


def refusal(read, text, name="mine"):
    """Return everything that is wrong with a row."""
    with pytest.raises(ClaudeboxError) as caught:
        read(text, name)
    return "\n".join((caught.value.message, *caught.value.more, caught.value.hint or ""))


def test_a_row_has_the_fields_of_the_record(read):
    row = read(
        'install = "x"\nleast = "1.2.3"\nprinting = ["-p"]\nstate = [".a", ".config/a"]\n'
        'env = {A = "1"}\nnot_inside = {login = ["no", "yes"]}\n'
        '[[seeds]]\npath = ".a/settings.json"\ncontent = "{}"\n'
    )

    assert (row.name, row.title, row.least) == ("mine", "mine", (1, 2, 3))
    assert row.printing == frozenset(("-p",))
    assert row.state == ((".a", "home/.a"), (".config/a", "home/.config/a"))
    assert row.env[0][:2] == ("A", "1")
    assert row.not_inside == {"login": ("no", "yes")}
    assert row.seeds[0].path == ".a/settings.json"
    assert parse_arguments(["--quiet", "mine", "--quiet", "undo"]).words == ("--quiet", "undo")


UPSTREAM = """
[[upstreams]]
name = "x"
keys = ["X_KEY"]
official = "https://x.example"
paths = ["POST /v1/chat"]
env = {X_KEY = "{placeholder}", X_URL = "{url}"}
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('title = "x"', "needs `install`"),
        ("install = 5", "mine.toml:1: `install` is a number, and must be a string"),
        ('install = "x"\nstaet = [".x"]', "mine.toml:2: an agent has no field `staet`; did you mean `state`?"),
        ('install = "x"\nstate = ["../x"]', "`../x` must be a path in the home"),
        ('install = "x"\nstate = [".claudebox/x"]', "claudebox's own"),
        ('install = "x"\nstate = "x"', "must be an array of strings"),
        ('install = "x"\nleast = "new"', "a version"),
        ('install = "x"\nupstream = "x"', "no field `upstream`"),
        ('install = "x"\n[protected]\n"/etc" = "why"', "must be a path in the project"),
        ('install = "x"\nenv = {"A B" = "1"}', "is not the name of a variable"),
        ('install = "x"\n[[seeds]]\npath = ".ssh/config"\ncontent = "x"', "in no directory of `state`"),
        ('install = "x"\nstate = [".a"]\n[[seeds]]\npath = ".a/../.ssh/c"\ncontent = "x"', "without `..`"),
        ('install = "x"' + UPSTREAM.replace("POST ", "PUT "), "must be `GET /PATH` or `POST /PATH`"),
        ('install = "x"' + UPSTREAM.replace("/v1/chat", "/*/*"), "at most one `*`"),
        ('install = "x"' + UPSTREAM.replace("https://", ""), "is not an address"),
        ('install = "x"' + UPSTREAM.replace("{placeholder}", "x"), "needs `{placeholder}`"),
        ('install = "x"' + UPSTREAM.replace("{url}", "x"), "needs `{url}`"),
        ('install = "x"' + UPSTREAM + 'usage = "smoke"', "must be `anthropic`, `responses`, `chat` or `gemini`"),
        ('install = "x"' + UPSTREAM + 'fields = ["*"]', "must be a header field"),
        ('install = "x"' + UPSTREAM + UPSTREAM, "the name `x` appears twice"),
        ('install = "x"\nstate = ', "mine.toml:2: "),
        ('install = "x"\nlogin = "x"', "no field `login`"),
        ('install = "x\\u0007"', "must be a string of one line"),
        ('install = "x"\ntranscripts = "home/../../x"', "without `..`"),
        ('install = "x"\ntranscripts = "log/x"', "must be `home/`"),
        ('install = "x"' + UPSTREAM.replace("x.example", "u:p@x.example"), "is not an address"),
        ('install = "x"' + UPSTREAM + 'header = "host"', "must be a header field"),
        ('install = "x"' + UPSTREAM + 'headers = {X_TEAM = "Content-Length"}', "must be a header field"),
        ('install = "x"' + UPSTREAM.replace('"{placeholder}"', '"x"') + 'args = ["{placeholder}"]', "in `env`"),
    ],
)  # fmt: skip
def test_a_wrong_row_says_which_field_and_what_would_be_right(read, text, wanted):
    assert wanted in refusal(read, text)
    assert read('install = "x"' + UPSTREAM).upstreams[0].keys == ("X_KEY",)


ODD: tuple[object, ...] = (
    5, True, "", " ", "../x", "/etc/x", "~/x", "\r\nX: y", "{", "{nope}", "{url.x}", "\u00e9", [], [""], ["x"],
    ["a\nb"], [5], {}, {"x": "y"}, {"a b": "c"}, {"x": 5}, {"": ""}, [{}], [["a"]], ["GET /*"], "https://a b/", "*",
    "host", ".", "https://u:p@h/",
)  # fmt: skip
LOGIN = {"path": "~/.a/l", "access": "a", "refresh": "b", "url": "https://y.example", "client": "c", "again": "d"}


def spell(value):
    """Return a value as TOML, inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {spell(row)}" for name, row in value.items()) + "}"
    return f"[{', '.join(map(spell, value))}]" if isinstance(value, list) else json.dumps(value)


@pytest.mark.parametrize("record", [AgentKind, Upstream, LoginFile, Seed])
def test_whatever_a_field_says_a_row_is_refused_at_its_line_or_makes_a_plan(read, record):
    works, refusals = 0, []
    for field, odd in itertools.product(record.__annotations__, ODD):
        rows = tomllib.loads('install = "x"\nstate = [".a"]' + UPSTREAM)
        rows["upstreams"][0] |= {"login": dict(LOGIN)}
        rows["seeds"] = [{"path": ".a/s", "content": "{}"}]
        (api,) = rows["upstreams"]
        {AgentKind: rows, Upstream: api, LoginFile: api["login"], Seed: rows["seeds"][0]}[record][field] = odd
        try:
            agent = read("".join(f"{name} = {spell(value)}\n" for name, value in rows.items()))
        except ClaudeboxError as error:
            refusals += [error.message, *error.more]
            continue
        host = hosts.debian(environ={"PATH": "/usr/bin", "X_KEY": KEY}, libraries=("/lib/python",))
        plan = compose.make_plan(Policy("client", auth="broker", network="none", agent=agent), host)
        shown = repr((plan.command, plan.variables, plan.mounts))
        assert not [text for text in (KEY, "{placeholder}", "{url}") if text in shown], (field, odd)
        works += 1
    assert works
    assert all(line.startswith("~/.claudebox/agents/mine.toml:") and "\n" not in line for line in refusals)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("codex", "is a built-in agent"), ("undo", "is a verb"), ("help", "is a verb"), ("Mine", "small letters"),
        ("-x", "small letters"), ("a b", "small letters"), ("x" * 33, "small letters"),
    ],
)  # fmt: skip
def test_a_name_of_an_own_agent_takes_no_other_s_place(read, name, wanted):
    assert wanted in refusal(read, 'install = "x"', name)


def test_a_broken_row_stops_launches_and_nothing_else(user_box):
    user_box.write(f"{user_box.home}/.claudebox/agents/mine.toml", "install = 5")

    launches: list[tuple[str, ...]] = [
        ("--explain", "--exec", "true"), ("--explain", "mine", "--json"), ("-y", "--exec", "true"),
    ]  # fmt: skip
    for words in launches:
        result = user_box.claudebox(*words)
        assert result.returncode == 125
        assert "mine.toml:1: `install` is a number" in result.stderr
    for verb in ("help", "log", "sessions"):
        assert user_box.claudebox(verb).returncode == 0


def test_a_row_that_others_can_change_is_not_believed(user_box):
    # proves E05
    path = user_box.write(f"{user_box.home}/.claudebox/agents/mine.toml", 'install = "x"')
    os.chmod(path, 0o666)

    result = user_box.claudebox("--explain", "--exec", "true")
    assert result.returncode == 125
    assert "can be changed by other users" in result.stderr


EIGHTH = """
from __future__ import annotations

from claudebox.agent.record import AgentKind

EIGHTH = AgentKind(
    name="eighth", title="Eighth", install="npm install -g eighth", state=((".eighth", "home/.eighth"),),
    protected=((".eighth.json", "eighth starts these servers"),), hidden=((".eighth", "eighth's login"),),
)
"""


def test_one_file_adds_a_built_in_agent(tmp_path):
    # proves ANY-05, HOUSE-03
    for name in ("src", "scripts", "docs"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "src/claudebox/agent/eighth.py").write_text(f'"""An eighth."""\n{EIGHTH}')
    subprocess.run([sys.executable, "-I", "scripts/generate.py"], cwd=tmp_path, check=True, capture_output=True)

    program = f"""
import sys; sys.path.insert(0, {str(tmp_path / "src")!r})
from claudebox.agent import kinds
from claudebox.commands.complete import list_candidates
from claudebox.commands.usage import _list_agents
from claudebox.settings.layers import parse_arguments
assert any("not installed: npm install -g eighth" in line for line in _list_agents({{}}))
assert [line.split()[0] for line in list_candidates(["eig"], {{}})] == ["eighth"]
assert [line.split()[0] for line in list_candidates(["--allow", ".eig"], {{}})] == [".eighth.json"]
assert parse_arguments(["eighth", "--json"]).agent.title == "Eighth"
assert ".eighth.json" in kinds.list_protected_names()
assert (".eighth", "eighth's login") in kinds.list_hidden()
"""
    subprocess.run([sys.executable, "-I", "-c", program], check=True)
