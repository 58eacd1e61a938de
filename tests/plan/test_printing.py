from __future__ import annotations

import subprocess

from hypothesis import assume, example, given
from hypothesis import settings as bounds
from hypothesis import strategies as st
from tests.plan.test_explain import renderings
from tests.support import hosts
from tests.support.strategies import components, environs, names, paths, strings

from claudebox.base import console
from claudebox.git.facts import Repository, UserSettings
from claudebox.plan import compose, explain, sandbox_md
from claudebox.settings.records import MountRequest, NameRequest, Policy


@given(st.text(st.characters(exclude_characters="\0"), max_size=40))
def test_whatever_is_cleaned_can_be_printed(text):
    # proves B12
    assert console.clean(text).isprintable()
    assert len(console.shorten(text, 10)) <= 10
    assert console.clean(console.clean(text)) == console.clean(text)


@given(
    words=st.lists(strings, max_size=4), environ=environs, asked=st.lists(names.map("V_{}".format), max_size=3),
    mounts=st.lists(paths, max_size=2), workdir=components, identity=st.tuples(strings, strings), problem=strings,
    socket=components,
)  # fmt: skip
def test_every_line_can_be_printed_whatever_names_paths_and_values_are(
    words, environ, asked, mounts, workdir, identity, problem, socket
):
    # proves B12, C11
    project = f"/home/alice/src/{workdir}"
    wanted = tuple(MountRequest(path, path, writable=True, origin="--mount-rw") for path in mounts)
    nested = any(one != other and f"{one}/".startswith(f"{other}/") for one in mounts for other in mounts)
    policy = Policy("exec", ("true", *words), names=tuple(NameRequest(name, "--env") for name in asked), mounts=wanted)
    host = hosts.debian(
        environ={**environ, **dict.fromkeys(asked, "\x1b[0m\n")}, workdir=hosts.fact(project),
        git_user=UserSettings((("user", "", "name", identity[0]), ("user", "", "email", identity[1]))),
        repository=Repository(project, problem=f"no: {problem}"), sockets=(f"{project}/{socket}",),
    )  # fmt: skip
    assume(not nested)  # which is refused
    made = compose.make_plan(policy, hosts.asking(host, policy))

    for name, text in renderings(made).items():
        assert all(line.isprintable() for line in text.split("\n")), name
    described = next(row.content for row in made.mounts if row.dest == sandbox_md.PATH).decode()
    assert all(line.isprintable() for line in described.split("\n"))


SECRET_NAMES = st.sampled_from(
    ["GH_TOKEN", "AWS_SECRET_ACCESS_KEY", "db_password", "X_AUTH", "MY_PAT", "SESSION_COOKIE"]
)
SHAPES = st.sampled_from(["ghp_{}", "sk-ant-{}", "https://u:{}@host/", "AKIA{}", "-----BEGIN PRIVATE KEY-----\n{}"])


@given(
    st.dictionaries(SECRET_NAMES, st.text("0123456789abcdef", min_size=12), max_size=4),
    st.dictionaries(names, SHAPES, max_size=3),
)
def test_what_looks_secret_is_in_no_rendering(by_name, by_shape):
    # proves B13, SEC-01, UX-01, UX-04
    environ = {name: f"canary{value}" for name, value in by_name.items()}
    environ |= {f"V_{name}": shape.format(f"canary{index}") for index, (name, shape) in enumerate(by_shape.items())}
    policy = Policy("client", names=tuple(NameRequest(name, "--env") for name in environ))
    made = compose.make_plan(policy, hosts.debian(environ=environ))

    assert {row.name for row in made.variables if row.secret} == set(environ)
    for name, text in renderings(made).items():
        assert "canary" not in text, name


ODD_WORDS = [
    "", "plain", "a b", "it's", '"', "$(id)", "`id`", "$HOME", "%s", "~", "*", "!x", "-n", "--", "a\\b", "a\nb", "\t",
    "\x1b[31m", "\u202e", "\udcff\udc80", "ä", "日本", "=", "A=B", "a;b", "a&b", "#", "{a,b}", "\x7f", "a\u00a0b",
]  # fmt: skip


@bounds(max_examples=40)
@given(st.lists(strings, min_size=1, max_size=20))
@example(ODD_WORDS)
def test_bash_reads_every_quoted_word_back(words):
    # proves UX-04, C11
    quoted = " ".join(explain.bash_quote(word) for word in words)
    script = f"printf '%s\\0' {quoted}"
    back = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, check=True).stdout

    assert back.split(b"\0")[:-1] == [word.encode("utf-8", "surrogateescape") for word in words]
    assert quoted.isprintable()
    assert console.clean(quoted) == quoted
