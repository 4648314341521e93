"""The folder has all that it takes to answer without this library, and without torch."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from datransformer.data.config import DataConfig
from datransformer.data.encode import CUTS
from datransformer.data.tokenizer import WordTokenizer, load_tokenizer
from datransformer.export import TARGETS, export_run
from datransformer.export.words import word_rules
from datransformer.train.predict import answer_rows, rows_of_texts
from datransformer.train.run import Run, load_run

if TYPE_CHECKING:
    from tests.export.conftest import MakeRun

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
EXAMPLE, *OTHERS, IN_TORCH = re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL)
WITHOUT_TORCH = "import sys\nsys.modules.update(torch=None, datransformer=None, tokenizers=None, pyarrow=None)\n"
WORDS = [
    "a",
    "film",
    "like",
    "it",
    "'s",
    ".",
    "!",
    "?",
    "man",
    "is",
    "one",
    "good",
    "ca",
    "n't",
    "say",
    "stocks",
    "new",
]


def execute(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def export_to_onnx(run: Path, out: Path) -> None:
    """Export, and look at what `test_every_task_goes_to_torch_export` looks at there."""
    line = export_run(run, out, to="onnx")
    about = json.loads((out / "export.json").read_text(encoding="utf-8"))
    companions = {"tokenizer.json", "labels.json", "words.json", "export.json"}
    assert {path.name for path in out.iterdir()} == companions | set(about["graphs"])
    assert f"{6 * len(about['graphs'])} batches as torch answers them, largest difference " in line
    for name, said in about["graphs"].items():
        assert str(ROOT).encode() not in (out / name).read_bytes()
        session = onnxruntime.InferenceSession(out / name)
        assert {entry.name: entry.shape for entry in session.get_inputs()} == said["inputs"]
        assert {entry.name: entry.shape for entry in session.get_outputs()} == said["outputs"]


def test_the_example_is_twenty_lines_and_answers_as_predict_does(make_run: "MakeRun", tmp_path: Path) -> None:
    assert len([line for line in EXAMPLE.splitlines() if line]) <= 20
    run = make_run(words=WORDS, data_max_length=5)
    export_to_onnx(run, tmp_path / "exported")
    printed = execute(WITHOUT_TORCH + EXAMPLE, tmp_path)
    texts = ["A film like no other!", "It's dull."]
    answers = answer_rows(load_run(run), rows_of_texts(texts), labelled=False).answers
    for text, line, answer in zip(texts, printed.splitlines(), answers, strict=True):
        said, label, *numbers = re.fullmatch(r"(.*[.!]) (\S+) \[(.*)\]", line).groups()  # type: ignore[union-attr]
        assert (said, label) == (text, ("bad", "good", "so-so")[answer.argmax()])
        assert np.allclose([float(number) for number in numbers[0].split(",")], answer, atol=1e-5)


def expect_texts(run: Run) -> list[Any]:
    texts = ["One good film. Or not?! I can't say.", "No."]
    answers: list[Any] = answer_rows(run, rows_of_texts(texts), labelled=False).answers.tolist()
    return answers


def expect_pairs(run: Run) -> list[Any]:
    rows = rows_of_texts(["A man sleeps."], ["A man is awake."])
    answers: list[Any] = answer_rows(run, rows, labelled=False).answers.tolist()
    return answers


def expect_scores(run: Run) -> list[Any]:
    titles = [
        run.tokenizer.encode(pa.array([text])).ids.tolist()
        for text in ("Stocks fall", "Stocks rise", "A new film", "Rain")
    ]
    tokens = torch.tensor([[*title, 0, 0][:2] for title in titles])
    with torch.no_grad():
        scores: list[Any] = run.model(tokens, torch.tensor([[0], [-1]]), torch.tensor([[1, 2, 3], [2, 0, -1]])).tolist()
    return scores


TASKS: dict[str, tuple[dict[str, Any], Callable[[Run], list[Any]]]] = {
    "joint": ({"task": "pair", "model_pair": "joint", "data_max_length": 3}, expect_pairs),
    "siamese": ({"task": "pair", "model_pair": "siamese", "data_max_length": 3}, expect_pairs),
    "document": ({"task": "document", "data_max_sentence_length": 3, "data_max_sentences": 3}, expect_texts),
    "recommend": ({"task": "recommend", "data_max_title_length": 2}, expect_scores),
}


@pytest.mark.parametrize(("task", "code"), list(zip(TASKS, OTHERS, strict=True)), ids=list(TASKS))
def test_the_examples_of_the_other_tasks(make_run: "MakeRun", tmp_path: Path, task: str, code: str) -> None:
    changes, expect = TASKS[task]
    run = make_run(words=WORDS, **changes)
    export_to_onnx(run, tmp_path / "exported")
    printed = execute(WITHOUT_TORCH + EXAMPLE.split("texts = ")[0] + code, tmp_path)
    got = json.loads(printed.replace("-inf", "-Infinity"))
    assert np.allclose(got, expect(load_run(run)), atol=1e-5)


def test_the_example_of_torch_export_needs_torch_alone(make_run: "MakeRun", tmp_path: Path) -> None:
    export_run(make_run(), tmp_path / "program", to="torch-export")
    execute("import sys\nsys.modules.update(datransformer=None)\n" + IN_TORCH, tmp_path)


def test_nothing_half_made_stays_after_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def be_stopped(run: Path, out: Path) -> str:
        out.mkdir()
        os.kill(os.getpid(), signal.SIGTERM)
        return "the signal came to nothing"

    monkeypatch.setitem(TARGETS, "onnx", be_stopped)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"):
        export_run(tmp_path / "run", tmp_path / "out", to="onnx")
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_tokenizer_of_ones_own_goes_along(make_run: "MakeRun", tmp_path: Path) -> None:
    other = Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two": 2}, unk_token="<unk>"))
    other.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    other.save(str(tmp_path / "other.json"))
    export_run(make_run(tokenizer=load_tokenizer(tmp_path / "other.json")), tmp_path / "out", to="torch-export")
    assert not (tmp_path / "out" / "words.json").exists()
    added = json.loads((tmp_path / "out" / "export.json").read_text())["added_to_ids_of_tokenizer"]
    ids = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).encode("two one three").ids
    assert [index + added for index in ids] == load_tokenizer(tmp_path / "other.json").encode(
        pa.array(["two one three"])
    ).ids.tolist()


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """The functions of the document, over `WORDS`."""
    words = word_rules(WordTokenizer(WORDS))
    names: dict[str, Any] = {
        "re": re,
        "words": words,
        "characters": str.maketrans(words["characters"]),
        "ends": {words["ids"][mark] for mark in ".!?"},
        "limits": {"max_sentence_length": 3, "max_sentences": 4},
    }
    for code in re.findall(r"^def .*?\n\n", DOCUMENT, flags=re.DOTALL | re.MULTILINE):
        exec(code, names)
    return names


alphabet = st.text(st.sampled_from(list("abnstmdrevl'.,-`01 \"!_()éßİΣ中’“—…\u00a0\x7f\nAZ")), max_size=30)
any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
known_text = st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join)


@settings(max_examples=400, deadline=None)
@given(text=st.one_of(alphabet, any_text, known_text))
def test_the_example_cuts_as_the_run_does(example: dict[str, Any], text: str) -> None:
    tokenizer = WordTokenizer(WORDS)
    encoded = tokenizer.encode(pa.array([text]))
    ids = example["ids"](text)
    assert ids == (encoded.ids.tolist() or [1])
    tokens, parts, _ = CUTS["document"]([encoded], DataConfig(**example["limits"]), tokenizer)
    sentences = example["sentences"](ids)
    assert [len(sentence) for sentence in sentences] == parts[0].tolist()
    assert [token for sentence in sentences for token in sentence] == tokens[0].tolist()
