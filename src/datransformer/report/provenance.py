"""What runs a page is made of: how many, of which commits and settings, where, and how long they took."""

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from datransformer.data.errors import InputError
from datransformer.experiments.paper import RUNS
from datransformer.experiments.pieces import PIECES
from datransformer.experiments.runs import Record, changed_settings, decisive
from datransformer.experiments.studies import LINEAR, PUBLISHED, STUDIES, config_of, plan_study
from datransformer.report.records import Results
from datransformer.report.tables import escaped

SHORT = 7  # characters of a commit
UNKNOWN = "unknown"


def provenance(results: Results) -> str:
    """All of it in a few sentences."""
    records = [record for study in results.studies for record in _records(results, study)]
    networks = [record for record in records if record["variant"] != LINEAR]
    where = _listed(escaped(record["device"]) for record in networks)
    commits = _listed(_short(record.get("commit")) for record in networks)
    linear = len(records) - len(networks)
    beside = f" and {linear:,} linear {'model' if linear == 1 else 'models'} on a CPU" if linear else ""
    made = f", made at commit {commits}" if commits not in ("", UNKNOWN) else ""
    here = {f"{record['study']}/{record['variant']}-{record['seed']}" for record in records}
    took = _timed(results.calls, here)
    seeds = max((len(runs) for study in results.studies for runs in results.records[study].values()), default=0)
    planned = sum(len(plan_study(study, seeds, {})) for study in results.studies)
    missing = planned - len(records)
    most = "one seed" if seeds == 1 else f"{seeds} seeds"
    part = f" All methods with {most} take {planned:,} runs, of which {missing:,} are not there." if missing > 0 else ""
    if seeds < RUNS:
        part += f" The paper has {RUNS} seeds a method; with one there are neither tests nor intervals."
    count = f"{len(networks):,} network{'' if len(networks) == 1 else 's'}"
    files = (results.search, "trials", "of the search"), (results.beyond, "rows", "beyond the paper")
    tried = [f"{len(file[rows]):,} {what}" for file, rows, what in files if file is not None and file[rows]]
    part += f" Not among them are runs on dev alone: {' and '.join(tried)}." if tried else ""
    return (
        f"{count}, up to {most} a method, on {where or 'nothing'}{beside}{made}.{took}{part} "
        "`datransformer reproduce` made them, and `datransformer report` made this page of what they left."
    )


def trained_on(results: Results, study: str) -> str:
    """What the networks of a study were trained on, and in which precision."""
    networks = [record for record in _records(results, study) if record["variant"] != LINEAR]
    precisions = [decisive(record.get("settings", {}))["train"]["precision"] for record in networks]
    places = zip([record["device"] for record in networks], precisions, strict=True)
    return _listed(escaped(", ".join(place)) for place in places) or "nothing"


def _records(results: Results, study: str) -> list[Record]:
    return [record for variant in results.records[study] for record in results.runs(study, variant)]


def _listed(names: Iterable[str]) -> str:
    """Each once, with how many there are where they are not all the same."""
    counts = Counter(names)
    if len(counts) < 2:
        return next(iter(counts), "")
    return ", ".join(f"{name} ({count:,})" for name, count in counts.most_common())


def _short(commit: str | None) -> str:
    """The beginning of a commit, and whether the code was changed since."""
    if not commit:
        return UNKNOWN
    name, dirty, _ = commit.partition("-dirty")
    return escaped(f"{name[:SHORT]}{dirty}")


def _timed(calls: Sequence[Record], here: AbstractSet[str]) -> str:
    """How long calls took, by device, and whether their runs are those that are ``here``."""
    told = []
    for device in dict.fromkeys(call.get("device") for call in calls):
        mine = [call for call in calls if call.get("device") == device]
        runs, minutes = sum(call["runs"] for call in mine), sum(call["seconds"] for call in mine) / 60
        count = "one call" if len(mine) == 1 else f"{len(mine)} calls"
        on = f" on {escaped(device)}" if device else ""
        at_once = max(call.get("together", 1) * call.get("processes", 1) for call in mine)
        told.append(f"{runs:,} in {minutes:,.1f} minutes{on}, up to {at_once} at a time, in {count}")
    if not told:
        return ""
    names = {name for call in calls for name in call.get("names", ())}
    count = sum(call["runs"] for call in calls)
    notes = {
        "Some of these runs may have been replaced since.": count > len(names),
        f"{len(names - here):,} of these runs are not on this page.": bool(names - here),
        "The others were not timed.": len(here) > max(count - len(names - here), len(names & here)),
    }
    return " ".join([f" Timed: {'; '.join(told)}.", *(note for note, holds in notes.items() if holds)])


def vectors_of(results: Results) -> str:
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


def older_settings(results: Results) -> dict[str, list[str]]:
    """By study how the settings of its runs are unlike those of today, where they are: these were chosen since."""
    found: dict[str, dict[str, None]] = {}
    for study in results.studies:
        for record in _records(results, study):
            if record["variant"] == LINEAR or "settings" not in record:
                continue
            own = decisive(record["settings"])
            data = {"train.precision": own["train"]["precision"]}
            if own["data"]["vectors"] is not None:
                data["data.vectors"] = own["data"]["vectors"]
            try:
                planned = config_of(study, record["variant"], record["seed"], data)
            except InputError as error:
                where = f"{study}/{record['variant']}-{record['seed']}.json"
                raise InputError(f"{where}: settings: {error}") from error
            found.setdefault(study, {}).update(dict.fromkeys(changed_settings(record, planned)))
    return {study: list(changed) for study, changed in found.items() if changed}


def stale(results: Results) -> dict[str, list[str]]:
    """By study what `reproduce` would do otherwise today: settings, and data of which it would say something else."""
    found = older_settings(results)
    for study in results.studies:
        name, caveat = STUDIES[study].data, results.any_run(study)["caveat"]
        if name in PIECES and caveat != PIECES[name].caveat and not caveat.startswith(PUBLISHED):
            found.setdefault(study, []).append("the data")
    return found
