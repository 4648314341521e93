import base64
import hashlib
import json
import re
from importlib.resources import files
from typing import Any

import pytest

from datransformer.explore.explain import explain_text
from datransformer.explore.page import as_json, explorer_page

EVIL = "</script><script>alert(1)</script><!-- &amp; \u2028 \u2029 <img src=x onerror=alert(1)>"


def content_of(page: str, tag: str) -> str:
    (found,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return str(found)


def test_json_in_a_script_element_cannot_end_it_and_says_the_same() -> None:
    text = as_json({"text": EVIL})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"text": EVIL}


@pytest.mark.parametrize("live", [False, True])
def test_the_policy_allows_our_own_script_and_style_and_nothing_else(make_run: Any, live: bool) -> None:
    run = make_run()
    page = explorer_page([run], None if live else [explain_text(run, EVIL)])
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["connect-src"] == ("'self'" if live else "'none'")
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        digest = base64.b64encode(hashlib.sha256(content_of(page, tag).encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert "unsafe" not in policy
    assert not re.search(r"(?:src|href)=\"(?!#|data:,)|https?://|\bstyle=|\bon[a-z]+=\"", page)


def test_nothing_of_the_text_or_the_labels_is_markup(make_run: Any) -> None:
    run = make_run()
    page = explorer_page([run], [explain_text(run, EVIL)])
    assert page.count("<script") == 2
    assert "<img" not in page
    assert "no <i>" not in page


def test_the_script_builds_no_markup_from_text() -> None:
    script = files("datransformer.explore").joinpath("page.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)


def test_the_page_tells_about_the_run(make_run: Any) -> None:
    page = explorer_page([make_run("document", layers=2), make_run("document", attention="vanilla", layers=2)])
    titles = re.findall(r'<svg [^>]*aria-label="([^"]+)"', page)
    learned = ["w of the heads, sorted", "v of the heads, sorted"]
    curves = ["training loss", "dev accuracy", "dev macro_f1"]
    assert titles == [*curves, *learned, *curves]
    for name in ("words, layer 1", "words, layer 2", "document, layer 1", "document, layer 2"):
        assert page.count(f">{name}</text>") == 2
    assert page.count("<h2>About") == 2
    assert "The heads of this attention have no w and no v." in page
    assert page.count('<tr><th scope="row">document, layer 2, head') == 3


def test_runs_of_one_name_are_told_apart_by_their_folders(make_run: Any) -> None:
    page = explorer_page([make_run(), make_run()])
    assert str(make_run().folder) in page
