"""The README of a converted run: a model card, as the Hub shows it."""

import re
from collections.abc import Iterable, Sequence

from datransformer.train.run import Run, learned_distances
from datransformer.version import __version__

MOST_LABELS = 100  # in the table; config.json has them all

HEAD = """---
library_name: transformers
pipeline_tag: text-classification
tags:
- datransformer
- {attention}
---

# A model that {does}

An encoder with `{attention}` attention: {layers} of {heads} heads, {parameters:,} parameters, converted from a run of \
datransformer {version}. It reads the first {max_length:,} tokens of {what}.

## How to use it

```sh
pip install ".[hf]"   # in a checkout of datransformer
```

```python
import datransformer.hf  # makes the model known to transformers
from transformers import pipeline

answer = pipeline("text-classification", ".")  # this folder, or where you put it
print(answer({question}))
```
"""


def model_card(run: Run) -> str:
    """What is known of a run of the task sentence or pair, in Markdown. What users named is shown as plain text."""
    config = run.config
    what = "each of two texts" if config.task == "pair" else "a text"
    about = HEAD.format(
        attention=config.model.attention,
        does=("rates " if config.rating else "classifies ") + ("pairs of texts" if config.task == "pair" else "texts"),
        layers=f"{config.model.layers} layer{'s' if config.model.layers > 1 else ''}",
        heads=config.model.heads,
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
        version=__version__,
        max_length=config.data.max_length,
        what=what,
        question='{"text": "one text", "text_pair": "another"}' if config.task == "pair" else '"a text"',
    )
    return "\n".join([about, *_labels(run), *_metrics(run), *_data(run), *_heads(run)])


def _labels(run: Run) -> list[str]:
    classes = run.labels.classes
    if classes is None:
        return ["## Labels", "", "None: the answer is a number, its label is always `rating`.", ""]
    rows = [(str(number), plain(name)) for number, name in enumerate(classes[:MOST_LABELS])]
    more = len(classes) - len(rows)
    return [
        *("## Labels", "", *_table(("id", "label"), rows), ""),
        *([f"And {more:,} more, which `config.json` has.", ""] if more else []),
    ]


def _metrics(run: Run) -> list[str]:
    rows = [
        (plain(split), plain(name), f"{value:.4g}")
        for split, values in run.result.get("metrics", {}).items()
        for name, value in values.items()
    ]
    return ["## Metrics", "", *_table(("rows", "metric", "value"), rows), ""] if rows else []


def _data(run: Run) -> list[str]:
    dataset = run.config.files.dataset
    counts = ", ".join(f"{count:,} {plain(name)}" for name, count in run.result.get("examples", {}).items())
    return [
        *("## Data", ""),
        f"Data set: {plain(dataset) if dataset else 'files of its own'}{f' ({counts} examples)' if counts else ''}.",
        f"Fingerprint: {plain(str(run.result.get('data_fingerprint', 'unknown')))}. It changes when the content of a "
        "file, or how it is read, does. How the model answers texts unlike these was not looked at.",
        "",
    ]


def _heads(run: Run) -> list[str]:
    """W and v, from which the distances that a head prefers can be read."""
    rows = [
        (str(layer), str(head), f"{w:+.3f}", f"{v:+.3f}", "near" if w < 0 else "far" if w > 0 else "even")
        for layer, values in enumerate(learned_distances(run.model).values(), 1)
        for head, (w, v) in enumerate(zip(values["distance_weight"], values["distance_shift"], strict=True), 1)
    ]
    if not rows:
        return []
    return [
        *("## What the heads look at", ""),
        "A head with w < 0 prefers words that are near, one with w > 0 words that are far; v sets how much and how "
        "steeply.",
        *("", *_table(("layer", "head", "w", "v", "looks"), rows), ""),
    ]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def plain(text: str) -> str:
    """Text that Markdown shows as it is: on one line, every sign of mark-up and HTML escaped."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", line)
