"""What the page says of choices that no study makes is what the library does."""

from pathlib import Path

import pytest

from datransformer.data.download import DOWNLOADS
from datransformer.data.errors import InputError
from datransformer.experiments.heads import starting_distances
from datransformer.experiments.studies import CHOICES, DEFAULTS, STUDIES, find_data, find_vectors, plan_study, spread
from datransformer.nn.rpr import RelativePositionAttention
from datransformer.train.config import TrainConfig


def test_defaults_are_those_of_the_library() -> None:
    heads = CHOICES["model.heads"].value
    started = starting_distances({}, heads)
    even = [-0.5 + head / (heads - 1) for head in range(heads)]
    assert started["distance_weight"] == pytest.approx(even)
    assert spread(0.5) == pytest.approx(even)
    assert DEFAULTS["w at the start"].value.startswith("-0.5 to 0.5, evenly")
    assert set(started["distance_shift"]) == {DEFAULTS["v at the start"].value}
    clip = starting_distances({"mapping": "clip"}, heads)["distance_shift"]
    assert set(clip) == {float(DEFAULTS["T of clip"].value.split()[0])}
    assert RelativePositionAttention(8, 2).max_distance == DEFAULTS["k of Transformer-RPR"].value
    assert TrainConfig().max_tokens == DEFAULTS["`train.max_tokens`"].value
    assert TrainConfig().distance_rate == 1
    assert {"snli", "snli_siamese"} <= set(STUDIES)
    own = {name for study in STUDIES.values() for name in (*study.settings, *study.choices)}
    assert own.isdisjoint({"train.max_tokens", "train.distance_rate", "model.attention_options"})


def test_word_vectors_are_found_as_they_are_downloaded(tmp_path: Path) -> None:
    assert find_vectors(None) is None
    assert find_vectors(tmp_path) is None
    (archive,) = DOWNLOADS["glove.6B"].files
    (tmp_path / archive.name).touch()
    assert find_vectors(tmp_path) == tmp_path / archive.name
    (tmp_path / "glove.6B.300d.txt").touch()
    assert find_vectors(tmp_path) == tmp_path / "glove.6B.300d.txt"


def test_data_are_not_overwritten_where_they_are(sst: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(sst)
    for given, out in ((sst, sst), (sst, tmp_path / "elsewhere" / ".." / sst.name), (tmp_path / "link", sst)):
        before = (sst / "sst" / "train.parquet").read_bytes()
        with pytest.raises(InputError, match=r"^--out: .*train\.parquet would be overwritten, expected another folder"):
            find_data("sst", given, out, None)
        assert (sst / "sst" / "train.parquet").read_bytes() == before
    assert find_data("sst", sst, sst / "out", None)[0]["files.dev"].startswith(str(sst / "out"))
    for name in ("train.csv", "test.csv"):  # the published files are read where they are
        (sst / name).write_text("1,a,b\n")
    assert find_data("ag", sst, sst, None)[0]["files.dataset"] == "ag"


def test_without_word_vectors_none_are_frozen_or_asked_for_words(sst: Path, tmp_path: Path) -> None:
    path = sst / "glove.6B.300d.txt"
    path.write_text("good 1 2\n")
    for vectors in (None, find_vectors(sst)):
        data, _ = find_data("sst", sst, tmp_path / "out", vectors)
        for study, about in STUDIES.items():
            config = plan_study(study, 1, data)[0].config
            for name, value in {
                "freeze_vectors": config.model.freeze_vectors,
                "vector_words": config.data.vector_words,
            }.items():
                chosen = next(
                    (one.value for key, one in {**CHOICES, **about.choices}.items() if key.endswith(name)), False
                )
                assert value == (chosen and vectors is not None)
