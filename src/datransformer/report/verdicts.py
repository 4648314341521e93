"""What became of each claim of the paper, by what was measured here.

A verdict can come out three ways. "Reproduced" needs more than means in the right order: their difference has to be
clear, at p < 0.05 in Welch's t-test over seeds. A claim that several things hold at once is as strong as the weakest of
them, so no correction is due: each is tested, and all have to be clear. To contradict it one of them is enough, and of
many one comes out the other way round by chance: so that has to be clear after Holm's correction over all of them, and
over those that they were picked from. The paper read each data set in one way and does not say which where there are
several: what it says of one is contradicted where it is so in every way, and else in some readings alone.
Where data sets that the claim speaks of have no runs, those that have some can refute it, but not bear it out.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from datransformer.experiments.beyond import FROM_ZERO, OWN_SCALE, SHUFFLED
from datransformer.experiments.paper import METHODS, NEWS_STATISTICS, OURS, RESULTS, TEXT_STATISTICS
from datransformer.experiments.studies import GROUPS, STUDIES, TABLES, VARIANTS
from datransformer.report.comparisons import OTHERS, Key, welch_between
from datransformer.report.records import Results
from datransformer.report.statistics import (
    SIGNIFICANT,
    Comparison,
    Floats,
    Significance,
    correlate,
    holm,
    paired_t_test,
    summarise,
    welch_t_test,
)
from datransformer.report.tables import Column, columns_of, escaped, shown_p
from datransformer.train.tasks import RATING_METRICS

BASELINES = ("rpr", "xl", "adapted")  # that know of distance
HELD, FAILED, UNTESTED = "reproduced", "not reproduced", "not testable here"
# Three ways to be not reproduced.
CONTRADICTED, PARTLY, UNDECIDED = "contradicted", "contradicted in some readings", "undecided"
DATA = tuple(RESULTS)  # the paper's
ABLATED = ("ag", "amazon", "mind")  # in Figures 4 and 5
EACH_AFTER_HOLM = "each p after Holm's correction over the {count} of this page: "
FEW = 4  # things that can be listed by name
FEW_RUNS, TOO_FEW = 3, "too few runs to tell"  # three that agree to the last head are enough
NO_NEWS = "no level of news"
NEARLY = 1 / 16  # how far from half of the heads still counts as half: one head of 16
STEADY = 1 / 8  # how far the runs may spread around it: two heads of 16
MOVED = 1 / 4  # of the heads at least have to leave the side they start on; half would if the start were forgotten
STUCK = 1 / 4  # w that end nearer to where they started than this, which is half of the widest start, have not gone far
PUT = "most keep the sign that they were given, so that signs tell little"
LEFT = 1 / 20  # w or v that start at 0 and end nearer to it than this on average are on no side worth the name
LOOSE = 0.5  # a correlation that is not shown to be weaker than this may matter
Comparisons = Mapping[Key, Comparison]


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Args:
        verdict: `HELD`, `FAILED` or `UNTESTED`.
        numbers: What it rests on, or why it cannot be tested.
        differences: One by one, where there are many.
        how: `CONTRADICTED` or `PARTLY` where a claim is not reproduced because something is clearly otherwise,
            `UNDECIDED` where the runs cannot tell.
        put: Whether heads are where they were put, or as good as there, so that it says nothing of what is learned.
        beyond: Whether runs beyond the paper decided.
    """

    verdict: str
    numbers: str
    differences: tuple[str, ...] = ()
    how: str = UNDECIDED
    put: bool = False
    beyond: bool = False

    @property
    def told(self) -> str:
        """The verdict, and of one that is not reproduced whether runs say otherwise or cannot tell."""
        return f"{self.verdict}: {self.how}" if self.verdict == FAILED else self.verdict


@dataclass(frozen=True)
class Duel:
    """Something that a claim says is better than something else.

    Args:
        text: Who, where, and by how much.
        gain: By how much it is better; negative where it is worse.
        p: Of no difference; None where there is no test.
        why_not: Why there is none.
        study: Where.
        otherwise: Who is ahead of whom in case it is worse.
    """

    text: str
    gain: float
    p: float | None
    why_not: str | None
    study: str
    otherwise: str

    @property
    def is_clear(self) -> bool:
        """Whether there is more to it than noise, in either direction."""
        return self.p is not None and self.p < SIGNIFICANT


def shown_count(values: Floats) -> str:
    """How many heads are below 0 in a run, of values [runs, heads]: mean ± standard deviation over runs."""
    return f"{_shown(_below(values), 1)} of {values.shape[1]}"


def _below(values: Floats) -> Floats:
    return np.asarray((values < 0).sum(axis=1), dtype=np.float64)  # [runs]


def _shown(values: Floats, digits: int, sign: str = "") -> str:
    summary = summarise(values.tolist())
    spread = "" if summary.deviation is None else f" ± {summary.deviation:.{digits}f}"
    return f"{summary.mean:{sign}.{digits}f}{spread}"


def _judge(holds: bool, numbers: str, *, noise: bool = False) -> Verdict:
    return Verdict(HELD if holds else FAILED, numbers, how=UNDECIDED if noise else CONTRADICTED)


def _no_runs(missing: Iterable[str]) -> str:
    return f"no runs for it on {', '.join(dict.fromkeys(missing))}"


def _judge_duels(duels: Sequence[Duel], missing: Sequence[str], every: Sequence[Duel] = ()) -> Verdict:
    """Whether all are won clearly, and none is missing; ``every``: those that they were picked from, if they were."""
    if not duels:
        return Verdict(UNTESTED, _no_runs(missing))
    untold = [duel for duel in duels if duel.p is None]
    noise = [duel for duel in duels if duel.p is not None and not duel.is_clear]
    lost = [duel for duel in duels if duel.is_clear and duel.gain < 0]
    won = len(duels) - len(untold) - len(noise) - len(lost)
    parts = [f"clear in {won} of {len(duels)} comparisons"]
    if noise:
        parts.append(f"the difference is within noise in {len(noise)}")
    if lost:
        parts.append(f"the other way round in {len(lost)}")
    how, told = _contradicted(every or duels)
    if lost or how != UNDECIDED:
        parts.append(told)
    if untold:
        parts.append(f"no test in {len(untold)}, since {untold[0].why_not}")
    if missing:
        parts.append(_no_runs(missing))
    verdict = FAILED if noise or lost or how != UNDECIDED else UNTESTED if untold or missing else HELD
    return Verdict(verdict, "; ".join(parts), tuple(duel.text for duel in duels), how)


def _contradicted(duels: Sequence[Duel]) -> tuple[str, str]:
    """Whether some are clearly lost after Holm's correction over all, and which, in words."""
    against = [duel for duel in _after_holm(duels) if duel.is_clear and duel.gain < 0]
    what = f"after Holm's correction over all {len(duels)} that were compared"
    if not against:
        return UNDECIDED, f"{what} in none"
    lost, run = ({duel.study for duel in some} for some in (against, duels))
    readings = {name: (run & set(studies), lost & set(studies)) for name, studies in GROUPS.items()}
    who = dict.fromkeys(f"{duel.otherwise} on {STUDIES[duel.study].title}" for duel in against)
    named = "; ".join(who) if len(who) <= FEW else f"in {len(against)}"
    if any(every and every == some for every, some in readings.values()):
        return CONTRADICTED, f"{what}: {named}"
    where = (f"{len(some)} of {len(every)} readings of {name_of(name)}" for name, (every, some) in readings.items()
             if some)  # fmt: skip
    return PARTLY, f"{what}, in {' and '.join(where)}: {named}"


def name_of(group: str) -> str:
    """What a data set is called, in whatever way it is used."""
    return STUDIES[GROUPS[group][0]].title.partition(",")[0]


def _after_holm(duels: Sequence[Duel]) -> list[Duel]:
    """With the p that Holm's correction leaves to each."""
    corrected = holm({number: duel.p for number, duel in enumerate(duels)})
    return [replace(duel, p=p) for duel, p in zip(duels, corrected.values(), strict=True)]


def _duel(study: str, column: Column, sides: tuple[str, str], test: Significance) -> Duel:
    """The first of two labels against the second."""
    first, second = sides
    where = f"{STUDIES[study].title}, {column.label}"
    text = f"{where}: {first} − {second} {column.shown(test.difference, '+')}{column.unit} ({shown_p(test.p)})"
    gain = test.difference * (1 if column.higher_is_better else -1)
    return Duel(text, gain, test.p, test.why_not, study, f"{second} ahead of {first}")


def _studies(results: Results, data: Iterable[str], table: str = "methods") -> tuple[list[str], list[str]]:
    """The studies of some data sets that have runs for a table, ratings apart, and the data sets without any."""
    found, missing = [], []
    for name in data:
        mine = [
            study
            for study in GROUPS[name]
            if study in results.studies and table in STUDIES[study].tables and STUDIES[study].metrics != RATING_METRICS
        ]
        found += mine
        missing += [] if mine else [name]
    return found, missing


def _first_everywhere(results: Results, comparisons: Comparisons) -> Verdict:
    """Ours against the best of the others in every metric of the paper's tables."""
    studies, missing = _studies(results, DATA)
    duels: list[Duel] = []
    every: list[Duel] = []
    for study in studies:
        for column in columns_of(STUDIES[study]):
            for name in OTHERS:
                test = welch_between(results, study, OURS, name, column.name)
                every += [] if test is None else [_duel(study, column, (METHODS[OURS], METHODS[name]), test)]
            one = comparisons.get((study, column.name))
            if one is not None:
                duels.append(_duel(study, column, (METHODS[OURS], METHODS[one.rival]), one.welch))
            if one is None or one.missing:  # what is left of the others can refute it still
                missing.append(study)
    return _judge_duels(duels, missing, every)


def _significant(results: Results, comparisons: Comparisons) -> Verdict:
    """As `_first_everywhere`, with each p as Holm's correction leaves it; the differences are listed there."""
    corrected = {key: replace(one, welch=replace(one.welch, p=one.welch.corrected)) for key, one in comparisons.items()}
    verdict = _first_everywhere(results, corrected)
    count = sum(one.welch.p is not None for one in comparisons.values())
    told = EACH_AFTER_HOLM.format(count=count) if verdict.differences else ""
    return replace(verdict, numbers=f"{told}{verdict.numbers}", differences=())


Side = Sequence[str]


def _pairs(
    results: Results, pairs: Sequence[tuple[Side, Side]], data: Iterable[str], table: str
) -> tuple[list[Duel], list[str], list[Duel]]:
    """By the first metric of every study: the worst of a first side against the best of its second side.

    Returns:
        These, the data sets that some are missing on, and all of a first side against all of its second side.
    """
    studies, missing = _studies(results, data, table)
    duels: list[Duel] = []
    every: list[Duel] = []
    for study in studies:
        column = columns_of(STUDIES[study])[0]
        sign = 1 if column.higher_is_better else -1
        means = {variant: results.mean(study, variant, column.name) for pair in pairs for side in pair
                 for variant in side}  # fmt: skip
        known = {variant: sign * mean for variant, mean in means.items() if mean is not None}
        if len(known) < len(means):
            missing.append(study)
            continue
        for first, second in pairs:
            fought = {}
            for pair in itertools.product(first, second):
                test = welch_between(results, study, *pair, column.name)
                assert test is not None  # their means are known
                fought[pair] = _duel(study, column, (VARIANTS[pair[0]].label, VARIANTS[pair[1]].label), test)
            worst, best = min(first, key=known.__getitem__), max(second, key=known.__getitem__)
            duels.append(fought[worst, best])
            every += fought.values()
    return duels, missing, every


def _beats(*pairs: tuple[Side, Side], data: Sequence[str] = DATA, table: str = "methods") -> Callable[..., Verdict]:
    def judge(results: Results, comparisons: Comparisons) -> Verdict:
        return _judge_duels(*_pairs(results, pairs, data, table))

    return judge


def _adapted_on_short(results: Results, comparisons: Comparisons) -> Verdict:
    others = [name for name in DATA if name != "sst"]
    short, without, _ = _pairs(results, [(("adapted",), ("xl",))], ["sst"], "methods")
    long, missing, _ = _pairs(results, [(("xl",), ("adapted",))], others, "methods")
    return _judge_duels(short + long, without + missing)


def _regression_alike(results: Results, comparisons: Comparisons) -> Verdict:
    """Whether pairs of methods that differ clearly in classes mostly differ in stars too, and never the other way."""
    clear: dict[str, dict[tuple[str, ...], Duel]] = {}
    for study in ("amazon", "amazon_rating"):
        column = columns_of(STUDIES[study])[0]
        clear[study] = {}
        for pair in itertools.combinations(METHODS, 2):
            scores = [list(results.scores(study, name, column.name).values()) for name in pair]
            if all(len(values) > 1 for values in scores):
                test = welch_t_test(*scores)
                clear[study][pair] = _duel(study, column, (METHODS[pair[0]], METHODS[pair[1]]), test)
    classes, stars = clear.values()
    if not classes.keys() & stars.keys():
        return Verdict(UNTESTED, "no two methods have several runs in both, classes and stars")
    apart = [pair for pair, duel in classes.items() if duel.is_clear and pair in stars]
    same = [pair for pair in apart if stars[pair].is_clear and stars[pair].gain * classes[pair].gain > 0]
    opposite = [pair for pair in apart if stars[pair].is_clear and stars[pair].gain * classes[pair].gain < 0]
    if not apart:
        count = sum(duel.is_clear for duel in stars.values())
        return Verdict(
            UNTESTED,
            f"accuracy separates no two methods clearly, so there is nothing for RMSE, which separates {count} of "
            f"{len(stars)} pairs, to agree with",
        )
    noise = len(apart) - len(same) - len(opposite)
    against = [
        pair
        for pair, duel in zip(apart, _after_holm([stars[pair] for pair in apart]), strict=True)
        if duel.is_clear and pair in opposite
    ]
    leader = comparisons.get(("amazon_rating", RATING_METRICS[0]))
    numbers = (
        f"of {len(apart)} pairs of methods that differ clearly in accuracy {len(same)} differ clearly the same way in "
        f"RMSE, {len(opposite)} the other way round, and in {noise} the difference is within noise"
    )
    if leader is not None:
        column = columns_of(STUDIES["amazon_rating"])[0]
        numbers += f"; {_duel('amazon_rating', column, (METHODS[OURS], METHODS[leader.rival]), leader.welch).text}"
    return _judge(not opposite and len(same) > len(apart) / 2, numbers, noise=not against)


def _against(values: Floats, bound: float) -> Significance:
    """The test of runs that lie around a bound."""
    return paired_t_test(values.tolist(), [bound] * len(values))


def _differs(values: Floats, bound: float) -> bool:
    """Whether runs are clearly not at a bound; where a few are all the same there is no noise in it, and no test."""
    test = _against(values, bound)
    return test.difference != 0 and len(values) >= FEW_RUNS if test.p is None else test.p < SIGNIFICANT


def _shown_against(values: Floats, bound: float) -> str:
    p = _against(values, bound).p
    return shown_p(p) if p is not None or len(values) < FEW_RUNS else "the same in all runs"


Levels = Mapping[str, Floats]  # w or v, [runs, heads]
Start = Callable[[int], Floats]  # w of so many heads before training
BY_TWO = ", by entropy and by the share of words that hold 90 % of the weight"
LITTLE = ", which tells little"
FREE = "Where every head starts at w = 0, and w and v learn at ten times the rate"
SCALED = "Where they start and learn so, and each head has a scale of its own"
RANDOM = "Where they start and learn so, and distances are those of a random order"


def _heads(study: str, name: str, judge: Callable[[Levels, Start], Verdict]) -> Callable[..., Verdict]:
    """A verdict on w or v of all levels, where there are several runs.

    Where heads stay on the sides that they were put on, runs decide in which they were put on none, if there are such;
    elsewhere these are told of. What they bear out, but runs in a random order too, says nothing of texts.
    """

    def judge_heads(results: Results, comparisons: Comparisons) -> Verdict:
        levels = results.learned(study, name)
        if not levels:
            return Verdict(UNTESTED, _no_runs([study]))
        if min(map(len, levels.values())) < 2:
            return Verdict(UNTESTED, TOO_FEW)
        verdict = judge(levels, lambda heads: np.array(results.started(study, "distance_weight", heads)))
        numbers, decided = verdict.numbers, verdict
        for option, told in ((FROM_ZERO, FREE), (OWN_SCALE, SCALED), (SHUFFLED, RANDOM)):
            free = results.from_zero(study, name, option)
            if not free or min(map(len, free.values())) < FEW_RUNS:
                if option == FROM_ZERO:
                    break
                continue
            again = judge(free, np.zeros)
            rows = results.rows_from_zero(study, option)
            devices = ", ".join(dict.fromkeys(row["device"] for row in rows if "device" in row))
            where = f" on {escaped(devices)}" if devices else ""
            numbers += f". {told} ({len(rows)} runs{where}): {again.numbers}"
            if option == FROM_ZERO and verdict.put:
                decided = replace(again, beyond=True)
            if option == SHUFFLED and decided.beyond and decided.verdict == again.verdict == HELD:
                decided = replace(decided, verdict=UNTESTED)
                numbers += ": that it is so says nothing of the texts"
        if decided.beyond and decided.verdict == HELD and RANDOM not in numbers:
            numbers += ". Whether it is so in a random order too was not tried"
        return replace(decided, numbers=numbers)

    return judge_heads


def _words(levels: Mapping[str, Floats]) -> Floats:
    return next((values for level, values in levels.items() if level.startswith("text")), next(iter(levels.values())))


def _half(levels: Levels, start_of: Start) -> Verdict:
    """Half of the heads on each side; of no worth where they started so and few have moved across."""
    values = _words(levels)
    heads = values.shape[1]
    below = summarise((_below(values) / heads).tolist())
    start = start_of(heads)
    moved = changed_sides(values, start)
    numbers = f"{shown_count(values)} heads have w < 0{_from_where(values, start)}"
    if _stuck(values, start):
        return _put(numbers, values, start)
    if abs(below.mean - 0.5) > NEARLY or (below.deviation or 0) > STEADY:
        return _judge(False, numbers, noise=not _differs(_below(values), heads / 2))
    if start.any() and moved.mean() < MOVED * heads:
        return _put(numbers, values, start)
    if np.abs(values).mean() < LEFT:
        return Verdict(UNTESTED, f"{numbers}: w is {np.abs(values).mean():.3f} from 0 on average{LITTLE}")
    return Verdict(HELD, numbers)


def _from_where(values: Floats, start: Floats) -> str:
    """Where heads start, and how many have changed sides; at 0 they are on none."""
    if not start.any():
        return ""
    return (
        f", where {int((start < 0).sum())} of them start; {_shown(changed_sides(values, start), 1)} have changed sides"
    )


def _put(numbers: str, values: Floats, start: Floats) -> Verdict:
    """Signs of w that are those of the start tell nothing; which way all heads have gone together was learned."""
    means, before = values.mean(axis=1), float(start.mean())
    drift = f"mean w {before:+.3f} at first, {_shown(means, 3, '+')} at the end ({_shown_against(means, before)})"
    return Verdict(UNTESTED, f"{numbers}: {PUT}; {drift}", put=True)


def changed_sides(values: Floats, start: Floats) -> Floats:
    """How many heads of each run are on the other side of 0 than at the start."""
    return np.asarray(((values < 0) != (start < 0)).sum(axis=1), dtype=np.float64)  # [runs]


def side_of(values: Floats) -> int:
    """On which side of 0 clearly more than half of the heads are, of values [runs, heads]: −1, 1, or 0 if on none."""
    half = values.shape[1] / 2
    counts = _below(values)
    if len(counts) < FEW_RUNS or not _differs(counts, half):
        return 0
    return -1 if counts.mean() > half else 1


def changed_in_all(results: Results) -> float | None:
    """Which share of the heads is on the other side of 0 than at the start, the mean over levels; None if unknown."""
    shares = []
    for study in results.studies:
        for values in results.learned(study, "distance_weight").values():
            start = np.array(results.started(study, "distance_weight", values.shape[1]))
            shares.append(changed_sides(values, start).mean() / values.shape[1])
    return float(np.mean(shares)) if shares else None


def _stuck(values: Floats, start: Floats) -> bool:
    """Whether the signs of w, of values [runs, heads], are those that they were given; at 0 they were given none."""
    if not start.any():
        return False
    return bool(changed_sides(values, start).mean() < MOVED * len(start) and np.abs(values - start).mean() < STUCK)


def _most(what: str, side: int) -> Callable[[Levels, Start], Verdict]:
    """Whether more than half of the heads of the word level are on one side of 0."""

    def judge(levels: Levels, start_of: Start) -> Verdict:
        values = _words(levels)
        heads = values.shape[1]
        counts = ((values * side) > 0).sum(axis=1).astype(np.float64)
        clear, half = _differs(counts, heads / 2), _shown_against(counts, heads / 2)
        too_few = _against(counts, heads / 2).p is None and len(counts) < FEW_RUNS
        noise = "" if clear or too_few else "; the difference is within noise"
        numbers = f"{_shown(counts, 1)} of {heads} heads have {what} ({half} against half of them{noise})"
        if what[0] == "w":
            start = start_of(heads)
            if _stuck(values, start):
                return _put(numbers, values, start)
        numbers += f"; mean {what[0]} {_shown(values.mean(axis=1), 3, '+')}"
        if too_few:
            return Verdict(UNTESTED, f"{numbers}: {TOO_FEW}")
        if what[0] == "v" and np.abs(values).mean() < LEFT:
            return Verdict(UNTESTED, f"{numbers}: v is {np.abs(values).mean():.3f} from 0 on average{LITTLE}", put=True)
        found = _judge(clear and counts.mean() > heads / 2, numbers, noise=not clear)
        return replace(found, put=what[0] == "v" and not clear)  # v starts on no side, and is clearly on none

    return judge


def _one_near(levels: Levels, start_of: Start) -> Verdict:
    values = next((values for level, values in levels.items() if not level.startswith("text")), None)
    if values is None:
        return Verdict(UNTESTED, NO_NEWS)
    once = int((_below(values) == 1).sum())
    start = start_of(values.shape[1])
    numbers = (
        f"{shown_count(values)} heads have w < 0, exactly one in {once} of {len(values)} runs"
        f"{_from_where(values, start)}"
    )
    if _stuck(values, start):
        return _put(numbers, values, start)
    return _judge(once > len(values) / 2, numbers, noise=not _differs(_below(values), 1))


def _all_positive(levels: Levels, start_of: Start) -> Verdict:
    """Whether the lowest v of a run is clearly above 0, level by level.

    v starts at 0, and of many that have hardly left it, or that went either way as if signs were tossed, the lowest is
    below 0 whatever is learned: such a level contradicts nothing.
    """
    if len(levels) < 2:
        return Verdict(UNTESTED, NO_NEWS)
    holds, parts = True, []
    lows: dict[str, Floats] = {}  # of levels that tell
    for level, values in levels.items():
        lowest, below, far = values.min(axis=1), _below(values), np.abs(values).mean()
        above = bool(lowest.mean() > 0) and _differs(lowest, 0.0)
        holds = holds and above
        half = values.shape[1] / 2
        doubt = ""
        if far < LEFT:
            doubt = f", but v is {far:.3f} from its start at 0 on average, which is nearly nothing"
        elif not _differs(below, half):
            doubt = f", but signs are as if tossed ({_shown_against(below, half)} against half of the heads)"
        if above or not doubt:
            lows[level], doubt = lowest, ""
        parts.append(
            f"{escaped(level_name(level))}: {shown_count(values)} heads have v < 0, the lowest v is "
            f"{_shown(lowest, 3, '+')} ({_shown_against(lowest, 0.0)} against 0){doubt}"
        )
    numbers = "; ".join(parts)
    if not lows:
        return Verdict(UNTESTED, numbers, put=True)
    corrected = holm({level: _against(lowest, 0.0).p for level, lowest in lows.items()})
    below_zero = [
        _differs(lowest, 0.0) if (p := corrected[level]) is None else p < SIGNIFICANT
        for level, lowest in lows.items()
        if lowest.mean() < 0
    ]
    return _judge(holds, numbers, noise=not any(below_zero))


def level_name(level: str) -> str:
    """What attends in a module of a model, and in which layer if it is not the first."""
    layer = re.search(r"layers\.([1-9]\d*)", level)
    return LEVELS.get(level.partition(".")[0], level) + (f", layer {int(layer[1]) + 1}" if layer else "")


LEVELS = {"text": "words", "document": "sentences", "user": "news"}


def _sharper(results: Results, comparisons: Comparisons) -> Verdict:
    """By entropy and by the share of keys that hold most of the weight, each run the mean over its heads."""
    duels = []
    studies, _ = _studies(results, DATA)
    for study, name in itertools.product(studies, ("entropy", "keys")):
        ours, vanilla = (results.measured(study, variant, name) for variant in (OURS, "vanilla"))
        if len(ours) and len(vanilla):
            column = Column(name, name, percent=False, digits=3, higher_is_better=False)  # less is sharper
            test = welch_t_test(ours.mean(axis=1).tolist(), vanilla.mean(axis=1).tolist())
            duels.append(_duel(study, column, (METHODS[OURS], METHODS["vanilla"]), test))
    measured = len(results.measured("ag", OURS, "entropy")) and len(results.measured("ag", "vanilla", "entropy"))
    verdict = _judge_duels(duels, [] if measured else ["ag"])  # on which the paper says it
    return replace(verdict, numbers=f"{verdict.numbers}{BY_TWO if duels else ''}")


def _length(results: Results, comparisons: Comparisons) -> Verdict:
    """The share of w < 0 at the word level against the mean length of what was trained on, or of the paper's data.

    No significant correlation in five points is no proof that there is none. So it counts only where the interval
    leaves no room for one that matters.
    """
    lengths = {name: float(about.mean_length) for name, about in TEXT_STATISTICS.items()}
    lengths["mind"] = NEWS_STATISTICS.mean_title_length
    shares = {}
    for name in lengths:
        study = next((study for study in GROUPS[name] if results.learned(study, "distance_weight")), None)
        if study is not None:
            values = _words(results.learned(study, "distance_weight"))
            shares[name] = float(_below(values).mean() / values.shape[1])
            lengths[name] = results.runs(study, OURS)[0].get("mean_length", lengths[name])
    listed = "; ".join(f"{name_of(name)} {share:.2f}, {lengths[name]:.1f}" for name, share in shares.items())
    found = correlate([math.log(lengths[name]) for name in shares], list(shares.values())) if shares else None
    if found is None:
        why = f"expected four data sets at least whose share of w < 0 is not the same, got {listed or 'none'}"
        return Verdict(UNTESTED, why)
    numbers = (
        f"share of words' heads with w < 0, and mean length in tokens, each data set in the first way that it is used: "
        f"{listed}; r with the logarithm of the length = {found.r:+.2f} ({shown_p(found.p)}, 95 % interval "
        f"{found.low:+.2f} to {found.high:+.2f})"
    )
    if found.p < SIGNIFICANT:
        return _judge(False, numbers)
    if max(-found.low, found.high) > LOOSE:
        return Verdict(UNTESTED, f"{numbers}: {found.count} data sets cannot rule a correlation out")
    return Verdict(HELD, numbers)


MAPPED = [name for name in TABLES["mappings"] if name != OURS]
EARLY, LATE = (OURS, "adjust_early_add"), ("adjust_late_multiply", "adjust_late_add")
VERDICTS: dict[str, Callable[[Results, Comparisons], Verdict]] = {
    "first_everywhere": _first_everywhere,
    "significant": _significant,
    "regression_alike": _regression_alike,
    "distance_helps": _beats((BASELINES, ("vanilla",))),
    "rpr_weakest": _beats((("xl", "adapted", OURS), ("rpr",))),
    "adapted_on_short_texts": _adapted_on_short,
    "learnable_sigmoid_best": _beats(
        ((OURS,), MAPPED), (("mapping_sigmoid",), ("mapping_exponent",)), data=ABLATED, table="mappings"
    ),
    "early_multiply_best": _beats(
        (EARLY, LATE), (EARLY[:1], EARLY[1:]), (LATE[:1], LATE[1:]), data=ABLATED, table="adjustments"
    ),
    "half_near_half_far": _heads("ag", "distance_weight", _half),
    "mild_on_ag": _heads("ag", "distance_shift", _most("v < 0", -1)),
    "words_look_far": _heads("mind", "distance_weight", _most("w > 0", 1)),
    "one_near_head": _heads("mind", "distance_weight", _one_near),
    "all_shifts_positive": _heads("mind", "distance_shift", _all_positive),
    "sharper_attention": _sharper,
    "length_does_not_decide": _length,
}
