from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support import hosts
from tests.support.strategies import FLAGS, environs, foreign_words, own_words, strings

from claudebox.base.errors import ClaudeboxError
from claudebox.commands import complete
from claudebox.plan import compose
from claudebox.plan.records import Plan
from claudebox.settings import layers, parsers
from claudebox.settings.layers import Settings
from claudebox.settings.table import SETTINGS
from claudebox.settings.verbs import VERBS


@given(
    st.lists(st.one_of(own_words(), foreign_words.map(lambda word: [word])), max_size=12), st.none() | st.lists(strings)
)
def test_every_word_that_is_not_ours_survives_in_its_order(groups, tail):
    # proves D-01
    argv = [word for group in groups for word in group] + ([] if tail is None else ["--", *tail])
    foreign = [group[0] for group in groups if len(group) == 1 and group[0].partition("=")[0] not in FLAGS]

    assert layers.read_settings(argv, {}).words == (*foreign, *(tail or ()))


@given(st.lists(own_words(), max_size=8))
def test_everything_that_was_given_is_kept_with_its_origin(groups):
    # proves D-03, NET-T
    read = layers.read_settings([word for group in groups for word in group], {})

    wanted: dict[str, list[tuple[str, str]]] = {}
    for group in groups:
        flag, _, joined = group[0].partition("=")
        value = group[1] if len(group) == 2 else joined or "yes"
        wanted.setdefault(FLAGS[flag].key, []).append((value, flag))
    for key, values in wanted.items():
        row = next(row for row in FLAGS.values() if row.key == key)
        if row.shape == "list":
            assert [(given.value, given.origin) for given in read.all(key)] == values
        else:
            assert (read.one(key).value, read.one(key).origin) == values[-1]


FILE_KEYS = {row.key for row in SETTINGS if row.in_files != "none"}  # by `--set`


def verb_flags(verb):
    return [flag for row in verb.flags for flag in row.flags]


def attempt(action):
    """Return what came of it; any other exception is a traceback, and a failure."""
    try:
        return action()
    except ClaudeboxError as error:
        return error


arguments = st.lists(
    st.one_of(strings, st.sampled_from(sorted(FLAGS)), st.sampled_from(["--", "--env=", "--network=none"]))
)


@given(arguments, environs)
def test_any_arguments_are_understood_or_refused(argv, environ):
    outcome = attempt(lambda: layers.read_settings(argv, environ))

    assert isinstance(outcome, Settings) or (outcome.status == 125 and outcome.message)


verb_words = st.lists(
    st.one_of(
        strings, st.sampled_from(sorted(FLAGS)), st.sampled_from([flag for row in VERBS for flag in verb_flags(row)]),
        st.sampled_from(["--", "--set", "--json=1", "a", "2026", "\udcff", "-", "claude"]),
    ),
    max_size=6,
)  # fmt: skip


@given(st.sampled_from(VERBS), verb_words, verb_words)
def test_any_words_around_a_verb_are_understood_or_refused(verb, before, after):
    # proves CLI-01, SAND-14
    outcome = attempt(lambda: layers.parse_arguments([*before, verb.word, *after]))

    assert isinstance(outcome, Settings) or (outcome.status == 125 and outcome.message)
    if not before and isinstance(outcome, Settings):
        assert outcome.verb == verb.word
        assert {*outcome.given} <= {
            "help",
            verb.word,
            "set_env",
            *FILE_KEYS,
            *(row.key for row in verb.rows(FLAGS).values()),
        }


@given(verb_words)
def test_completion_of_any_words_prints_whole_lines(words):
    # proves CLI-01
    for line in complete.list_candidates(words, {"HOME": "/nonexistent"}):
        assert line.count("\t") == 1
        assert line.isprintable() or line.replace("\t", "").isprintable()


@given(arguments, environs, strings)
def test_any_arguments_lead_to_a_plan_or_to_an_error_for_a_user(argv, environ, home):
    def made() -> Plan:
        wishes = layers.decide_policy(layers.read_settings(argv, environ), home=home, workdir=hosts.PROJECT)
        return compose.make_plan(wishes, hosts.asking(hosts.debian(environ=environ), wishes))

    outcome = attempt(made)

    assert (outcome.command and outcome.mounts) if isinstance(outcome, Plan) else outcome.status in (125, 126, 127)


@given(strings.filter(bool))
def test_a_mount_request_always_has_absolute_plain_paths(value):
    # proves EXT-02, C27
    try:
        wishes = layers.decide_policy(
            layers.read_settings(["--mount-ro", value], {}), home=hosts.HOME, workdir=hosts.PROJECT
        )
    except ClaudeboxError:
        return
    (request,) = wishes.mounts
    for path in (request.source, request.dest):
        assert path.startswith("/")
        assert not path.startswith("//")
        assert not {"", ".", ".."} & set(path.split("/")[1:]) or path == "/"


@given(strings, strings)
def test_a_colon_that_belongs_to_a_path_can_be_written(source, dest):
    # proves EXT-02
    source, dest = f"/s{source.replace(chr(92), '')}", f"/d{dest.replace(chr(92), '')}"
    written = f"{source.replace(':', chr(92) + ':')}:{dest.replace(':', chr(92) + ':')}"

    assert parsers.split(written) == (source, dest)


@given(strings)
def test_only_what_every_program_takes_for_a_name_is_a_name(text):
    # proves A14
    plain = bool(text) and all(
        char in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_" for char in text
    )

    assert parsers.valid_name(text) == (plain and not text[0].isdigit())
