"""The page of a reproduction, from the small JSON files that its runs have left: tables, heads, verdicts, choices."""

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from datransformer.data.errors import InputError
from datransformer.data.store import write_text
from datransformer.experiments.machine import markdown
from datransformer.experiments.paper import AS_IT_SAYS, CLAIMS, METHODS, OURS, RESULTS, RUNS, Claim, Printed
from datransformer.experiments.runs import Record, changed_settings, decisive
from datransformer.experiments.studies import (
    CHOICES,
    CONTROL,
    DEFAULTS,
    GROUPS,
    LINEAR,
    STUDIES,
    TABLES,
    VARIANTS,
    config_of,
    plan_study,
)
from datransformer.report.comparisons import Key, compare_all, welch_between
from datransformer.report.html_page import html_page
from datransformer.report.pictures import Picture, bar_pictures, head_pictures, label_of, write_pictures
from datransformer.report.reasons import reasons
from datransformer.report.records import Results, read_results
from datransformer.report.searched import beyond_the_paper, clear_options, searched
from datransformer.report.statistics import SIGNIFICANT, Comparison, Significance, interval_of, ranked
from datransformer.report.tables import MISSING, Column, Row, columns_of, escaped, results_table, shown_p, word_table
from datransformer.report.verdicts import (
    CONTRADICTED,
    FAILED,
    HELD,
    NOISE,
    UNTESTED,
    VERDICTS,
    Verdict,
    level_name,
    shown_count,
)

TITLES = {
    "methods": "Methods",
    "mappings": "Ours with another mapping f (Figure 4)",
    "adjustments": "Ours with another way of adjusting (Figure 5)",
}
IMAGES = "results_images"
CONTROLS = (LINEAR, CONTROL)  # that know nothing of positions
PLAIN = "vanilla"
READING = (
    "A cell is the mean over runs ± their standard deviation, on the test set; the best is bold, the second best "
    "underlined, however little lies between them. The paper's numbers stand beside them wherever the data have its "
    "name, in whatever reading, subsets and stand-ins too. Ours is the paper's method, DA-Transformer. What decides on "
    "this page is Welch's t-test over runs. Below the tables the paired test, which takes runs of one seed as a pair, "
    "and an interval over test items, which are drawn anew with replacement, say what else can be said of these runs; "
    "neither stands for other seeds."
)
SAME_FOR_ALL = (
    "All methods have the same settings. Those that the paper leaves open were searched on dev, with the Transformer "
    "and DA-Transformer alone; they are listed below, under Choices."
)
WRITTEN_DOWN = (
    "That the attention is what the paper writes down is held by tests: against Eq. 5 and 6 in float64, its gradients "
    "against finite differences. `datransformer demo` trains it on a task that distance alone can solve."
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
    lines = [
        "# Results",
        "",
        *_in_short(results, comparisons, verdicts),
        *_at_a_glance(results),
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


def _in_short(results: Results, comparisons: Mapping[Key, Comparison], verdicts: Sequence[Verdict]) -> list[str]:
    """What a reader in a hurry should take home."""
    first = {study: columns_of(STUDIES[study])[0] for study in results.studies}
    rivals = {study: comparisons[study, one.name].welch for study, one in first.items()
              if (study, one.name) in comparisons}  # fmt: skip
    plain = {
        study: test for study, one in first.items() if (test := welch_between(results, study, OURS, PLAIN, one.name))
    }
    lines = [f"- {_counted(verdicts)}", *_held_against_paper(results, first)]
    chance = f" Were all {len(METHODS)} equally good, it would be ahead on one of {len(METHODS)}."
    lines += [
        f"- {METHODS[OURS]} against {whom}: {_won(tests, first)}{note}"
        for whom, tests, note in (
            ("the best of the paper's other methods, picked by the same runs", rivals, chance),
            (f"the plain {METHODS[PLAIN]}", plain, ""),
        )
        if tests
    ]
    lines += _against_control(results, first)
    lines += _against_linear(results)
    if results.beyond is not None:
        lines.append(f"- Of what was tried beyond the paper, on dev: {clear_options(results, results.beyond['rows'])}.")
    lines += [f"- {line}" for line in (SAME_FOR_ALL, WRITTEN_DOWN, _provenance(results))]
    return [*lines, ""]


def _counted(verdicts: Sequence[Verdict]) -> str:
    """On how many claims there is which verdict."""
    failed = [one for one in verdicts if one.verdict == FAILED]
    other = sum(one.contradicted for one in failed)
    parts = [f"{sum(one.verdict == kind for one in verdicts)} {kind}" for kind in (HELD, FAILED, UNTESTED)]
    parts[1] += f" ({other} {CONTRADICTED}, {len(failed) - other} {NOISE})" if failed else ""
    return f"**Of {len(verdicts)} claims of the paper: {', '.join(parts)}.**"


INSIDE, ABOVE, BELOW = "within that interval", "above it", "below it"


def _held_against_paper(results: Results, columns: Mapping[str, Column]) -> list[str]:
    """Whether the lead over the plain Transformer that the paper prints can be the one that was measured."""
    places: dict[str, list[str]] = {place: [] for place in (INSIDE, ABOVE, BELOW)}
    for study, column in columns.items():
        lead, paper = _lead(results, study, column), _printed_lead(study, column)
        if lead is not None and lead.interval is not None and paper is not None:
            low, high = lead.interval
            places[ABOVE if paper > high else BELOW if paper < low else INSIDE].append(STUDIES[study].title)
    count = sum(map(len, places.values()))
    if not count:
        return []
    told = "; ".join(f"{place} on {len(titles)} ({'; '.join(titles)})" for place, titles in places.items() if titles)
    return [
        f"- The lead over the plain {METHODS[PLAIN]} that the paper prints, and the 95 % interval of the one measured "
        f"here: of {count} {_set_ups(count)} it lies {told}."
    ]


@dataclass(frozen=True)
class Lead:
    """Of ours over the plain Transformer, more is better.

    Args:
        gain: Over the runs.
        interval: In which the true one lies, if there is a test.
    """

    gain: float
    interval: tuple[float, float] | None


def _lead(results: Results, study: str, column: Column) -> Lead | None:
    test = welch_between(results, study, OURS, PLAIN, column.name)
    if test is None:
        return None
    sign, ends = (1 if column.higher_is_better else -1), interval_of(test)
    low, high = sorted(sign * end for end in ends) if ends is not None else (None, None)
    return Lead(sign * test.difference, None if low is None or high is None else (low, high))


def _printed_lead(study: str, column: Column) -> float | None:
    """The same in the paper, in the units of scores."""
    paper = printed_of(study).get(column.name)
    if not paper:
        return None
    lead = (paper[OURS].mean - paper[PLAIN].mean) * (1 if column.higher_is_better else -1)
    return lead / (100 if column.percent else 1)


def _against_control(results: Results, columns: Mapping[str, Column]) -> list[str]:
    """Ours and the plain Transformer against attention that knows nothing of places."""
    told = []
    for name in (OURS, PLAIN):
        tests = {
            study: test
            for study, one in columns.items()
            if (test := welch_between(results, study, name, CONTROL, one.name)) is not None
        }
        if tests:
            told.append(f"- {METHODS[name]} against {VARIANTS[CONTROL].label}: {_won(tests, columns)}")
    return told


def _against_linear(results: Results) -> list[str]:
    """On which data all, some or none of the paper's methods are ahead of a linear model."""
    places: dict[str, list[str]] = {"all": [], "some": [], "none": []}
    for study in results.studies:
        column = columns_of(STUDIES[study])[0]
        linear = results.mean(study, LINEAR, column.name)
        means = [mean for name in METHODS if (mean := results.mean(study, name, column.name)) is not None]
        if linear is None or not means:
            continue
        ahead = [(mean > linear) == column.higher_is_better for mean in means]
        places["all" if all(ahead) else "some" if any(ahead) else "none"].append(STUDIES[study].title)
    if not any(places.values()):
        return []
    told = "; ".join(f"{many} on {len(titles)} ({'; '.join(titles)})" for many, titles in places.items() if titles)
    return [f"- Of the paper's methods ahead of {VARIANTS[LINEAR].label}, which is not in the paper: {told}."]


def _won(tests: Mapping[str, Significance], columns: Mapping[str, Column]) -> str:
    """On how many set-ups ours is ahead by the first metric, and on which clearly."""
    gains = {study: test.difference * (1 if columns[study].higher_is_better else -1) for study, test in tests.items()}
    clear = [study for study, test in tests.items() if test.p is not None and test.p < SIGNIFICANT]
    ahead, behind = (sum(sign * gain > 0 for gain in gains.values()) for sign in (1, -1))
    parts = [f"of {len(gains)} {_set_ups(len(gains))} ahead on {ahead}, behind on {behind}"]
    for word, sign in (("ahead", 1), ("behind", -1)):
        titles = [STUDIES[study].title for study in clear if sign * gains[study] > 0]
        listed = f" ({'; '.join(titles)})" if titles else ""
        parts.append(f"clearly {word} on {len(titles)}{listed}")
    return f"{'; '.join(parts)}."


def _set_ups(count: int) -> str:
    """Data sets, each in one reading."""
    return "set-up" if count == 1 else "set-ups"


def _provenance(results: Results) -> str:
    variants = [runs for study in results.studies for runs in results.records[study].values()]
    records = [record for runs in variants for record in runs.values()]
    # A linear model is trained on the CPU, wherever the others are.
    devices = Counter(escaped(record["device"]) for record in records if record["variant"] != LINEAR)
    where = " and ".join(
        device if len(devices) == 1 else f"{device} ({count:,})" for device, count in sorted(devices.items())
    )
    took = _timed(results.calls)
    if took and sum(call["runs"] for call in results.calls) < len(records):
        took += " The others were not timed."
    seeds = max(map(len, variants), default=0)
    planned = sum(len(plan_study(study, seeds, {})) for study in results.studies)
    missing = planned - len(records)
    most = "one seed" if seeds == 1 else f"{seeds} seeds"
    part = f" **{missing:,} of the {planned:,} runs that {most} take are missing.**" if missing > 0 else ""
    if seeds < RUNS:
        part += f" The paper has {RUNS} seeds a method; with one there are neither tests nor intervals."
    return (
        f"{len(records):,} runs, up to {most} a method, on {where or 'nothing'}.{took}{part} "
        "`datransformer reproduce` made them, and `datransformer report` made this page of what they left."
    )


def _timed(calls: Sequence[Record]) -> str:
    """How long calls took, by device."""
    told = []
    for device in dict.fromkeys(call.get("device") for call in calls):
        mine = [call for call in calls if call.get("device") == device]
        runs, minutes = sum(call["runs"] for call in mine), sum(call["seconds"] for call in mine) / 60
        count = "one call" if len(mine) == 1 else f"{len(mine)} calls"
        on = f" on {escaped(device)}" if device else ""
        told.append(f"{runs:,} in {minutes:,.1f} minutes{on}, {count}")
    return f" Timed: {'; '.join(told)}." if told else ""


def _at_a_glance(results: Results) -> list[str]:
    """Where ours stands among the paper's methods on each data set, by means alone."""
    controls = [name for name in CONTROLS if any(results.runs(study, name) for study in results.studies)]
    rows = []
    for study in results.studies:
        column = columns_of(STUDIES[study])[0]
        means = {name: mean for name in METHODS if (mean := results.mean(study, name, column.name)) is not None}
        if OURS not in means or len(means) < 2:
            continue
        others = {name: mean for name, mean in means.items() if name != OURS}
        (best, *_), _ = ranked(others, column.higher_is_better)
        sign = 1 if column.higher_is_better else -1
        place = 1 + sum(sign * mean > sign * means[OURS] for mean in others.values())
        paper = printed_of(study).get(column.name, {})
        rows.append(
            [
                f"{STUDIES[study].title}, {column.label}{'' if column.higher_is_better else ' (less is better)'}",
                column.shown(means[OURS]),
                f"{paper[OURS].mean:.{column.digits}f}" if paper else MISSING,
                f"{column.shown(others[best])} ({METHODS[best]})",
                f"{place} of {len(means)}",
                _over_plain(results, study, column),
                MISSING if (lead := _printed_lead(study, column)) is None else column.shown(lead, "+"),
                *(_shown_mean(results, study, name, column) for name in controls),
            ]
        )
    heads = [
        "data",
        METHODS[OURS],
        "the same in the paper, on its data",
        "best of the other methods, here",
        "place",
        f"gain of {METHODS[OURS]} over {METHODS[PLAIN]}, 95 % interval",
        "that gain in the paper",
        *(VARIANTS[name].label for name in controls),
    ]
    if not rows:
        return []
    caveats: dict[str, str] = {}  # each once, by the first study that has it
    for study in results.studies:
        caveats.setdefault(escaped(results.any_run(study)["caveat"]), STUDIES[study].title)
    vectors = _vectors(results)
    return [
        *markdown(heads, rows),
        "",
        "A set-up is a data set in one reading, by the first of its metrics. Means over runs on the test set; of gains "
        "more is better. Intervals are Welch's, over runs. Clear, here and above, is "
        f"p < {SIGNIFICANT} in Welch's t-test, not corrected for how many there are.",
        "",
        "The data are not the paper's, so its numbers are for orientation:",
        "",
        *(f"- {title}: {caveat}." for caveat, title in caveats.items()),
        *([f"- Word vectors: {vectors}; the paper has 300-d ones."] if vectors else []),
    ]


def _over_plain(results: Results, study: str, column: Column) -> str:
    """By how much ours is better than the plain Transformer, and between which gains the true one lies."""
    lead = _lead(results, study, column)
    if lead is None:
        return MISSING
    ends = "" if lead.interval is None else f" [{', '.join(column.shown(end, '+') for end in lead.interval)}]"
    return f"{column.shown(lead.gain, '+')}{ends}"


def printed_of(study: str) -> Mapping[str, Mapping[str, Printed]]:
    """What the paper prints for the data of a study, by metric and method; it has one reading of each data set."""
    group = next(name for name, studies in GROUPS.items() if study in studies)
    return {name: methods for name, methods in RESULTS.get(group, {}).items() if name in STUDIES[study].metrics}


def _own_numbers(claim: Claim) -> str:
    """Where the paper's own tables do not bear a claim out."""
    told = claim.own_numbers
    return f" *Its own tables: {told}*" if told and told != AS_IT_SAYS else ""


def _shown_mean(results: Results, study: str, name: str, column: Column) -> str:
    mean = results.mean(study, name, column.name)
    return MISSING if mean is None else column.shown(mean)


def _facts(results: Results, study: str) -> list[str]:
    record = results.any_run(study)
    sizes = " / ".join(f"{count:,}" for count in record["examples"].values())
    return [f"{escaped(' / '.join(record['examples']))}: {sizes}. Data: {escaped(record['caveat'])}."]


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
        "w and v of ours by level: how many heads are below 0, mean ± standard deviation over runs, and the values, "
        "sorted, averaged over runs after sorting (Figures 6 and 7):",
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


def _vectors(results: Results) -> str:
    """Which files of word vectors the runs had, and how wide, as far as they say."""
    found = {
        (str(record["settings"]["data"]["vectors"]), record.get("vector_width"))
        for study in results.studies
        for variant in results.records[study]
        for record in results.runs(study, variant)
        if variant != LINEAR and record.get("settings", {}).get("data", {}).get("vectors")
    }
    widths: dict[str, set[str]] = {}
    for file, width in found:
        widths.setdefault(file, set()).update([] if width is None else [f"{width}-d"])
    return ", ".join(f"{escaped(file)}{''.join(f', {one}' for one in sorted(widths[file]))}" for file in sorted(widths))


def _choices(results: Results) -> list[str]:
    rows = [[f"`{name}`", f"{choice.value}", "all", choice.why] for name, choice in CHOICES.items()]
    own: dict[tuple[str, str, str], list[str]] = {}
    for study in STUDIES.values():
        for name, choice in study.choices.items():
            own.setdefault((f"`{name}`", f"{choice.value}", choice.why), []).append(study.title)
        for name in CHOICES.keys() & study.settings.keys():
            own.setdefault((f"`{name}`", f"{study.settings[name]}", "its own, not the paper's"), []).append(study.title)
    rows += [[name, value, "; ".join(titles), why] for (name, value, why), titles in sorted(own.items())]
    heads = ["setting", "value", "data", "where it comes from"]
    rows += [[name, f"{choice.value:,}" if isinstance(choice.value, int) else choice.value, "all", choice.why]
             for name, choice in DEFAULTS.items()]  # fmt: skip
    if vectors := _vectors(results):
        rows.append(["file of word vectors", vectors, "all", "what these runs were given"])
    return [
        "The same for every method, and tried out with the Transformer and DA-Transformer alone. Where these two "
        "differed one value was used for both, not always the better one for each: what suited which is said below.",
        "",
        *word_table(heads, rows),
        *_older(results),
    ]


def _older(results: Results) -> list[str]:
    """Where the runs are of other settings than those that are listed: of before these were chosen."""
    found: dict[str, dict[str, None]] = {}  # by study, each setting once
    for study in results.studies:
        records = [record for variant in results.records[study] for record in results.runs(study, variant)]
        for record in records:
            if record["variant"] == LINEAR or "settings" not in record:
                continue
            own = decisive(record["settings"])
            data = {"train.precision": own["train"]["precision"]}
            if own["data"]["vectors"] is not None:
                data["data.vectors"] = own["data"]["vectors"]
            planned = config_of(study, record["variant"], record["seed"], data)
            found.setdefault(study, {}).update(dict.fromkeys(changed_settings(record, planned)))
    lines = [f"- {STUDIES[study].title}: {escaped(', '.join(changed))}" for study, changed in found.items() if changed]
    told = "The runs of this page are older than some of these settings, and had others:"
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
        "A difference counts as clear at p < 0.05 in Welch's t-test over seeds, which takes neither runs as paired nor "
        "their spreads as equal. A claim is reproduced where all that it says is clear on all data sets that it speaks "
        "of, each in every reading that was run: two of SST, four of SNLI. Where it is not, something is clearly the "
        "other way round (contradicted), or the runs cannot tell (within noise). Half of the heads start with w < 0, "
        "half with w > 0; where few change sides, claims on signs are judged by runs beyond the paper in which all "
        "start at w = 0, if there are such, and else not testable. v starts at 0.",
        "",
        *word_table(["the paper says", "verdict", "numbers"], rows),
        *(
            ["", "<details><summary>The differences one by one</summary>", "", *differences, "", "</details>"]
            if differences
            else []
        ),
    ]
