"""The page of a reproduction, from the small JSON files that its runs have left: tables, heads, verdicts, choices."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from datransformer.data.errors import InputError
from datransformer.data.store import write_text
from datransformer.experiments.machine import markdown
from datransformer.experiments.paper import AS_IT_SAYS, CLAIMS, METHODS, OURS, Claim
from datransformer.experiments.runs import AS_IT_PLEASES
from datransformer.experiments.studies import (
    CHOICES,
    DEFAULTS,
    LINEAR,
    STUDIES,
    TABLES,
    VARIANTS,
)
from datransformer.report.comparisons import Key, compare_all, printed_of, welch_between
from datransformer.report.html_page import html_page
from datransformer.report.pictures import Picture, bar_pictures, head_pictures, label_of, lead_pictures, write_pictures
from datransformer.report.provenance import older_settings, provenance, trained_on, vectors_of
from datransformer.report.reasons import reasons
from datransformer.report.records import Results, read_results
from datransformer.report.searched import beyond_the_paper, searched
from datransformer.report.statistics import Comparison, ranked
from datransformer.report.summary import ABOUT, CONTROLS, at_a_glance, data_of, headline, in_short
from datransformer.report.tables import Column, Row, columns_of, escaped, results_table, shown_p, word_table
from datransformer.report.verdicts import (
    VERDICTS,
    Verdict,
    level_name,
    shown_count,
)

TITLES = {
    "methods": "Methods",
    "mappings": "DA-Transformer with another mapping f (Figure 4)",
    "adjustments": "DA-Transformer with another way of adjusting (Figure 5)",
}
IMAGES = "results_images"
READING = (
    "A cell is the mean over runs ± their standard deviation, on the test set; the best is bold, the second best "
    "underlined, however little lies between them. The paper's numbers stand beside them wherever the data have its "
    "name, in whatever reading, subsets and stand-ins too. What decides on this page is Welch's t-test over runs. "
    "Below the tables the paired test, which takes runs of one seed as a pair, and an interval over test items, which "
    "are drawn anew with replacement, say what else can be said of these very runs; neither stands for other seeds. d "
    "is the difference in standard deviations of the runs, d_z in those of the differences of pairs. Holm's correction "
    "is over all comparisons of DA-Transformer with the best of the others on this page, one a metric."
)
WRITTEN_DOWN = (
    "That the attention is what the paper writes down is held by tests (`tests/ops/test_attention.py`): against Eq. 5 "
    "and 6 in float64, its gradients against finite differences. `datransformer demo` trains it on a task that "
    "distance alone can solve."
)


def write_results(folder: Path, page: Path) -> None:
    """Turn the records in ``folder`` into a page.

    Args:
        folder: Of the records, or the one around it that `reproduce` made.
        page: ``.md``, whose pictures come into the folder ``<its name>_images`` beside it, or ``.html``, which holds
            all in one file.
    """
    write = PAGES.get(page.suffix.lower())
    if write is None:
        raise InputError(f"{page}: got the ending {page.suffix!r}, expected {' or '.join(PAGES)}")
    results = read_results(folder)
    page.parent.mkdir(parents=True, exist_ok=True)
    write(results, page)


def _write_markdown(results: Results, page: Path) -> None:
    images = page.with_name(f"{page.stem}_images")
    write_pictures(results, images)
    write_text(page, results_page(results, images.name))


def _write_html(results: Results, page: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / IMAGES
        pictures = {f"{IMAGES}/{path.name}": path.read_bytes() for path in write_pictures(results, folder)}
    write_text(page, html_page(results_page(results), pictures))


PAGES = {".md": _write_markdown, ".html": _write_html}


def results_page(results: Results, images: str = IMAGES) -> str:
    """The whole page in Markdown.

    Args:
        results: All that it tells of.
        images: The folder of its pictures, as the page refers to it.
    """
    comparisons = compare_all(results)
    verdicts = [VERDICTS[name](results, comparisons) for name in CLAIMS]
    leads = _shown(lead_pictures(results), images)
    lines = [
        "# Results",
        "",
        ABOUT,
        "",
        *headline(results, comparisons, verdicts),
        *([*leads[1:], ""] if leads else []),
        *at_a_glance(results),
        *in_short(results, comparisons),
        "",
        *data_of(results),
        "",
        "## What holds and what does not",
        "",
        *_verdicts(verdicts),
    ]
    if told := reasons(results):
        lines += ["", "## What may explain it", *told]
    lines += ["", "## How to read the tables", "", READING]
    for study in results.studies:
        lines += ["", f"## {STUDIES[study].title}", "", *_facts(results, study)]
        for table in STUDIES[study].tables:
            shown = [variant for variant in TABLES[table] if results.runs(study, variant)]
            if len(shown) > 1:
                lines += ["", f"### {TITLES[table]}", "", _table(results, study, table, comparisons)]
                lines += _control(results, study) if table == "methods" else []
                lines += _shown(bar_pictures(results, study, table), images)
        lines += _heads(results, study) + _shown(head_pictures(results, study), images)
    lines += ["", "## Choices", "", *_choices(results)]
    if results.search is not None:
        lines += ["", "## What was searched", "", *searched(results.search)]
    if results.beyond is not None:
        lines += ["", "## Beyond the paper", "", *beyond_the_paper(results, results.beyond)]
    lines += ["", "## Where the numbers come from", "", provenance(results), "", WRITTEN_DOWN]
    if results.failed:
        lines += ["", "## Runs that failed", ""]
        lines += [
            f"- {one['study']}/{one['variant']}-{one['seed']}: {escaped(one['failed'])}" for one in results.failed
        ]
    return "\n".join(lines) + "\n"


def _shown(pictures: Sequence[Picture], images: str) -> list[str]:
    return [
        line
        for picture in pictures
        for line in ("", f"![{escaped(picture.alt)}]({quote(f'{images}/{picture.name}.png')})", "", picture.caption)
    ]


def _own_numbers(claim: Claim) -> str:
    """Where the paper's own tables do not bear a claim out."""
    told = claim.own_numbers
    return f" *Its own tables: {told}*" if told and told != AS_IT_SAYS else ""


def _facts(results: Results, study: str) -> list[str]:
    record = results.any_run(study)
    sizes = " / ".join(f"{count:,}" for count in record["examples"].values())
    return [
        f"{escaped(' / '.join(record['examples']))}: {sizes}. Data: {escaped(record['caveat'])}. "
        f"Trained on {trained_on(results, study)}."
    ]


def _table(results: Results, study: str, table: str, comparisons: Mapping[Key, Comparison]) -> str:
    columns = columns_of(STUDIES[study])
    printed = printed_of(study) if table == "methods" else {}
    rows = []
    for variant in TABLES[table]:
        if variant not in STUDIES[study].variants and not results.runs(study, variant):
            continue  # no linear model predicts numbers
        scores = {column.name: results.scores(study, variant, column.name) for column in columns}
        paper = {name: methods[variant] for name, methods in printed.items() if variant in methods}
        rows.append(Row(variant, label_of(variant, table), scores, paper, VARIANTS[variant].in_paper))
    mine = {metric: one for (of, metric), one in comparisons.items() if of == study} if table == "methods" else {}
    return results_table(columns, rows, mine)


def _control(results: Results, study: str) -> list[str]:
    """How far the best Transformer and ours are above what knows nothing of positions."""
    column = columns_of(STUDIES[study])[0]
    means = {name: results.mean(study, name, column.name) for name in TABLES["methods"] if name not in CONTROLS}
    known = {name: mean for name, mean in means.items() if mean is not None}
    controls = [name for name in CONTROLS if results.runs(study, name)]
    if not known or not controls:
        return []
    (best, *_), _ = ranked(known, column.higher_is_better)
    labels = {best: f"{VARIANTS[best].label}, the best Transformer here"}
    if OURS in known:
        labels.setdefault(OURS, VARIANTS[OURS].label)
    gains = [
        f"over {VARIANTS[control].label}: "
        + ", ".join(f"{_gain(results, study, column, name, control)} by {label}" for name, label in labels.items())
        for control in controls
    ]
    return ["", f"Gain in {column.label} {'; '.join(gains)}."]


def _gain(results: Results, study: str, column: Column, name: str, control: str) -> str:
    """By how much a method is better than a control; with p, but not where the control has no seeds."""
    test = welch_between(results, study, name, control, column.name)
    assert test is not None  # who is here has runs
    gain = test.difference * (1 if column.higher_is_better else -1)
    told = "" if control == LINEAR else f" (Welch's t-test: {shown_p(test.p)})"
    return f"{column.shown(gain, '+')}{column.unit}{told}"


def _heads(results: Results, study: str) -> list[str]:
    """W and v as learned, and how sharp, sparse and far-sighted the heads are, ours beside vanilla."""
    weights, shifts = (results.learned(study, name) for name in ("distance_weight", "distance_shift"))
    if not weights:
        return []
    lines = [
        "",
        "### Heads",
        "",
        "w and v of DA-Transformer by level: how many heads are below 0, mean ± standard deviation over runs, and the "
        "values, sorted, averaged over runs after sorting (Figures 6 and 7):",
        "",
    ]
    rows = [
        [
            f"{escaped(level_name(level))}, {sign}",
            shown_count(values),
            " ".join(f"{one:+.2f}" for one in np.sort(values).mean(axis=0)),
        ]
        for sign, levels in (("w", weights), ("v", shifts))
        for level, values in levels.items()
    ]
    lines += markdown(["level", "heads below 0", "values"], rows)
    measured = [
        [VARIANTS[variant].label, *(_spread(results, study, variant, name) for name in ("entropy", "keys", "distance"))]
        for variant in METHODS
        if any(record.get("heads") for record in results.runs(study, variant))
    ]
    if measured:
        lines += [
            "",
            "How sharp (entropy of the attention as a share of the largest), how sparse (share of keys that hold 90 % "
            "of the weight) and how far-sighted (mean distance attended to, over that to all keys) the heads are: the "
            "mean over heads and runs, and the range over heads.",
            "",
            *markdown(["method", "entropy", "keys", "distance"], measured),
        ]
    return lines


def _spread(results: Results, study: str, variant: str, name: str) -> str:
    by_rank = results.measured(study, variant, name).mean(axis=0)
    return f"{by_rank.mean():.2f} ({by_rank[0]:.2f}–{by_rank[-1]:.2f})"


def _choices(results: Results) -> list[str]:
    rows = []
    own: dict[str, dict[tuple[str, str], list[str]]] = {}
    for study in (STUDIES[name] for name in results.studies):
        for name, choice in study.choices.items():
            own.setdefault(name, {}).setdefault((f"{choice.value}", choice.why), []).append(study.title)
        for name in (CHOICES.keys() & study.settings.keys()) - study.choices.keys():
            told = f"{study.settings[name]}", "its own, not the paper's"
            own.setdefault(name, {}).setdefault(told, []).append(study.title)
    for name in dict.fromkeys([*CHOICES, *own]):
        if name.partition(".")[2] in AS_IT_PLEASES:
            continue
        if name in CHOICES:
            rest = "all others" if name in own else "all"
            rows.append([f"`{name}`", f"{CHOICES[name].value}", rest, CHOICES[name].why])
        rows += [[f"`{name}`", value, "; ".join(titles), why] for (value, why), titles in own.get(name, {}).items()]
    heads = ["setting", "value", "data", "where it comes from"]
    rows += [[name, f"{choice.value:,}" if isinstance(choice.value, int) else choice.value, "all", choice.why]
             for name, choice in DEFAULTS.items()]  # fmt: skip
    if vectors := vectors_of(results):
        rows.append(["file of word vectors", vectors, "all", "what these runs were given"])
    return [
        "The same for every method, and tried out with the Transformer and DA-Transformer alone, but for k of "
        "Transformer-RPR. Where the two differed one value was used for both, not always the better one for each: what "
        "suited which is said below.",
        "",
        *word_table(heads, rows),
        *_older(results),
    ]


def _older(results: Results) -> list[str]:
    """Where the runs are of other settings than those that are listed."""
    lines = [
        f"- {STUDIES[study].title}: {escaped(', '.join(changed))}" for study, changed in older_settings(results).items()
    ]
    told = "The runs of this page had other settings than these, which are what `reproduce` runs now:"
    return ["", told, "", *lines] if lines else []


def _verdicts(verdicts: Sequence[Verdict]) -> list[str]:
    rows = [
        [f"{number}. {claim.says}{_own_numbers(claim)}", verdict.told, verdict.numbers]
        for number, (claim, verdict) in enumerate(zip(CLAIMS.values(), verdicts, strict=True), 1)
    ]
    differences = [
        line
        for number, verdict in enumerate(verdicts, 1)
        if verdict.differences
        for line in (f"- Claim {number}", *(f"  - {text}" for text in verdict.differences))
    ]
    return [
        "Welch's t-test, which decides what is clear, takes neither runs as paired nor their spreads as equal. A claim "
        "is reproduced where all that it says is clear on all data sets that it speaks of, each in every reading that "
        "was run: two of SST, four of SNLI. It is contradicted where something is clearly the other way round on a "
        "data set in every reading, after Holm's correction over all that the claim compares and has picked from; "
        "where that is so in some readings alone, the verdict says so, since the paper had one and does not say "
        "which. Undecided is what these runs cannot tell. Where a claim says that several methods are better than "
        "several others, the worst of the first is held against the best of the second; a comparison is one of these "
        "in one metric on one set-up.",
        "",
        "Half of the heads start with w < 0 and half with w > 0. Where few heads change sides, their signs say "
        "nothing; then runs beyond the paper decide, in which w starts at 0 and w and v learn at ten times the rate; "
        "where there are none, the claim is not testable. v starts at 0: where it has hardly moved, or is not clearly "
        "on either side, the same runs decide on its signs. What they bear out, but runs in a random order of the "
        "words too, is not testable; what they contradict is contradicted as the signs that the paper tells of. Runs "
        "in which heads have a scale of their own besides are told of, and decide nothing.",
        "",
        *word_table(["the paper says", "verdict", "numbers"], rows),
        *(
            ["", "<details><summary>The differences one by one</summary>", "", *differences, "", "</details>"]
            if differences
            else []
        ),
    ]
