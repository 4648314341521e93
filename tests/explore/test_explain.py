import json
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tokenizers import Tokenizer, models

from datransformer.data.errors import InputError
from datransformer.data.tokenizer import FileTokenizer
from datransformer.explore import explain
from datransformer.explore.explain import explain_text, unpack
from datransformer.nn.distance_aware import DistanceAwareAttention
from datransformer.nn.mixers import MIXERS
from datransformer.train.predict import answer_rows, rows_of_texts
from datransformer.train.run import Run

TEXT = "a good film zzz ends badly"


def literal_weights(run: Run, ids: list[int]) -> npt.NDArray[np.float64]:
    """Eq. 5 and 6, head by head and pair by pair, from the parameters alone."""
    values = {name: tensor.double().numpy() for name, tensor in run.model.state_dict().items()}
    prefix = "text.sequence.encoder.layers.0.attention."
    words = values["text.embedding.weight"][ids]
    w, v = values[prefix + "distance_weight"], values[prefix + "distance_shift"]
    heads, length = len(w), len(ids)
    rows = words @ values[prefix + "in_proj_weight"].T + values[prefix + "in_proj_bias"]
    query, key, _ = (part.reshape(length, heads, -1) for part in np.split(rows, 3, axis=1))
    weights = np.zeros((heads, length, length))
    for head in range(heads):
        for i in range(length):
            scores = np.zeros(length)
            for j in range(length):
                factor = (1 + np.exp(v[head])) / (1 + np.exp(v[head] - w[head] * abs(i - j)))
                scores[j] = max(query[i, head] @ key[j, head], 0) * factor / np.sqrt(query.shape[-1])
            weights[head, i] = np.exp(scores) / np.exp(scores).sum()
    return weights


def test_the_weights_are_those_of_the_paper(make_run: Any) -> None:
    run = make_run()
    result = explain_text(run, TEXT)
    (sequence,) = result["sequences"]
    ids = [run.tokenizer.words.index(word) if word != "zzz" else 1 for word in TEXT.split()]
    expected = literal_weights(run, ids)
    (layer,), (learned,) = sequence["layers"], result["levels"]["text"]
    for head, weights in enumerate(expected):
        # A byte holds the root to 1/510, so a weight to 2 · √(weight · largest) / 510.
        bound = 2 * np.sqrt(weights * weights.max()) / 510 + weights.max() / 510**2 + 1e-6
        assert (np.abs(unpack(layer[head]) - weights) <= bound).all()
        apart = np.abs(np.subtract.outer(np.arange(len(ids)), np.arange(len(ids))))
        assert layer[head]["distance"] == pytest.approx((weights * apart).sum(1).mean(), rel=1e-3)
        assert layer[head]["share"] == pytest.approx(((weights * apart).sum(1) / apart.mean(1)).mean(), rel=1e-3)
        entropy = -(weights * np.log(weights)).sum(1).mean() / np.log(len(ids))
        assert layer[head]["entropy"] == pytest.approx(entropy, rel=1e-3)
        w, v = learned["heads"][head]["w"], learned["heads"][head]["v"]
        assert layer[head]["looks"] == ("near" if w < 0 else "far")
        assert learned["heads"][head]["curve"][5] == pytest.approx((1 + np.exp(v)) / (1 + np.exp(v - 5 * w)), rel=2e-3)


def test_words_are_as_they_were_written_and_unknown_ones_are_marked(make_run: Any) -> None:
    (sequence,) = explain_text(make_run(), "A good <b>ZZZ")["sequences"]
    assert sequence["items"] == ["a", "good", "<", "b", ">", "zzz"]
    assert sequence["unknown"] == [2, 3, 4, 5]


SHAPES = [("sentence", {}), ("pair", {}), ("pair", {"pair": "siamese"}), ("document", {"layers": 2})]


@pytest.mark.parametrize(("task", "options"), SHAPES)
def test_the_answer_is_that_of_predict_and_all_of_it_is_json(make_run: Any, task: str, options: Any) -> None:
    run = make_run(task, **options)
    pair = "bad film" if task == "pair" else None
    result = explain_text(run, "a good story. why? why?", pair)
    answered = answer_rows(run, rows_of_texts(["a good story. why? why?"], [pair] if pair else None), labelled=False)
    shares = [row["probability"] for row in result["answer"]["probabilities"]]
    np.testing.assert_allclose(shares, answered.answers[0], rtol=1e-3)
    assert [row["label"] for row in result["answer"]["probabilities"]] == list(run.labels.classes)
    json.dumps(result, allow_nan=False)
    for sequence in result["sequences"]:
        assert len(sequence["layers"]) == len(result["levels"][sequence["level"]]) == options.get("layers", 1)
        for layer in sequence["layers"]:
            for head in layer:
                assert unpack(head).shape == (len(sequence["items"]),) * 2


def test_a_rating_has_no_probabilities(make_run: Any) -> None:
    run = make_run(head="rating")
    answered = answer_rows(run, rows_of_texts([TEXT]), labelled=False)
    answer = explain_text(run, TEXT)["answer"]
    assert answer["prediction"] == pytest.approx(float(answered.answers[0]), abs=1e-6)
    assert answer["probabilities"] == []


def test_a_foreign_tokenizer_shows_its_own_pieces(make_run: Any) -> None:
    pieces = Tokenizer(models.BPE({"f": 0, "i": 1, "fi": 2, "lm": 3, "l": 4, "m": 5}, [("f", "i"), ("l", "m")]))
    run = replace(make_run(), tokenizer=FileTokenizer(pieces))
    assert explain_text(run, "filmi")["sequences"][0]["items"] == ["fi", "lm", "i"]


def test_a_pair_in_one_sequence_has_a_separator_and_apart_two_sequences(make_run: Any) -> None:
    (joint,) = explain_text(make_run("pair"), "good film", "zzz bad")["sequences"]
    assert joint["items"] == ["good", "film", "[SEP]", "zzz", "bad"]
    assert joint["unknown"] == [3]
    first, second = explain_text(make_run("pair", pair="siamese"), "good film", "zzz bad")["sequences"]
    assert (first["items"], second["items"]) == (["good", "film"], ["zzz", "bad"])


def test_a_document_has_its_sentences_above_and_the_words_of_each_below(make_run: Any) -> None:
    whole, *sentences = explain_text(make_run("document", layers=2), "a good story. zzz why? it ends")["sequences"]
    assert whole["items"] == ["a good story .", "zzz why ?", "it ends"]
    assert [" ".join(sentence["items"]) for sentence in sentences] == whole["items"]
    assert [sentence["unknown"] for sentence in sentences] == [[], [0], []]


def test_a_recommender_ranks_the_candidates_of_a_history(make_run: Any) -> None:
    run = make_run("recommend")
    result = explain_text(run, "topic1 word1 here\n\ntopic2 word2 here", "topic0 word3 here\ntopic1 word4 here")
    news = [row["label"] for row in result["answer"]["probabilities"]]
    assert sorted(news) == ["topic0 word3 here", "topic1 word4 here"]
    scores = [row["score"] for row in result["answer"]["probabilities"]]
    words = ["topic1", "word1", "here", "topic2", "word2", "here", "topic0", "word3", "here", "topic1", "word4", "here"]
    tokens = torch.tensor([run.tokenizer.words.index(word) for word in words]).view(4, 3)
    with torch.no_grad():
        expected = run.model(tokens, torch.tensor([[0, 1]]), torch.tensor([[2, 3]]))[0].tolist()
    np.testing.assert_allclose(scores, sorted(expected, reverse=True), rtol=1e-3)
    assert [one["title"].split(":")[0] for one in result["sequences"]] == [
        "Titles", "History 1", "History 2", "Candidate 1", "Candidate 2",
    ]  # fmt: skip


@pytest.mark.parametrize("attention", MIXERS)
def test_every_attention_can_be_explained(make_run: Any, attention: str) -> None:
    result = explain_text(make_run(attention=attention), TEXT)
    (layer,) = result["sequences"][0]["layers"]
    for head in layer:
        np.testing.assert_allclose(unpack(head).sum(1), 1, atol=0.02)
    assert (result["levels"]["text"][0]["heads"][0]["w"] is None) == (attention != "distance_aware")


def test_a_long_text_is_answered_whole_and_shown_in_part(make_run: Any) -> None:
    run = make_run()
    text = "good film " * 300 + "bad story " * 2200
    result = explain_text(run, text)
    (sequence,) = result["sequences"]
    assert len(sequence["items"]) == explain.SHOWN
    assert (result["cut"], result["answer"]["truncated"]) == (True, False)
    assert result["notes"] == [
        "The text has 5,000 words: attention is shown for the first 512, read as a text of their own. "
        "The answer is for all of them."
    ]
    answered = answer_rows(run, rows_of_texts([text]), labelled=False)
    shares = [row["probability"] for row in result["answer"]["probabilities"]]
    np.testing.assert_allclose(shares, answered.answers[0], rtol=1e-3)


def test_what_the_run_does_not_read_is_said(make_run: Any) -> None:
    result = explain_text(make_run(), "good " * 6001)
    assert result["answer"]["truncated"]
    assert result["notes"][0].startswith("The run does not read this text to its end")


def test_a_caller_chooses_what_is_kept_and_of_how_many_sentences(make_run: Any) -> None:
    def describe(module: Any, weights: torch.Tensor) -> list[dict[str, Any]]:
        return [{"sum": head.sum().item()} for head in weights]

    run = make_run("document", layers=2)
    result = explain_text(run, "a film. a long film. a bad film.", describe=describe, parts=1)
    whole, words = result["sequences"]
    assert [head["sum"] for layer in whole["layers"] for head in layer] == pytest.approx([3.0] * 6, rel=1e-5)
    assert [head["sum"] for layer in words["layers"] for head in layer] == pytest.approx([3.0] * 6, rel=1e-5)
    assert result["notes"] == ["The words of the first 1 of 3 are shown."]
    names = [layer["name"] for level in ("text", "document") for layer in result["levels"][level]]
    assert all(isinstance(run.model.get_submodule(name), DistanceAwareAttention) for name in names)
    assert len(set(names)) == 4


def test_what_is_shown_of_a_document_is_bounded(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for budget, shown in ((2 * 3 * (3**2 + 4**2), 2), (1, 1)):
        monkeypatch.setattr(explain, "BUDGET", budget)
        result = explain_text(make_run("document", layers=2), "a film. a long film. a bad film.")
        whole, *sentences = result["sequences"]
        assert (len(whole["items"]), len(sentences)) == (3, shown)


@pytest.mark.parametrize(
    ("task", "text", "pair", "message"),
    [
        ("sentence", "  \n", None, "text: got nothing, expected a text"),
        ("sentence", None, None, "text: got nothing, expected a text"),
        ("sentence", "good", "bad", "pair: got a text, expected none: the run's task is 'sentence'"),
        ("sentence", "good", 0, "pair: got a text, expected none"),
        ("sentence", 5, None, "text: got 5, expected a text"),
        ("pair", "good", None, "text-pair: got nothing, expected a text: the run's task is 'pair'"),
        ("recommend", "good", "bad\n" * 201, "text-pair: got 201 candidates, expected at most 200"),
        ("sentence", "good \0", None, "text: holds a NUL byte or half a character"),
        ("recommend", "good", "half \ud800", "pair: holds a NUL byte or half a character"),
    ],
)
def test_what_cannot_be_explained_is_refused(make_run: Any, task: str, text: Any, pair: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        explain_text(make_run(task), text, pair)


def test_one_word_has_nothing_to_choose(make_run: Any) -> None:
    result = explain_text(make_run(), "good")
    assert result["sequences"][0]["layers"][0][0]["share"] is None
    json.dumps(result, allow_nan=False)
