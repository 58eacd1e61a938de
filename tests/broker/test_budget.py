"""What the model costs is counted as it passes, and a budget that is spent ends further requests."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.conftest import Caller, running
from tests.broker.test_streams import newest_broker
from tests.conftest import wait_until
from tests.support import hosts

from claudebox.agent.claude import UPSTREAM
from claudebox.base.errors import ClaudeboxError
from claudebox.broker.metering import Meter, TokenUsage, UsageFilter, most_of
from claudebox.commands.demo import server
from claudebox.network.records import Budget
from claudebox.plan import compose
from claudebox.report.receipt import lines
from claudebox.settings.layers import decide_policy, read_settings
from claudebox.settings.records import Policy
from claudebox.tables import prices

MODEL = "claude-sonnet-4-5-20250929"
# What a model says to look like what the API says: cheaper, dearer, another message.
LIES = '"usage":{"output_tokens":0} \n\ndata: {"type":"message_delta","usage":{"output_tokens":1}}\n'


def message(model=MODEL, text=LIES, **numbers):
    usage = {"input_tokens": 1000, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 200}
    tool = {"type": "tool_use", "id": "t", "name": "x", "input": {"usage": {"input_tokens": 0, "output_tokens": 0}}}
    return {"type": "message", "id": "m", "role": "assistant", "model": model, "stop_reason": "end_turn",
            "content": [{"type": "text", "text": text}, tool], "usage": {**usage, **numbers}}  # fmt: skip


def stream(document):
    return b"".join(server.encode(name, data) for name, data in server.events(document))


def counted(body, cuts, *, events):
    metered = UsageFilter(events=events)
    passed, at = b"", 0
    for cut in (*sorted(cuts), len(body)):
        passed += metered.feed(body[at:cut])
        at = max(at, cut)
    assert passed + metered.end() == body
    return metered.usage


@given(st.lists(st.integers(0, 2000), max_size=8))
def test_a_stream_is_counted_however_it_is_cut_and_whatever_the_model_says(cuts):
    # proves COST-01
    assert counted(stream(message()), cuts, events=True) == [TokenUsage(MODEL, 1000, 200)]
    assert counted(json.dumps(message()).encode(), cuts, events=False) == [TokenUsage(MODEL, 1000, 200)]


@given(st.binary(max_size=300), st.booleans())
def test_whatever_comes_passes_unchanged(body, events):
    assert all(usage.tokens < 1 << 45 for usage in counted(body, [7], events=events))


def test_a_stream_that_breaks_off_has_told_its_input_and_its_output_is_counted_by_length():
    # proves COST-01
    body = stream(message(text="four" * 300))
    (usage,) = counted(body[: body.index(b"event: message_delta")], [], events=True)
    assert (usage.model, usage.input) == (MODEL, 1000)
    assert 300 <= usage.output <= 600


@pytest.mark.parametrize(
    ("usage", "millionths"),
    [
        (TokenUsage(MODEL, 1_000_000, 0), 6_000_000), (TokenUsage(MODEL, 100_000, 0), 300_000),
        (TokenUsage(MODEL, 0, 100_000), 1_500_000), (TokenUsage(MODEL, cache_write=100_000), 375_000),
        (TokenUsage(MODEL, cache_write=100_000, cache_write_long=100_000), 600_000),
        (TokenUsage(MODEL, cache_read=100_000), 30_000), (TokenUsage("claude-opus-4-5-latest", 100_000, 0), 500_000),
        (TokenUsage("claude-opus-4-1", 100_000, 0), 1_500_000), (TokenUsage("claude-opus-4-8", 100_000, 0), 500_000),
        (TokenUsage("claude-opus-5-5", 900_000, 100_000), 5_600_000),
        (TokenUsage("claude-opus-5-5", cache_read=100_000), 20_000),
        (TokenUsage("claude-opus-5-20260724", cache_read=100_000), 50_000),
        (TokenUsage("claude-haiku-5-5", 100_000, 1_000), 10_500),
        (TokenUsage("claude-haiku-5-5", 100_000, 1_000, cache_read=1_000), 52_550),
        (TokenUsage("who-knows", 100_000, 0), 0), (TokenUsage(MODEL, 1, 0), 3),
    ],
)  # fmt: skip
def test_prices(usage, millionths):
    # proves COST-01
    assert usage.price() == millionths
    assert prices.AS_OF


def test_a_model_without_a_price_counts_as_the_dearest_towards_a_budget():
    # proves COST-02
    meter = Meter(Budget(dollars=1_000_000), lambda _usage: None)
    meter.add(TokenUsage("who-knows", 0, 20_000))

    assert meter.spent == 20_000 * prices.DEAREST["anthropic"][1] // 1000
    assert "is spent" in meter.refusal()


@pytest.mark.parametrize("events", [True, False])
def test_requests_end_when_the_budget_is_spent(upstream, broker, events):
    # proves COST-02
    body = stream(message()) if events else json.dumps(message()).encode()
    kind = "text/event-stream" if events else "application/json"

    def reply(visit):
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
        visit.say(f"{head}\r\n".encode())
        for at in range(0, len(body), 33):
            piece = body[at : at + 33]
            visit.say(b"%x\r\n%s\r\n" % (len(piece), piece))
        visit.say(b"0\r\n\r\n")

    served = upstream(reply)
    connect = broker(served, budget=Budget(tokens=1500))
    for _ in range(2):  # 1200 tokens each: the first does not spend it, the second does
        caller = connect()
        caller.ask(headers="accept-encoding: gzip, br\r\n")
        assert caller.head()[0] == 200
        while not caller.rest.endswith(b"0\r\n\r\n"):
            caller.rest += caller.channel.recv(65536)
    refused, free = connect(), connect()
    refused.ask()
    status, content = refused.answer()
    free.ask("GET", "/v1/models")

    assert (status, json.loads(content)["error"]["type"]) == (402, "billing_error")
    assert "1500 tokens, is spent (2400 until now)" in json.loads(content)["error"]["message"]
    assert free.head()[0] == 200
    assert len(served.requests) == 3
    assert served.requests[0][2]["accept-encoding"] == "identity"


class Model:
    """Bills what it was asked and what it was asked for, whoever listens; a byte is a token, the dearest case."""

    def __init__(self, *, events: bool = True, pace: float = 0.0, breaks: bool = False, searches: int = 0) -> None:
        self.events, self.pace, self.breaks, self.searches = events, pace, breaks, searches
        self.parts: list[dict[str, object]] = []  # what it tells of other passes than the answer
        self.beside = 0  # and what they cost
        self.kind: dict[str, str] = {}  # how and where it says that it was made
        self.percent = 100  # what that costs
        self.instead = ""  # of an answer: the status of an error, or `nothing`
        self.bill = 0  # millionths of a dollar
        self.peak = 0  # requests at a time
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, visit):
        asked = visit.body()
        said = json.loads(asked)["max_tokens"]
        with self._lock:
            self.bill += price(len(asked), said) * self.percent // 100 + 10_000 * self.searches + self.beside
            self._now += 1
            self.peak = max(self.peak, self._now)
        try:
            if self.instead:
                return self.instead != "nothing" and visit.reply(b"{}", self.instead)
            return self._reply(visit, message(
                text="x", input_tokens=len(asked), output_tokens=said,
                server_tool_use={"web_search_requests": self.searches}, iterations=self.parts, **self.kind,
            ))  # fmt: skip
        finally:
            with self._lock:
                self._now -= 1

    def _reply(self, visit, document):
        kind = "text/event-stream" if self.events else "application/json"
        time.sleep(self.pace)
        visit.say(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        parts = stream(document).split(b"\n\n") if self.events else [json.dumps(document).encode()]
        for number, part in enumerate(parts):
            if self.breaks and number == len(parts) // 2:
                return False
            text = part + b"\n\n" if self.events else part
            visit.say(b"%x\r\n%s\r\n" % (len(text), text))
            time.sleep(self.pace / 10)
        visit.say(b"0\r\n\r\n")
        return True


def price(asked: int, said: int) -> int:
    """Return what the model of these tests costs, beyond 200,000 tokens twice and one and a half times as much."""
    return asked * 3 + said * 15 if asked <= 200_000 else asked * 6 + said * 45 // 2


def question(most=1000, size=0, **more):
    content = [{"role": "user", "content": "x" * size}]
    return json.dumps({"model": MODEL, "max_tokens": most, "messages": content, **more}).encode()


@contextlib.contextmanager
def metered(model, upstream, tmp_path, budget):
    """Run a broker for a model; yield a function that connects, and one that returns what the log says was spent."""
    log = tmp_path / "log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with running(upstream(model).port, log=descriptor, budget=Budget(dollars=budget)) as sidecar:
        place = sidecar.sockets["model_api"]

        def spent():
            lines = (json.loads(line) for line in log.read_text().splitlines())
            return sum(line["price"] for line in lines if line["kind"] == "usage")

        with contextlib.ExitStack() as stack:
            yield lambda: stack.enter_context(Caller(place)), spent


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("moment", ["at once", "at the first word"])
def test_who_breaks_an_answer_off_has_spent_it_all_the_same(upstream, tmp_path, events, moment):
    # proves NEW-N4, BROKER-01
    model = Model(events=events, pace=0.3)
    with metered(model, upstream, tmp_path, 1_000_000) as (connect, spent):
        for _ in range(12):  # $0.30 each: without a count all of them would pass
            caller, before = connect(), model.bill
            caller.ask(body=question(20_000))
            wait_until(lambda: model.bill > before or spent() >= 1_000_000, "it is asked, or refused")  # noqa: B023
            if moment == "at the first word" and caller.head()[0] == 402:
                break
            caller.channel.close()
        last = connect()
        last.ask(body=question(20_000))
        assert last.head()[0] == 402
        assert 1_000_000 <= model.bill <= 1_000_000 + price(len(question(20_000)), 20_000)
        assert spent() == model.bill


def test_requests_at_a_time_spend_no_more_than_the_budget_and_one(upstream, tmp_path):
    # proves NEW-N4, BROKER-01
    body = question(64_000, size=600_000)  # $5.04, and half of a budget of $20 at the dearest
    model = Model(pace=0.3)
    with metered(model, upstream, tmp_path, 20_000_000) as (connect, spent):
        callers = [connect() for _ in range(12)]
        for caller in callers:
            caller.ask(body=body)
        statuses = [caller.head()[0] for caller in callers if caller.rest is not None]
        assert statuses.count(200) == 4
        assert 402 in statuses
        wait_until(lambda: spent() == model.bill, "every answer is counted")
        assert 20_000_000 <= model.bill <= 20_000_000 + price(len(body), 64_000)

    small = Model(pace=0.5)  # the control: what fits passes side by side
    with metered(small, upstream, tmp_path, 20_000_000) as (connect, _spent):
        callers = [connect() for _ in range(6)]
        for caller in callers:
            caller.ask(body=question(1000))
        assert [caller.head()[0] for caller in callers] == [200] * 6
        assert small.peak > 3


def test_a_request_that_does_not_say_its_length_is_refused_under_a_budget(upstream, tmp_path):
    # proves NEW-N4
    model = Model()
    said = question()
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {UPSTREAM.placeholder}\r\n"
    with metered(model, upstream, tmp_path, 20_000_000) as (connect, spent):
        for _ in range(3):
            caller = connect()
            caller.say(head.encode() + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(said), said))
            assert caller.answer()[0] == 411
        caller = connect()
        caller.say(head.encode() + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % (33 << 20))
        assert caller.answer()[0] == 413
        assert model.bill == spent() == 0
        control = connect()
        control.ask(body=said)
        assert control.head()[0] == 200
        control.content()
        wait_until(lambda: spent() == model.bill == price(len(said), 1000), "it is counted")


def test_tools_of_the_api_have_their_price_and_go_alone(upstream, tmp_path):
    # proves NEW-N4
    body = question(10, tools=[{"type": "web_search_20250305", "name": "web_search"}])
    model = Model(pace=0.2, searches=30)
    with metered(model, upstream, tmp_path, 500_000) as (connect, spent):
        callers = [connect() for _ in range(5)]
        for caller in callers:
            caller.ask(body=body)
        statuses = [caller.head()[0] for caller in callers]
        assert sorted(statuses) == [200, 200, 402, 402, 402]
        assert model.peak == 1
        wait_until(lambda: spent() == model.bill, "every answer is counted")
        assert 600_000 < model.bill < 700_000


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize(
    ("part", "cost"),
    [
        ({"type": "advisor_message", "model": "claude-opus-4-8", "input_tokens": 40_000, "output_tokens": 6_000},
         350_000),
        ({"type": "compaction", "input_tokens": 50_000, "output_tokens": 10_000}, 300_000),
        ({"type": "who_knows", "output_tokens": 6_000}, 450_000),
    ],
)  # fmt: skip
def test_what_other_passes_took_counts_at_the_price_of_their_own_model(upstream, broker, events, part, cost):
    # proves BROKER-01
    model = Model(events=events)
    model.parts, model.beside = [{"type": "message", "input_tokens": 1, "output_tokens": 1}, part], cost
    connect = broker(upstream(model), budget=Budget(dollars=1_000_000))
    statuses = []
    for _ in range(6):
        caller = connect()
        caller.ask(body=question(10))
        statuses.append(caller.head()[0])
        if statuses[-1] == 200:
            caller.content()
    assert statuses == ([200] * 3 + [402] * 3 if cost > 333_000 else [200] * 4 + [402] * 2)
    assert 1_000_000 <= model.bill <= 1_000_000 + cost + price(len(question(10)), 10)


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize(
    ("kind", "percent"),
    [
        ({"speed": "fast"}, 600), ({"inference_geo": "us"}, 110), ({"speed": "fast", "inference_geo": "us"}, 660),
        ({"speed": "who knows"}, 600), ({"speed": "standard", "inference_geo": "global"}, 100),
    ],
)  # fmt: skip
def test_what_was_made_faster_or_in_a_chosen_country_counts_more(upstream, tmp_path, events, kind, percent):
    # proves BROKER-01
    model = Model(events=events, pace=0.05)
    model.kind, model.percent = kind, percent
    body = question(20_000, **kind)
    with metered(model, upstream, tmp_path, 1_000_000) as (connect, spent):
        callers = [connect() for _ in range(6)]
        for caller in callers:
            caller.ask(body=body)
        assert {caller.head()[0] for caller in callers} == {200, 402}
        assert 1_000_000 <= model.bill <= 1_000_000 + price(len(body), 20_000) * percent // 100
        wait_until(lambda: abs(spent() - model.bill) <= 10, "every answer is counted")


def test_parts_of_the_message_itself_count_once_and_none_is_forgotten():
    # proves BROKER-01
    own = {"type": "message", "input_tokens": 1000, "output_tokens": 100}
    advice = {"type": "advisor_message", "model": "claude-opus-4-8", "input_tokens": 823, "output_tokens": 612}
    document = message(iterations=[own, advice, own | {"cache_read_input_tokens": 400}])
    for events in (True, False):
        body = stream(document) if events else json.dumps(document).encode()
        assert counted(body, [], events=events) == [
            TokenUsage(MODEL, 2000, 200, cache_read=400), TokenUsage("claude-opus-4-8", 823, 612),
        ]  # fmt: skip


def test_what_a_request_can_cost_is_read_in_bounded_memory(upstream, tmp_path):
    # proves NEW-N4, BROKER-01
    swelling = b'{"max_tokens": 6, "x": [' + b'{"":{}},' * 130_000 + b"0]}"
    model = Model()
    with metered(model, upstream, tmp_path, 20_000_000) as (connect, spent):
        callers = [connect() for _ in range(16)]
        for caller in callers:
            caller.ask(body=swelling)
        assert {caller.head()[0] for caller in callers} <= {200, 402}
        text = Path(f"/proc/{newest_broker()}/status").read_text(encoding="ascii")
        assert int(text.split("VmHWM:")[1].split()[0]) < 160 << 10
        wait_until(lambda: spent() == model.bill, "every answer is counted")


def test_an_answer_that_the_upstream_breaks_off_costs_what_it_could_have(upstream, tmp_path):
    # proves NEW-N4
    model = Model(breaks=True)
    with metered(model, upstream, tmp_path, 1_000_000) as (connect, spent):
        statuses = []
        for _ in range(8):
            caller = connect()
            caller.ask(body=question(20_000))
            statuses.append(caller.head()[0])
            if statuses[-1] == 200:
                caller.content()
        assert statuses == [200] * 4 + [402] * 4
        wait_until(lambda: model.bill <= spent() <= model.bill * 1.1 + 10, "what it could have cost is counted")


@pytest.mark.parametrize("size", [0, 2 << 20])
@pytest.mark.parametrize("instead", ["nothing", "408 x", "499 x", "502 x", "504 x", "524 x"])
def test_what_was_asked_and_not_answered_costs_what_it_could_have(upstream, tmp_path, instead, size):
    # proves BROKER-01
    model = Model()
    model.instead = instead
    with metered(model, upstream, tmp_path, 1_000_000) as (connect, spent):
        statuses = []
        for number in range(6):
            caller = connect()
            caller.ask(body=question(20_000, 0 if number else size))
            statuses.append(caller.head()[0])
        passed = 1 if size else 3
        assert statuses == [502 if instead == "nothing" else int(instead[:3])] * passed + [402] * (6 - passed)
        assert spent() >= 1_000_000 if not size else model.bill > 1_000_000


@pytest.mark.parametrize("instead", ["400 x", "429 x", "500 x", "529 x"])
def test_what_the_model_refused_costs_nothing(upstream, tmp_path, instead):
    # proves BROKER-01
    model = Model()
    model.instead = instead
    with metered(model, upstream, tmp_path, 100_000) as (connect, spent):
        for size in (0, 2 << 20) * 3:
            caller = connect()
            caller.ask(body=question(20_000, size))
            assert caller.head()[0] == int(instead[:3])
        assert spent() == 0


@pytest.mark.parametrize("leaves", [True, False])
def test_without_a_budget_the_log_says_what_was_asked_and_not_answered(upstream, tmp_path, leaves):
    # proves BROKER-01
    model = Model(pace=5 if leaves else 0)
    model.instead = "" if leaves else "nothing"
    log = tmp_path / "log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with running(upstream(model).port, log=descriptor) as sidecar, Caller(sidecar.sockets["model_api"]) as caller:
        caller.ask(body=question(20_000))
        wait_until(lambda: model.bill, "it is asked")
        if leaves:
            caller.channel.close()
        wait_until(lambda: '"unanswered"' in log.read_text(), "the log says so")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [row["verdict"] for row in rows if row.get("rule") == "unanswered"] == ["failed"]
    receipt = "\n".join(lines(rows))
    assert "1 requests had no answer" in receipt


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"max_tokens": 5', question(-1), question("5"), question(0),
        question(mcp_servers=[]), question(container="x"), question(who_knows=1),
        question(tools=[{"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-4-8"}]),
        question(context_management={"edits": [{"type": "compact_20260112"}]}), b'{"max_tokens": 9, "max_tokens": 5}',
        question(tools=[{"type": "code_execution_20250825", "name": "x"}]),
        question(system=[{"type": "document", "source": {"type": "base64", "data": "x"}}]),
        question(system=[{"type": "image", "source": {"type": "url", "url": "x"}}]), b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_a_request_can_cost_is_not_guessed(body):
    # proves NEW-N4
    assert most_of(body) is None


def test_what_a_request_can_cost_is_the_dearest_that_its_text_allows():
    # proves NEW-N4
    image = {"type": "image", "source": {"type": "base64", "data": "x"}}
    edits = {"edits": [{"type": "clear_thinking_20251015"}]}
    for body, extra in (
        (question(500), 0), (question(500, system=[image]), 5_000), (question(500, context_management=edits), 0),
    ):  # fmt: skip
        most = most_of(body)
        assert most is not None
        assert (most.model, most.output) == (MODEL, 500)
        assert most.cache_write == most.cache_write_long == len(body) + 2_000 + extra
        assert most.price() >= price(len(body) + extra, 500)


def test_requests_at_the_same_time_do_not_pass_the_budget_together(upstream, broker):
    # proves COST-02
    answer = json.dumps(message()).encode()
    released = threading.Event()

    def reply(visit):
        released.wait(60)
        visit.say(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
            len(answer), answer))  # fmt: skip

    def ask(connect):
        callers = [connect() for _ in range(6)]
        for caller in callers:
            caller.ask()
        return callers

    free = upstream(reply)
    callers = ask(broker(free))
    wait_until(lambda: len(free.requests) == 6, "all of them")  # the control: nobody waits without a budget
    released.set()
    assert [caller.answer()[0] for caller in callers] == [200] * 6

    released.clear()
    limited = upstream(reply)
    callers = ask(broker(limited, budget=Budget(tokens=1500)))
    wait_until(lambda: len(limited.requests) == 1, "the first of them")
    released.set()
    assert sorted(caller.answer()[0] for caller in callers) == [200] * 2 + [402] * 4  # 1200 tokens each
    assert len(limited.requests) == 2


@pytest.mark.parametrize(
    ("flags", "budget"),
    [(("--budget", "5"), (5_000_000, 0)), (("--budget", "$0.50"), (500_000, 0)),
     (("--set", "tokens=200k"), (0, 200_000)), (("--budget", "12.3", "--set", "tokens=2M"), (12_300_000, 2_000_000))],
)  # fmt: skip
def test_budgets_are_read(flags, budget):
    assert decide_policy(read_settings([*flags, "--shell"], {}), home="/h", workdir="/w").budget == budget


@pytest.mark.parametrize("flags", [
    ("--budget", "0"), ("--budget", "-1"), ("--budget", "1.234"), ("--budget", "5 EUR"), ("--budget", "1e3"),
    ("--budget", "5."), ("--set", "tokens=0"), ("--set", "tokens=many"), ("--set", "tokens=1.5M"),
    ("--set", "tokens=-5"), ("--set", "tokens=k"),
])  # fmt: skip
def test_what_is_no_budget_is_refused(flags):
    with pytest.raises(ClaudeboxError, match=flags[0]):
        decide_policy(read_settings([*flags, "--shell"], {}), home="/h", workdir="/w")


def test_a_budget_that_nobody_could_keep_is_refused():
    # proves COST-02
    policy = Policy("client", auth="broker", budget=(5_000_000, 0))
    with pytest.raises(ClaudeboxError, match="need the broker to hold the credential"):
        compose.make_plan(policy, hosts.debian(environ={}))
    plan = compose.make_plan(policy, hosts.debian(environ={"ANTHROPIC_API_KEY": "sk"}))
    assert plan.budget == "$5.00"
    with pytest.raises(ClaudeboxError, match="need the broker"):
        compose.make_plan(policy.replace(auth="passthrough"), hosts.debian(environ={"ANTHROPIC_API_KEY": "sk"}))
