"""The command line: verbs, thin."""

import ctypes
import io
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand

from datransformer.data.errors import InputError
from datransformer.version import __version__

SECONDS_TO_SPEAK = 3

app = typer.Typer(
    name="datransformer",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Distance-aware Transformer: attention that knows how far apart two tokens really are.

    Start with [bold]datransformer demo[/bold], or train on your own file:

    [bold]datransformer train --train reviews.csv --out RUN[/bold]
    [bold]datransformer evaluate RUN --data test.csv[/bold]
    [bold]datransformer predict RUN --text "what a film"[/bold]

    Several GPUs: [bold]torchrun --nproc_per_node 8 -m datransformer train …[/bold]
    """,
)
data_app = typer.Typer(no_args_is_help=True, help="Get and list the data sets of the paper.")
app.add_typer(data_app, name="data")
bench_app = typer.Typer(no_args_is_help=True, help="Measure speed and memory on this machine.")
app.add_typer(bench_app, name="bench")


def main() -> None:
    """Run a command; what the user can mend is one line, not a traceback."""
    from datransformer.train.errors import Interrupted, TrainingError
    from datransformer.train.progress import printable

    _keep_freed_memory()
    try:
        with _first_speaks_first():
            app()
    except (InputError, TrainingError) as error:
        _fail(printable(str(error)), 1)
    except Interrupted as error:
        _fail(printable(str(error)), 130)
    except OSError as error:
        _fail(printable(f"{error.filename or 'the system'}: {error.strerror or error}"), 1)
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        # The reader of our output has seen enough, which click takes for a failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _keep_freed_memory() -> None:
    """Let glibc keep what is freed, or tensors of some MiB are mapped and zeroed by the system again in every step.

    It is for the whole process, so the command line does it, whose process it is, and the library does not.
    """
    trim_threshold, map_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    with suppress(OSError, AttributeError, TypeError):  # another system, another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(map_threshold, 32 << 20)  # the most it allows
        mallopt(trim_threshold, 2**31 - 1)


@contextmanager
def _first_speaks_first() -> Iterator[None]:
    """Let an error of all processes be said by the first of them, whose end is the end of the others under torchrun."""
    try:
        yield
    except Exception:
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        time.sleep(rank and SECONDS_TO_SPEAK + rank)
        raise


def _fail(message: str, status: int) -> None:
    line = "error: " + " ".join(message.split())
    Console(stderr=True, soft_wrap=True).print(line, markup=False, emoji=False, highlight=False)
    sys.exit(status)


def _need(*paths: Path | None) -> None:
    """Refuse what is not there before torch is imported, which takes seconds."""
    for path in paths:
        if path is not None and path != Path("-") and not path.exists():
            raise InputError(f"{path}: there is no such file or folder")


def _need_run(folder: Path) -> Path:
    if not folder.exists():
        raise InputError(f"{folder}: there is no such folder, expected a run directory")
    return folder


def _cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "datransformer"


def _version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Nothing happens here; the help is the app's."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("demo"),
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps of each model. \\[240]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seeds data and weights.")] = 0,
) -> None:
    """Train distance-aware attention and its rivals on a task that only distance can solve, and write a report.

    Takes less than three minutes on two CPU cores and needs no data.
    """
    from datransformer.experiments.demo import STEPS, run_demo
    from datransformer.report.page import write_demo
    from datransformer.train.progress import Reporter

    rows = run_demo(out, cache=_cache_dir(), reporter=Reporter(), steps=steps or STEPS, seed=seed)
    write_demo(out)
    table = Table(title="Which marker is nearest to the query? Chance is 64 %.")
    for heading, side in (("attention", "left"), ("at the end", "right"), ("first at 95 %", "right"), ("s", "right")):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]
    for row in rows:
        reached = "not reached" if row.steps_to_95 is None else f"step {row.steps_to_95}"
        table.add_row(row.label, f"{row.accuracy:.1%}", reached, f"{row.seconds:.0f}")
    Console().print(table)
    typer.echo(f"Report: {(out / 'report.html').resolve()}")


Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting, as in --set model.layers=2; datransformer settings lists them. May be repeated.",
    ),
]


class _Train(TyperCommand):
    """Points to --set where a setting was typed as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":  # typer has it from click, or in itself, by version
                _point_to_setting(getattr(error, "option_name", ""))
            raise


def _point_to_setting(option: str) -> None:
    """Fail with the setting that an option is called like, if there is one."""
    from datransformer.train.settings import list_settings

    name = option.lstrip("-").replace("-", "_")
    for setting in list_settings():
        if name in (setting.key, setting.key.rpartition(".")[2]):
            _fail(f"{option}: no such option, expected --set {setting.key}=VALUE", 2)


@app.command(cls=_Train)
def train(
    out: Annotated[Path, typer.Option(help="The run directory.")],
    task: Annotated[str | None, typer.Option(help="sentence, pair, document or recommend. \\[sentence]")] = None,
    train_file: Annotated[
        Path | None,
        typer.Option(
            "--train", help="csv, tsv, jsonl or Parquet file; for recommend a folder of MIND files. \\[the probe]"
        ),
    ] = None,
    dev: Annotated[
        Path | None, typer.Option(help="File to choose by. Without it a seeded tenth of --train is held out.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="File to report on at the end.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="A data set by name instead of files: probe, ag, amazon, sst, snli, snli2, mind.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="The folder that holds the data set.")] = None,
    file_format: Annotated[str | None, typer.Option("--format", help="Format of the files. \\[by their names]")] = None,
    text_column: Annotated[
        list[str] | None, typer.Option(help="Column of the text; several are joined. \\[text]")
    ] = None,
    text_pair_column: Annotated[str | None, typer.Option(help="Column of the second text (pair).")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of the label or rating. \\[label]")] = None,
    head: Annotated[str | None, typer.Option(help="class, or rating to predict a number. \\[class]")] = None,
    pair: Annotated[str | None, typer.Option(help="How a pair enters: joint or siamese. \\[joint]")] = None,
    attention: Annotated[
        str | None,
        typer.Option(help="distance_aware, vanilla, rpr, xl, adapted, rotary, alibi, t5_bias or none."),
    ] = None,
    vectors: Annotated[
        str | None, typer.Option(help="Word vectors (GloVe, word2vec or fastText text, safetensors), or none. \\[none]")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="words, or a tokenizer.json. \\[words]")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training rows. \\[5]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples a batch, in each process. \\[64]")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of Adam. \\[0.001]")] = None,
    seed: Annotated[int | None, typer.Option(help="Seeds weights, order and dropout. \\[0]")] = None,
    bad_rows: Annotated[
        str | None, typer.Option(help="stop at a row that cannot be used, or skip and count it. \\[stop]")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings; flags and --set go before it.")] = None,
    settings: Setting = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in --out, from its last checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace the run in --out.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    cache_dir: Annotated[Path | None, typer.Option(help="Folder for encoded data. \\[~/.cache/datransformer]")] = None,
) -> None:
    """Train a model on labelled texts, pairs, documents or click logs.

    [bold]datransformer train --train a.csv --dev b.csv --test c.csv --vectors glove.6B.300d.txt --out RUN[/bold]

    [bold]datransformer train --task pair --train a.csv --text-column one --text-pair-column two --out RUN[/bold]

    [bold]datransformer train --task document --head rating --train reviews.csv --label-column stars --out RUN[/bold]

    [bold]datransformer train --task recommend --train MINDsmall_train --dev MINDsmall_dev --out RUN[/bold]

    RUN then holds config.yaml, vocab, model.safetensors, metrics.jsonl and result.json. A run that was killed goes on
    with --resume.
    """
    _need(train_file, dev, test, config, None if vectors in (None, "none") else Path(vectors or ""))

    from datransformer.train.config import RunConfig, from_dict, override, read_yaml, to_dict
    from datransformer.train.fit import fit
    from datransformer.train.progress import Reporter
    from datransformer.train.run import CONFIG, RESULT, load_config

    values: dict[str, Any] = {}
    resuming = resume and (out / CONFIG).exists()
    if resuming:
        if (out / RESULT).exists():
            typer.echo(f"{out}: has ended already; datransformer evaluate {out} --data FILE measures it")
            return
        values = to_dict(load_config(out))
    if config is not None:
        _merge(values, read_yaml(config))
    flags: dict[str, tuple[str, Any]] = {
        "--task": ("task", task),
        "--dataset": ("files.dataset", dataset),
        "--data-dir": ("files.data_dir", data_dir and str(data_dir)),
        "--train": ("files.train", train_file and [str(train_file)]),
        "--dev": ("files.dev", dev and str(dev)),
        "--test": ("files.test", test and str(test)),
        "--format": ("data.format", file_format),
        "--text-column": ("data.text_columns", text_column),
        "--text-pair-column": ("data.text_pair_column", text_pair_column),
        "--label-column": ("data.label_column", label_column),
        "--vectors": ("data.vectors", vectors),
        "--tokenizer": ("data.tokenizer", tokenizer),
        "--bad-rows": ("data.bad_rows", bad_rows),
        "--head": ("model.head", head),
        "--pair": ("model.pair", pair),
        "--attention": ("model.attention", attention),
        "--epochs": ("train.epochs", epochs),
        "--batch-size": ("train.batch_size", batch_size),
        "--lr": ("train.lr", lr),
        "--seed": ("train.seed", seed),
    }
    typed = {}
    for flag, (key, value) in flags.items():
        if value is not None and value != []:
            _merge(values, _nested(key, None if flag == "--vectors" and value == "none" else value))
            typed[key] = flag
    override(values, settings or [])
    typed |= {key: f"--set {key}" for key in (setting.partition("=")[0].strip() for setting in settings or [])}
    if resume and not values:
        raise InputError(f"{out}: there is no run to resume; expected its folder, or the settings to start it with")
    _choose_dataset(values)
    try:
        run_config = from_dict(RunConfig, values, "")
    except InputError as error:
        raise InputError(_as_typed(str(error), typed, config)) from error
    reporter = Reporter()
    result = fit(
        run_config,
        out,
        cache=cache_dir or _cache_dir(),
        device=device,
        reporter=reporter,
        resume=resume,
        overwrite=overwrite,
        keep_width="embed_dim" in values.get("model", {}),
    )
    if reporter.enabled:
        for split, metrics in result["metrics"].items():
            typer.echo(f"{split}: " + ", ".join(_spell(name, value) for name, value in metrics.items()))
        typer.echo(f"Run: {out}")


@app.command("settings")
def settings_command(
    part: Annotated[str, typer.Argument(help="Only settings with this in their name, vector say.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list with an object for each.")] = False,
) -> None:
    """List every setting that train takes with --set or --config: its kind, default and meaning."""
    from datransformer.train.settings import list_settings

    settings = [setting for setting in list_settings() if part in setting.key]
    if not settings:
        raise InputError(f"{part}: no setting has this in its name; without it all are listed")
    if as_json:
        typer.echo(json.dumps([vars(setting) for setting in settings]))
        return
    table = Table(title="--set SETTING=VALUE", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading, widest in (("setting", None), ("kind", 13), ("default", 14), ("meaning", None)):
        table.add_column(heading, no_wrap=heading == "setting", max_width=widest, overflow="fold")
    for setting in settings:
        default = setting.default if isinstance(setting.default, str) else json.dumps(setting.default)
        table.add_row(*map(escape, (setting.key, setting.kind, default, setting.meaning)))
    Console().print(table)


def _as_typed(message: str, typed: dict[str, str], config: Path | None) -> str:
    """A message about a setting, by the flag or the file that it came from."""
    key, _, problem = message.partition(": ")
    unknown = re.match("unknown setting '(.+?)'", problem)
    name = f"{key}.{unknown[1]}".removeprefix(".") if unknown else key
    problem += "; datransformer settings says what each is" if unknown else ""
    if name in typed:
        return f"{typed[name]}: {problem}"
    return ": ".join(str(part) for part in (config, key, problem) if part)


def _spell(name: str, value: float) -> str:
    return f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value:,}"


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _merge(values: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = value


def _choose_dataset(values: dict[str, Any]) -> None:
    """A data set knows its task; without files and data set the built-in probe is the default."""
    from datransformer.data.datasets import DATASETS

    files = values.get("files") or {}
    if isinstance(files, dict):
        name = files.get("dataset")
        if not files.get("train") and not name:
            if files.get("dev") or files.get("test"):
                raise InputError("--train: got nothing, expected a file to train on")
            typer.echo("no --train: training on the built-in probe", err=True)
            values["files"] = {**files, "dataset": "probe"}
        if isinstance(name, str) and name in DATASETS:
            values.setdefault("task", DATASETS[name].task)


Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
RunFolder = Annotated[Path, typer.Argument(help="A run directory that train made.", metavar="RUN", callback=_need_run)]
DataFile = Annotated[
    Path | None, typer.Option("--data", help="File to read; - reads csv with a header from standard input.")
]


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[Path, typer.Option("--data", help="Labelled file, or for recommend a folder of MIND files.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the metrics.")] = False,
    text_column: Annotated[list[str] | None, typer.Option(help="If not as in training.")] = None,
    text_pair_column: Annotated[str | None, typer.Option(help="If not as in training.")] = None,
    label_column: Annotated[str | None, typer.Option(help="If not as in training.")] = None,
    file_format: Annotated[str | None, typer.Option("--format", help="Format of the file. \\[by its name]")] = None,
    bad_rows: Annotated[str | None, typer.Option(help="stop or skip. \\[as in training]")] = None,
    device: Device = "auto",
) -> None:
    """Measure a trained run on a labelled file. Everything is rebuilt from RUN alone."""
    _need(data)

    from datransformer.data.errors import BadRows
    from datransformer.train.predict import answer_rows, evaluate_impressions, evaluate_rows, rows_of

    with _loaded(run, device) as (trained, worker, reporter):
        reading = _reading(trained, text_column, text_pair_column, label_column, file_format or "auto", bad_rows)
        if trained.config.task == "recommend":
            bad = BadRows(skip=reading.bad_rows == "skip")
            metrics, notes = evaluate_impressions(trained, data, bad_rows=bad, worker=worker, progress=reporter.stage)
        else:
            rows = rows_of(trained, data, reading, labelled=True)
            answered = answer_rows(trained, rows, labelled=True, data=reading, worker=worker, progress=reporter.stage)
            metrics, notes = evaluate_rows(trained, answered), answered.notes
    if worker.rank:
        return
    for note in notes:
        reporter.say(note)
    if as_json:
        typer.echo(json.dumps(metrics))
    else:
        for name, value in metrics.items():
            typer.echo(_spell(f"{name:>12}", value))


@app.command()
def predict(
    run: RunFolder,
    text: Annotated[list[str] | None, typer.Option(help="A text; may be repeated.")] = None,
    text_pair: Annotated[list[str] | None, typer.Option(help="The second text of each --text (pair).")] = None,
    data: DataFile = None,
    out: Annotated[
        Path | None,
        typer.Option(help="csv, tsv or jsonl file to write; prediction.txt for recommend. \\[standard output]"),
    ] = None,
    text_column: Annotated[list[str] | None, typer.Option(help="If not as in training.")] = None,
    text_pair_column: Annotated[str | None, typer.Option(help="If not as in training.")] = None,
    file_format: Annotated[
        str | None, typer.Option("--format", help="Format of --data. \\[by its name; csv on standard input]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on standard output instead of csv.")] = False,
    bad_rows: Annotated[str | None, typer.Option(help="stop or skip. \\[as in training]")] = None,
    device: Device = "auto",
) -> None:
    """Predict texts, or the rows of a file, with the probability of each class.

    The output has all columns of the input and then row (its number), prediction and probability_… of each class. Where
    the input has a column of such a name already, ours gets an underscore behind it.

    Under torchrun the rows are shared out and one ordered output comes out.
    """
    _need(data)

    from datransformer.data.errors import BadRows
    from datransformer.data.readers import read_whole_rows
    from datransformer.train.predict import (
        HALVES,
        OUTPUTS,
        answer_rows,
        predict_impressions,
        predictions,
        rows_of,
        rows_of_texts,
        save_records,
        write_records,
    )

    if (data is None) == (not text):
        raise InputError("expected either --text or --data; --data - reads csv with a header from standard input")
    if out is not None and data is not None and data.resolve() in (out.resolve(), out.resolve().parent):
        raise InputError(f"--out: got {out}, which is --data or inside it; expected another file")
    if out is not None and run.resolve() in out.resolve().parents:
        raise InputError(f"--out: got {out}, which is inside the run; expected another file")
    with _scratch() as scratch:
        with _loaded(run, device) as (trained, worker, reporter):
            task = trained.config.task
            form = file_format or ("csv" if data == Path("-") else "auto")
            reading = _reading(trained, text_column, text_pair_column, None, form, bad_rows)
            if task == "recommend":
                if data is None or out is None:
                    raise InputError("a recommender ranks the impressions of a folder: expected --data DIR --out FILE")
                bad = BadRows(skip=reading.bad_rows == "skip")
                count, notes = predict_impressions(
                    trained, data, out, labelled=_labelled(data), bad_rows=bad, worker=worker, progress=reporter.stage
                )
                for line in (*notes, f"{count:,} impressions ranked: {out}"):
                    reporter.say(line)
                return
            if out is not None and out.suffix.lower().removeprefix(".") not in OUTPUTS:
                raise InputError(f"--out: got {out}, expected a name that ends in .csv, .tsv or .jsonl")
            if data is None:
                if (task == "pair") != bool(text_pair) or len(text_pair or text or []) != len(text or []):
                    wanted = "one --text-pair for each --text" if task == "pair" else "no --text-pair"
                    raise InputError(f"the run's task is {task!r}: expected {wanted}")
                rows = rows_of_texts(text or [], text_pair, name="--text")
            else:
                data = _spooled(data, scratch)
                rows = rows_of(trained, data, reading, labelled=False)
            answered = answer_rows(trained, rows, labelled=False, data=reading, worker=worker, progress=reporter.stage)
        if worker.rank:
            return
        for note in answered.notes:
            reporter.say(_without(scratch, note))
        carried = ((), None) if data is None else read_whole_rows(data, answered.rows, format=reading.format)
        fields, records, notes = predictions(trained, answered, *carried)
        for note in notes:
            reporter.say(note)
        if out is None:
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(errors=HALVES)
            write_records(sys.stdout, fields, records, "jsonl" if as_json else "csv")
            sys.stdout.flush()
        else:
            save_records(out, fields, records)
            reporter.say(f"{len(answered.rows):,} rows: {out}")


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for a while, of which no message speaks."""
    with tempfile.TemporaryDirectory(prefix="datransformer-") as name:
        try:
            yield Path(name)
        except InputError as error:
            raise InputError(_without(Path(name), str(error))) from error


def _without(folder: Path, text: str) -> str:
    return text.replace(f"{folder}{os.sep}", "")


def _labelled(folder: Path) -> bool:
    """Whether the first impressions say what was clicked; those of MIND's test set do not."""
    try:
        with (folder / "behaviors.tsv").open(encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n").split("\t")[-1].split() for line in itertools.islice(file, 100) if line.strip()]
    except OSError:
        return True
    return any(shown and all(candidate.endswith(("-0", "-1")) for candidate in shown) for shown in lines)


def _spooled(path: Path, folder: Path) -> Path:
    """The file itself, or a copy of standard input that can be read more than once."""
    if path != Path("-"):
        return path
    with (folder / "standard input").open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return folder / "standard input"


def _reading(
    run: Any,
    text_column: list[str] | None,
    text_pair_column: str | None,
    label_column: str | None,
    file_format: str,
    bad_rows: str | None,
) -> Any:
    from datransformer.train.predict import reading

    try:
        return reading(
            run,
            text_columns=tuple(text_column) if text_column else None,
            text_pair_column=text_pair_column,
            label_column=label_column,
            format=file_format,
            bad_rows=bad_rows,
        )
    except ValueError as error:
        raise InputError(f"--{str(error).replace('_', '-', 1)}") from error


@contextmanager
def _loaded(folder: Path, device: str) -> Iterator[tuple[Any, Any, Any]]:
    """A run, where to compute with it, and whom to tell."""
    from datransformer.train.launch import launch, worker_of
    from datransformer.train.progress import Reporter
    from datransformer.train.run import load_run

    trained = load_run(folder)
    fabric = launch(device, trained.config.train.precision)
    worker = worker_of(fabric)
    reporter = Reporter(enabled=fabric.is_global_zero)
    with reporter.live():
        yield trained, worker, reporter


Compare = Annotated[Path | None, typer.Option(help="Another run of the same task, to be shown beside it.")]


@app.command()
def explain(
    run: RunFolder,
    text: Annotated[str, typer.Option(help="The text; for recommend the titles that were read, one a line.")],
    out: Annotated[Path, typer.Option(help="The page, one HTML file.")],
    text_pair: Annotated[
        str | None, typer.Option(help="The second text (pair); for recommend the candidates, one a line.")
    ] = None,
    compare: Compare = None,
) -> None:
    """Write a page that shows what each head attends to in a text; it works offline.

    [bold]datransformer explain RUN --text "what a film" --out page.html --compare OTHER_RUN[/bold]
    """
    from datransformer.data.store import write_text
    from datransformer.explore.explain import explain_text
    from datransformer.explore.page import explorer_page

    runs = _runs_to_show(run, compare)
    results = [explain_text(trained, text, text_pair) for trained in runs]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, explorer_page(runs, results))
    typer.echo(out)


@app.command()
def explore(
    run: RunFolder,
    compare: Compare = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine. \\[a free one]")] = 0,
) -> None:
    """Open a local page to type texts into and see what each head attends to. Ctrl-C ends it."""
    from datransformer.explore.server import Explorer

    with Explorer(_runs_to_show(run, compare), port) as explorer:
        typer.echo(f"Explorer: {explorer.url}")
        typer.echo("It answers to this machine alone. Ctrl-C ends it.", err=True)
        with suppress(KeyboardInterrupt):
            explorer.serve_forever()


def _runs_to_show(*folders: Path | None) -> list[Any]:
    from datransformer.train.run import load_run

    runs = [load_run(folder) for folder in folders if folder is not None]
    tasks = [run.config.task for run in runs]
    if len(set(tasks)) > 1:
        raise InputError(f"--compare: got a run of the task {tasks[1]!r}, expected {tasks[0]!r} as RUN")
    return runs


@app.command()
def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="The folder to make.", metavar="OUT")],
    to: Annotated[str, typer.Option(help="onnx, torch-export, or hf for Hugging Face's transformers.")],
    overwrite: Annotated[bool, typer.Option(help="Replace the export in OUT.")] = False,
) -> None:
    """Write a trained run in a form that other programs load, and hold it against torch.

    [bold]datransformer export RUN --to onnx OUT[/bold]

    OUT then holds the model, for any number and length of texts, with its tokenizer and labels. Where its answers
    differ from torch's by more than 1e-5 nothing is written.
    """
    from datransformer.export import export_run

    typer.echo(export_run(run, out, to=to, overwrite=overwrite))


@app.command()
def serve(
    run: RunFolder,
    host: Annotated[str, typer.Option(help="Where to listen; other machines reach another than this one.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the API key. \\[the variable DATRANSFORMER_API_KEY]")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Texts that the model answers at once; 1: no batching.")] = 64,
    wait_ms: Annotated[float, typer.Option(min=0, help="How long a text waits for others to share a batch.")] = 2,
    queue: Annotated[int, typer.Option(min=1, help="Texts that wait at most; others are refused with 503.")] = 1024,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to answer a request in.")] = 30,
    max_texts: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = 256,
    max_bytes: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 1 << 20,
    device: Device = "auto",
) -> None:
    """Answer texts over HTTP: /predict, /explain, /healthz, /metrics, and /docs which describes them.

    [bold]curl -d '{"text": "what a film"}' -H 'content-type: application/json' localhost:8000/predict[/bold]

    Only this machine is answered, unless there is an API key. SIGTERM ends the server when it has answered all that it
    accepted.
    """
    try:
        from datransformer.serve.app import create_app
        from datransformer.serve.limits import Limits
        from datransformer.serve.server import check_key
        from datransformer.serve.server import serve as answer
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("datransformer"):
            raise
        raise InputError(f'{error.name} is not installed, expected it: pip install "datransformer[serve]"') from error

    key = os.environ.get("DATRANSFORMER_API_KEY") if api_key_file is None else _read_key(api_key_file)
    check_key(host, key)
    try:
        limits = Limits(max_texts, max_bytes, batch, wait_ms / 1000, queue, timeout)
    except ValueError as error:
        raise InputError(f"--{error}") from error
    with _loaded(run, device) as (trained, worker, reporter):
        server = create_app(trained, limits, key=key, worker=worker)
    answer(server, host, port, limits, lambda address: reporter.say(f"{run}: {address}"))


def _read_key(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except ValueError as error:
        raise InputError(f"--api-key-file {path}: not text, expected the API key") from error


@app.command()
def reproduce(
    what: Annotated[
        list[str],
        typer.Argument(
            help="ag, amazon, sst, snli, mind, all, or probe, which needs no data; or a part of one: amazon_rating, "
            "sst_phrases, snli_siamese, snli2, snli2_siamese."
        ),
    ],
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data sets and word vectors.")] = None,
    vectors: Annotated[Path | None, typer.Option(help="Word vectors. \\[those in --data-dir]")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How often each method is trained.")] = 5,
    method: Annotated[
        list[str] | None, typer.Option(help="Train this method alone, as vanilla; may be repeated. \\[all]")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs, results and the page.")] = Path("reproduction"),
    device: Device = "auto",
    together: Annotated[
        int | None, typer.Option(min=1, help="Runs that take turns in a process. \\[4 on a GPU, 1 on a CPU]")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes that share the runs. \\[up to 4 with a GPU, 1 on a CPU]")
    ] = None,
) -> None:
    """Run the paper's experiments, and write a page that holds our numbers against the paper's.

    Every run is a normal run directory. Called again, it skips what is done and goes on with what was stopped.
    """
    from datransformer.experiments.reproduce import reproduce as run_studies
    from datransformer.experiments.runs import RESULTS
    from datransformer.experiments.studies import find_vectors
    from datransformer.report.results import write_results
    from datransformer.train.progress import Reporter

    reporter = Reporter()
    chosen = vectors or find_vectors(data_dir)
    records = run_studies(
        what,
        out,
        cache=_cache_dir(),
        data_dir=data_dir,
        vectors=chosen,
        seeds=seeds,
        methods=method or (),
        device=device,
        together=together,
        processes=processes,
        reporter=reporter,
    )
    write_results(out / RESULTS, out / "results.md")
    typer.echo(out / "results.md")
    failed = [record for record in records if "failed" in record]
    if failed:
        raise InputError(f"{len(failed)} of {len(records)} runs failed, which are named at the end of the page")


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="The folder of a reproduction, or its folder results.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The page: .md, or .html with all in one file. \\[results.md in that folder]"),
    ] = None,
) -> None:
    """Turn the results of a reproduction into a page."""
    from datransformer.report.results import write_results

    out = out or results / "results.md"
    write_results(results, out)
    typer.echo(out)


@data_app.command("list")
def data_list() -> None:
    """List the data sets that train knows by name."""
    from datransformer.data.datasets import DATASETS

    table = Table(
        "name, task", "what it is, its terms, its files", title="--dataset NAME --data-dir FOLDER", show_lines=True
    )
    table.add_row("probe\nsentence", "generated: the label is a matter of distance alone; needs no files")
    for entry in DATASETS.values():
        facts = (entry.description, f"terms: {entry.licence}", entry.homepage, *entry.expects)
        table.add_row(f"{entry.name}\n{entry.task}", "\n".join(facts))
    Console().print(table)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="snli, sst or glove.6B; others say how to get them.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder to put it in.")] = Path("data"),
    sha256: Annotated[str | None, typer.Option(help="The digest you expect, if you know a better one.")] = None,
) -> None:
    """Download a data set from its publisher, checked by its SHA-256; run again, it resumes."""
    from datransformer.data.download import DOWNLOADS, fetch
    from datransformer.train.progress import Reporter

    if name not in DOWNLOADS:
        raise InputError(f"got {name!r}, expected one of: {', '.join(DOWNLOADS)}")
    reporter = Reporter()
    reporter.say(f"{name}: {DOWNLOADS[name].licence}, {DOWNLOADS[name].homepage}")
    with reporter.live():
        paths = fetch(DOWNLOADS[name], folder, expected_sha256=sha256, progress=reporter.stage)
    for path in paths:
        typer.echo(path)


@bench_app.command("train")
def bench_train_command(
    out: Annotated[Path | None, typer.Option(help="JSON file for all numbers.")] = None,
    device: Device = "auto",
    quick: Annotated[bool, typer.Option(help="Small sizes, to see that it works.")] = False,
    growth: Annotated[bool, typer.Option(help="Measure files of up to a million rows, some minutes.")] = True,
) -> None:
    """Training tokens/s beside torch's encoder and Hugging Face's Trainer, encoding texts/s, growth with file size."""
    from datransformer.experiments.bench_train import bench_table, bench_train

    result = bench_train(out, device=device, quick=quick, growth=growth, tell=lambda line: typer.echo(line, err=True))
    Console().print(bench_table(result))


@bench_app.command("attention")
def bench_attention_command(
    device: Device = "auto",
    quick: Annotated[bool, typer.Option(help="Small sizes, to see that it works.")] = False,
    out: Annotated[Path | None, typer.Option(help="JSON file for all numbers.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Figure of time and memory over the length: png, svg or pdf.")
    ] = None,
    shape: Annotated[list[str] | None, typer.Option(metavar="BxHxNxD", help="Measure this; may be repeated.")] = None,
    threads: Annotated[int, typer.Option(help="Of a CPU.")] = 2,
) -> None:
    """Time and memory of distance-aware attention beside SDPA, FlexAttention and torch.compile, in turns.

    [bold]python -m datransformer.bench[/bold] is the same and needs torch alone.
    """
    from datransformer.bench import run

    try:
        text = run(
            device=device,
            quick=quick,
            out=out,
            plot=plot,
            shapes=shape or [],
            threads=threads,
            tell=lambda line: typer.echo(line, err=True),
        )
    except InputError as error:  # known before anything is measured: a bad argument, as typer's own
        _fail(str(error), 2)
    else:
        typer.echo(text, nl=False)


if __name__ == "__main__":
    main()
