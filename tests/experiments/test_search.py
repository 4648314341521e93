"""The search of the recipe: settings of all methods alike, and no test set."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from datransformer.data.errors import InputError
from datransformer.experiments import beyond, search
from datransformer.experiments.reproduce import BEYOND, CALLS, SEARCH, reproduce
from datransformer.experiments.runs import RESULTS, settings_of
from datransformer.experiments.studies import STUDIES, config_of, folder_of
from datransformer.report.searched import searched
from datransformer.train.errors import Interrupted
from datransformer.train.progress import Reporter
from datransformer.train.run import locked


@pytest.fixture
def data(sst: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small = {"model.embed_dim": 8, "model.heads": 2, "model.head_dim": 4, "train.epochs": 1}
    monkeypatch.setattr(search, "BASE", {**search.BASE, **small})
    trials = {"base": {}, "rate": {"train.lr": 1e-2}}
    monkeypatch.setattr(search, "ROUNDS", {"first": search.Round(trials, {"sst": 2}, ("vanilla", "distance_aware"))})
    return sst


@pytest.mark.parametrize("name", search.ROUNDS)
def test_a_model_can_be_made_of_every_trial(name: str) -> None:
    chosen = search.ROUNDS[name]
    for settings, study, variant in itertools.product(chosen.trials.values(), chosen.seeds, chosen.variants):
        config = config_of(study, variant, 0, {**search.BASE, "data.vectors": "glove.txt", **settings})
        config.model.encoder()


def test_trials_start_from_the_same_settings_whatever_was_chosen_since() -> None:
    chosen = {name for study in STUDIES.values() for name in study.choices}
    assert chosen <= set(search.BASE)


def test_trials_differ_in_what_they_say_and_never_see_the_test_set(data: Path, tmp_path: Path) -> None:
    plan = list(search.plan_round("first", data, tmp_path / "out", "cpu"))
    assert len(plan) == 8 == len({planned.name for _, planned in plan})
    base, rate = (
        settings_of(next(planned for name, planned in plan if name == trial).config) for trial in ("base", "rate")
    )
    assert (base["train"].pop("lr"), rate["train"].pop("lr")) == (1e-3, 1e-2)
    assert base == rate
    assert {planned.folder for _, planned in plan} == {"first_base_sst", "first_rate_sst"}


def test_every_trial_has_a_folder_of_its_own() -> None:
    names = [folder_of(name, trial, study) for name, one in search.ROUNDS.items() for trial in one.trials
             for study in one.seeds]  # fmt: skip
    assert len(set(names)) == len(names)


def test_what_came_of_them_is_written_down_once(data: Path, tmp_path: Path) -> None:
    path = search.search(["first", "first"], data, tmp_path / "out", device="cpu", reporter=Reporter(enabled=False))
    first = json.loads(path.read_text())
    assert len(first["trials"]) == 8
    assert all(set(trial["dev"]) == {"accuracy", "macro_f1"} for trial in first["trials"])
    records = [json.loads(one.read_text()) for one in (tmp_path / "out" / "results").glob("*/*.json")]
    assert len(records) == 8
    assert all(set(record["metrics"]) == {"dev"} and set(record["examples"]) == {"train", "dev"} for record in records)
    path.write_text(json.dumps({**first, "note": "as it was"}))
    assert search.search(["first"], data, tmp_path / "out", device="cpu", reporter=Reporter(enabled=False)) == path
    assert json.loads(path.read_text()) == {**first, "note": "as it was"}
    assert any("train.lr = 0.01" in line for line in searched(first))


def test_trials_on_top_of_other_settings_are_not_added(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> Path:
        return search.search(["first"], data, tmp_path, trials=["base"], device="cpu", reporter=Reporter(enabled=False))

    path = run()
    first = path.read_text()
    base = search.BASE
    monkeypatch.setattr(search, "BASE", {**base, "train.epochs": 2})
    assert run() == path  # nothing is to be added
    monkeypatch.setattr(search, "ROUNDS", {"first": replace(search.ROUNDS["first"], seeds={"sst": 3})})
    with pytest.raises(InputError, match=r"search\.json: sst was tried with another train\.epochs .*another --out"):
        run()
    about = json.loads(first)
    del about["settings"]
    path.write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"search\.json: holds rows on sst of unknown settings or data"):
        run()


def test_trials_on_other_rows_are_not_added(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    path = search.search(["first"], data, out, trials=["base"], device="cpu", reporter=Reporter(enabled=False))
    train = data / "sst/train.parquet"
    rows = pq.read_table(train)
    pq.write_table(rows.slice(1), train)
    with pytest.raises(InputError, match=r"search\.json: sst was tried on other rows or word vectors"):
        search.search(["first"], data, out, trials=["rate"], device="cpu", reporter=Reporter(enabled=False))
    pq.write_table(rows, train)
    (data / "glove").mkdir()
    words = "".join(f"{word} {' '.join(['0.5'] * 8)}\n" for word in ("it", "is", "good"))
    (data / "glove.6B.300d.txt").write_text(words)
    with pytest.raises(InputError, match=r"search\.json: sst was tried with another data\.vectors"):
        search.search(["first"], data, out, trials=["rate"], device="cpu", reporter=Reporter(enabled=False))
    both = tmp_path / "both"
    path = search.search(["first"], data, both, trials=["base"], device="cpu", reporter=Reporter(enabled=False))
    (data / "glove.6B.300d.txt").write_text(words.replace("0.5", "0.6"))
    with pytest.raises(InputError, match=r"search\.json: sst was tried on other rows or word vectors"):
        search.search(["first"], data, both, trials=["rate"], device="cpu", reporter=Reporter(enabled=False))
    assert {trial["trial"] for trial in json.loads(path.read_text())["trials"]} == {"base"}


def test_trials_and_reproductions_have_folders_of_their_own(data: Path, tmp_path: Path) -> None:
    (tmp_path / "one" / RESULTS).mkdir(parents=True)
    (tmp_path / "one" / RESULTS / CALLS).write_text("{}")
    quiet = Reporter(enabled=False)
    with pytest.raises(InputError, match="one: holds a reproduction, expected another --out"):
        search.search(["first"], data, tmp_path / "one", device="cpu", reporter=quiet)
    with pytest.raises(InputError, match="one: holds a reproduction, expected another --out"):
        beyond.go_beyond(data, tmp_path / "one", device="cpu", reporter=quiet)
    for name in (SEARCH, BEYOND):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("{}")
        with pytest.raises(InputError, match=f"holds what was tried, {name}, expected another --out"):
            reproduce(["probe"], tmp_path / name, cache=tmp_path)


def test_some_trials_of_some_studies_can_be_asked_for(data: Path, tmp_path: Path) -> None:
    def run(**chosen: tuple[str, ...]) -> Path:
        reporter = Reporter(enabled=False)
        return search.search(["first"], data, tmp_path / "out", **chosen, device="cpu", reporter=reporter)

    path = run(trials=("rate",), studies=("sst",))
    assert {(trial["trial"], trial["study"]) for trial in json.loads(path.read_text())["trials"]} == {("rate", "sst")}
    for chosen in ({"trials": ("slow",)}, {"studies": ("ag",)}):
        with pytest.raises(InputError, match="nothing to run: no round that is named has such"):
            run(**chosen)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("no such folder\x1b[2J"), 1),
        (NotADirectoryError(20, "no such folder\x1b[2J", "O"), 1),
        (Interrupted("stopped; go on"), 130),
    ],
)
def test_it_ends_in_words(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("sys.argv", ["search", "--data-dir", "D", "--out", "O"])
    for module, name in ((search, "search"), (beyond, "go_beyond")):
        monkeypatch.setattr(module, name, fail)
        with pytest.raises(SystemExit) as ended:
            module.main()
        assert ended.value.code == status
        told = capsys.readouterr().err
        assert told.startswith(("no such folder", "O: no such folder", "stopped; the same command goes on"))
        assert "\x1b" not in told


def test_two_calls_do_not_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["search", "--data-dir", "D", "--out", str(tmp_path)])
    for module in (search, beyond):
        with locked(tmp_path), pytest.raises(SystemExit):
            module.main()
        assert "another process is at work there" in capsys.readouterr().err


def test_only_the_data_that_are_asked_for_are_needed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = {"base": {}, "words": {"data.vector_words": True}}  # of vectors, which are not there
    monkeypatch.setattr(search, "ROUNDS", {"first": search.Round(trials, {"sst": 1, "ag": 1}, ("vanilla",))})
    plan = list(search.plan_round("first", data, tmp_path, "cpu", ["base"], ["sst"]))
    assert [(trial, planned.study) for trial, planned in plan] == [("base", "sst")]


def test_runs_that_fail_are_an_error(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "BASE", {**search.BASE, "train.lr": 1e30, "train.clip": 0.0})
    with pytest.raises(InputError, match="4 of 8 runs failed, which the same command tries again"):
        search.search(["first"], data, tmp_path, device="cpu", reporter=Reporter(enabled=False))
    assert len(json.loads((tmp_path / SEARCH).read_text())["trials"]) == 4


@pytest.mark.parametrize("trials", [[{}], [3]])
def test_spoilt_trials_are_named(trials: list[Any], data: Path, tmp_path: Path) -> None:
    (tmp_path / SEARCH).write_text(json.dumps({"trials": trials}))
    with pytest.raises(InputError, match=r"search\.json: trials\[0\].*it can be deleted"):
        search.search(["first"], data, tmp_path, device="cpu", reporter=Reporter(enabled=False))


def test_a_file_that_holds_no_list_is_named(data: Path, tmp_path: Path) -> None:
    calls: dict[str, tuple[Any, ...]] = {SEARCH: (search.search, ["first"]), BEYOND: (beyond.go_beyond,)}
    for name, (call, *arguments) in calls.items():
        (tmp_path / name).write_text('{"trials": 1, "rows": {}}')
        with pytest.raises(InputError, match=rf"{name}: (trials|rows): got .*, expected a list"):
            call(*arguments, data, tmp_path, device="cpu", reporter=Reporter(enabled=False))
