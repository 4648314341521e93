"""The explorer as a person meets it, in a headless Chromium."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datransformer.explore.explain import explain_text, unpack
from datransformer.explore.page import explorer_page
from datransformer.explore.server import Explorer
from datransformer.train.run import Run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TEXT = "a good film zzz ends badly"
EVIL = "good <img src=x onerror='window.hurt=1'> </script><script>window.hurt=1</script> film"
PIXELS = "String(panels[0].heads[0].paint().getContext('2d').getImageData(0, 0, 6, 6).data)"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install .[browser]")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page on which nothing may go wrong, and which may ask no other host for anything."""
    context = browser.new_context(viewport={"width": 1300, "height": 900}, color_scheme="light")
    context.set_default_timeout(60_000)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda request: problems.append(request.url) if _foreign(request.url) else None)
    yield opened
    context.close()
    assert problems == []


def _foreign(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "file:", "data:"))


@contextmanager
def serving(*runs: Run) -> Iterator[Explorer]:
    with Explorer(runs) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def drawn(page: Any, times: int = 1) -> None:
    page.wait_for_function("times => Number(document.body.dataset.drawn) >= times", arg=times)


def saved(tmp_path: Path, text: str, *runs: Run) -> str:
    """The address of the page that works offline."""
    path = tmp_path / "page.html"
    path.write_text(explorer_page(runs, [explain_text(run, text) for run in runs]), encoding="utf-8")
    return path.as_uri()


def test_typing_gives_the_answer(page: Any, make_run: Any) -> None:
    run = make_run()
    with serving(run) as server:
        page.goto(server.url)
        page.get_by_label("Text", exact=True).press_sequentially("a good film")
        drawn(page)
        page.wait_for_function("() => document.querySelectorAll('.words span').length === 3")
        assert page.locator(".prediction").inner_text() == "yes"
        page.get_by_label("Text", exact=True).fill("a bad story")
        page.wait_for_function("() => document.querySelector('.words').textContent.trim() === 'a bad story'")
        assert page.locator(".prediction").inner_text() == "no <i>&"
        shares = explain_text(run, "a bad story")["answer"]["probabilities"]
        shown = page.locator(".answer dd:not(.bar)").all_inner_texts()
        assert [float(text.split()[0]) for text in shown] == [
            pytest.approx(100 * row["probability"], abs=0.51) for row in shares
        ]
        page.get_by_label("Text", exact=True).fill(" ")  # an answer to nothing would be wrong
        page.wait_for_function("() => document.querySelector('#runs').childElementCount === 0")
        assert not page.locator("#controls").is_visible()


def test_a_refusal_and_an_end_are_told(browser: Any, make_run: Any) -> None:
    page = browser.new_page()
    with serving(make_run("pair")) as server:
        page.goto(server.url)
        page.get_by_label("First text").fill("good")
        page.get_by_label("Second text").fill("bad \0")
        page.get_by_text("holds a NUL byte").wait_for()
        page.get_by_label("Second text").fill("bad")
        drawn(page)
        assert page.locator("#problem").inner_text() == ""
    page.get_by_label("First text").fill("good film")
    page.get_by_text("The explorer does not answer").wait_for()
    page.close()


def test_hovering_shows_what_each_head_attends_to(page: Any, make_run: Any, tmp_path: Path) -> None:
    run = make_run()
    page.goto(saved(tmp_path, TEXT, run))
    drawn(page)
    words = TEXT.split()
    (layer,) = explain_text(run, TEXT)["sequences"][0]["layers"]
    for place in (4, 0):
        page.locator(".words span").nth(place).hover()
        assert page.locator(".words .active").inner_text() == words[place]
        for head, top in zip(layer, page.locator(".head .top").all_inner_texts(), strict=True):
            row = unpack(head)[place]
            best = int(row.argmax())
            assert top.startswith(f"{words[place]} → {words[best]} ")
            assert float(top.split(f"→ {words[best]} ")[1].split()[0]) == pytest.approx(100 * row[best], abs=0.51)
        frames = page.locator(".frame").all()
        for frame in frames:
            box, mark = frame.bounding_box(), frame.locator(".mark").bounding_box()
            assert mark["y"] - box["y"] == pytest.approx(place * box["height"] / len(words), abs=1)


def test_maps_are_drawn_row_by_row(page: Any, make_run: Any, tmp_path: Path) -> None:
    run = make_run()
    page.goto(saved(tmp_path, TEXT, run))
    drawn(page)
    (layer,) = explain_text(run, TEXT)["sequences"][0]["layers"]
    for number, head in enumerate(layer):
        pixels = page.evaluate(
            "number => { const map = document.querySelectorAll('canvas.map')[number], n = 6, step = map.width / n;"
            "return Array.from({ length: n * n }, (_, place) => map.getContext('2d').getImageData("
            "(place % n + 0.5) * step, (Math.floor(place / n) + 0.5) * step, 1, 1).data[0]); }",
            number,
        )
        weights = unpack(head).ravel()
        order = np.argsort(weights)
        assert (np.diff(np.array(pixels)[order]) <= 0).all()  # the more the darker


def test_arrow_keys_move_and_are_read_out(page: Any, make_run: Any, tmp_path: Path) -> None:
    page.goto(saved(tmp_path, TEXT, make_run()))
    drawn(page)
    page.get_by_role("listbox").focus()
    for keys, place in (
        (["ArrowRight", "ArrowRight"], 2),
        (["ArrowLeft"], 1),
        (["End"], 5),
        (["ArrowDown"], 5),
        (["Home"], 0),
    ):
        for key in keys:
            page.keyboard.press(key)
        assert page.locator(".words .active").inner_text() == TEXT.split()[place]
        said = page.locator("#said").inner_text()
        assert said.startswith(f"{place + 1} of 6, {TEXT.split()[place]}. Head 1, ")
        active = page.get_by_role("listbox").get_attribute("aria-activedescendant")
        assert page.locator(f"#{active}").get_attribute("aria-selected") == "true"


def test_every_picture_and_field_has_a_name(page: Any, make_run: Any, tmp_path: Path) -> None:
    page.goto(saved(tmp_path, TEXT, make_run()))
    drawn(page)
    assert page.locator("canvas:not([role=img][aria-label])").count() == 0
    assert page.locator("svg:not([role=img][aria-label])").count() == 0
    for field in page.locator("select, input, textarea").all():
        assert field.evaluate("field => field.labels.length") == 1
    buttons = page.locator(".head button")
    buttons.nth(1).press("Enter")
    assert buttons.nth(1).get_attribute("aria-expanded") == "true"
    assert page.locator(".head.large").count() == 1


def test_heads_are_sorted_and_filtered_by_w(page: Any, make_run: Any, tmp_path: Path) -> None:
    run = make_run()
    page.goto(saved(tmp_path, TEXT, run))
    drawn(page)
    heads = explain_text(run, TEXT)["levels"]["text"][0]["heads"]
    weights = {f"Head {number}": head["w"] for number, head in enumerate(heads, 1)}

    def shown() -> list[str]:
        return [str(name) for name in page.locator(".head:not([hidden]) h4").all_inner_texts()]

    page.get_by_label("Sort heads by").select_option("w, far first")
    assert shown() == sorted(weights, key=lambda name: -weights[name])
    page.get_by_label("Sort heads by").select_option("w, near first")
    assert shown() == sorted(weights, key=lambda name: weights[name])
    page.locator("#looks").select_option("near")
    assert shown() == [name for name in sorted(weights, key=lambda name: weights[name]) if weights[name] < 0]
    page.locator("#looks").select_option("")
    page.get_by_label("|w| at least").fill("0.3")
    strong = [name for name in weights if abs(weights[name]) >= 0.3]
    assert sorted(shown()) == sorted(strong)
    assert page.locator("#count").inner_text() == f"{len(strong)} of 3 heads"


def test_two_runs_are_compared_on_the_same_text(page: Any, make_run: Any) -> None:
    with serving(make_run(), make_run(attention="vanilla")) as server:
        page.goto(server.url)
        page.get_by_label("Text", exact=True).fill(TEXT)
        drawn(page)
        first, second = page.locator("#runs > section").all()
        assert first.bounding_box()["y"] == second.bounding_box()["y"]
        assert "w = " in first.locator(".head").first.inner_text()
        assert "no w, no v" in second.locator(".head").first.inner_text()
        first.locator(".words span").nth(3).hover()
        assert second.locator(".words .active").inner_text() == "zzz"
        assert second.locator(".top").first.inner_text().startswith("zzz → ")


def test_text_is_never_markup(page: Any, make_run: Any, tmp_path: Path) -> None:
    run = make_run()
    with serving(run) as server:
        page.goto(server.url)
        page.get_by_label("Text", exact=True).fill(EVIL)
        drawn(page)
        assert "onerror" in page.locator(".words").inner_text()
        _unhurt(page)
    page.goto(saved(tmp_path, EVIL, run))
    drawn(page)
    for span in page.locator(".words span").all():
        span.hover()
    assert page.locator(".prediction").inner_text() in run.labels.classes
    _unhurt(page)


def _unhurt(page: Any) -> None:
    assert page.evaluate("window.hurt") is None
    assert page.locator("main img, main script, main i:not([class]):not(.bar > i)").count() == 0


def test_the_policy_stops_a_script_that_came_in_all_the_same(browser: Any, make_run: Any, tmp_path: Path) -> None:
    page = browser.new_page()
    page.goto(saved(tmp_path, TEXT, make_run()))
    drawn(page)
    page.evaluate(
        "const script = document.createElement('script'); script.textContent = 'window.hurt = 1';"
        "document.body.append(script);"
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hurt=1\">');"
    )
    page.wait_for_timeout(100)
    assert page.evaluate("window.hurt") is None
    blocked = page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', error => error.message)")
    assert blocked != "sent"
    page.close()


def test_a_text_of_5000_words(page: Any, make_run: Any) -> None:
    with serving(make_run()) as server:
        page.goto(server.url)
        page.get_by_label("Text", exact=True).fill("a good film <b> " * 833)
        drawn(page)
        assert "4,998 words: attention is shown for the first 512" in page.locator(".note").inner_text()
        assert page.locator(".words span").count() == 512
        assert page.evaluate("document.querySelectorAll('*').length") < 2000
        page.get_by_role("listbox").focus()
        page.keyboard.press("End")
        assert page.locator("#said").inner_text().startswith("512 of 512, ")
        assert page.locator(".words .active").is_visible()


def test_a_document_is_read_from_above(page: Any, make_run: Any, tmp_path: Path) -> None:
    page.goto(saved(tmp_path, "a good story. it ends badly! why?", make_run("document", layers=2)))
    drawn(page)
    sentences, words = page.get_by_role("listbox").all()
    assert sentences.locator("span").all_inner_texts() == ["a good story .", "it ends badly !", "why ?"]
    assert words.locator("span").all_inner_texts() == ["a", "good", "story", "."]
    sentences.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.get_by_role("listbox").nth(1).locator("span").all_inner_texts() == ["it", "ends", "badly", "!"]
    page.get_by_label("Words of").select_option("2")
    assert page.get_by_role("listbox").nth(1).locator("span").all_inner_texts() == ["why", "?"]
    page.locator("#layer").select_option("2")
    assert page.locator("#count").inner_text() == "6 of 12 heads"


def test_a_recommender_has_history_and_candidates(page: Any, make_run: Any) -> None:
    with serving(make_run("recommend")) as server:
        page.goto(server.url)
        page.get_by_label("Titles read").fill("topic1 word1 here\ntopic2 word2 here")
        page.get_by_label("Candidates").fill("topic0 word3 here\ntopic1 word4 here")
        drawn(page)
        assert sorted(page.locator(".answer dt").all_inner_texts()) == ["topic0 word3 here", "topic1 word4 here"]
        assert page.locator(".words.list span").all_inner_texts() == ["topic1 word1 here", "topic2 word2 here"]
        page.get_by_label("Words of").select_option("Candidate 2: topic1 word4 here")
        assert page.get_by_role("listbox").nth(1).locator("span").all_inner_texts() == ["topic1", "word4", "here"]


def test_light_and_dark(page: Any, make_run: Any, tmp_path: Path) -> None:
    page.goto(saved(tmp_path, TEXT, make_run()))
    drawn(page)
    background, pixels = page.evaluate(f"[getComputedStyle(document.body).backgroundColor, {PIXELS}]")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"before => {PIXELS} !== before", arg=pixels)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background
