"""The record of a session: what is written, how much is kept, and how it is shown again."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claudebox.base import syscalls
from claudebox.base.errors import ClaudeboxError
from claudebox.broker.log import Log
from claudebox.broker.metering import TokenUsage
from claudebox.commands import log as commands_log
from claudebox.report import denied, receipt
from claudebox.report import log as report_log
from claudebox.report.log import find_doubts, read_lines, sum_usage
from claudebox.settings import layers


@pytest.fixture
def state(tmp_path):
    return str(tmp_path / ".claudebox")


plain = st.recursive(
    st.one_of(st.text(), st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner).map(tuple), st.dictionaries(st.text(), inner)),
    max_leaves=10,
)


@given(plain)
def test_what_is_written_is_json_in_ascii_on_one_line(value):
    text = syscalls.render_json(value)

    assert json.loads(text) == json.loads(json.dumps(value))
    assert text.isascii()
    assert text.isprintable()


def test_a_record_is_the_users_alone(state):
    made = report_log.SessionLog(state, "project")
    made.write("start", {"name": "\udcff\x1b[31m"})
    made.close()

    assert stat.S_IMODE(os.stat(f"{state}/log").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(f"{state}/log/{made.name}").st_mode) == 0o600
    assert json.loads(Path(f"{state}/log/{made.name}").read_text())["kind"] == "start"


def test_old_records_go_and_new_ones_stay(state, monkeypatch):
    monkeypatch.setattr(report_log, "MOST_FILES", 8)
    names: list[str] = []
    kept: list[str] = []
    for _ in range(22):
        made = report_log.SessionLog(state, "project")
        made.write("start", {})
        made.close()
        names.append(made.name)
        kept = report_log.records(f"{state}/log")
        assert len(kept) <= 8
        assert kept == names[-len(kept) :]
        time.sleep(0.002)

    assert len(kept) >= 4


def test_the_newest_is_last_whatever_the_clock_says(state, monkeypatch):
    # proves NEW-R5
    Path(f"{state}/log").mkdir(parents=True)
    names = ["29990101T000000.000Z-project-77.jsonl"]  # of an earlier version
    Path(f"{state}/log/{names[0]}").touch()
    for number in range(11):
        monkeypatch.setattr(time, "time", lambda now=1e9 - number: now)
        made = report_log.SessionLog(state, "project")
        made.close()
        names.append(made.name)

    assert report_log.records(f"{state}/log", "project") == names


def test_records_are_bounded_in_size(state, monkeypatch):
    monkeypatch.setattr(report_log, "MOST_BYTES", 1000)
    for _ in range(16):
        made = report_log.SessionLog(state, "project")
        made.write("start", {"text": "x" * 400})
        made.close()
        time.sleep(0.002)

    assert len(os.listdir(f"{state}/log")) == 3  # two, and the one that was being opened


def test_where_nothing_can_be_written_a_warning_is_all(state, capfd):
    os.makedirs(state, mode=0o700)
    Path(f"{state}/log").touch()
    made = report_log.SessionLog(state, "project")
    made.write("start", {})

    assert made.descriptor == -1
    assert "this session is not recorded" in capfd.readouterr().err


def test_a_full_disk_ends_the_record_and_nothing_else(capfd):
    made = report_log.SessionLog.__new__(report_log.SessionLog)
    made.descriptor, made._directory = os.open("/dev/full", os.O_WRONLY), -1
    made.write("start", {})
    made.write("end", {})
    decisions = Log(os.open("/dev/full", os.O_WRONLY))
    decide(decisions, up=5)
    decisions.close()
    assert (decisions.totals["up"], decisions.totals["lost"]) == (5, 1)

    assert capfd.readouterr().err.count("the log of this session ends here: No space left on device") == 1


def test_a_line_is_whole_or_says_that_it_was_too_long(state):
    # An end that is cut in its middle is no JSON, and a session without an end is shown as one that goes on.
    # proves REPORT-02
    made = report_log.SessionLog(state, "project")
    made.write("end", {"status": 3, "found": tuple("\u00e9" * 300 for _ in range(4000))})
    made.write("end", {"status": 4})
    lines = read_lines(f"{state}/log", made.name)

    assert [line["kind"] for line in lines] == ["end", "end"]
    assert lines[0]["too_long"] > report_log.LINE
    assert lines[1]["status"] == 4


def decide(decisions: Log, **changes) -> None:
    row = {"service": "proxy", "host": "a.example", "port": 443, "verdict": "allowed", "rule": "a.example", **changes}
    decisions.record(**row)


def written(path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_of_one_session_is_bounded(tmp_path):
    path = tmp_path / "log"
    decisions = Log(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), most=2000)
    for _ in range(100):
        decide(decisions, host="b" * 1000, up=3)
    assert path.stat().st_size <= 2600
    assert "full" in {line["kind"] for line in written(path)}
    decisions.close()

    rows = [line for line in written(path) if line["kind"] == "decision"]
    assert all(len(line["host"]) == 255 for line in rows)
    assert sum(line.get("count", 1) for line in rows) == 100
    assert sum(line["up"] for line in rows) == 300 == decisions.totals["up"]


def test_denials_that_repeat_become_counts_and_leave_room_for_what_was_allowed(tmp_path):
    # proves NEW-N3
    path = tmp_path / "log"
    decisions = Log(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    for number in range(48_000):
        decide(decisions, host="evil.example", verdict="denied", rule="not-listed")
        decide(decisions, host=f"{number}.evil.example", verdict="denied", rule="not-listed")
    decide(decisions, up=5_000_000)
    decisions.record_usage(TokenUsage("claude-opus-4", input=1_000_000))
    last = written(path)[-2:]
    decisions.close()

    assert [(line["kind"], line.get("up", 0)) for line in last] == [("decision", 5_000_000), ("usage", 0)]
    assert path.stat().st_size < 4 << 20
    rows = [line for line in written(path) if line.get("verdict") == "denied"]
    assert sum(line.get("count", 1) for line in rows) == 96_000 == decisions.totals["denied"]
    assert sum(line.get("count", 1) for line in rows if line["host"] == "evil.example") == 48_000
    assert find_doubts(written(path)) == []
    shown = "\n".join(receipt.lines(written(path)))
    assert "a.example (1 times; 4.8 MiB up" in shown
    assert "1 answers, 1000000 tokens in" in shown


def test_what_finds_no_room_in_the_log_is_in_its_sums(tmp_path):
    # proves NEW-N3
    path = tmp_path / "log"
    decisions = Log(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), most=20_000)
    for number in range(3000):
        decide(decisions, host=f"h{number % 7}.example", up=number, down=1)
        decisions.record_usage(TokenUsage("claude-opus-4", input=10, output=number % 3))
    decisions.close()

    rows = written(path)
    usage = sum_usage(rows)
    assert sum(line.get("up", 0) for line in rows) == sum(range(3000)) == decisions.totals["up"]
    assert (usage["answers"], usage["input"], usage["output"]) == (3000, 30_000, 3000)
    assert usage["price"] == decisions.totals["price"] > 0
    assert any("full" in text for text in find_doubts(rows))
    assert any("full" in line for line in receipt.lines(rows))
    assert path.stat().st_size < 25_000


def test_the_receipt_begins_with_who_was_told_most_and_names_what_has_no_end():
    # proves NEW-N11, NEW-N2
    rows = [
        {"kind": "decision", "service": "proxy", "host": f"h{i}.example", "port": 443, "verdict": verdict, "up": 10}
        for i in range(20) for verdict in ("opened", "allowed") for _ in range(5)
    ]  # fmt: skip
    rows += [
        {"kind": "decision", "service": "proxy", "host": "thief.example", "port": 443, "verdict": verdict, "up": up}
        for verdict, up in (("opened", 0), ("opened", 0), ("allowed", 3 << 20))
    ]
    lines = list(receipt.lines(rows))
    first = next(line for line in lines if "reached" in line)

    assert "thief.example (2 times; 3.0 MiB up" in first
    assert "1 did not end" in first


@pytest.mark.parametrize(("line", "word"), [
    ({"kind": "broker", "silent": 1}, "last connections"), ({"kind": "broker", "lost": 3}, "3 connections"),
    ({"kind": "full"}, "full"),
])  # fmt: skip
def test_why_a_log_may_not_tell_everything_stands_in_the_receipt(line, word):
    # proves NEW-N2, NEW-N3
    assert any(word in text for text in receipt.lines([{"kind": "start"}, line]))
    assert not find_doubts([{"kind": "broker", "up": 3, "lost": 0}])


def test_without_a_file_decisions_go_nowhere(tmp_path, capfd):
    before = set(os.listdir("/proc/self/fd"))
    decide(Log(-1))

    assert capfd.readouterr() == ("", "")
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def filled(state):
    """Return a home with a record of this project and one of another."""
    made = {}
    for project in ("this", "that"):
        made[project] = report_log.SessionLog(state, project)
        made[project].write("start", {"program": "client", "project": f"/{project}", "network": "allow", "withheld": 2,
                                      "withheld_names": ("A", "B"), "variables": ({"name": "T", "origin": "host"},
                                      {"name": "HOME", "origin": "claudebox"})})  # fmt: skip
        decisions = Log(made[project].descriptor)
        decide(decisions, host=f"{project}.example", up=10, down=5000, secrets=("GH_TOKEN",))
        decide(decisions, host="evil.example", verdict="denied", rule="not-listed")
        made[project].write("end", {"status": 3, "seconds": 75.0, "changed": {"program": 2}, "searched": True,
                                    "found": ({"name": "AWS_SECRET", "path": "x", "line": 3},)})  # fmt: skip
    return state


def shown(state, capfd, monkeypatch, *argv):
    monkeypatch.setattr("claudebox.base.state.locate", lambda _home, _root: type("I", (), {"name": "this"}))
    assert commands_log.run(layers.parse_arguments(["log", *argv]), {"HOME": os.path.dirname(state)}) == 0
    return capfd.readouterr().out


def test_the_table_shows_this_project_and_all_shows_every_one(filled, capfd, monkeypatch):
    table = shown(filled, capfd, monkeypatch)
    everything = shown(filled, capfd, monkeypatch, "all")

    assert "this.example " in table
    assert "with GH_TOKEN" in table
    assert "4.9 KiB down" in table
    assert "status 3" in table
    assert "that.example" not in table
    assert "that.example " in everything


def test_what_was_reached_a_hundred_times_has_one_line(state, capfd, monkeypatch):
    # proves SHOW-01
    made = report_log.SessionLog(state, "this")
    made.write("start", {"program": "client", "project": "/this", "network": "allow"})
    decisions = Log(made.descriptor)
    for _ in range(50):
        decide(decisions, host="api.example", port=443, up=1024, down=2)
        decide(decisions, host="evil.example", port=8443, verdict="denied", rule="not-listed")
    made.write("end", {"status": 0})

    rows = [row.split(maxsplit=3) for row in shown(state, capfd, monkeypatch).splitlines()]

    assert [row[1] for row in rows[1:4]] == ["allowed", "denied", "end,"]
    assert rows[1][2:] == ["api.example", "proxy: a.example, 50 times, 50.0 KiB up, 100 B down"]
    assert rows[2][2] == "evil.example:8443"
    assert rows[2][3].endswith(" times"), "the broker counts repeated denials itself"
    assert len(shown(state, capfd, monkeypatch, "--json").splitlines()) > 50


def test_the_log_can_be_filtered_and_is_json_for_machines(filled, capfd, monkeypatch):
    denied = shown(filled, capfd, monkeypatch, "denied", "all")
    one = [json.loads(line) for line in shown(filled, capfd, monkeypatch, "--json", "THIS.ex").splitlines()]

    assert denied.count("evil.example ") == 2
    assert "this.example" not in denied
    assert [line["host"] for line in one] == ["this.example"]


def test_an_unknown_word_is_told(filled, capfd, monkeypatch):
    with pytest.raises(ClaudeboxError, match="no flag `-x`"):
        shown(filled, capfd, monkeypatch, "-x")


def test_a_damaged_or_hostile_record_is_shown_as_far_as_it_goes(filled, capfd, monkeypatch):
    name = next(name for name in os.listdir(f"{filled}/log") if "-this-" in name)
    with open(f"{filled}/log/{name}", "ab") as file:
        file.write(b"{broken\n[1]\n\xff\xfe\n" + b"[" * 5000 + b"\n")
        line = {"kind": "decision", "host": "\x1b[2J\u202e", "port": "x", "time": "y", "up": None, "secrets": 3}
        file.write(json.dumps(line).encode() + b'\n{"kind": "later"}\n{"kind": "decision", "time": 1e300}\nunfinished')
    table = shown(filled, capfd, monkeypatch)

    assert "this.example" in table
    assert "\x1b[2J" not in table
    assert "\u202e" not in table


def test_nothing_recorded_is_said(tmp_path, capfd, monkeypatch):
    assert shown(str(tmp_path / ".claudebox"), capfd, monkeypatch) == ""


def test_the_receipt_fits_on_a_screen_and_names_no_value(filled):
    name = next(name for name in os.listdir(f"{filled}/log") if "-this-" in name)
    lines = list(receipt.lines(read_lines(f"{filled}/log", name), f"{filled}/log/{name}"))
    text = "\n".join(lines)

    assert len(lines) <= 24
    assert "1 min in /this" in text
    assert "T (host), 1 made by claudebox" in text
    assert "2 variables: A, B" in text
    assert "this.example (1 times; 10 B up, 4.9 KiB down)" in text
    assert "evil.example (1 times; not among the permitted domains)" in text
    assert "program: 2" in text
    assert "AWS_SECRET" in text


def test_the_receipt_of_a_busy_session_still_fits(tmp_path):
    rows = [{"kind": "start", "project": "/p", "withheld": 500, "withheld_names": [f"N{i}" for i in range(128)],
             "variables": [{"name": f"V{i}", "origin": "host"} for i in range(128)]}]  # fmt: skip
    rows += [
        {"kind": "decision", "host": f"h{index}.example", "port": 443, "verdict": verdict}
        for index in range(300)
        for verdict in ("allowed", "denied")
    ]
    lines = list(receipt.lines(rows))

    assert len(lines) <= 24
    assert "500 variables: N0" in "\n".join(lines)
    assert "and 492 more" in "\n".join(lines)
    assert sum("and 294 more" in line for line in lines) == 2


def test_the_receipt_of_nothing_is_no_failure():
    assert any("none" in line for line in receipt.lines([]))


@pytest.mark.parametrize(
    ("decision", "flag"),
    [
        ({"service": "proxy", "host": "pypi.org", "port": 443, "rule": "not-listed"}, "--allow-domain pypi"),
        ({"service": "proxy", "host": "pypi.org", "port": 53, "rule": "not-listed"}, "--allow-domain pypi"),
        ({"service": "proxy", "host": "a.example", "port": 22, "rule": "port"}, "--allow-domain a.example:22"),
        ({"service": "proxy", "host": "a.example", "port": 443, "rule": "not-public"}, ""),
        ({"service": "proxy", "host": "a.example;id", "port": 443, "rule": "not-listed"}, ""),
        ({"service": "filter", "host": "10.1.2.3", "port": 443, "rule": "lan"}, "--set allow_addresses=10.1.2.3:443"),
        ({"service": "filter", "host": "fd77::5", "port": 22, "rule": "lan"}, "--set allow_addresses=[fd77::5]:22"),
        ({"service": "filter", "host": "192.168.7.2", "port": 80, "rule": "machine"}, "--set allow_host_port=80"),
        ({"service": "filter", "host": "169.254.169.254", "port": 80, "rule": "never"}, ""),
    ],
)
def test_the_log_names_the_flag_that_would_have_let_a_connection_through(decision, flag):
    # proves NET-05
    assert denied.find_flag({"kind": "decision", "verdict": "denied", **decision}) == flag
    assert denied.find_flag({"kind": "decision", "verdict": "allowed", **decision}) == ""
