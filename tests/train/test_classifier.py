from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import datransformer
from datransformer import TextClassifier
from datransformer.data.errors import InputError

TEXTS = [f"{word} film number {index % 7}" for index in range(30) for word in ("good", "bad")]
LABELS = [1, 0] * 30
TINY = {"embed_dim": 8, "heads": 2, "head_dim": 4, "epochs": 8, "batch_size": 8, "lr": 0.01, "device": "cpu"}


@pytest.fixture(scope="module")
def fitted() -> TextClassifier:
    return TextClassifier(**TINY).fit(TEXTS, LABELS)  # type: ignore[arg-type]


def test_it_learns_and_answers_in_the_labels_it_was_given(fitted: TextClassifier) -> None:
    assert fitted.classes_.tolist() == [0, 1]
    assert fitted.predict(["a good film", "a bad one"]).tolist() == [1, 0]
    probabilities = fitted.predict_proba(["a good film", "a bad one", "good"])
    assert probabilities.shape == (3, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert fitted.score(TEXTS, LABELS) == 1.0
    assert fitted.predict([]).tolist() == []


def test_arrays_are_taken_too() -> None:
    classifier = TextClassifier(**{**TINY, "epochs": 1})  # type: ignore[arg-type]
    classifier.fit(np.array(TEXTS), np.array(LABELS) == 1, dev=(TEXTS[:4], [True, False, True, False]))
    assert classifier.classes_.tolist() == [False, True]


def test_save_and_load(fitted: TextClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "run")
    again = TextClassifier.load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS))
    assert again.get_params()["embed_dim"] == 8
    assert again.score(TEXTS, LABELS) == 1.0
    assert again.predict(["a good film"]).tolist() == [1]
    with pytest.raises(InputError, match="expected a list of texts"):
        again.predict("good")
    again.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == (
        tmp_path / "run" / "model.safetensors"
    ).read_bytes()
    with pytest.raises(InputError, match="is there already"):
        fitted.save(tmp_path / "run")


@pytest.mark.parametrize("labels", [["a", "1"], [1, -2], [True, False], [0.5, -1.0], np.array([3, 4], np.int8)])
def test_labels_keep_their_types_on_disk(tmp_path: Path, labels: Sequence[object]) -> None:
    classifier = TextClassifier(**{**TINY, "epochs": 1})  # type: ignore[arg-type]
    classifier.fit(TEXTS, list(labels) * 30).save(tmp_path / "run")
    again = TextClassifier.load(tmp_path / "run")
    again.save(tmp_path / "copy")
    for loaded in (again, TextClassifier.load(tmp_path / "copy")):
        assert set(loaded.classes_.tolist()) == set(np.asarray(labels).tolist())
        assert [type(label) for label in loaded.classes_] == [type(label) for label in classifier.classes_]
        assert loaded.score(TEXTS, list(labels) * 30) == classifier.score(TEXTS, list(labels) * 30)
    values = tmp_path / "run" / "vocab" / "values.json"
    values.write_text("[0, 1]")
    with pytest.raises(InputError, match=r"values\.json: expected a list of the labels '"):
        TextClassifier.load(tmp_path / "run")
    values.unlink()  # as the command line leaves it: names alone
    names = TextClassifier.load(tmp_path / "run")
    assert set(names.classes_.tolist()) == {str(label) for label in np.asarray(labels).tolist()}
    assert names.score(TEXTS, list(labels) * 30) == classifier.score(TEXTS, list(labels) * 30)


def test_the_same_seed_gives_the_same_model() -> None:
    first, again, other = (
        TextClassifier(**{**TINY, "epochs": 1, "seed": seed}).fit(TEXTS, LABELS).predict_proba(TEXTS)  # type: ignore[arg-type]
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_scikit_learn_can_clone_and_validate_it() -> None:
    from sklearn.base import clone
    from sklearn.model_selection import cross_val_score

    classifier = clone(TextClassifier(**{**TINY, "epochs": 4}))  # type: ignore[arg-type]
    scores = cross_val_score(classifier, np.array(TEXTS), np.array(LABELS), cv=2)
    assert scores.mean() > 0.8


def test_settings_may_be_named_as_on_the_command_line() -> None:
    named = {"train.steps": 1, "train": {"patience": 2}, "model.attention_options": {"mapping": "clip"}}
    config = TextClassifier(settings=named)._config()
    assert (config.train.steps, config.train.patience) == (1, 2)
    assert config.model.attention_options == {"mapping": "clip"}
    deeper = {"model.attention_options.mapping": "clip", "model.layers": 2}
    config = TextClassifier(settings=deeper)._config()
    assert (config.model.attention_options, config.model.layers) == ({"mapping": "clip"}, 2)
    mapping, shift = {"mapping": "clip"}, {"model.attention_options.distance_shift_init": 2.0}
    for first in ({"model.attention_options.mapping": "clip"}, {"model": {"attention_options": mapping}}):
        settings: dict[str, object] = {**first, **shift}
        config = TextClassifier(settings=settings)._config()
        assert config.model.attention_options == {"mapping": "clip", "distance_shift_init": 2.0}
    for group in (None, 5):
        with pytest.raises(InputError, match=r"train: got .*, expected a mapping of settings"):
            TextClassifier(settings={"train": group, "train.patience": 2})._config()
    with pytest.raises(InputError, match=r"unknown setting 'patience', .*; did you mean train\.patience\?"):
        TextClassifier(settings={"patience": 2})._config()


def test_all_settings_can_be_reached() -> None:
    settings = {"train": {"steps": 1}, "model": {"attention_options": {"mapping": "clip"}}}
    classifier = TextClassifier(**TINY, settings=settings).fit(TEXTS, LABELS)  # type: ignore[arg-type]
    assert classifier.run_.config.model.attention_options == {"mapping": "clip"}
    assert classifier.run_.result["steps"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TEXTS, LABELS[:-1]), "got 60 texts and 59 labels"),
        (([], []), "got no texts"),
        ((["a", " "], [0, 1]), "texts, row 2, column 'text': empty text"),
        ((["a", None], [0, 1]), "row 2: got NoneType, expected a text"),
        ((["a", "b"], [0, 0]), "every row has the label '0'"),
        (("abc", [0, 1, 1]), "expected a list of texts"),
    ],
)
def test_bad_input_is_named(arguments: tuple[list[str], list[int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TextClassifier(**TINY).fit(*arguments)  # type: ignore[arg-type]


def test_mistakes_in_its_use_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not fitted"):
        TextClassifier().predict(["x"])
    for settings in ({"task": "document"}, {"model": {"head": "rating"}}):
        with pytest.raises(InputError, match="classes of sentences"):
            TextClassifier(settings=settings).fit(TEXTS, LABELS)
    with pytest.raises(InputError, match="attention: got 'flash'"):
        TextClassifier("flash").fit(TEXTS, LABELS)
    with pytest.raises(ValueError, match="width: unknown"):
        TextClassifier().set_params(width=3)
    with pytest.raises(InputError, match="no such folder"):
        TextClassifier.load(tmp_path / "none")
    with pytest.raises(AttributeError, match="TextRanker"):
        datransformer.TextRanker  # noqa: B018


def test_there_is_an_answer_for_every_text_or_none() -> None:
    settings = {"data": {"bad_rows": "skip"}, "train": {"steps": 1}}
    classifier = TextClassifier(**TINY, settings=settings).fit(TEXTS, LABELS)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="row 2, column 'text': empty text"):
        classifier.predict(["good", "", "bad"])


def test_a_foreign_estimator_error_is_a_value_error() -> None:
    assert issubclass(InputError, ValueError)
