"""A folder that other programs answer from: the graphs, the tokenizer, the labels, and what to know about them."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from datransformer.data.tokenizer import PADDING, SEPARATOR, SPECIAL, UNKNOWN, WordTokenizer
from datransformer.export.check import Runtime, largest_difference
from datransformer.export.graphs import Graph, graphs_of
from datransformer.export.words import word_rules
from datransformer.train.run import TOKENIZER, Run, load_run
from datransformer.version import __version__

# The limits that training cut texts to, by task shape.
LIMITS = {
    "sentence": ("max_length",),
    "joint": ("max_length",),
    "siamese": ("max_length",),
    "document": ("max_sentence_length", "max_sentences"),
    "recommend": ("max_title_length", "max_history"),
}


def write_folder(
    run_folder: Path,
    out: Path,
    suffix: str,
    save: Callable[[ExportedProgram, Graph, Path], None],
    load: Callable[[Path], Runtime],
) -> str:
    """Write the graphs of a run and all that goes with them, hold each against torch, and say how it went.

    Args:
        run_folder: The run directory.
        out: The folder to make.
        suffix: What the names of graph files end in.
        save: Writes a graph.
        load: Reads it again, as another program would.
    """
    began = time.monotonic()
    run = load_run(run_folder)
    out.mkdir()
    graphs: dict[str, Any] = {}
    worst, batches = 0.0, 0
    for graph in graphs_of(run):
        path = out / f"{graph.name}{suffix}"
        save(graph.trace(), graph, path)
        worst = max(worst, largest_difference(graph, load(path)))
        batches += len(graph.batches)
        graphs[path.name] = {"inputs": graph.axes, "outputs": {graph.output: graph.output_axes}}
    _write_companions(run, out, graphs)
    return (
        f"{', '.join(graphs)}: {batches} batches as torch answers them, largest difference {worst:.1e}, "
        f"{time.monotonic() - began:.1f} s"
    )


def _write_companions(run: Run, out: Path, graphs: dict[str, Any]) -> None:
    words = isinstance(run.tokenizer, WordTokenizer)
    about = {
        "task": run.config.shape,
        "graphs": graphs,
        "ids": {"padding": PADDING, "unknown": UNKNOWN, "separator": SEPARATOR},
        "limits": {name: getattr(run.config.data, name) for name in LIMITS[run.config.shape]},
        "added_to_ids_of_tokenizer": 0 if words else len(SPECIAL),
        "datransformer": __version__,
    }
    shutil.copyfile(run.folder / TOKENIZER, out / "tokenizer.json")
    _write_json(out / "labels.json", {"classes": run.labels.classes})
    _write_json(out / "export.json", about)
    if isinstance(run.tokenizer, WordTokenizer):
        _write_json(out / "words.json", word_rules(run.tokenizer))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
