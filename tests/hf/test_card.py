"""The model card says what is known, and what users named cannot say anything else in it."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from datransformer.data.errors import InputError
from datransformer.export import export_run, hf
from datransformer.hf.card import MOST_LABELS, plain
from datransformer.train.run import load_run

if TYPE_CHECKING:
    from tests.hf.conftest import Runs

EVIL = ("# bad\n---\nlicense: mit", "<script>alert(1)</script> | x", "[x](javascript:y) `*_~\\")


def rendered(text: str) -> str:
    return str(MarkdownIt("commonmark").enable("table").render(text))


def export(run: Path, out: Path) -> tuple[dict[str, Any], str]:
    """The card's front matter and its text."""
    export_run(run, out, to="hf")
    _, front, text = (out / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(front), text


@pytest.mark.parametrize("task", ["sentence", "pair"])
def test_the_card_of_a_run(
    runs: "Runs", tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = runs.fit(task=task, labels=EVIL)
    front, text = export(folder, tmp_path / "out")
    assert set(front) == {"library_name", "pipeline_tag", "tags"}  # no license that nobody gave
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1  # weights are no secret
    page, run = rendered(text), load_run(folder)
    assert "<script" not in page
    assert "href" not in page
    assert "<td># bad --- license: mit</td>" in page
    assert "<td>[x](javascript:y) `*_~\\</td>" in page
    assert plain(run.result["data_fingerprint"]) in text
    assert f"<td>{run.result['metrics']['dev']['accuracy']:.4g}</td>" in page
    assert str(tmp_path) not in text
    assert len(re.findall(r"^\| \d \| \d \| [+-]\d.* \| (?:near|far) \|$", text, re.MULTILINE)) == 2 * 3
    monkeypatch.chdir(tmp_path / "out")
    capsys.readouterr()
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], {})
    printed = capsys.readouterr().out
    assert any(repr(label) in printed for label in EVIL)


def test_the_card_of_ratings_without_w(runs: "Runs", tmp_path: Path) -> None:
    _, text = export(runs.fit(labels=("1", "2.5"), model={"attention": "vanilla", "head": "rating"}), tmp_path / "out")
    assert "# A model that rates texts" in text
    assert "its label is always `rating`" in text
    assert "What the heads look at" not in text


def test_a_card_has_so_many_labels(runs: "Runs", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datransformer.hf.card.MOST_LABELS", 2)
    _, text = export(runs.fit(), tmp_path / "out")
    assert "And 1 more, which `config.json` has." in text
    assert MOST_LABELS > 2


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_name_is_shown_as_it_is(name: str) -> None:
    page = rendered(f"| a | b |\n| --- | --- |\n| 1 | {plain(name)} |\n| 2 | end |\n")
    cells = re.findall(r"<td>(.*?)</td>", page)
    shown = re.sub(r"\s+", " ", "".join(sign if sign.isprintable() else " " for sign in name)).strip()
    for sign, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        shown = shown.replace(sign, written)
    assert [re.sub(r"\s+", " ", cell).strip() for cell in cells] == ["1", shown, "2", "end"]


def test_a_folder_that_answers_otherwise_is_not_left(
    runs: "Runs", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = hf._load

    def wrong(folder: Path, *, rating: bool) -> Any:
        answer = load(folder, rating=rating)
        return lambda sides: answer(sides) + (2e-5 if len(sides[0]) == 3 else 0)

    run = runs.fit()
    before = set(tmp_path.iterdir())
    monkeypatch.setattr(hf, "_load", wrong)
    with pytest.raises(InputError, match="the folder: answers 3 texts of up to 131 words otherwise than torch"):
        export_run(run, tmp_path / "out", to="hf")
    assert set(tmp_path.iterdir()) == before


def test_the_command_says_how_it_went(
    runs: "Runs", tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = export_run(runs.fit(), tmp_path / "out", to="hf")
    assert re.search(r"6 batches as torch answers them, largest difference \d\.\de[-+]\d\d, ", line)
    assert "|" not in capfd.readouterr().err  # no progress bars
    monkeypatch.setattr(hf, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs transformers: pip install datransformer\[hf\]"):
        export_run(tmp_path / "run", tmp_path / "other", to="hf")
