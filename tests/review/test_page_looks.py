"""How the pages look, in a real browser: compared with pictures that were looked at, and examined by axe-core."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING

import pytest
from tests.conftest import REPOSITORY, need, wait_until
from tests.review import examples
from tests.support.browser import Browser

from claudebox.review.batch_page import list_rows, render_batch
from claudebox.review.session_page import render_session

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
AXE = REPOSITORY / ".local/axe/node_modules/axe-core/axe.min.js"
SHOTS = REPOSITORY / "tests/review/shots"
MOST_DIFFERENT = 0.01  # of the pixels: letters are drawn a little differently by every version
SCALE = 0.4
# name, page, width, dark
VIEWS = (
    ("fix", examples.a_fix, 1200, False),
    ("fix-dark", examples.a_fix, 1200, True),
    ("fix-phone", examples.a_fix, 390, False),
    ("command", examples.a_command, 1200, False),
    ("attack", examples.an_attack, 1200, False),
    ("batch", None, 1200, False),
    ("batch-phone", None, 390, True),
)
# Paints two pictures, and returns the share of the pixels that differ visibly.
COMPARE = """(async () => {
  const paint = async (data) => {
    const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${data}`)).blob());
    const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
    canvas.drawImage(image, 0, 0);
    return canvas.getImageData(0, 0, image.width, image.height);
  };
  const [one, other] = [await paint("%s"), await paint("%s")];
  if (one.width !== other.width || Math.abs(one.height - other.height) > 4) return 1;
  let found = 0;
  const size = Math.min(one.data.length, other.data.length);
  for (let at = 0; at < size; at += 4)
    found += [0, 1, 2].some((part) => Math.abs(one.data[at + part] - other.data[at + part]) > 64);
  return found / (size / 4);
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@pytest.fixture(autouse=True)
def _same_time_everywhere(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def page_of(view, directory):
    """Write the page of a view, and return its path."""
    name, make, _, _ = view
    page = directory / f"{name}.html"
    batch = render_batch(list_rows(examples.a_batch(), str(directory / "results"), str(page)), "results")
    page.write_bytes(render_session(make()) if make else batch)
    return page


def compare(browser, one: bytes, other: bytes) -> float:
    browser.ask("Page.navigate", url="about:blank")
    share = browser.evaluate(COMPARE % tuple(base64.b64encode(content).decode() for content in (one, other)))
    return float(share)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view[0])
def test_pages_look_as_they_did_when_somebody_looked(view, browser, tmp_path, update_golden):
    # proves REVIEW-01
    name, _, width, dark = view
    browser.show(page_of(view, tmp_path), width=width, height=800, dark=dark)
    seen = browser.picture(whole=True, scale=SCALE, most=3200)
    stored = SHOTS / f"{name}.png"
    if update_golden:
        stored.parent.mkdir(exist_ok=True)
        stored.write_bytes(seen)

    assert compare(browser, seen, stored.read_bytes()) < MOST_DIFFERENT


def test_the_comparison_notices_a_page_without_style(browser, tmp_path):
    page = tmp_path / "bare.html"
    page.write_bytes(render_session(examples.a_command()).replace(b"<style>", b"<style>main{display:none}"))
    browser.show(page, height=800)  # the style is not the one that the policy allows
    seen = browser.picture(whole=True, scale=SCALE, most=3200)

    assert compare(browser, seen, (SHOTS / "command.png").read_bytes()) > 10 * MOST_DIFFERENT


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
@pytest.mark.parametrize("view", [VIEWS[0], VIEWS[4], VIEWS[5]], ids=lambda view: view[0])
def test_no_page_is_wider_than_its_window(view, width, browser, tmp_path):
    browser.show(page_of(view, tmp_path), width=width)

    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view[0])
def test_axe_finds_no_serious_problem(view, browser, tmp_path):
    # proves REVIEW-01
    need(AXE.exists(), "axe-core (scripts/client --axe)")
    _, _, width, dark = view
    browser.show(page_of(view, tmp_path), width=width, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    browser.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
    rules = "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations)"
    found = browser.evaluate(
        f"{rules}.then((rows) => rows.map((row) => [row.impact, row.id, row.nodes[0].html.slice(0, 200)]))"
    )

    assert [row for row in found if row[0] in ("serious", "critical")] == []


def test_axe_would_notice(browser, tmp_path):
    need(AXE.exists(), "axe-core (scripts/client --axe)")
    page = tmp_path / "bad.html"
    page.write_text('<html><body><img src="data:,"><p style="color:#ddd;background:#fff">pale</p></body></html>')
    browser.show(page)
    browser.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
    found = browser.evaluate("axe.run().then((found) => found.violations.map((row) => row.id))")

    assert {"image-alt", "color-contrast", "html-has-lang"} <= set(found)


def test_keys_alone_open_a_file_and_follow_the_way_to_a_section(browser, tmp_path):
    # proves REVIEW-01
    page = page_of(VIEWS[0], tmp_path)
    browser.show(page)
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.textContent") == "Skip to the content"
    browser.press("Enter", 13, "\r")
    browser.wait(0.2)
    assert browser.evaluate("location.hash") == "#main"
    browser.evaluate("document.querySelector('details.file summary').focus()")
    was = browser.evaluate("document.querySelector('details.file').open")
    browser.press("Enter", 13, "\r")
    assert browser.evaluate("document.querySelector('details.file').open") != was


def test_a_batch_can_be_sorted_and_filtered_and_read_without_its_script(browser, tmp_path):
    # proves REVIEW-01
    page = page_of(VIEWS[5], tmp_path)
    browser.show(page)
    rows = "[...document.querySelectorAll('#all tbody tr')].filter((row) => !row.hidden)"
    assert browser.evaluate(f"{rows}.length") == 500
    cost = f"{rows}.map((row) => Number(row.cells[3].getAttribute('data-value')))"
    browser.evaluate("document.querySelectorAll('#all th button')[3].click()")
    down = browser.evaluate(cost)
    assert down == sorted(down, reverse=True)  # the dearest first
    browser.evaluate("document.querySelectorAll('#all th button')[3].click()")
    assert browser.evaluate(cost) == down[::-1]
    browser.evaluate("document.querySelector('.filter button[value=failed]').click()")
    failed = browser.evaluate(f"{rows}.length")
    assert 0 < failed == browser.evaluate(f"{rows}.filter((row) => row.className === 'failed').length") < 500
    browser.evaluate("search.value = 'lint ended'; search.dispatchEvent(new Event('input'))")
    assert 0 < browser.evaluate(f"{rows}.length") < failed
    assert browser.evaluate("document.getElementById('told').textContent").endswith(" of 500")

    browser.evaluate("search.value = ''; search.dispatchEvent(new Event('input')); search.focus()")  # keys alone
    for _ in range(1 + browser.evaluate("document.querySelectorAll('.filter button').length")):
        browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.closest('th').textContent") == "Task"
    browser.press("Enter", 13, "\r")
    assert browser.evaluate("document.activeElement.closest('th').getAttribute('aria-sort')") == "ascending"
    names = browser.evaluate(f"{rows}.map((row) => row.cells[0].textContent)")
    assert len(names) == failed
    assert names == sorted(names)
    browser.evaluate("search.focus()")
    for char in "lint":
        browser.press(char, ord(char.upper()), char)
    assert 0 < browser.evaluate(f"{rows}.length") < failed

    browser.show(page, scripts=False)
    assert browser.evaluate(f"{rows}.length") == 500
    assert browser.evaluate("document.querySelector('.filter').hidden") is True


def test_what_is_to_be_looked_at_leads_there(browser, tmp_path):
    # proves REVIEW-01
    page = page_of(VIEWS[0], tmp_path)
    browser.show(page, height=800)
    browser.evaluate("document.querySelector('.look a').focus()")
    browser.press("Enter", 13, "\r")
    shown = "(() => {const it = document.querySelector(':target'), box = it.getBoundingClientRect(); "
    wait_until(
        lambda: browser.evaluate(shown + "return it.open && box.top >= 0 && box.top < 400})()"), "the file to be seen"
    )
    assert "layout python" in browser.evaluate("document.querySelector(':target').innerText")


def test_a_long_message_hides_nothing_below_it(browser, tmp_path):
    # proves REVIEW-01
    browser.show(page_of(VIEWS[4], tmp_path), height=800)

    assert browser.evaluate("document.getElementById('look').getBoundingClientRect().top") < 1600
    browser.evaluate("document.querySelector('.said[tabindex]').focus()")
    browser.press("End", 35)
    wait_until(
        lambda: browser.evaluate("document.querySelector('.said[tabindex]').scrollTop") > 1000, "the message to scroll"
    )


def test_five_hundred_tasks_are_small_and_quick(tmp_path):
    # proves REVIEW-01
    begun = time.process_time()
    rows = list_rows(examples.a_batch(), str(tmp_path), str(tmp_path / "batch.html"))
    page = render_batch(rows, "results")

    assert time.process_time() - begun < 3.0
    assert len(page) < 5 << 20
    for row in rows:
        assert f">{row.name}<".encode() in page
