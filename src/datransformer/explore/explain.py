"""What every head of a trained run attends to in one text, ready for JSON."""

import base64
import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn

from datransformer.data.errors import InputError
from datransformer.data.store import Array
from datransformer.data.tokenizer import SEPARATOR, SPECIAL, UNKNOWN, TextTokenizer, WordTokenizer, cut_words
from datransformer.experiments.heads import watched
from datransformer.nn.distance_aware import DistanceAwareAttention
from datransformer.nn.multihead import MultiheadAttention
from datransformer.ops.mapping import distance_coefficients
from datransformer.train.predict import answer_record, answer_rows, is_plain, rows_of_texts
from datransformer.train.run import Run
from datransformer.train.tasks import ALONE, Worker

MOST_CANDIDATES = 200  # of a recommender: each is encoded by itself
SHOWN = 512  # items of a sequence: 512² weights of 16 heads are 4 MiB
BUDGET = 16 << 20  # weights of all sequences together, a byte each
CURVE = 32  # distances that a curve has at least
EVEN = 0.05  # a head without w whose mean distance is this close to that of equal weights looks neither near nor far

Words = tuple[Array, list[str]]  # ids, and how they are written
Describe = Callable[[MultiheadAttention, Tensor], list[dict[str, Any]]]


def explain_text(
    run: Run,
    text: str | None,
    pair: str | None = None,
    *,
    worker: Worker = ALONE,
    describe: Describe | None = None,
    parts: int | None = None,
) -> dict[str, Any]:
    """The run's answer to a text, and the attention of each head in it.

    The answer is the one that ``datransformer predict`` gives, for all of the text that the run reads. Attention is
    shown between the first `SHOWN` tokens; where a text has more, they are read as a text of their own for this.

    - ``answer``: ``prediction`` (a label or a rating), ``probabilities`` ``[{label, probability}, …]`` in the order of
      the classes; for a recommender the candidates, best first, each also with its ``score``, and the share of a
      softmax over them; ``truncated``, whether the run does not read the text to its end.
    - ``cut``: whether there is attention that is not shown. ``notes`` says what is not shown or not read, in words.
    - ``levels``: by name, ``text`` and for documents ``document``, for recommenders ``user``: a list over layers of
      ``{name, mapping, adjust, heads}``, and of each head ``w``, ``v`` and ``curve``, f over the distances 0, 1, 2, …;
      all but the attention module's ``name`` None for attention that has no w.
    - ``sequences``: ``{level, title, items, unknown, layers}``. The first is the whole; if its level is not ``text``,
      the words of its item number i are in ``sequences[i + 1]``, as far as there is one. ``unknown`` are the places
      of words that the run does not know. ``layers`` is a list over layers and heads of what ``describe`` gives.

    Args:
        run: The trained run.
        text: The text; for a recommender the titles that a user has read, one a line, oldest first.
        pair: The second text of a pair; for a recommender the candidates' titles, one a line.
        worker: Where to compute.
        describe: What to keep of a module's weights [heads, items, items], a dict a head; None: `describe_heads`.
        parts: The words of so many sentences or titles are shown; None: of as many as `BUDGET` allows.
    """
    task = run.config.task
    two = task in ("pair", "recommend")
    for name, value in {"text": text, **({"text-pair": pair} if two else {})}.items():
        if not isinstance(value, str) or not value.strip():
            got = "nothing" if value is None or isinstance(value, str) else reprlib.repr(value)
            raise InputError(f"{name}: got {got}, expected a text: the run's task is {task!r}")
        if not is_plain(value):
            raise InputError(f"{name}: holds a NUL byte or half a character, expected a text")
    if pair is not None and pair != "" and not two:
        raise InputError(f"pair: got a text, expected none: the run's task is {task!r}")
    run.model.to(worker.device)
    watch = _Watch(run, worker, describe or describe_heads, parts)
    if task == "recommend":
        answer, sequences, notes = _recommend(watch, *(_lines(value or "") for value in (text, pair)))
    else:
        answer, sequences, notes = _answer(watch, [value for value in (text, pair) if value])
    lengths = {level: max(len(one["items"]) for one in sequences if one["level"] == level) for level in _names(run)}
    unread = ["The run does not read this text to its end: it is longer than what it was trained to read."]
    return {
        "answer": answer,
        "cut": bool(notes),
        "notes": (unread if answer["truncated"] else []) + notes,
        "levels": {level: _level(run.model, level, length) for level, length in lengths.items()},
        "sequences": sequences,
    }


@dataclass(frozen=True)
class _Watch:
    """A run that is looked at: see `explain_text`."""

    run: Run
    worker: Worker
    describe: Describe
    parts: int | None

    @torch.no_grad()
    def encode(self, level: str, *inputs: Tensor) -> Tensor:
        """What a level's encoder gives for one sequence."""
        output: Tensor = self.run.model.get_submodule(level)(*(tensor.to(self.worker.device) for tensor in inputs))
        return output

    def look(self, level: str, *inputs: Tensor) -> tuple[Tensor, list[list[dict[str, Any]]]]:
        """The same for one without padding, and what the level's heads do, by layer."""
        layers: list[list[dict[str, Any]]] = []
        encoder = self.run.model.get_submodule(level)

        def keep(name: str, weights: Tensor, padding: Tensor | None) -> None:
            module = encoder.get_submodule(name)
            assert isinstance(module, MultiheadAttention)
            layers.append(self.describe(module, weights[0].float().cpu()))

        with watched(encoder, keep):
            return self.encode(level, *inputs), layers


def _names(run: Run) -> list[str]:
    return [name for name in ("text", "document", "user") if hasattr(run.model, name)]


Parts = tuple[dict[str, Any], list[dict[str, Any]], list[str]]


def _answer(watch: _Watch, texts: Sequence[str]) -> Parts:
    run = watch.run
    answered = answer_rows(
        run, rows_of_texts(*([text] for text in texts), name="text"), labelled=False, worker=watch.worker
    )
    answer = answer_record(run, answered, 0)
    answer["probabilities"] = [
        {"label": label, "probability": value} for label, value in (answer["probabilities"] or {}).items()
    ]
    tokens, lengths = np.array(answered.examples.tokens[0]), np.array(answered.examples.parts[0])
    parts = np.split(tokens, np.cumsum(lengths)[:-1])
    return answer, *SHAPES[run.config.shape](watch, _written(run.tokenizer, texts, parts))


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


Shape = Callable[[_Watch, list[Words]], tuple[list[dict[str, Any]], list[str]]]


def _one_sequence(watch: _Watch, parts: list[Words]) -> tuple[list[dict[str, Any]], list[str]]:
    ids, words = np.concatenate([ids for ids, _ in parts]), [word for _, words in parts for word in words]
    return [_words(watch, "Words", (ids, words))[0]], _cut_note("The text", len(ids), "words")


def _two_sequences(watch: _Watch, parts: list[Words]) -> tuple[list[dict[str, Any]], list[str]]:
    named = list(zip(("First text", "Second text"), parts, strict=True))
    notes = [note for name, (ids, _) in named for note in _cut_note(f"The {name.lower()}", len(ids), "words")]
    return [_words(watch, name, part)[0] for name, part in named], notes


def _document(watch: _Watch, parts: list[Words]) -> tuple[list[dict[str, Any]], list[str]]:
    titles = [" ".join(words) for _, words in parts]
    names = [f"Sentence {number}: {title}" for number, title in enumerate(titles, 1)]
    return _two_levels(watch, "document", "Sentences", titles, list(zip(names, parts, strict=True)))[:2]


# How the parts of an example become sequences to show, by task shape.
SHAPES: dict[str, Shape] = {
    "sentence": _one_sequence,
    "joint": _one_sequence,
    "siamese": _two_sequences,
    "document": _document,
}


def _recommend(watch: _Watch, history: list[str], candidates: list[str]) -> Parts:
    data, tokenizer = watch.run.config.data, watch.run.tokenizer
    notes = []
    if len(history) > data.max_history:
        notes.append(f"The run reads the newest {data.max_history} titles of a history.")
        history = history[-data.max_history :]
    if len(candidates) > MOST_CANDIDATES:
        raise InputError(f"text-pair: got {len(candidates):,} candidates, expected at most {MOST_CANDIDATES}")
    parts, truncated = [], False
    for title in (*history, *candidates):
        ids = tokenizer.encode(pa.array([title], pa.string())).ids
        truncated |= len(ids) > data.max_title_length
        ids = ids[: data.max_title_length]
        parts += _written(tokenizer, [title], [ids if len(ids) else np.array([UNKNOWN], np.int32)])
    names = [f"History {number}: {title}" for number, title in enumerate(history, 1)]
    names += [f"Candidate {number}: {title}" for number, title in enumerate(candidates, 1)]
    sequences, more, user, news = _two_levels(watch, "user", "Titles", history, list(zip(names, parts, strict=True)))
    scores = torch.stack(news[len(history) :]) @ user  # [candidates]
    ranked = sorted(zip(candidates, scores.tolist(), scores.softmax(0).tolist(), strict=True), key=lambda row: -row[1])
    shares = [{"label": name, "probability": _number(share), "score": _number(score)} for name, score, share in ranked]
    answer = {"prediction": ranked[0][0], "probabilities": shares, "truncated": truncated}
    return answer, sequences, notes + more


def _two_levels(
    watch: _Watch, level: str, title: str, items: list[str], named: list[tuple[str, Words]]
) -> tuple[list[dict[str, Any]], list[str], Tensor, list[Tensor]]:
    """Words to vectors, the vectors of ``items`` to one: sequences, notes, the one vector and the others."""
    text = watch.run.model.get_submodule("text")
    heads = sum(module.num_heads for module in text.modules() if isinstance(module, MultiheadAttention))
    sizes = np.cumsum([heads * min(len(ids), SHOWN) ** 2 for _, (ids, _) in named])
    shown = min(max(int((sizes <= BUDGET).sum()), 1), watch.parts or len(named))
    looked = [_words(watch, name, part) for name, part in named[:shown]]
    inner, vectors = [sequence for sequence, _ in looked], [vector for _, vector in looked]
    vectors += [watch.encode("text", _as_tokens(ids))[0] for _, (ids, _) in named[shown:]]
    notes = _cut_note("The text", len(items), title.lower())
    if shown < len(named):
        notes.append(f"The words of the first {shown} of {len(named)} are shown.")
    above = torch.stack(vectors[: len(items)]).unsqueeze(0)  # [1, S, E]
    seen = torch.zeros(above.shape[:2], dtype=torch.bool)
    whole, layers = watch.look(level, above[:, :SHOWN], seen[:, :SHOWN])
    if len(items) > SHOWN:
        whole = watch.encode(level, above, seen)
    outer = {"level": level, "title": title, "items": items[:SHOWN], "unknown": [], "layers": layers}
    return [outer, *inner], notes, whole[0], vectors


def _words(watch: _Watch, title: str, part: Words) -> tuple[dict[str, Any], Tensor]:
    """A sequence of words, and its vector."""
    ids, words = part[0][:SHOWN], part[1][:SHOWN]
    vectors, layers = watch.look("text", _as_tokens(ids))
    if len(part[0]) > SHOWN:
        vectors = watch.encode("text", _as_tokens(part[0]))
    unknown = np.flatnonzero(ids == UNKNOWN).tolist()
    return {"level": "text", "title": title, "items": words, "unknown": unknown, "layers": layers}, vectors[0]


def _as_tokens(ids: Array) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64)).unsqueeze(0)  # [1, N]


def _cut_note(what: str, length: int, unit: str) -> list[str]:
    if length <= SHOWN:
        return []
    return [
        f"{what} has {length:,} {unit}: attention is shown for the first {SHOWN}, read as a text of their own. "
        "The answer is for all of them."
    ]


def describe_heads(module: MultiheadAttention, weights: Tensor) -> list[dict[str, Any]]:
    """Each head of weights [heads, items, items] as the page shows it.

    ``looks`` (near, far or even), ``entropy`` and ``share`` (the entropy and distance of `measure_heads`: 1 is what
    equal weights have), ``distance`` (mean over items, in items), ``largest`` and ``weights``: the base64 of one byte
    for each pair of items, row by row, a row being the item that looks. weight = largest · (byte / 255)²; the root
    keeps small weights apart. Weights below 0, which late adjusting methods can give, count as 0.
    """
    maps = weights.clamp(min=0)  # [H, N, N]
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


def _level(model: nn.Module, level: str, length: int) -> list[dict[str, Any]]:
    """What the heads of an encoder have learned, whatever the text, by layer."""
    layers: list[dict[str, Any]] = []
    for name, module in model.get_submodule(level).named_modules(prefix=level):
        if isinstance(module, DistanceAwareAttention):
            weight, shift = module.distance_weight.detach().cpu(), module.distance_shift.detach().cpu()
            distances = torch.arange(max(length, CURVE), dtype=weight.dtype)
            curves = distance_coefficients(distances, weight, shift, module.mapping).tolist()
            heads = [
                {"w": _number(w, 17), "v": _number(v, 17), "curve": list(map(_number, curve))}
                for w, v, curve in zip(weight.tolist(), shift.tolist(), curves, strict=True)
            ]
            layers.append({"name": name, "mapping": module.mapping, "adjust": module.adjust, "heads": heads})
        elif isinstance(module, MultiheadAttention):
            nothing: dict[str, Any] = {"w": None, "v": None, "curve": None}
            layers.append({"name": name, "mapping": None, "adjust": None, "heads": [nothing] * module.num_heads})
    return layers


def _number(value: float, digits: int = 4) -> float | None:
    """So many digits, four being more than anyone sees; JSON has no NaN and no infinity."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
