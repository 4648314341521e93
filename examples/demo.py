"""Train the encoder on a task that only distance can solve, with and without distance-aware attention.

Each sequence holds one query token and eight marker tokens of two kinds, among fillers, all at random places. The
label is the kind of the marker nearest to the query. A model that cannot tell distances can only guess the kind that
there is more of, which is right about 64 % of the time: that, and not 50 %, is chance.

``python examples/demo.py [DIRECTORY]`` prints a table and draws what was learned into DIRECTORY (default: demo).
"""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from datransformer import AdditiveAttentionPooling, DistanceAwareAttention, Encoder
from datransformer.report.figures import save

LENGTH, MARKERS, KINDS, FILLERS = 32, 8, 2, 10
STEPS, EVALUATE_EVERY, BATCH_SIZE, LEARNING_RATE = 600, 20, 128, 2e-3
EMBED_DIM, HEADS = 64, 8
LABELS = {"distance_aware": "distance-aware", "vanilla": "vanilla (sinusoids)", "none": "no positions"}


def draw_sequences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """About ``count`` token sequences [count, length] and their labels; those with no clear nearest marker are cut."""
    places = torch.rand(count, LENGTH, generator=generator).argsort(1)
    query, markers = places[:, :1], places[:, 1 : 1 + MARKERS]
    kinds = torch.randint(1, 1 + KINDS, (count, MARKERS), generator=generator)
    tokens = torch.randint(1 + KINDS, 1 + KINDS + FILLERS, (count, LENGTH), generator=generator)
    tokens.scatter_(1, query, 0).scatter_(1, markers, kinds)
    distances = (markers - query).abs()
    nearest = distances == distances.min(1, keepdim=True).values
    label = (kinds * nearest).max(1).values
    clear = ((kinds == label.unsqueeze(1)) | ~nearest).all(1)
    return tokens[clear], label[clear] - 1


class Classifier(nn.Module):
    """Embedding, one encoder layer, pooling, classes."""

    def __init__(self, mixer: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1 + KINDS + FILLERS, EMBED_DIM)
        self.encoder = Encoder(EMBED_DIM, HEADS, mixer=mixer, feedforward_dim=2 * EMBED_DIM)
        self.pooling = AdditiveAttentionPooling(EMBED_DIM)
        self.classes = nn.Linear(EMBED_DIM, KINDS)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.classes(self.pooling(self.encoder(self.embedding(tokens))))
        return logits


class Run(NamedTuple):
    """What one training run gave: accuracy at each evaluation, and the model."""

    mixer: str
    accuracies: list[float]
    seconds: float
    model: Classifier

    @property
    def steps_to_95(self) -> str:
        """The first step at which the accuracy was at least 95 %."""
        reached = [index for index, accuracy in enumerate(self.accuracies) if accuracy >= 0.95]
        return f"step {(reached[0] + 1) * EVALUATE_EVERY}" if reached else "never"


def train(mixer: str, seed: int = 0) -> Run:
    """Train one model on freshly drawn sequences, always the same ones for the same seed."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    held_out, labels = draw_sequences(1000, torch.Generator().manual_seed(seed + 2))
    model = Classifier(mixer)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    accuracies: list[float] = []
    start = time.perf_counter()
    for step in range(1, STEPS + 1):
        tokens, targets = draw_sequences(BATCH_SIZE, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), targets).backward()
        optimizer.step()
        if step % EVALUATE_EVERY == 0:
            with torch.no_grad():
                accuracies.append((model(held_out).argmax(1) == labels).float().mean().item())
            if sys.stderr.isatty():
                print(f"\r{mixer:16} step {step:4}/{STEPS}  accuracy {accuracies[-1]:.1%} ", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r" + " " * 60, end="\r", file=sys.stderr)
    return Run(mixer, accuracies, time.perf_counter() - start, model)


def draw(runs: list[Run]) -> Figure:
    """Accuracy over steps, and the distance-aware heads' attention from the query token, nearest-sighted first."""
    attention = runs[0].model.encoder.layers[0].attention
    assert isinstance(attention, DistanceAwareAttention)
    tokens, _ = draw_sequences(400, torch.Generator().manual_seed(7))
    with torch.no_grad():
        vectors = runs[0].model.embedding(tokens)
        _, weights = attention(vectors, vectors, vectors, average_attn_weights=False)  # [B, H, N, N]
        query = (tokens == 0).int().argmax(1)  # [B]
        weights = weights[torch.arange(len(tokens)), :, query]  # [B, H, N]
        distances = (torch.arange(LENGTH) - query.unsqueeze(1)).abs()  # [B, N]
        is_marker = (tokens > 0) & (tokens <= KINDS)
        by_distance = torch.stack(
            [weights.transpose(1, 2)[is_marker & (distances == d)].mean(0) for d in range(1, LENGTH // 2)]
        )  # [D, H]

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    curves, heads = figure.subplots(1, 2)
    steps = range(EVALUATE_EVERY, STEPS + 1, EVALUATE_EVERY)
    for run in runs:
        curves.plot(steps, run.accuracies, label=LABELS[run.mixer])
    curves.set_xlabel("training step")
    curves.set_ylabel("held-out accuracy")
    curves.legend(frameon=False)
    order = attention.distance_weight.argsort()
    image = heads.imshow(by_distance[:, order].T.tolist(), aspect="auto", cmap="Blues", vmin=0)
    heads.set_yticks(range(HEADS), [f"w = {attention.distance_weight[head].item():+.2f}" for head in order])
    heads.set_xticks(range(0, LENGTH // 2 - 1, 2), [str(d) for d in range(1, LENGTH // 2, 2)])
    heads.set_xlabel("distance of the marker from the query")
    heads.set_title("attention to a marker, one row a head", fontsize=10)
    figure.colorbar(image, ax=heads)
    return figure


def main() -> None:
    """Train the three models, print the table, save the picture."""
    torch.set_num_threads(1)  # the tensors are small, and the numbers the same on every machine
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    print(f"Nearest marker: {LENGTH} tokens, {MARKERS} markers of {KINDS} kinds, {STEPS} steps. Chance is 64 %.")
    print("This takes a minute or two.", flush=True)
    print(f"{'attention':20} {'at the end':>10} {'first at 95 %':>14} {'seconds':>8}")
    runs = []
    for mixer, label in LABELS.items():
        runs.append(train(mixer))
        run = runs[-1]
        print(f"{label:20} {run.accuracies[-1]:10.1%} {run.steps_to_95:>14} {run.seconds:8.1f}", flush=True)
    directory.mkdir(parents=True, exist_ok=True)
    print("Pictures:", *save(draw(runs), directory / "nearest_marker"))


if __name__ == "__main__":
    main()
