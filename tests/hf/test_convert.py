import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from datransformer.data.errors import InputError
from datransformer.hf import DATransformerForSequenceClassification, DATransformerTokenizer
from datransformer.hf.convert import export_hf
from datransformer.nn.mixers import MIXERS
from datransformer.train.predict import answer_rows, rows_of_texts
from datransformer.train.run import load_run

if TYPE_CHECKING:
    from tests.hf.conftest import Runs

NASTY = [
    "The film is fine",
    "Don't! It's O'Neill's café “中文” – the U.S… 1,000.5",
    "word " * 40 + "the",  # longer than max_length
    "the film , . ! " * 40,
    "[PAD] [SEP] [UNK] [pad]",  # names of special tokens are words like others
    "never seen",
    "\u200b\u00ad",  # no token at all
    "e\u0301 \U0001f600 \u0130stanbul ﬁne",
    "a\u00a0b\u2003c\td",
]


def predict(run: Path, texts: list[str], pairs: list[str] | None = None) -> np.ndarray[Any, Any]:
    return answer_rows(load_run(run), rows_of_texts(texts, pairs), labelled=False).answers


def test_the_pipeline_answers_as_predict_does(runs: "Runs", tmp_path: Path) -> None:
    run = runs.fit()
    export_hf(run, tmp_path / "hf")
    expected = predict(run, NASTY)
    classify = pipeline("text-classification", str(tmp_path / "hf"), top_k=None)
    assert isinstance(classify.model, DATransformerForSequenceClassification)
    assert isinstance(classify.tokenizer, DATransformerTokenizer)
    classes = load_run(run).labels.classes
    assert classes is not None
    for batch_size in (1, 4):
        for row, answers in zip(expected, classify(NASTY, batch_size=batch_size), strict=True):
            scores = {answer["label"]: answer["score"] for answer in answers}
            np.testing.assert_allclose([scores[name] for name in classes], row, atol=1e-6)
    assert np.ptp(expected, axis=0).max() > 0.05  # the run has learned something to compare


@pytest.mark.parametrize("attention", MIXERS)
def test_every_mixer_converts(runs: "Runs", tmp_path: Path, attention: str) -> None:
    parts = {"attention": attention, "head_dim": 4, "pooling": "mean", "width": 10, "embed_scale": 1.5}
    run = runs.fit(model=parts, epochs=1)
    export_hf(run, tmp_path / "hf")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    with torch.no_grad():
        answers = model(**tokenizer(NASTY, padding=True, return_tensors="pt")).logits.softmax(-1)
    np.testing.assert_allclose(answers, predict(run, NASTY), atol=1e-6)


def test_options_of_a_mixer_go_along(runs: "Runs", tmp_path: Path) -> None:
    options = {"mapping": "clip", "adjust": "early_add", "distance_weight_init": [0.1, 0.2, -0.3]}
    run = runs.fit(model={"attention_options": options})
    export_hf(run, tmp_path / "hf")
    classify = pipeline("text-classification", str(tmp_path / "hf"))
    np.testing.assert_allclose([classify(NASTY[1])[0]["score"]], predict(run, NASTY[1:2]).max(1), atol=1e-6)


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_a_rating_is_a_regression(runs: "Runs", tmp_path: Path, precision: str) -> None:
    run = runs.fit(labels=("2.5", "4", "1"), model={"head": "rating"}, precision=precision)
    export_hf(run, tmp_path / "hf")
    rate = pipeline("text-classification", str(tmp_path / "hf"))
    assert rate.model.dtype == (torch.float32 if precision == "32-true" else torch.float64)
    answers = [answer["score"] for answer in rate(NASTY)]
    np.testing.assert_allclose(answers, predict(run, NASTY), atol=1e-5)
    assert {answer["label"] for answer in rate(NASTY)} == {"rating"}


def test_a_joint_pair_takes_two_texts(runs: "Runs", tmp_path: Path) -> None:
    run = runs.fit(task="pair")
    export_hf(run, tmp_path / "hf")
    classify = pipeline("text-classification", str(tmp_path / "hf"), top_k=1)
    first, second = ["the film", "Don't , it 's", "fine " * 30], ["is n't fine", "dull \u200b", "The U.S. film"]
    first, second = [*first, *NASTY], [*second, *NASTY[::-1]]
    answers = classify([{"text": one, "text_pair": two} for one, two in zip(first, second, strict=True)])
    np.testing.assert_allclose(
        [answer[0]["score"] for answer in answers], predict(run, first, second).max(1), atol=1e-6
    )


def test_any_tokenizer_converts_with_the_ids_of_its_file(runs: "Runs", tmp_path: Path) -> None:
    vocabulary = {word: place for place, word in enumerate(["<unk>", "the", "film", "[PAD]", "fine", "is", "dull"])}
    other = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    other.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    other.add_special_tokens(["[PAD]"])
    other.save(str(tmp_path / "other.json"))
    run = runs.fit(data={"tokenizer": str(tmp_path / "other.json")})
    export_hf(run, tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer("the dull [PAD] new").input_ids == other.encode("the dull [PAD] new").ids
    assert tokenizer.pad_token_id == 7
    texts = ["the film is fine", "dull", "the [PAD] film", "new " * 20]
    classify = pipeline("text-classification", str(tmp_path / "hf"), top_k=1)
    answers = [answer[0]["score"] for answer in classify(texts, batch_size=3)]
    np.testing.assert_allclose(answers, predict(run, texts).max(1), atol=1e-6)


def test_the_folder_says_what_the_classes_are_and_holds_no_pickle(runs: "Runs", tmp_path: Path) -> None:
    export_hf(runs.fit(), tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good", "2": "ugly"}
    assert config["model_type"] == "datransformer"
    assert config["architectures"] == ["DATransformerForSequenceClassification"]
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


@pytest.mark.parametrize("shape", [{"task": "document"}, {"task": "pair", "model": {"pair": "siamese"}}])
def test_a_task_without_counterpart_is_one_clear_line(runs: "Runs", tmp_path: Path, shape: dict[str, Any]) -> None:
    run = runs.fit(**shape)
    with pytest.raises(InputError, match=rf"the task is '{shape['task']}', which transformers has no counterpart of"):
        export_hf(run, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_nothing_is_overwritten(runs: "Runs") -> None:
    run = runs.fit()
    before = (run / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match="is there already, expected an empty folder"):
        export_hf(run, run)
    with pytest.raises(InputError, match="is there already"):
        export_hf(run, run / "model.safetensors")
    assert (run / "model.safetensors").read_bytes() == before
