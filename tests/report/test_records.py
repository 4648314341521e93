"""What is read, and what is refused with the name of the file and the place in it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datransformer.data.errors import InputError
from datransformer.data.forms import check_form
from datransformer.experiments.paper import OURS
from datransformer.experiments.studies import STUDIES
from datransformer.report.records import Results, items_of, read_results
from datransformer.report.results import results_page

LEVEL = "text.sequence.encoder.layers.0.attention"
Record = dict[str, Any]


def make_record(study: str = "ag", variant: str = OURS, seed: int = 0, **more: Any) -> Record:
    """All that a run leaves of texts with classes."""
    return {
        "study": study, "variant": variant, "seed": seed, "caveat": "made up", "device": "cpu", "wall_seconds": 1,
        "metrics": {"dev": {}, "test": dict.fromkeys(STUDIES[study].metrics, 0.5)}, "examples": {"test": 3},
        "settings": {"model": {"attention_options": {}}}, "answers": "012", "truth": "011",
        "distances": {LEVEL: {"distance_weight": [-0.5, 0.5], "distance_shift": [0.1, 0.2]}},
        "heads": {LEVEL: {"entropy": [0.1, 0.2], "keys": [0.1, 0.2], "distance": [1, 1.5]}},
        "maps": {"tokens": ["a", "b"], "levels": {LEVEL: [[[0.5, 0.5], [0.2, 0.8]], [[0, 1], [1, 0]]]}}, **more,
    }  # fmt: skip


def write(folder: Path, *records: Record) -> Path:
    for record in records:
        path = folder / "results" / record["study"] / f"{record['variant']}-{record['seed']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
    return folder / "results"


def put(*path: str, value: Any) -> Callable[[Record], None]:
    """Change one place of a record."""

    def change(record: Record) -> None:
        *parents, last = path
        for name in parents:
            record = record[name]
        record[last] = value

    return change


def drop(name: str) -> Callable[[Record], None]:
    return lambda record: record.pop(name)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (drop("metrics"), r"metrics: missing"),
        (drop("truth"), r"truth: missing"),
        (put("study", value="imdb"), r"study: got 'imdb', expected one of: ag, "),
        (put("study", value=["ag"]), r"study: got \['ag'\], expected a text"),
        (put("variant", value="lstm"), r"variant: got 'lstm', expected one of: "),
        (put("seed", value=True), r"seed: got True, expected a whole number"),
        (put("steps", value=10**400), r"steps: got 10*\.\.\.0*, expected a whole number"),
        (put("wall_seconds", value="1"), r"wall_seconds: got '1', expected a finite number"),
        (put("metrics", value=[0.5]), r"metrics: got \[0.5\], expected an object"),
        (put("metrics", "test", "accuracy", value=float("nan")), r"metrics\.accuracy: got nan, expected a finite"),
        (put("metrics", "dev", "accuracy", value="0.5"), r"metrics\.dev\.accuracy: got '0.5', expected a finite"),
        (put("metrics", "test", value={}), r"metrics\.accuracy: missing"),
        (put("examples", "test", value=1.5), r"examples\.test: got 1.5, expected a whole number"),
        (put("answers", value="01x"), r"answers: expected digits"),
        (put("answers", value=[0, 1, 2]), r"answers: got \[0, 1, 2\], expected a text"),
        (put("answers", value="0122"), r"answers: got lists of 3, 4, expected them equally long"),
        (put("distances", LEVEL, "distance_weight", value=[0.1]), r"distances\..*: got lists of 1, 2"),
        (put("distances", LEVEL, value={}), r"distances.*distance_weight: missing"),
        (put("heads", LEVEL, "keys", value=[]), r"heads\..*: got lists of 0, 2"),
        (put("items", value={"auc": []}), r"items: got lists of 0"),
        (put("maps", "tokens", value=["a"]), r"maps\..*: got lists of 1, 2"),
        (put("maps", "levels", LEVEL, value=[[[1, 0], [0, "1"]]]), r"maps.*\[0\]\[1\]\[1\]: got '1', expected a "),
        (put("maps", "levels", LEVEL, value=[[[1, 0], [0, 1]]]), r"maps\..*: got lists of 1, 2"),
        (put("settings", "model", "attention_options", value={"mapping": "x"}), r"settings\.model\.attention.*'x'"),
        (put("settings", "model", value=3), r"settings\.model: got 3, expected an object"),
        (put("seed", value=-1), r"seed: got -1, expected 0 or more"),
        (put("commit", value=["a"]), r"commit: got \['a'\], expected a text"),
    ],
)  # fmt: skip
def test_a_spoilt_record_is_named(spoil: Callable[[Record], None], message: str, tmp_path: Path) -> None:
    record = make_record()
    folder = write(tmp_path, record)
    results_page(read_results(folder))
    (path,) = folder.rglob("*.json")
    spoil(record)
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=rf"distance_aware-0\.json: {message}"):
        read_results(folder)


def test_a_reproduction_that_was_stopped_at_once_is_told_from_no_reproduction(tmp_path: Path) -> None:
    (tmp_path / "reproduction" / "runs").mkdir(parents=True)
    for folder in (tmp_path / "reproduction", tmp_path / "reproduction" / "results"):
        folder.mkdir(exist_ok=True)
        with pytest.raises(InputError, match="no run has ended yet; the same `datransformer reproduce` goes on"):
            read_results(folder)
    with pytest.raises(InputError, match="holds no result, expected the folder of a reproduction"):
        read_results(tmp_path)


def test_half_a_character_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, make_record(caveat="a whole one: \U0001f600"))
    assert "\U0001f600" in results_page(read_results(folder))
    (path,) = folder.rglob("*.json")
    half = json.dumps(make_record(caveat="half of one: \ud83d"))
    for text in (half, half.replace(r"\ud83d", r"\uD83D")):
        path.write_text(text)
        with pytest.raises(InputError, match=r"distance_aware-0\.json: not JSON .*surrogates not allowed"):
            read_results(folder)


def test_what_is_no_record_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, make_record())
    (folder / "ag" / "notes.json").write_text("[]")
    with pytest.raises(InputError, match=r"notes\.json: got list, expected an object"):
        read_results(folder)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (put("truth", value="000"), "truth: not as in"),
        (put("distances", value={"other": make_record()["distances"][LEVEL]}), "distances: not as in"),
        (put("heads", LEVEL, value={"entropy": [1], "keys": [1], "distance": [1]}), "heads: not as in"),
        (put("items", value={"auc": [1]}), "items: not as in"),
        (
            put("settings", "model", "attention_options", value={"distance_weight_init": 2.0}),
            r"settings\.model\.attention_options: not as in",
        ),
        (put("settings", "train", value={"lr": 0.5}), r"settings\.train\.lr: not as in"),
        (put("caveat", value="others"), "caveat: not as in"),
        (put("examples", value={"test": 4}), "examples: not as in"),
        (put("data_fingerprint", value="b"), "data_fingerprint: not as in"),
    ],
)
def test_runs_that_do_not_go_together_are_named(spoil: Callable[[Record], None], message: str, tmp_path: Path) -> None:
    first, second = (make_record(seed=seed, items={"auc": [1, 2]}, data_fingerprint="a") for seed in (0, 1))
    spoil(second)
    folder = write(tmp_path, first, second)
    with pytest.raises(InputError, match=rf"distance_aware-1\.json: {message} .*distance_aware-0\.json"):
        read_results(folder)


def test_methods_have_settings_of_their_own(tmp_path: Path) -> None:
    own = {"model": {"attention": "rpr", "attention_options": {}}, "train": {"seed": 3, "log_every": 7}}
    folder = write(tmp_path, make_record(), make_record(variant="rpr", seed=3, settings=own, commit=None))
    assert read_results(folder).studies == ["ag"]


def test_there_is_one_record_of_a_run(tmp_path: Path) -> None:
    folder = write(tmp_path, make_record())
    (folder / "ag" / "more.json").write_text(json.dumps(make_record()))
    message = r"more\.json: distance_aware, seed 0: is in .*distance_aware-0\.json too, expected one record a run"
    with pytest.raises(InputError, match=message):
        read_results(folder)


def test_settings_that_cannot_be_are_named(tmp_path: Path) -> None:
    record = make_record(settings={"train": {"precision": "half"}})
    with pytest.raises(InputError, match=r"ag/distance_aware-0\.json: settings: .*precision: got 'half'"):
        results_page(read_results(write(tmp_path, record)))


def test_old_records_and_failed_ones_are_enough(tmp_path: Path) -> None:
    old = make_record()
    for name in ("answers", "truth", "heads", "maps", "settings", "distances"):
        del old[name]
    failed = {"study": "ag", "variant": "xl", "seed": 0, "failed": "no memory"}
    results = read_results(write(tmp_path, old, failed, {**old, "variant": "vanilla"}))
    assert "ag/xl-0: no memory" in results_page(results)
    assert len(results.runs("ag", OURS)) == 1


def test_items_are_answers_or_what_each_came_to() -> None:
    rating = make_record("amazon_rating", answers=[1.25, 4], truth=[1, 5])
    assert items_of(make_record(), "accuracy").tolist() == [0, 1, 2]  # type: ignore[union-attr]
    assert items_of(rating, "mae").tolist() == [1.25, 4]  # type: ignore[union-attr]
    clicks = make_record("mind", items={"auc": [500, 1000]})
    assert items_of(clicks, "auc").tolist() == [0.5, 1]  # type: ignore[union-attr]
    assert items_of(clicks, "mrr") is None
    assert items_of(make_record("mind"), "auc") is None


def test_where_training_starts_is_known() -> None:
    record = make_record()
    assert Results([record]).started("ag", "distance_weight", 2) == [-0.5, 0.5]
    record["settings"]["model"]["attention_options"] = {"distance_shift_init": 0.25}
    assert Results([record]).started("ag", "distance_shift", 2) == [0.25, 0.25]
    without = make_record(seed=-1, distances={})  # of which nothing is shown that could have started
    without["settings"]["model"]["attention_options"] = {"bogus": 1}
    assert Results([without, record]).started("ag", "distance_shift", 2) == [0.25, 0.25]


def test_files_beside_the_records_are_checked(tmp_path: Path) -> None:
    folder = write(tmp_path, make_record())
    trial = {"round": "a", "study": "ag", "variant": OURS, "settings": {}, "seed": 0, "dev": {"accuracy": 0.5}}
    row = {"study": "ag", "option": "b", "seed": 0, "dev": {"accuracy": 0.5}}
    good: dict[str, Any] = {
        "search.json": {"note": "", "trials": [trial], "chosen": {}},
        "beyond.json": {"note": "", "rows": [row]},
        "calls.json": {"calls": [{"runs": 3, "seconds": 90.0}]},
    }
    for name, values in good.items():
        (folder / name).write_text(json.dumps(values))
    results = read_results(folder)
    assert (results.search, results.beyond, {"calls": results.calls}) == tuple(good.values())
    told = " Timed: 3 in 1.5 minutes, up to 1 at a time, in one call."
    unsure = " Some of these runs may have been replaced since. All methods"
    assert f"{told}{unsure}" in results_page(results)
    for names, note in (
        (["distance_aware-0"], ""),
        (["rpr-0"], " 1 of these runs are not on this page. The others were not timed."),
    ):
        results.calls = [{"runs": 1, "seconds": 90.0, "names": [f"ag/{name}" for name in names]}]
        assert f"Timed: 1 in 1.5 minutes, up to 1 at a time, in one call.{note} All methods" in results_page(results)
    results.calls = good["calls.json"]["calls"]
    assert results.studies == ["ag"]
    for name, key, change, message in (
        ("search.json", "trials", {"study": "x"}, r"search\.json: trials\[0\]\.study: got 'x'"),
        ("calls.json", "calls", {"runs": -1}, r"calls\.json: calls\[0\]\.runs: got -1, expected 0 or more"),
        (
            "calls.json",
            "calls",
            {"processes": "<b>"},
            r"calls\.json: calls\[0\]\.processes: got '<b>', expected a whole",
        ),
        ("calls.json", "calls", {"together": 0}, r"calls\.json: calls\[0\]\.together: got 0, expected 1 or more"),
        ("beyond.json", "rows", {"entropy": "1"}, r"beyond\.json: rows\[0\]\.entropy: got '1', expected a finite"),
        ("search.json", "trials", {"dev": {"auc": 1}}, r"search\.json: trials\[0\]\.dev\.accuracy: missing"),
        ("search.json", "trials", {"variant": "x"}, r"search\.json: trials\[0\]\.variant: got 'x'"),
        ("beyond.json", "rows", {"dev": {"accuracy": "x"}}, r"beyond\.json: rows\[0\]\.dev\.accuracy: got 'x'"),
        ("beyond.json", "rows", {"option": 1}, r"beyond\.json: rows\[0\]\.option: got 1, expected a text"),
    ):
        values = {**good[name], key: [{**good[name][key][0], **change}]}
        (folder / name).write_text(json.dumps(values))
        with pytest.raises(InputError, match=message):
            read_results(folder)
        (folder / name).write_text(json.dumps(good[name]))


def test_rows_beyond_the_paper_have_as_many_heads_as_others_of_their_option(tmp_path: Path) -> None:
    folder = write(tmp_path, make_record())

    def put(*distances: dict[str, dict[str, list[float]]], option: str = "b") -> None:
        rows = [
            {"study": "ag", "option": option if seed else "b", "seed": seed, "dev": {"accuracy": 0.5}, "distances": one}
            for seed, one in enumerate(distances)
        ]
        (folder / "beyond.json").write_text(json.dumps({"note": "", "rows": rows}))

    two, three = ({"distance_weight": [0.5] * count, "distance_shift": [0.5] * count} for count in (2, 3))
    put({"text": two}, {"text": three}, option="two layers")
    read_results(folder)
    for distances, message in (
        (({"text": two}, {"text": three}), r"rows\[1\]\.distances: expected as many heads as 'b' has elsewhere"),
        (({"text": two}, {"news": two}), r"rows\[1\]\.distances: expected as many heads as 'b' has elsewhere"),
        (({"text": {**two, "distance_shift": [0.5]}},), r"rows\[0\]\.distances\.text: got lists of 1, 2"),
        (({"text": {"distance_weight": [], "distance_shift": []}},), r"rows\[0\]\.distances\.text: got lists of 0"),
    ):
        put(*distances)
        with pytest.raises(InputError, match=message):
            read_results(folder)


def test_a_row_beyond_the_paper_is_there_once_and_its_reach_is_of_its_levels(tmp_path: Path) -> None:
    folder = write(tmp_path, make_record())
    row = {
        "study": "ag",
        "option": "b",
        "seed": 0,
        "dev": {"accuracy": 0.5},
        "device": "cpu",
        "distances": {"text": {"distance_weight": [0.5], "distance_shift": [0.5]}},
        "attended": {"text": 0.9},
    }

    def put(*rows: dict[str, Any]) -> None:
        (folder / "beyond.json").write_text(json.dumps({"note": "", "rows": rows}))

    put(row, {**row, "device": "A GPU"}, {**row, "seed": 1})
    read_results(folder)
    for rows, message in (
        ((row, row), r"rows\[1\]: 'b', seed 0: is there twice, expected once"),
        (({**row, "attended": {"news": 0.9}},), r"rows\[0\]\.attended\.news: expected 0 or more, of a level that has"),
        (({**row, "attended": {"text": -0.1}},), r"rows\[0\]\.attended\.text: expected 0 or more"),
        (({**row, "attended": {"text": "1"}},), r"rows\[0\]\.attended\.text: got '1', expected a finite"),
        (({**row, "scales": {"text": 1.0}},), r"rows\[0\]\.scales\.text: got 1.0, expected a list"),
    ):
        put(*rows)
        with pytest.raises(InputError, match=message):
            read_results(folder)


def test_forms() -> None:
    check_form("x", {"a": [1, 2.5], "c": {"k": ""}}, {"a": [float], "b?": int, "c": {str: str}})
    for value, message in (
        ({"a": [1, None]}, r"x\.a\[1\]: got None, expected a finite number"),
        ({"a": [10**400]}, r"x\.a\[0\]: got 1000.*, expected a finite number"),
        ({"a": 1}, r"x\.a: got 1, expected a list"),
        ({"a": [], "b": 1.0}, r"x\.b: got 1.0, expected a whole number"),
        ({"b": 1}, r"x\.a: missing"),
        ([], r"x: got \[\], expected an object"),
    ):
        with pytest.raises(InputError, match=message):
            check_form("x", value, {"a": [float], "b?": int})
