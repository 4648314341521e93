"""The explorer's page: one HTML file that loads nothing from anywhere."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from datransformer.explore.about import about_run
from datransformer.report.page import STYLE, hash_of
from datransformer.train.run import Run

# What the text, and for tasks of two texts the second, is called.
FIELDS = {
    "sentence": ("Text",),
    "document": ("Text",),
    "pair": ("First text", "Second text"),
    "recommend": ("Titles read, one a line, oldest first", "Candidates, one a line"),
}
SORTS = {
    "": "layer and head",
    "w up": "w, near first",
    "w down": "w, far first",
    "v up": "v, lowest first",
    "entropy up": "entropy, sharpest first",
    "distance up": "mean distance, nearest first",
}


def policy(style: str, script: str, *, live: bool) -> str:
    """A Content-Security-Policy that runs our one style sheet and our one script, and nothing else."""
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; style-src {hash_of(style)}; script-src {hash_of(script)}; connect-src {connect}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def as_json(values: Any) -> str:
    """JSON that may stand inside a script element: it holds no ``<``, and nothing beyond ASCII."""
    text = json.dumps(values, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def names_of(runs: Sequence[Run]) -> list[str]:
    """What to call the runs: their folders' names if those differ."""
    names = [run.folder.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def explorer_page(runs: Sequence[Run], results: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The page for one run or two.

    Args:
        runs: Of the same task.
        results: What `explain_text` gave for each on one text; None makes a page that asks its server.
    """
    live = results is None
    task, names = runs[0].config.task, names_of(runs)
    style = STYLE + files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    script = files(__package__).joinpath("page.js").read_text(encoding="utf-8")
    data = as_json({"live": live, "names": names, "task": task, "results": results})
    about = "".join(about_run(run, name) for run, name in zip(runs, names, strict=True))
    sorts = "".join(f'<option value="{value}">{name}</option>' for value, name in SORTS.items())
    title = escape(" and ".join(names))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(style, script, live=live)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}: what the heads attend to</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#runs">To the answer</a>
<header><h1>What the heads of {title} attend to</h1>
<nav aria-label="Page"><a href="#explorer">Explorer</a><a href="#about">About the run</a></nav></header>
<main>
<section id="explorer" aria-label="Explorer">
{_form(FIELDS[task]) if live else ""}
<p id="state" class="soft" role="status"></p><p id="problem" class="alert" role="alert"></p>
<div id="controls" hidden>
<p class="choices"><label>Sort heads by <select id="sort">{sorts}</select></label>
<label>Show <select id="looks"><option value="">near and far</option><option>near</option><option>far</option>
</select></label>
<label>|w| at least <input id="least" type="number" min="0" step="0.1" value="0"></label>
<label>Layer <select id="layer"><option value="">all</option></select></label>
<output id="count" class="soft"></output></p>
<details class="soft"><summary>How to read this</summary>
<p>Point at a word, or move to it with <kbd>←</kbd> <kbd>→</kbd> (<kbd>↑</kbd> <kbd>↓</kbd> for larger steps), to see
what it attends to: its row in each map, the strongest three below, and all of it as colour in the text. In a map, a
row is a word that looks, a column one that is looked at; the stronger the colour the larger the weight, each map to its
own scale, on which the largest hundredth looks alike and equal weights look pale. A head looks near if
w&nbsp;&lt;&nbsp;0 and far if w&nbsp;&gt;&nbsp;0; where there is no w, by its mean distance in this text. The curve is f
over the distance, the dotted line is 1. Words with a dotted line are unknown to the run.</p>
</details>
</div>
<div id="runs" class="runs" tabindex="-1"></div>
<p id="said" class="quiet" aria-live="polite"></p>
</section>
<section id="about" aria-label="About the run">
{about}</section>
</main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def _form(fields: Sequence[str]) -> str:
    boxes = "".join(
        f'<label for="{name}">{label}</label>'
        f'<textarea id="{name}" spellcheck="false" autocomplete="off" placeholder="The answer comes as you type"'
        f"{' autofocus' if name == 'text' else ''}></textarea>"
        for name, label in zip(("text", "pair"), fields, strict=False)
    )
    return f'<form id="form" class="wide">{boxes}</form>'
