"""`explain_text` for programs: plain lists of weights, of a size to look at."""

from typing import Any

from torch import Tensor

from datransformer.explore.explain import explain_text
from datransformer.nn.multihead import MultiheadAttention
from datransformer.train.run import Run
from datransformer.train.tasks import ALONE, Worker

TOKENS = 48  # of a sequence that are shown
SEQUENCES = 8  # of a module that are shown, if they are sentences of a document
DIGITS = 5


def explain(run: Run, text: str, pair: str | None = None, *, worker: Worker = ALONE) -> dict[str, Any]:
    """The answer to a text, and for every attention module and head w, v, near or far, and its attention weights.

    Weights are those of the whole text, as far as `explain_text` reads it; given are those among the first `TOKENS`
    tokens of the first `SEQUENCES` sequences, so that a row adds up to 1 unless something is cut. At the sentence
    level of a document a token is the number of a sentence.

    Args:
        run: The trained run, of any task but recommend.
        text: The text.
        pair: Its second text, for a run of the task pair.
        worker: Where the model is.
    """
    found = explain_text(run, text, pair, worker=worker, describe=_first_weights, parts=SEQUENCES)
    answer, sequences = found["answer"], found["sequences"]
    return {
        "prediction": answer["prediction"],
        "probabilities": {row["label"]: row["probability"] for row in answer["probabilities"]} or None,
        "truncated": answer["truncated"],
        "cut": found["cut"] or any(len(sequence["items"]) > TOKENS for sequence in sequences),
        "modules": [
            _module(layer, number, [sequence for sequence in sequences if sequence["level"] == level])
            for level, layers in found["levels"].items()
            for number, layer in enumerate(layers)
        ],
    }


def _first_weights(module: MultiheadAttention, weights: Tensor) -> list[dict[str, Any]]:
    shown = weights[:, :TOKENS, :TOKENS].double().numpy().round(DIGITS).tolist()  # [H, N, N]
    return [{"attention": head} for head in shown]


def _module(layer: dict[str, Any], number: int, sequences: list[dict[str, Any]]) -> dict[str, Any]:
    """Layer ``number`` of a level: what of each sequence is shown, and its heads."""
    heads = [
        {
            "w": head["w"],
            "v": head["v"],
            "looks": None if not head["w"] else "near" if head["w"] < 0 else "far",
            "attention": [sequence["layers"][number][place]["attention"] for sequence in sequences],
        }
        for place, head in enumerate(layer["heads"])
    ]
    return {"name": layer["name"], "sequences": [_tokens(sequence) for sequence in sequences], "heads": heads}


def _tokens(sequence: dict[str, Any]) -> list[str]:
    shown: list[str] = sequence["items"][:TOKENS]
    return shown if sequence["level"] == "text" else [str(number) for number in range(1, len(shown) + 1)]
