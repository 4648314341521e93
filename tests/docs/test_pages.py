"""Every snippet and every command of the documents runs; what is only parsed here is in `PARSED`, with the reason."""

import contextlib
import csv
import importlib
import io
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch.distributed.run
import typer.main

from datransformer import ADJUSTMENTS, MAPPINGS, MIXERS, cli
from datransformer.experiments import studies
from datransformer.experiments.bench_serve import started
from datransformer.nn.distance_aware import INITIAL_SHIFT

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]

# Commands that are parsed by the real command line, and not run, by how they begin.
PARSED = {
    "datransformer bench attention": "takes minutes; tests/experiments/test_bench_attention.py runs it",
    "datransformer bench train": "takes minutes; tests/experiments/test_bench_train.py runs it",
    "datransformer data get": "needs the network; tests/data/test_download.py runs it",
    "datransformer demo": "takes minutes; tests/experiments/test_demo.py runs it",
    "datransformer report results": "needs the repository's results; tests/report/test_published.py makes that page",
    "make": "sets up an environment; what its targets run is run by the tests or by CI",
    "pip": "needs the network; the extras are looked up",
    "python -m datransformer.bench": "takes minutes; as bench attention",
    "python -m datransformer.experiments.bench_export": "minutes; tests/experiments/test_bench_export.py runs it",
    "python -m datransformer.experiments.bench_reproduce": "minutes; tests/experiments/test_bench_reproduce.py runs it",
    "python -m datransformer.experiments.bench_scaling": "minutes; tests/experiments/test_bench_scaling.py runs it",
    "python -m datransformer.experiments.bench_serve": "minutes; tests/experiments/test_bench_serve.py runs it",
    "python tests/hf/judge/run.py": "minutes, and needs the network; tests/hf/test_judge.py runs it",
    "torchrun": "needs several processes, GPUs or nodes; tests/train/test_ddp.py runs two processes",
}
ONCE = {
    "datransformer export run --to onnx exported": "docs/export.md"
}  # on other pages it is parsed: it takes seconds
REAL_DATA = ("DATA", "MINDlarge_train")  # a command that names one of these is parsed too: there is none here

ALONE = ("README.md", "docs/index.md")  # pages each of whose snippets stands alone; on others one goes on from another
OWN_PROCESS = ("docs/huggingface.md",)  # an offline hub has to be asked for before transformers is imported
ELSEWHERE = {"docs/export.md": "tests/export/test_folder.py"}  # pages whose snippets another test runs, without torch
FINISHED = {  # runs that a page takes for granted
    "README.md": ("other",),
    "docs/explorer.md": ("RUN", "OTHER_RUN"),
    "docs/export.md": ("run",),
    "docs/scaling.md": ("run",),
    "docs/serving.md": ("run",),
}
TIMES = 10  # rows of a file on a page are written so often: nobody learns from four


class Block(NamedTuple):
    """A fenced block: its language, what its title says, its lines, and where it begins."""

    language: str
    title: str | None
    text: str
    line: int


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = list(re.finditer(r"^```(\w*)([^\n]*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE))
    assert len(re.findall("^ *```", text, flags=re.MULTILINE)) == 2 * len(found), page
    return [
        Block(one[1], next(iter(re.findall('title="(.+?)"', one[2])), None), one[3], text[: one.start()].count("\n"))
        for one in found
    ]


@dataclass
class Workplace:
    """Where a page is followed, in this process."""

    folder: Path
    patch: pytest.MonkeyPatch
    port: Callable[[], int]
    namespace: dict[str, Any] = field(default_factory=dict)
    printed: str = ""


def run_python(block: Block, page: str, place: Workplace) -> None:
    if page in ALONE:
        place.namespace = {}
    code = compile("\n" * (block.line + 1) + block.text, page, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, place.namespace)
    place.printed = printed.getvalue()


def compare_text(block: Block, page: str, place: Workplace) -> None:
    """A block of text is what the snippet before it prints."""
    assert place.printed == block.text


def write_file(block: Block, page: str, place: Workplace) -> None:
    assert block.title is not None
    header, *rows = block.text.splitlines(keepends=True)
    (place.folder / block.title).write_text(header + "".join(rows) * TIMES, encoding="utf-8")


def run_commands(block: Block, page: str, place: Workplace) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            try:
                if ONCE.get(" ".join(words), page) != page:
                    parse_arguments(words[1:], place)
                else:
                    run_command(line, words, place)
            except BaseException as error:
                error.add_note(f"{page}: {line}")
                raise


LANGUAGES: dict[str, Callable[[Block, str, Workplace], None]] = {
    "csv": write_file,
    "json": lambda block, page, place: json.loads(block.text),
    "python": run_python,
    "sh": run_commands,
    "text": compare_text,
}


def run_command(line: str, words: list[str], place: Workplace) -> None:
    if "&&" in words or "curl" in words or words[:2] == ["python", "-c"]:
        run_in_shell(line, place)
    elif "<" in words:
        with (place.folder / words[words.index("<") + 1]).open(encoding="utf-8") as file:
            place.patch.setattr(sys, "stdin", file)
            run_program(words[: words.index("<")], place)
    else:
        run_program(words, place)


def run_in_shell(line: str, place: Workplace) -> None:
    if line.startswith("curl"):
        if shutil.which("curl") is None:
            pytest.skip("no curl")
        line = line.replace("curl", "curl --fail-with-body", 1).replace("localhost:8000", f"127.0.0.1:{place.port()}")
    line = re.sub("^python ", f"{shlex.quote(sys.executable)} ", line)
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=place.folder, timeout=60)
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"


def is_parsed(words: list[str]) -> bool:
    return any(words[: start.count(" ") + 1] == start.split() for start in PARSED) or any(
        name in words for name in REAL_DATA
    )


def run_program(words: list[str], place: Workplace) -> None:
    name, *arguments = words
    if name == "datransformer":
        (parse_arguments if is_parsed(words) else run_arguments)(arguments, place)
    elif name == "python":
        start = 2 if arguments[0] == "-m" else 1
        run_module(arguments[start - 1], arguments[start:], place, parsed=is_parsed(words))
    else:
        PROGRAMS[name](arguments, place)


def parse_arguments(arguments: list[str], place: Workplace) -> None:
    root: Any = typer.main.get_command(cli.app)
    command = root
    for word in arguments:
        command = getattr(command, "commands", {}).get(word, command)
    command.callback = lambda **options: None
    root.main(arguments, standalone_mode=False)


def run_arguments(arguments: list[str], place: Workplace) -> None:
    place.patch.setattr(sys, "argv", ["datransformer", *arguments])
    status: Any = 0
    try:
        cli.main()
    except SystemExit as ended:
        status = ended.code
    assert not status


def run_module(name: str, arguments: list[str], place: Workplace, *, parsed: bool) -> None:
    class ParsedError(Exception):
        pass

    def parse(parser: Any, given: Any = None, namespace: Any = None) -> None:
        parser.parse_known_args(arguments)
        assert not parser.parse_known_args(arguments)[1]
        raise ParsedError

    place.patch.setattr(sys, "argv", [name, *arguments])
    with place.patch.context() as patch:
        if parsed:
            patch.setattr("argparse.ArgumentParser.parse_args", parse)
        with pytest.raises(ParsedError) if parsed else contextlib.nullcontext():
            if name.endswith(".py"):  # a script of the checkout
                runpy.run_path(str(ROOT / name), run_name="__main__")
            else:
                importlib.import_module(name).main()


def parse_torchrun(arguments: list[str], place: Workplace) -> None:
    asked = torch.distributed.run.get_args_parser().parse_args(arguments)
    assert asked.module
    assert asked.training_script == "datransformer"
    parse_arguments(asked.training_script_args, place)


def look_up_extras(arguments: list[str], place: Workplace) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert arguments[0] == "install"
    for what in arguments[1:]:
        package, extras = re.fullmatch(r"(\.|datransformer)(?:\[([\w,]+)\])?", what).groups()  # type: ignore[union-attr]
        assert package
        assert set((extras or "").split(",")) - {""} <= set(project["optional-dependencies"]), what


def look_up_target(arguments: list[str], place: Workplace) -> None:
    (target,) = arguments
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE), target


PROGRAMS: dict[str, Callable[[list[str], Workplace], None]] = {
    "make": look_up_target,
    "pip": look_up_extras,
    "torchrun": parse_torchrun,
}


def write_rows(path: Path) -> None:
    rows = [(f"{word} film number {number % 7}", label) for number in range(20)
            for word, label in (("good", "positive"), ("bad", "negative"))]  # fmt: skip
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


def write_mind(folder: Path) -> None:
    folder.mkdir()
    news = [f"N{number}\tc\ts\ttopic{number % 3} word{number} here\ta\tu\t[]\t[]\n" for number in range(7)]
    shown = [f"{number}\tU\t11/11/2019 9:05:58 AM\tN1 N2\tN3-1 N{number % 3 + 4}-0\n" for number in range(9)]
    (folder / "news.tsv").write_text("".join(news), encoding="utf-8")
    (folder / "behaviors.tsv").write_text("".join(shown), encoding="utf-8")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run."""
    folder = tmp_path_factory.mktemp("finished")
    write_rows(folder / "train.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        place = Workplace(folder, patch, lambda: 0)
        run_arguments(["train", "--train", str(folder / "train.csv"), "--out", str(folder / "run")], place)
    return folder / "run"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path) -> Iterator[Workplace]:
    """A folder with the files that the pages name; what would go on for ever, or for hours, is cut short."""
    for name in ("train.csv", "test.csv", "new.csv"):
        write_rows(tmp_path / name)
    for name in ("MINDsmall_train", "MINDsmall_dev"):
        write_mind(tmp_path / name)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setattr("datransformer.serve.server.serve", lambda *arguments: None)
    monkeypatch.setattr("datransformer.explore.server.Explorer.serve_forever", lambda explorer: None)
    monkeypatch.setattr("datransformer.train.fit.PROBE_ROWS", 60)
    monkeypatch.setitem(studies.TABLES, "methods", ("vanilla", "distance_aware"))
    small = {"model.embed_dim": 8, "model.heads": 2, "model.head_dim": 4, "train.epochs": 1}
    monkeypatch.setitem(studies.STUDIES, "probe", studies.Study("probe", "probe", settings=small))
    registers: tuple[dict[str, Any], ...] = (MAPPINGS, ADJUSTMENTS, MIXERS, INITIAL_SHIFT)
    known = [dict(register) for register in registers]  # a page adds to them
    with contextlib.ExitStack() as stack:
        ports: list[int] = []

        def port() -> int:
            if not ports:
                ports.append(stack.enter_context(started(finished))[1])
            return ports[0]

        yield Workplace(tmp_path, monkeypatch, port)
    for register, before in zip(registers, known, strict=True):
        register.clear()
        register.update(before)


@pytest.mark.parametrize("page", sorted(page for page in DOCUMENTS if blocks_of(page)))
def test_everything_on_a_page_runs(page: str, place: Workplace, finished: Path) -> None:
    for name in FINISHED.get(page, ()):
        shutil.copytree(finished, place.folder / name)
    for block in blocks_of(page):
        if block.language != "python" or page not in (*OWN_PROCESS, *ELSEWHERE):
            LANGUAGES[block.language](block, page, place)


@pytest.mark.parametrize("page", OWN_PROCESS)
def test_everything_runs_in_a_process_of_its_own(page: str, tmp_path: Path) -> None:
    snippets = [block.text for block in blocks_of(page) if block.language == "python"]
    assert len(snippets) == 4
    (tmp_path / "snippets.py").write_text("\n".join(snippets), encoding="utf-8")
    environment = {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "snippets.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "'label': 'good'" in done.stdout


def test_what_is_left_to_others_is_run_by_them() -> None:
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")
    for reason in PARSED.values():
        for test in re.findall(r"tests/\S+\.py", reason):
            assert (ROOT / test).exists(), test


def test_a_mistake_in_a_document_is_found(place: Workplace) -> None:
    """The machinery above fails where a command, an option, an extra or a snippet is wrong."""
    wrong = [
        "datransformer bench attention --quik",
        "datransformer train --no-such-option",
        "datransformer evaluate nothing --data train.csv",
        "torchrun --nproc_per_node 8 -m datransformer train --out run --bach-size 3",
        "torchrun --nprocs_per_node 8 -m datransformer train --out run",
        'pip install ".[nothing]"',
        "make nothing",
        "python -m datransformer.experiments.bench_serve --tyni",
        "python tests/hf/judge/run.py --siute distance_aware",
        "unknown program",
    ]
    for line in wrong:
        with pytest.raises((Exception, SystemExit)), contextlib.redirect_stderr(io.StringIO()):
            run_commands(Block("sh", None, line, 0), "a page", place)
    with pytest.raises(ZeroDivisionError):
        run_python(Block("python", None, "1 / 0", 0), "a page", place)


def test_every_command_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "api" / "cli.md").read_text(encoding="utf-8")

    def names(command: Any, before: str) -> Iterator[str]:
        for name, below in command.commands.items():
            yield from names(below, f"{before} {name}") if hasattr(below, "commands") else [f"{before} {name}"]

    listed = re.findall(r"^\| `(datransformer [a-z ]+)` \|", page, flags=re.MULTILINE)
    assert sorted(listed) == sorted(names(typer.main.get_command(cli.app), "datransformer"))
