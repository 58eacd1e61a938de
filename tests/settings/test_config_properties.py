"""What holds for every project file and for every stream of output, not only for those that somebody thought of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from claudebox.run.terminal_filter import TerminalFilter
from claudebox.settings import layers as settings_layers
from claudebox.settings import trust
from claudebox.settings.layers import Layer, Settings, SettingValue
from claudebox.settings.table import SETTINGS

FROM_PROJECT = [row for row in SETTINGS if row.in_files == "project"]


def values(row):
    match row.shape:
        case "switch":
            return st.sampled_from(["yes", "no"]).map(lambda value: [SettingValue(value, "x")])
        case "choice":
            return st.sampled_from(row.choices).map(lambda value: [SettingValue(value, "x")])
        case "rows":
            fields = st.fixed_dictionaries(
                {field.name: st.sampled_from(field.choices or ("", "/a", "~/b")) for field in row.fields}
            )
            return st.lists(fields.map(lambda found: SettingValue(" ".join(found.values()), "x", found)), max_size=3)
        case _:
            return st.lists(
                st.sampled_from(["A", "B", "C=1", "D=2"]).map(lambda value: SettingValue(value, "x")), max_size=3
            )


@st.composite
def layers(draw):
    chosen = draw(st.lists(st.sampled_from(FROM_PROJECT), unique_by=lambda row: row.key, max_size=6))
    return Layer("x", {row.key: tuple(found) for row in chosen if (found := draw(values(row)))})


def merged(*found):
    return settings_layers.merge(Settings({}), {}, found)


@given(layers(), layers())
def test_an_unapproved_project_file_never_widens_anything(own, project):
    # proves E05, EXT-01
    before = merged(own)
    tight = trust.tightening(project, before, merged(own, project))

    assert not [change for change in trust.changes(before, merged(own, tight)) if change.widens]


@given(layers(), layers())
def test_what_only_tightens_is_kept_whole(own, project):
    # proves EXT-01
    before, after = merged(own), merged(own, project)
    if any(change.widens for change in trust.changes(before, after)):
        return

    tight = trust.tightening(project, before, merged(own, project))
    assert list(trust.changes(merged(own, tight), after)) == []


@given(layers())
def test_a_difference_is_there_exactly_if_something_differs(own):
    assert list(trust.changes(merged(own), merged(own))) == []
    for row in FROM_PROJECT:
        if row.shape == "choice":
            assert list(trust.changes(merged(), merged(own))) == [] or own.given


PIECES = st.lists(
    st.sampled_from([
        b"\x1b", b"[", b"]", b"P", b"\\", b"\x07", b"6n", b"52;c;", b"0;", b"x", b"?", b"1049h", b"\x9b", b"\xc2",
        b"\x18", b";", b"c", b"\n", b"\xe4\xbd\xa0", b"$p", b">", b"t", b"Z", b"\x05", b"k", b"_",
    ]),
    max_size=40,
).map(b"".join)  # fmt: skip


@given(st.one_of(PIECES, st.binary(max_size=80)), st.integers(1, 9))
def test_where_output_is_cut_makes_no_difference(data, piece):
    # proves B09
    whole, cut = TerminalFilter(), TerminalFilter()

    assert whole.feed(data) == b"".join(cut.feed(data[i : i + piece]) for i in range(0, len(data), piece))


@given(st.one_of(PIECES, st.binary(max_size=80)))
def test_what_was_shown_once_is_shown_again_and_nothing_in_it_is_dropped(data):
    # proves B09
    # If something that a terminal obeys were hidden in what is shown, a second filter would find and drop it.
    once = TerminalFilter().feed(data)

    assert TerminalFilter().feed(once) == once
