"""The reproduction from its plan to its page, on the probe."""

import io
import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from datransformer.data.errors import InputError
from datransformer.experiments import pieces, processes, reproduce, runs, studies
from datransformer.experiments.paper import METHODS, OURS
from datransformer.experiments.studies import GROUPS, LINEAR, STUDIES, TABLES, VARIANTS
from datransformer.nn.mixers import MIXERS
from datransformer.ops.adjust import ADJUSTMENTS
from datransformer.ops.mapping import MAPPINGS
from datransformer.report.records import read_results
from datransformer.report.results import results_page, write_results
from datransformer.train.errors import Interrupted
from datransformer.train.fit import fit_stepwise, load_data
from datransformer.train.progress import Reporter
from datransformer.train.run import locked

FEW = ("vanilla", OURS)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datransformer.train.fit.PROBE_ROWS", 200)
    monkeypatch.setitem(TABLES, "methods", FEW)
    study = studies.Study("probe", "probe", settings={"model.embed_dim": 8, "model.heads": 2, "model.head_dim": 4})
    monkeypatch.setitem(STUDIES, "probe", study)


def run(out: Path, **options: Any) -> list[runs.Record]:
    return reproduce.reproduce(["probe"], out, cache=out / "cache", **{"seeds": 2, "device": "cpu", **options})


def test_every_mixer_mapping_and_adjustment_is_in_a_table() -> None:
    assert set(TABLES["methods"]) == {*MIXERS, LINEAR}
    assert len(TABLES["mappings"]) == len(MAPPINGS)
    assert len(TABLES["adjustments"]) == len(ADJUSTMENTS)
    assert {name for table in TABLES.values() for name in table} == set(VARIANTS)
    assert {study for group in GROUPS.values() for study in group} == set(STUDIES)


def test_a_plan_differs_in_nothing_but_variant_and_seed() -> None:
    plan = studies.plan_study("ag", 2, {"files.train": ["train.csv"]})
    assert len(plan) == 2 * len(STUDIES["ag"].variants) - 1 == len({planned.name for planned in plan})
    assert [planned.seed for planned in plan if planned.variant == LINEAR] == [0]
    assert [planned.seed for planned in plan] == sorted(planned.seed for planned in plan)
    settings = [runs.settings_of(planned.config) for planned in plan]
    for values in settings:
        del values["train"]["seed"], values["model"]["attention"], values["model"]["attention_options"]
    assert all(values == settings[0] for values in settings)
    clip = next(planned for planned in plan if planned.variant == "mapping_clip")
    assert clip.config.model.attention_options == {"mapping": "clip"}


def test_from_nothing_to_the_page_and_nothing_twice(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = run(tmp_path)
    assert [(record["variant"], record["seed"]) for record in records] == [
        (name, seed) for seed in (0, 1) for name in FEW
    ]
    record = json.loads((tmp_path / "results/probe/distance_aware-1.json").read_text())
    assert record == records[3]
    assert record["examples"] == {"train": 200, "dev": 20, "test": 20}
    right = sum(one == other for one, other in zip(record["answers"], record["truth"], strict=True))
    assert right / 20 == pytest.approx(record["metrics"]["test"]["accuracy"])
    assert len(records[1]["maps"]["tokens"]) in range(12, 33)
    assert "maps" not in record  # of one seed only
    (heads,) = record["heads"].values()
    assert all(0 < number <= 1 for number in heads["entropy"])
    assert (tmp_path / "runs/probe/distance_aware-1/model.safetensors").exists()
    assert str(tmp_path) not in json.dumps(record)
    for one in records:
        assert ("without_distances" in one) == (one["variant"] == OURS)
    assert set(record["without_distances"]) == set(STUDIES["probe"].metrics)

    write_results(tmp_path / "results", tmp_path / "results.md")
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert page == results_page(read_results(tmp_path / "results"))
    assert all(METHODS[name] in page for name in FEW)
    for heading in ("## What holds", "## probe", "### Heads", "## Choices", "interval over 20 items"):
        assert heading in page

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(runs, "fit_stepwise", refuse)
    assert run(tmp_path) == records


def test_other_settings_are_another_run(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tmp_path, seeds=1)
    monkeypatch.setitem(studies.CHOICES, "train.lr", studies.Choice(1e-4, "a test"))
    with pytest.raises(InputError, match=r"vanilla-0\.json: was made with another train\.lr \(0\.0001, was 0\.001\)"):
        run(tmp_path, seeds=1)
    monkeypatch.setitem(studies.CHOICES, "train.lr", studies.Choice(1e-3, "as before"))
    monkeypatch.setitem(studies.CHOICES, "train.log_every", studies.Choice(7, "changes nothing"))
    assert run(tmp_path, seeds=1) == first


def test_only_the_methods_that_were_asked_for_run(small: None, tmp_path: Path) -> None:
    records = run(tmp_path, methods=[OURS], seeds=2)
    assert [(record["variant"], record["seed"]) for record in records] == [(OURS, 0), (OURS, 1)]
    assert content(run(tmp_path))[:2] == content(records)  # the rest beside them
    with pytest.raises(InputError, match="--method: got 'bert', expected one of: "):
        run(tmp_path, methods=["bert"])
    path = tmp_path / "results/probe/vanilla-0.json"
    record = json.loads(path.read_text())
    record["settings"]["train"]["lr"] = 0.5
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"vanilla-0\.json: was made with another train\.lr"):
        run(tmp_path, methods=[OURS])  # the page would be of both
    path.write_text(json.dumps({**record, "settings": 3}))
    with pytest.raises(InputError, match=r"vanilla-0\.json: settings: got 3, expected an object; it can be deleted"):
        run(tmp_path, methods=[OURS])
    for spoilt, why in (({"metrics": {}}, "metrics.dev: missing"), ({"wall_seconds": "1"}, "wall_seconds: got '1'")):
        path.write_text(json.dumps({**record, **spoilt}))
        with pytest.raises(InputError, match=rf"vanilla-0\.json: {why}.*; it can be deleted"):
            run(tmp_path, methods=[OURS])
    with pytest.raises(InputError, match="--method: got linear, which probe is not run with"):
        run(tmp_path, methods=[LINEAR])


def test_the_page_says_where_runs_are_older_than_the_settings(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, seeds=1)
    results = read_results(tmp_path / "results")
    assert "had other settings than these" not in results_page(results)
    monkeypatch.setitem(studies.CHOICES, "train.lr", studies.Choice(1e-4, "a test"))
    page = results_page(results)
    assert "had other settings than these" in page
    assert "\n- probe: train.lr (0.0001, was 0.001)\n" in page
    top = page.partition("## What holds")[0]
    assert "The runs on probe (†) had other settings or data than `reproduce` takes now" in top


def test_two_calls_do_not_share_a_folder(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("looked for data, and may have written some")

    monkeypatch.setattr(reproduce, "find_data", never)
    with locked(tmp_path), pytest.raises(InputError, match="another process is at work there"):
        run(tmp_path, seeds=1)


def test_other_data_are_another_run(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *_) = run(tmp_path, seeds=1)
    assert first["mean_length"] == 32
    found = studies.find_data("probe", None, tmp_path, None)
    monkeypatch.setattr(reproduce, "find_data", lambda *_: (found[0], "others"))
    with pytest.raises(
        InputError, match=r"vanilla-0\.json: was made with other data \(generated: .*\); expected another"
    ):
        run(tmp_path, seeds=1)


def test_other_rows_are_other_data(small: None, tmp_path: Path) -> None:
    run(tmp_path, seeds=1)
    path = tmp_path / "results/probe/distance_aware-0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data_fingerprint": "of before"}))
    (tmp_path / "results/probe/vanilla-0.json").unlink()
    with pytest.raises(InputError, match=r"distance_aware-0\.json: was made with other rows; expected another --out"):
        run(tmp_path, seeds=1)


def test_a_failure_is_reported_and_the_rest_runs(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: Any, *rest: Any, **options: Any) -> Any:
        if config.model.attention == "vanilla":
            raise InputError("nothing works")
        return fit_stepwise(config, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "fit_stepwise", fail)
        records = run(tmp_path, seeds=1)
    assert records[0]["failed"] == "nothing works"
    assert "metrics" in records[1]
    assert "probe/vanilla-0: nothing works" in results_page(read_results(tmp_path / "results"))
    assert "metrics" in run(tmp_path, seeds=1)[0]  # a failed one is tried again


def test_what_was_stopped_goes_on(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: Any, **options: Any) -> Any:
        def raise_at(step: int) -> None:
            if step == 5:
                raise Interrupted("stopped")

        return fit_stepwise(*arguments, **options, on_step=raise_at)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "fit_stepwise", stop)
        with pytest.raises(Interrupted):
            run(tmp_path, seeds=1)
    assert (tmp_path / "runs/probe/vanilla-0/config.yaml").exists()
    whole = run(tmp_path / "other", seeds=1)
    for one, other in zip(run(tmp_path, seeds=1), whole, strict=True):
        assert (one["metrics"], one["answers"]) == (other["metrics"], other["answers"])


def test_what_is_missing_comes_up_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--data-dir: got nothing"):
        reproduce.reproduce(["probe", "ag"], tmp_path, cache=tmp_path)
    with pytest.raises(InputError, match=r"has nothing, expected train\.csv.*; `datransformer data get ag --out .*`"):
        reproduce.reproduce(["ag"], tmp_path, cache=tmp_path, data_dir=tmp_path)
    with pytest.raises(InputError, match="got 'imdb', expected one of: ag, "):
        reproduce.reproduce(["imdb"], tmp_path, cache=tmp_path)
    with pytest.raises(InputError, match="holds no result"):
        read_results(tmp_path)


TREES = (
    "(3 (2 a) (4 (3 fine) (2 film)))\n(1 (0 dull) (2 film))\n(2 (2 so) (2 so))\n(4 fine)\n(0 bad)\n",
    "(3 fine)\n",
    "(0 dull)\n",
)


def test_phrases_are_those_of_the_published_trees(tmp_path: Path) -> None:
    for folder in (tmp_path / "here", tmp_path / "there" / "trees"):
        folder.mkdir(parents=True)
        for name, trees in zip(("train", "dev", "test"), TREES, strict=True):
            (folder / f"{name}.txt").write_text(trees)
    tables = pieces.read_sst_trees(tmp_path / "here")
    assert [tuple(row.values()) for row in tables["train"].to_pylist()] == [
        ("a fine film", "1"), ("dull film", "0"), ("fine", "1"), ("bad", "0"), ("fine film", "1"), ("dull", "0"),
    ]  # fmt: skip
    assert tables["test"].to_pylist() == [{"text": "dull", "label": "0"}]
    for study in studies.studies_of(("sst",)):
        found, caveat = studies.find_data(study, tmp_path / "there", tmp_path / "out", None)
        config = studies.plan_study(study, 1, found)[0].config
        assert len(load_data(config, tmp_path / "cache").splits["train"]) == (4 if study == "sst" else 6)
        assert caveat == studies.PUBLISHED
    (tmp_path / "here" / "dev.txt").write_text("(3 fine)\n(3 fine\n")
    with pytest.raises(InputError, match=r"dev\.txt, row 2: not a tree, .*data get sst --out"):
        studies.find_data("sst_phrases", tmp_path / "here", tmp_path / "out", None)


def test_runs_with_other_word_vectors_are_not_mixed(tmp_path: Path, sst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"model.heads": 2, "model.head_dim": 4, "train.epochs": 1}.items():
        monkeypatch.setitem(studies.CHOICES, name, studies.Choice(value, "a test"))
    monkeypatch.setitem(studies.STUDIES, "sst", replace(studies.STUDIES["sst"], choices={}))
    monkeypatch.setitem(GROUPS, "sst", ("sst",))
    vectors, out = tmp_path / "words.txt", tmp_path / "out"

    def once(method: str) -> list[dict[str, Any]]:
        about: dict[str, Any] = {"cache": tmp_path / "cache", "data_dir": sst, "vectors": vectors, "device": "cpu"}
        return reproduce.reproduce(["sst"], out, **about, seeds=1, methods=[method])

    with pytest.raises(InputError, match=r"words\.txt: there is no such file"):
        once("vanilla")
    assert not out.exists()
    vectors.write_text("".join(f"{word} {' '.join(['0.5'] * 8)}\n" for word in ("it", "is", "good")))
    (record,) = once("vanilla")
    assert len(record["vectors_fingerprint"]) == 64
    vectors.write_text(vectors.read_text().replace("0.5", "0.6"))
    with pytest.raises(InputError, match=r"vanilla-0\.json: was made with other word vectors; expected another --out"):
        once("distance_aware")


def test_parts_of_groups_can_be_asked_for() -> None:
    assert studies.studies_of(("sst_phrases", "sst")) == ("sst_phrases", "sst")
    assert studies.studies_of(("amazon", "amazon_rating")) == ("amazon", "amazon_rating")
    with pytest.raises(InputError, match=r"got 'sts', expected one of: ag, .*, all; or a part: amazon_rating, sst_ph"):
        studies.studies_of(("sts",))


def test_the_linear_model_gets_the_same_words_and_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    folder = tmp_path / "sst"
    folder.mkdir()
    for name, count in (("train", 60), ("dev", 20), ("test", 30)):
        rows = {
            "text": [f"it is {'not ' * (n % 2)}good" for n in range(count)],
            "label2": [1 - n % 2 for n in range(count)],
        }
        pq.write_table(pa.table({**rows, "label5": rows["label2"]}), folder / f"{name}.parquet")
    monkeypatch.setitem(TABLES, "methods", (LINEAR,))
    monkeypatch.setitem(GROUPS, "sst", ("sst",))
    (record,) = reproduce.reproduce(["sst"], tmp_path / "out", cache=tmp_path / "cache", data_dir=tmp_path, seeds=3)
    assert record["metrics"]["test"]["accuracy"] == 1
    assert (record["variant"], record["examples"]) == (LINEAR, {"train": 60, "dev": 20, "test": 30})
    assert record["answers"] == record["truth"]
    assert "complete, the binary rows" in results_page(read_results(tmp_path / "out/results"))


def test_pieces_are_split_without_overlap_and_the_same_each_time(tmp_path: Path) -> None:
    folder = tmp_path / "ag_news"
    folder.mkdir()
    rows = pa.table({
        "label": [1, 2] * 50, "title": [f"title {n}" if n % 3 else None for n in range(100)],
        "description": ["words"] * 100, "text": [None if n % 3 else f"both {n}" for n in range(100)],
    })  # fmt: skip
    pq.write_table(rows, folder / "train_subset.parquet")
    pq.write_table(rows.slice(0, 7), folder / "test.parquet")
    first = pieces.write_pieces("ag", tmp_path, tmp_path / "out")
    content = {name: path.read_bytes() for name, path in first.items()}
    tables = {name: pq.read_table(path) for name, path in first.items()}
    assert [tables[name].num_rows for name in ("train", "dev", "test")] == [90, 10, 7]
    texts = {name: set(table["text"].to_pylist()) for name, table in tables.items()}
    assert not texts["train"] & texts["dev"]
    assert texts["test"] == {"words", *(f"title {n} words" for n in range(7) if n % 3)}
    assert "words both 3" in texts["train"] | texts["dev"]
    again = pieces.write_pieces("ag", tmp_path, tmp_path / "out")
    assert content == {name: path.read_bytes() for name, path in again.items()}
    assert not pieces.has_pieces("sst", tmp_path)


def test_impressions_in_test_have_all_candidates_and_an_order_of_clicks(tmp_path: Path) -> None:
    folder = tmp_path / "mind"
    folder.mkdir()
    kinds = [
        (candidates, order)
        for candidates in ("full", "as_shown", "sampled10")
        for order in ("original", "unordered set")
    ]
    dev = pa.table({
        "impression_id": list(range(6)), "candidates": [kind[0] for kind in kinds],
        "history_order": [kind[1] for kind in kinds],
    })  # fmt: skip
    pq.write_table(dev, folder / "behaviors_dev_pieces.parquet")
    days = pa.table({"impression_id": [7, 8], "time": ["11/13/2019 9:05:58 AM", f"{pieces.DEV_DAY} 1:00:00 PM"]})
    pq.write_table(days, folder / "behaviors_train.parquet")
    found = {name: table["impression_id"].to_pylist() for name, table in pieces.read_mind(folder).items()}
    assert found == {"train": [7], "dev": [8], "test": [0, 2]}


def write_impressions(folder: Path, *times: str) -> None:
    folder.mkdir(parents=True)
    news = [f"N{number}\tnews\tworld\ttopic {number}\ta\tu\t[]\t[]\n" for number in range(5)]
    shown = [f"{number}\tU{number}\t{time}\tN1 N2\tN3-1 N4-0\n" for number, time in enumerate(times)]
    (folder / "news.tsv").write_text("".join(news))
    (folder / "behaviors.tsv").write_text("".join(shown).rstrip("\n"))


def test_the_last_day_of_published_impressions_is_for_dev_and_the_published_dev_set_for_test(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    days = ("11/9/2019 1:00:00 PM", "11/14/2019 9:00:00 AM", "11/10/2019 1:00:00 AM", "11/14/2019 1:00:00 PM")
    write_impressions(folder / "MINDsmall_train", *days)
    write_impressions(folder / "MINDsmall_dev", "11/15/2019 1:00:00 PM")
    found, caveat = studies.find_data("mind", folder, tmp_path / "out", None)
    assert caveat.startswith(f"{studies.PUBLISHED}; dev is the last day")
    data = load_data(studies.plan_study("mind", 1, found)[0].config, tmp_path / "cache")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 2, "dev": 2, "test": 1}
    dev = (tmp_path / "out/mind/dev/behaviors.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in dev] == ["1", "3"]
    assert studies.find_data("mind", folder, tmp_path / "out", None)[0] == found  # again, over what is there

    write_impressions(tmp_path / "out/data/mind/train", *days)
    write_impressions(tmp_path / "out/data/mind/dev", days[0])
    kept = (tmp_path / "out/data/mind/train/behaviors.tsv").read_bytes()
    with pytest.raises(InputError, match="train would be overwritten, expected another folder"):
        studies.find_data("mind", tmp_path / "out/data/mind", tmp_path / "out/data", None)
    assert (tmp_path / "out/data/mind/train/behaviors.tsv").read_bytes() == kept


@pytest.mark.parametrize(
    ("time", "told"),
    [
        ("11/9/2019 2:00:00 PM", "all impressions are of one day, expected several"),
        ("14.11.2019", r"row 2: time: got '14\.11\.2019', expected one as 11/14/2019 8:30:00 AM"),
        ("13/14/2019", "row 2: time: got '13/14/2019'"),
        ("", "row 2: time: got ''"),
    ],
)
def test_impressions_without_days_are_refused(tmp_path: Path, time: str, told: str) -> None:
    write_impressions(tmp_path / "MINDsmall_train", "11/9/2019 1:00:00 PM", time)
    write_impressions(tmp_path / "MINDsmall_dev", "11/15/2019 1:00:00 PM")
    with pytest.raises(InputError, match=told):
        studies.find_data("mind", tmp_path, tmp_path / "out", None)


SAME = ("metrics", "answers", "best_step", "distances", "heads")


def content(records: list[runs.Record]) -> list[dict[str, Any]]:
    return sorted(
        ({name: record[name] for name in ("variant", "seed", *SAME)} for record in records),
        key=lambda record: (record["variant"], record["seed"]),
    )


def test_taking_turns_changes_nothing(small: None, tmp_path: Path, device: str) -> None:
    alone = run(tmp_path / "alone", together=1, processes=1, device=device)
    turns = run(tmp_path / "turns", together=3, processes=1, device=device)
    assert content(alone) == content(turns)
    weights = [(tmp_path / name / "runs/probe/vanilla-1/model.safetensors").read_bytes() for name in ("alone", "turns")]
    assert weights[0] == weights[1]


def test_processes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe as it is: a process of its own does not see what a test replaces."""
    plan = [
        replace(planned, config=replace(planned.config, train=replace(planned.config.train, steps=3)))
        for planned in studies.plan_study("probe", 1, {"files.dataset": "probe"})
        if planned.variant in FEW
    ]
    place = runs.Place(tmp_path / "two", tmp_path / "cache", "cpu", 1)
    with monkeypatch.context() as patch:
        patch.setattr(processes, "stop_signals", lambda: nullcontext(lambda: True))
        with pytest.raises(Interrupted, match="goes on from there"):
            list(processes.share_out(plan, place, 2))
    shared = [record for _, record in processes.share_out(plan, place, 2)]
    place = replace(place, out=tmp_path / "one")
    assert content(shared) == content([record for _, record in runs.run_all(plan, place, runs.Shelf())])


def test_all_that_take_turns_stop_and_go_on(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def stop(*arguments: Any, **options: Any) -> Any:
        def count(step: int) -> None:
            if step == 5:
                asked.append(step)

        return fit_stepwise(*arguments, **{**options, "asked": lambda: bool(asked)}, on_step=count)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "fit_stepwise", stop)
        with pytest.raises(Interrupted):
            run(tmp_path, together=2)
    kept = sorted(path.parent.parent.name for path in tmp_path.glob("runs/probe/*/checkpoints/*.safetensors"))
    assert kept == ["distance_aware-0", "vanilla-0"]
    assert content(run(tmp_path, together=2)) == content(run(tmp_path / "whole", together=1))


def test_what_nobody_expects_fails_one_run_and_no_other(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: Any, *rest: Any, **options: Any) -> Any:
        if config.model.attention == "vanilla":
            raise RuntimeError("out of memory")
        return fit_stepwise(config, *rest, **options)

    monkeypatch.setattr(runs, "fit_stepwise", fail)
    first, second = run(tmp_path, seeds=1, together=2)
    assert first["failed"] == "RuntimeError: out of memory"
    assert "metrics" in second


NO_MEMORY = [
    torch.cuda.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


@pytest.mark.parametrize(("enough", "error"), [(False, NO_MEMORY[0]), *((True, error) for error in NO_MEMORY)])
def test_what_runs_out_of_memory_beside_others_runs_once_more_alone(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enough: bool, error: Exception
) -> None:
    tries = []

    def fail(config: Any, *rest: Any, **options: Any) -> Any:
        if config.model.attention == "vanilla":
            tries.append(config)
            if len(tries) == 1 or not enough:
                raise error
        return fit_stepwise(config, *rest, **options)

    monkeypatch.setattr(runs, "fit_stepwise", fail)
    first, second = run(tmp_path, seeds=1, together=2)
    assert len(tries) == 2
    assert "metrics" in second
    assert ("metrics" in first) == enough
    if not enough:
        assert first["failed"] == "OutOfMemoryError: CUDA out of memory"
        tries.clear()
        run(tmp_path, seeds=1, together=1)
        assert len(tries) == 1  # there was nobody beside it


def test_a_process_that_dies_takes_its_own_runs_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = [
        replace(planned, config=replace(planned.config, train=replace(planned.config.train, steps=2)))
        for planned in studies.plan_study("probe", 2, {"files.dataset": "probe"})
        if planned.variant in FEW
    ]
    place = runs.Place(tmp_path, tmp_path / "cache", "cpu", 1)
    receive = processes._Worker.receive
    lost: list[str] = []

    def kill(worker: Any, others: Any) -> Iterator[Any]:
        yield from receive(worker, others)
        if worker.held and not lost:
            lost.extend(planned.name for planned in worker.held)
            worker._process.kill()

    monkeypatch.setattr(processes._Worker, "receive", kill)
    records = {planned.name: record for planned, record in processes.share_out(plan, place, 2)}
    assert records.keys() == {planned.name for planned in plan}
    assert [name for name, record in records.items() if "failed" in record] == lost
    assert "exit code -9" in records[lost[0]]["failed"]
    assert all((tmp_path / "results" / f"{name}.json").exists() for name in records)


def test_a_process_goes_on_with_the_batches_that_it_has() -> None:
    plan = [
        planned
        for seed in (0, 1)
        for study in ("ag", "sst")
        for planned in studies.plan_study(study, 2, {})
        if planned.seed == seed and planned.variant in FEW
    ]
    workers = [object.__new__(processes._Worker) for _ in range(2)]
    for worker in workers:
        worker.queue, worker.groups = plan, []
    first, second = workers

    def next_of(worker: processes._Worker) -> str:
        planned = worker._choose({group for other in workers if other is not worker for group in other.groups})
        plan.remove(planned)
        return planned.name

    assert next_of(first) == f"ag/{FEW[0]}-0"
    assert next_of(second) == f"sst/{FEW[0]}-0"  # not what the other is at
    assert [next_of(first), next_of(first)] == [f"ag/{FEW[1]}-0", f"ag/{FEW[0]}-1"]
    assert [next_of(first), next_of(first), next_of(first)] == [f"ag/{FEW[1]}-1", f"sst/{FEW[0]}-1", f"sst/{FEW[1]}-1"]
    assert next_of(first) == f"sst/{FEW[1]}-0"  # rather than nothing
    assert plan == []


def die(*_: Any) -> None:
    os.abort()


def end_once(connection: Any, place: runs.Place) -> None:
    """A process that is told to end by somebody else, once."""
    if not (place.out / "ended").exists():
        connection.send(processes.ROOM)
        connection.recv()
        (place.out / "ended").touch()
        connection.send(processes.DONE)
        return
    processes_work(connection, place)


def write_and_die(connection: Any, place: runs.Place) -> None:
    connection.send(processes.ROOM)
    planned = connection.recv()
    runs.write_record(runs.record_path(place.out, planned), {"metrics": {"dev": {}}, "wall_seconds": 1.0})
    os.abort()


processes_work = processes._work


@pytest.mark.parametrize("work", [end_once, write_and_die])
def test_no_run_is_lost_whatever_ends_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # where a process finds this module
    monkeypatch.setattr(processes, "_work", work)
    plan = [
        replace(planned, config=replace(planned.config, train=replace(planned.config.train, steps=1)))
        for planned in studies.plan_study("probe", 1, {"files.dataset": "probe"})[:2]
    ]
    ended = list(processes.share_out(plan, runs.Place(tmp_path, tmp_path / "cache", "cpu", 1), 1))
    assert [planned.name for planned, _ in ended] == [planned.name for planned in plan]
    assert all("metrics" in record for _, record in ended)


def test_processes_that_die_at_their_start_do_not_go_on_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    monkeypatch.setattr(processes, "_work", die)
    plan = studies.plan_study("probe", 1, {"files.dataset": "probe"})[:3]
    place = runs.Place(tmp_path, tmp_path / "cache", "cpu", 1)
    records = list(processes.share_out(plan, place, 2))
    assert [planned for planned, _ in records] == plan
    assert all("exit code -6" in record["failed"] for _, record in records)


def test_the_time_left_is_told_once_it_can_be_known() -> None:
    plan = [
        planned
        for study in ("ag", "amazon")
        for planned in studies.plan_study(study, 2, {})
        if planned.variant in (*FEW, LINEAR)
    ]
    names = [planned.name for planned in plan]
    kinds = {name: 5.0 if LINEAR in name else 600.0 if "amazon" in name else 60.0 for name in names}
    ended = {name: {"metrics": {}, "wall_seconds": seconds} for name, seconds in kinds.items() if name.endswith("-0")}
    left = 2 * 60 + 2 * 600
    assert reproduce.seconds_left(plan, ended, 1, 1) == left
    assert reproduce.seconds_left(plan, ended, 1, 2) == reproduce.seconds_left(plan, ended, 2, 1) == left / 2
    assert reproduce.seconds_left(plan, ended, 6, 4) == left / 4  # no more at once than there are
    others = {name: {**record, "together": 3} for name, record in ended.items()}
    assert reproduce.seconds_left(plan, others, 3, 1) == left / 3
    assert reproduce.seconds_left(plan, others, 1, 1) is None
    for name in ended:
        fewer = {other: record for other, record in ended.items() if other != name}
        expected = None if LINEAR in name else left + kinds[name]
        assert reproduce.seconds_left(plan, fewer, 1, 1) == expected
    failed = {name: {"failed": "no memory", "wall_seconds": 1.0} if "amazon" in name else ended[name] for name in ended}
    assert reproduce.seconds_left(plan, failed, 1, 1) is None
    assert reproduce.seconds_left(plan, {name: {} for name in names}, 1, 1) == 0


@pytest.mark.parametrize("terminal", [False, True])
def test_the_board_tells_the_time_left(terminal: bool) -> None:
    told = io.StringIO()
    console = Console(file=told, force_terminal=terminal, width=200)
    plan = [planned for planned in studies.plan_study("probe", 2, {"files.dataset": "probe"}) if planned.variant in FEW]
    with reproduce.Board(plan, Reporter(console)) as board:
        for planned, seconds in zip(plan, (720, 360, 30_000, 1), strict=True):
            record = {"study": "probe", "metrics": {"dev": {"accuracy": 0.5, "macro_f1": 0.5}}, "wall_seconds": seconds}
            board.begin(planned)
            board.end(planned, record)
    words = told.getvalue()
    assert [words.count(f", about {time} left") > 0 for time in ("36 min", "18 min", "3 h")] == [True] * 3
    assert words.rindex("left") < words.rindex("4 of 4")
    assert ("(720 s), about 36 min left" in words) is not terminal


@pytest.mark.parametrize("option", ["together", "processes"])
def test_nothing_at_a_time_is_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(ValueError, match=option):
        run(tmp_path, **{option: 0})
