"""What might make distance-aware attention better than the paper has it, tried on dev, with no test set in sight.

    python -m datransformer.experiments.beyond --data-dir D --out DIR [--option NAME ...] [--study NAME ...]

What came of it is a line of ``beyond.json``, which `datransformer report` holds against the runs of the reproduction.
"""

import argparse
import json
from collections.abc import Collection
from pathlib import Path
from statistics import fmean
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from datransformer.data.store import write_text
from datransformer.experiments.paper import OURS
from datransformer.experiments.paper import RUNS as TIMES
from datransformer.experiments.reproduce import BEYOND
from datransformer.experiments.runs import DISTANCES, RUNS, SETTINGS, Record, read_form
from datransformer.experiments.search import check_apart, data_of, ending_in_words, note_trials, settle
from datransformer.experiments.studies import (
    Planned,
    Settings,
    config_of,
    folder_of,
    spread,
)
from datransformer.nn.distance_aware import DistanceAwareAttention
from datransformer.nn.mixers import MIXERS
from datransformer.nn.multihead import MixOptions
from datransformer.ops.mapping import MAPPINGS
from datransformer.ops.reference import adjusted_attention
from datransformer.ops.relative import relative_positions, toeplitz
from datransformer.train.checkpoint import load_tensors
from datransformer.train.launch import launch
from datransformer.train.progress import Reporter
from datransformer.train.run import WEIGHTS, locked

GONE_BEYOND = {
    "note": str,
    "settings?": {str: SETTINGS},
    "made_of?": {str: {str: str}},
    "rows": [
        {
            "study": str,
            "option": str,
            "seed": int,
            "dev": dict,
            "entropy?": float,
            "distances?": DISTANCES,
            "attended?": {str: float},
            "scales?": {str: [float]},
            "commit?": (str,),
            "device?": str,
        }
    ],
}
SIGNED = "signed distance"
FROM_ZERO = "w = 0 at first, w and v at 10 times the rate"  # so that the signs of w are learned
OWN_SCALE = "w = 0 at first, w, v and a scale of each head at 10 times the rate"  # and so that they are no temperature
SHUFFLED = "w = 0 at first, w and v at 10 times the rate, in a random order"  # and so that there is nothing to learn
SCALE = ".distance_shift_scale"  # how the logarithm of that scale is called, behind the name of its layer
PLAIN = "plain"  # no option at all, with seeds that the reproduction does not have


class _Weighted(DistanceAwareAttention):
    """Distance-aware attention that weights distances in another way, in plain torch."""

    def weighted(self, positions: Tensor) -> Tensor:
        """What goes into the mapping, [heads, offsets], from query position − key position [offsets]."""
        return self.distance_weight.unsqueeze(-1) * positions.abs()

    def coefficients(self, weighted: Tensor, shift: Tensor) -> Tensor:
        """What scores are adjusted by, [heads, offsets], from what `weighted` returns and v [heads, 1]."""
        return MAPPINGS[self.mapping](weighted, shift)

    def of_pairs(self, query: Tensor, key: Tensor, padding: Tensor | None) -> Tensor:
        """What the score of each pair is adjusted by, [heads, query, key], or that for each text."""
        lengths = query.shape[-2], key.shape[-2]
        positions = relative_positions(*lengths, like=query).to(self.distance_weight.dtype)  # [Nq+Nk]
        shift = self.distance_shift.unsqueeze(-1)  # [H, 1]
        return toeplitz(self.coefficients(self.weighted(positions), shift), *lengths)  # [H, Nq, Nk]

    def mix(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_weights: bool, **options: Unpack[MixOptions]
    ) -> tuple[Tensor, Tensor | None]:
        coefficients = self.of_pairs(query, key, options["key_padding_mask"])
        scale = query.shape[-1] ** -0.5
        output, weights = adjusted_attention(
            query, key, value, coefficients, adjust=self.adjust, scale=scale, **options
        )
        return output, weights if return_weights else None


class LogDistance(_Weighted):
    """w · log(1 + |i − j|): the difference between 1 and 2 words counts as much as that between 10 and 20 or so."""

    def weighted(self, positions: Tensor) -> Tensor:
        return self.distance_weight.unsqueeze(-1) * positions.abs().log1p()


class SignedDistance(_Weighted):
    """One w for keys before the query, and one for keys behind it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.distance_weight_behind = nn.Parameter(self.distance_weight.detach().clone())  # [H]

    def weighted(self, positions: Tensor) -> Tensor:
        before, behind = self.distance_weight.unsqueeze(-1), self.distance_weight_behind.unsqueeze(-1)
        return torch.where(positions < 0, behind, before) * positions.abs()


class SharpAtFirst(DistanceAwareAttention):
    """Queries and keys start twice as large, so that scores start four times as large and attention less even."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        with torch.no_grad():
            self.in_proj_weight[: 2 * self.num_heads * self.head_dim] *= 2


class OwnScale(_Weighted):
    """eˢ · f with an s for each head, 0 at first as w is, that learns as fast: a head need not look far to be sharp.

    With w > 0 all scores but those of the nearest grow, as at a lower temperature.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"distance_weight_init": 0.0, **options})
        self.distance_shift_scale = nn.Parameter(torch.zeros_like(self.distance_shift))  # [H], s

    def coefficients(self, weighted: Tensor, shift: Tensor) -> Tensor:
        return self.distance_shift_scale.exp().unsqueeze(-1) * super().coefficients(weighted, shift)


class ShuffledDistance(_Weighted):
    """Distances between places in a random order, another one for each text and call, as if its words were shuffled.

    They tell nothing but which word is the word itself: where w goes then, from 0, is the doing of the formula.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"distance_weight_init": 0.0, **options})

    def of_pairs(self, query: Tensor, key: Tensor, padding: Tensor | None) -> Tensor:
        if padding is None:
            padding = torch.zeros(key.shape[0], key.shape[2], dtype=torch.bool, device=key.device)  # [B, N]
        places = random_places(padding).to(self.distance_weight.dtype)  # [B, N]
        apart = (places.unsqueeze(2) - places.unsqueeze(1)).abs().unsqueeze(1)  # [B, 1, N, N]
        weight, shift = (one[:, None, None] for one in (self.distance_weight, self.distance_shift))  # [H, 1, 1]
        return MAPPINGS[self.mapping](weight * apart, shift)  # [B, H, N, N]


def random_places(padding: Tensor) -> Tensor:
    """A place for each token [batch, length], drawn anew; those of padding are behind all others."""
    drawn = torch.rand(padding.shape, device=padding.device).masked_fill(padding, 2.0)
    return drawn.argsort(1).argsort(1)


class FactorOfWeights(_Weighted):
    """softmax(QKᵀ/√d + log f): f multiplies the weights before they are normalised, and there is no ReLU.

    In Eq. 6 f multiplies the scores, and a key with f = 0 keeps the weight e⁰; here it has none. For w < 0 and far keys
    log f is nearly w · |i − j| + log(1 + eᵛ), so that such a head is one of ALiBi with a slope that is learned.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, adjust="early_add")

    def coefficients(self, weighted: Tensor, shift: Tensor) -> Tensor:
        """The logarithm of Eq. 5."""
        return softplus(shift) - softplus(shift - weighted)


class SignedFactorOfWeights(SignedDistance, FactorOfWeights):
    """Both."""


OWN_MIXERS = {
    "log_distance": LogDistance,
    "signed_distance": SignedDistance,
    "sharp_at_first": SharpAtFirst,
    "own_scale": OwnScale,
    "shuffled_distance": ShuffledDistance,
    "factor_of_weights": FactorOfWeights,
    "signed_factor_of_weights": SignedFactorOfWeights,
}


OPTIONS: dict[str, Settings] = {
    "w and v at 10 times the rate": {"train.distance_rate": 10.0},
    "w and v at 50 times the rate": {"train.distance_rate": 50.0},
    "w from −2 to 2 at first": {"model.attention_options": {"distance_weight_init": spread(2.0)}},
    "w = 0 at first": {"model.attention_options": {"distance_weight_init": 0.0}},
    FROM_ZERO: {"model.attention_options": {"distance_weight_init": 0.0}, "train.distance_rate": 10.0},
    OWN_SCALE: {"model.attention": "own_scale", "train.distance_rate": 10.0},
    SHUFFLED: {"model.attention": "shuffled_distance", "train.distance_rate": 10.0},
    "log distance": {"model.attention": "log_distance"},
    SIGNED: {"model.attention": "signed_distance"},
    "scores 4 times as large at first": {"model.attention": "sharp_at_first"},
    "f multiplies weights": {"model.attention": "factor_of_weights"},
    "f multiplies weights, signed distance": {"model.attention": "signed_factor_of_weights"},
    "two layers": {"model.layers": 2},
}
SEEDS = {"sst": 5, "ag": 3, "snli": 3, "amazon": 2, "mind": 3}  # by study: fewer where a run takes longer
# What was better on four of five data sets with these, though clearly on one alone, is tried more often.
MORE = {SIGNED: {"sst": range(15), "ag": range(10), "snli": range(5), "amazon": range(10), "mind": range(10)}}
MORE |= dict.fromkeys((FROM_ZERO, OWN_SCALE, SHUFFLED), dict.fromkeys(SEEDS, range(TIMES)))
MORE[PLAIN] = {study: range(TIMES, seeds.stop) for study, seeds in MORE[SIGNED].items()}


def plan_options(
    data_dir: Path, out: Path, device: str, options: Collection[str] = (), studies: Collection[str] = ()
) -> list[tuple[str, Planned]]:
    """All runs, or those of some options and studies, each with its option; a seed of all studies before the next."""
    plan = []
    for study, seeds in SEEDS.items():
        if studies and study not in studies:
            continue
        data = data_of(study, data_dir, out, device)
        for option, settings in {**OPTIONS, PLAIN: {}}.items():
            if options and option not in options:
                continue
            for seed in MORE[option][study] if option in MORE else range(seeds):
                config = config_of(study, OURS, seed, data, settings)
                plan.append((option, Planned(study, OURS, seed, "", config, folder_of(option, study))))
    return sorted(plan, key=lambda one: one[1].seed)


def go_beyond(
    data_dir: Path,
    out: Path,
    *,
    options: Collection[str] = (),
    studies: Collection[str] = (),
    device: str = "auto",
    reporter: Reporter,
) -> Path:
    """Run them, and add what came of them to ``beyond.json``; what is there already is not run again."""
    check_apart(out)
    where = launch(device, "32-true").device.type
    path = out / BEYOND
    about = read_form(path, {"note": "", "settings": {}, "made_of": {}, "rows": []}, GONE_BEYOND)
    rows: list[dict[str, Any]] = about["rows"]
    seen = {(row["option"], row["study"], row["seed"]) for row in rows}
    plan = plan_options(data_dir, out, where, options, studies)
    plan = [one for one in plan if (one[0], one[1].study, one[1].seed) not in seen]
    tried_on = dict.fromkeys(planned.study for _, planned in plan)
    base = {study: config_of(study, OURS, 0, data_of(study, data_dir, out, where)) for study in tried_on}
    settle(about, base, {row["study"] for row in rows}, path, out / "cache")
    if not plan:
        reporter.say("nothing to run: all of it is there already, or no seed is planned for it")
        if not path.exists():
            write_text(path, json.dumps(about, indent=1))
    tried = {planned.name: option for option, planned in plan}

    def row_of(planned: Planned) -> Record:
        return {"option": tried[planned.name], "study": planned.study, "seed": planned.seed}

    def looked_at(planned: Planned, record: Record) -> Record:
        entropies = [one for level in record["heads"].values() for one in level["entropy"]]
        weights, _ = load_tensors(out / RUNS / planned.name / WEIGHTS)
        scales = {
            name.removesuffix(SCALE): [round(scale, 4) for scale in weight.exp().tolist()]
            for name, weight in weights.items()
            if name.endswith(SCALE)
        }
        return {
            "entropy": round(fmean(entropies), 4),
            "distances": record["distances"],
            "attended": {name: round(fmean(level["distance"]), 4) for name, level in record["heads"].items()},
            **({"scales": scales} if scales else {}),
        }

    todo = [planned for _, planned in plan]
    note_trials(todo, row_of, about, rows, path, device=device, where=where, reporter=reporter, more=looked_at)
    return path


def main() -> None:
    """Try all options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the data sets and word vectors")
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and beyond.json")
    options = "; ".join(f'"{name}"' for name in [*OPTIONS, PLAIN])
    parser.add_argument(
        "--option", action="append", default=[], choices=[*OPTIONS, PLAIN], metavar="NAME",
        help=f"this option alone; may be repeated. All if none is named: {options}",
    )  # fmt: skip
    parser.add_argument(
        "--study", action="append", default=[], choices=list(SEEDS), help="this data set alone; may be repeated"
    )
    arguments = parser.parse_args()
    with ending_in_words(), locked(arguments.out):
        path = go_beyond(
            arguments.data_dir, arguments.out, options=arguments.option, studies=arguments.study, reporter=Reporter()
        )
        print(path)  # noqa: T201


if __name__ in ("__main__", "__mp_main__"):  # the second in processes that runs are shared out to
    MIXERS.update(OWN_MIXERS)
if __name__ == "__main__":
    main()
