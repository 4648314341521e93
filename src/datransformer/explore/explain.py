"""What every head of a trained run attends to in one text, ready for JSON."""

import base64
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn

from datransformer.data.errors import InputError
from datransformer.data.store import Array
from datransformer.data.tokenizer import SEPARATOR, SPECIAL, UNKNOWN, TextTokenizer, WordTokenizer, cut_words
from datransformer.nn.distance_aware import DistanceAwareAttention
from datransformer.nn.multihead import MultiheadAttention
from datransformer.ops.mapping import distance_coefficients
from datransformer.train.predict import answer_rows, rows_of_texts
from datransformer.train.run import Run

SHOWN = 512  # items of a sequence: 512² weights of 16 heads are 4 MiB
BUDGET = 16 << 20  # weights of all sequences together, a byte each
CURVE = 32  # distances that a curve has at least
EVEN = 0.05  # a head without w whose mean distance is this close to that of equal weights looks neither near nor far

Words = tuple[Array, list[str]]  # ids, and how they are written


def explain_text(run: Run, text: str | None, pair: str | None = None) -> dict[str, Any]:
    """The run's answer to a text, and the attention of each head in it.

    The answer is the one that ``datransformer predict`` gives, for all of the text that the run reads. Attention is
    shown between the first `SHOWN` tokens; where a text has more, they are read as a text of their own for this.

    - ``answer``: ``prediction`` (a label or a rating), ``probabilities`` ``[{label, probability}, …]`` in the order of
      the classes; for a recommender the candidates, best first, each also with its ``score``, and the share of a
      softmax over them.
    - ``notes``: what is not shown or not read, in words.
    - ``levels``: by name, ``text`` and for documents ``document``, for recommenders ``user``: a list over layers of
      ``{mapping, adjust, heads}``, and of each head ``w``, ``v`` and ``curve``, f over the distances 0, 1, 2, …; all
      None for attention that has no w.
    - ``sequences``: ``{level, title, items, unknown, layers}``. The first is the whole; if its level is not ``text``,
      the words of its item number i are in ``sequences[i + 1]``, as far as there is one. ``unknown`` are the places
      of words that the run does not know. ``layers`` is a list over layers and heads of ``looks`` (near, far or even),
      ``entropy`` and ``share`` (the entropy and distance of `measure_heads`: 1 is what equal weights have),
      ``distance`` (mean over items, in items), ``largest`` and ``weights``.

    ``weights`` is the base64 of one byte for each pair of items, row by row, a row being the item that looks:
    weight = largest · (byte / 255)². The root keeps small weights apart. Weights below 0, which late adjusting methods
    can give, count as 0.

    Args:
        run: The trained run.
        text: The text; for a recommender the titles that a user has read, one a line, oldest first.
        pair: The second text of a pair; for a recommender the candidates' titles, one a line.
    """
    task = run.config.task
    two = task in ("pair", "recommend")
    for name, value in {"text": text, **({"pair": pair} if two else {})}.items():
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{name}: got nothing, expected a text: the run's task is {task!r}")
        if "\0" in value or value != value.encode(errors="ignore").decode():
            raise InputError(f"{name}: holds a NUL byte or half a character, expected a text")
    if pair and not two:
        raise InputError(f"pair: got a text, expected none: the run's task is {task!r}")
    run.model.to("cpu")
    if task == "recommend":
        answer, sequences, notes = _recommend(run, *(_lines(value or "") for value in (text, pair)))
    else:
        answer, sequences, notes = _answer(run, [value for value in (text, pair) if value])
    lengths = {level: max(len(one["items"]) for one in sequences if one["level"] == level) for level in _names(run)}
    return {
        "answer": answer,
        "notes": notes,
        "levels": {level: _level(run.model.get_submodule(level), length) for level, length in lengths.items()},
        "sequences": sequences,
    }


def _names(run: Run) -> list[str]:
    return [name for name in ("text", "document", "user") if hasattr(run.model, name)]


Parts = tuple[dict[str, Any], list[dict[str, Any]], list[str]]


def _answer(run: Run, texts: Sequence[str]) -> Parts:
    pairs = list(texts[1:]) or None
    answered = answer_rows(run, rows_of_texts([texts[0]], pairs, name="text"), labelled=False)
    values = answered.answers[0]
    classes = run.labels.classes
    if classes is None:
        answer: dict[str, Any] = {"prediction": _number(float(values)), "probabilities": []}
    else:
        probabilities = [
            {"label": label, "probability": _number(float(value))} for label, value in zip(classes, values, strict=True)
        ]
        answer = {"prediction": classes[int(values.argmax())], "probabilities": probabilities}
    examples = answered.examples
    tokens, lengths = np.array(examples.tokens[0]), np.array(examples.parts[0])
    parts = np.split(tokens, np.cumsum(lengths)[:-1])
    notes = ["The run does not read this text to its end: it is longer than what it was trained to read."]
    sequences, more = SHAPES[run.config.shape](run, _written(run.tokenizer, texts, parts))
    return answer, sequences, (notes if answered.notes else []) + more


def _written(tokenizer: TextTokenizer, texts: Sequence[str], parts: Sequence[Array]) -> list[Words]:
    """The parts with their words: those of the vocabulary, or where the run does not know a word the word itself."""
    known = tokenizer.words
    words: list[str] = []
    if isinstance(tokenizer, WordTokenizer):
        cut, lengths = cut_words(pa.array(texts, pa.string()))
        of_text = np.split(np.array(cut.to_pylist(), object), np.cumsum(lengths)[:-1])
        separated = len(texts) == 2 and parts[0][-1] == SEPARATOR
        for index, found in enumerate(of_text):
            length = sum(map(len, parts)) if len(texts) == 1 else len(parts[index]) - (separated and index == 0)
            words += [word.decode() for word in found[:length]] or [SPECIAL[UNKNOWN]]
            words += [SPECIAL[SEPARATOR]] if separated and index == 0 else []
    else:
        words = [known[index] for part in parts for index in part]
    ends = np.cumsum([len(part) for part in parts])
    return [(part, words[end - len(part) : end]) for part, end in zip(parts, ends, strict=True)]


Shape = Callable[[Run, list[Words]], tuple[list[dict[str, Any]], list[str]]]


def _one_sequence(run: Run, parts: list[Words]) -> tuple[list[dict[str, Any]], list[str]]:
    ids, words = np.concatenate([ids for ids, _ in parts]), [word for _, words in parts for word in words]
    return [_words(run, "Words", (ids, words))[0]], _cut_note("The text", len(ids), "words")


def _two_sequences(run: Run, parts: list[Words]) -> tuple[list[dict[str, Any]], list[str]]:
    named = list(zip(("First text", "Second text"), parts, strict=True))
    notes = [note for name, (ids, _) in named for note in _cut_note(f"The {name.lower()}", len(ids), "words")]
    return [_words(run, name, part)[0] for name, part in named], notes


def _document(run: Run, parts: list[Words]) -> tuple[list[dict[str, Any]], list[str]]:
    titles = [" ".join(words) for _, words in parts]
    names = [f"Sentence {number}: {title}" for number, title in enumerate(titles, 1)]
    return _two_levels(run, "document", "Sentences", titles, list(zip(names, parts, strict=True)))[:2]


# How the parts of an example become sequences to show, by task shape.
SHAPES: dict[str, Shape] = {
    "sentence": _one_sequence,
    "joint": _one_sequence,
    "siamese": _two_sequences,
    "document": _document,
}


def _recommend(run: Run, history: list[str], candidates: list[str]) -> Parts:
    data = run.config.data
    notes = []
    if len(history) > data.max_history:
        notes.append(f"The run reads the newest {data.max_history} titles of a history.")
        history = history[-data.max_history :]
    parts = []
    for title in (*history, *candidates):
        ids = run.tokenizer.encode(pa.array([title], pa.string())).ids[: data.max_title_length]
        parts += _written(run.tokenizer, [title], [ids if len(ids) else np.array([UNKNOWN], np.int32)])
    names = [f"History {number}: {title}" for number, title in enumerate(history, 1)]
    names += [f"Candidate {number}: {title}" for number, title in enumerate(candidates, 1)]
    sequences, more, user, news = _two_levels(run, "user", "Titles", history, list(zip(names, parts, strict=True)))
    scores = torch.stack(news[len(history) :]) @ user  # [candidates]
    ranked = sorted(zip(candidates, scores.tolist(), scores.softmax(0).tolist(), strict=True), key=lambda row: -row[1])
    shares = [{"label": name, "probability": _number(share), "score": _number(score)} for name, score, share in ranked]
    return {"prediction": ranked[0][0], "probabilities": shares}, sequences, notes + more


def _two_levels(
    run: Run, level: str, title: str, items: list[str], named: list[tuple[str, Words]]
) -> tuple[list[dict[str, Any]], list[str], Tensor, list[Tensor]]:
    """Words to vectors, the vectors of ``items`` to one: sequences, notes, the one vector and the others."""
    inner, vectors, spent = [], [], 0
    for name, part in named:
        sequence, vector = _words(run, name, part)
        vectors.append(vector)
        spent += sum(len(layer) for layer in sequence["layers"]) * len(sequence["items"]) ** 2
        if spent <= BUDGET:
            inner.append(sequence)
    notes = _cut_note("The text", len(items), title.lower())
    if len(inner) < len(named):
        notes.append(f"The words of the first {len(inner)} of {len(named)} are shown.")
    shown = torch.stack(vectors[: len(items)]).unsqueeze(0)  # [1, S, E]
    encoder = run.model.get_submodule(level)
    with torch.no_grad():
        whole = encoder(shown, torch.zeros(shown.shape[:2], dtype=torch.bool))[0]
    shown = shown[:, :SHOWN]
    _, layers = _watch(encoder, shown, torch.zeros(shown.shape[:2], dtype=torch.bool))
    outer = {"level": level, "title": title, "items": items[:SHOWN], "unknown": [], "layers": layers}
    return [outer, *inner], notes, whole, vectors


def _words(run: Run, title: str, part: Words) -> tuple[dict[str, Any], Tensor]:
    """A sequence of words, and its vector."""
    ids, words = part[0][:SHOWN], part[1][:SHOWN]
    vectors, layers = _watch(run.model.get_submodule("text"), torch.from_numpy(ids.astype(np.int64)).unsqueeze(0))
    unknown = np.flatnonzero(ids == UNKNOWN).tolist()
    return {"level": "text", "title": title, "items": words, "unknown": unknown, "layers": layers}, vectors[0]


def _cut_note(what: str, length: int, unit: str) -> list[str]:
    if length <= SHOWN:
        return []
    return [
        f"{what} has {length:,} {unit}: attention is shown for the first {SHOWN}, read as a text of their own. "
        "The answer is for all of them."
    ]


@torch.no_grad()
def _watch(encoder: nn.Module, *inputs: Tensor) -> tuple[Tensor, list[list[dict[str, Any]]]]:
    """What the encoder gives for one sequence without padding, and what its heads do, by layer."""
    layers: list[list[dict[str, Any]]] = []

    def hook(module: MultiheadAttention, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        query, key, value, *_ = arguments
        _, weights = MultiheadAttention.forward(module, query, key, value, average_attn_weights=False)
        assert weights is not None
        layers.append(_heads(module, weights.float()))

    handles = [
        module.register_forward_pre_hook(hook, with_kwargs=True)
        for module in encoder.modules()
        if isinstance(module, MultiheadAttention)
    ]
    try:
        output: Tensor = encoder(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return output, layers


def _heads(module: MultiheadAttention, weights: Tensor) -> list[dict[str, Any]]:
    """Each head of weights [1, heads, items, items]."""
    maps = weights[0].clamp(min=0)  # [H, N, N]
    rows = maps / maps.sum(-1, keepdim=True).clamp(min=1e-12)  # late methods do not add up to 1
    length = maps.shape[-1]
    places = torch.arange(length)
    apart = (places[:, None] - places).abs().float()  # [N, N]
    even = apart.mean(-1)  # [N]
    distances = (rows * apart).sum(-1)  # [H, N]
    entropy = torch.special.entr(rows).sum(-1).mean(-1) / math.log(length) if length > 1 else None  # [H]
    taste = module.distance_weight.tolist() if isinstance(module, DistanceAwareAttention) else None
    heads = []
    for head in range(len(maps)):
        share = float((distances[head] / even).mean()) if length > 1 else math.nan
        heads.append(
            {
                "looks": _looks(share - 1, EVEN) if taste is None else _looks(taste[head], 0.0),
                "entropy": None if entropy is None else _number(float(entropy[head])),
                "share": _number(share),
                "distance": _number(float(distances[head].mean())),
                **_pack(maps[head].numpy()),
            }
        )
    return heads


def _looks(taste: float, margin: float) -> str:
    return "near" if taste < -margin else "far" if taste > margin else "even"


def _pack(weights: npt.NDArray[np.float32]) -> dict[str, Any]:
    largest = float(weights.max())
    roots = np.sqrt(weights / largest) if largest > 0 else weights
    packed = np.rint(255 * roots).astype(np.uint8)
    return {"largest": largest, "weights": base64.b64encode(packed.tobytes()).decode()}


def unpack(head: dict[str, Any]) -> npt.NDArray[np.float64]:
    """The weights [items, items] of a head in `explain_text`'s answer, to the precision that they are kept in."""
    packed = np.frombuffer(base64.b64decode(head["weights"]), np.uint8)
    side = math.isqrt(len(packed))
    weights: npt.NDArray[np.float64] = head["largest"] * (packed.reshape(side, side) / 255) ** 2
    return weights


def _level(encoder: nn.Module, length: int) -> list[dict[str, Any]]:
    """What the heads of an encoder have learned, whatever the text, by layer."""
    layers: list[dict[str, Any]] = []
    for module in encoder.modules():
        if isinstance(module, DistanceAwareAttention):
            weight, shift = module.distance_weight.detach(), module.distance_shift.detach()
            distances = torch.arange(max(length, CURVE), dtype=weight.dtype)
            curves = distance_coefficients(distances, weight, shift, module.mapping).tolist()
            heads = [
                {"w": _number(w), "v": _number(v), "curve": list(map(_number, curve))}
                for w, v, curve in zip(weight.tolist(), shift.tolist(), curves, strict=True)
            ]
            layers.append({"mapping": module.mapping, "adjust": module.adjust, "heads": heads})
        elif isinstance(module, MultiheadAttention):
            nothing: dict[str, Any] = {"w": None, "v": None, "curve": None}
            layers.append({"mapping": None, "adjust": None, "heads": [nothing] * module.num_heads})
    return layers


def _number(value: float) -> float | None:
    """Four digits, which is more than anyone sees; JSON has no NaN and no infinity."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
