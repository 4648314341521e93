import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datransformer.models.config import ModelConfig
from datransformer.train.config import FileConfig, RunConfig, from_dict, to_dict, write_yaml
from datransformer.train.fit import fit

# What another process runs: a fit, with what to do to it on the way.
SCRIPT = """
import os, resource, signal, sys, time
from pathlib import Path

import torch

from datransformer.train import checkpoint
from datransformer.train.config import RunConfig, from_dict, read_yaml
from datransformer.train.fit import fit
from datransformer.train.errors import Interrupted
from datransformer.train.progress import Reporter

torch.set_num_threads(1)
config, folder, *options = sys.argv[1:]
asked = dict(option.partition("=")[::2] for option in options)
save_file, number = checkpoint.save_file, 0


def save_half(tensors, path, metadata):
    global number
    number += 1
    save_file(tensors, path, metadata)
    if number == int(asked["die_in_write"]):
        with open(path, "r+b") as file:
            file.truncate(os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)


def told(step):
    if os.environ.get("RANK", "0") == "0":
        print(step, flush=True)
    if step == int(asked.get("pause_after", 0)):
        time.sleep(1)
    if step == int(asked.get("full_after", 0)):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    if step == int(asked.get("kill_one_after", 0)) and os.environ["RANK"] == asked["rank"]:
        os.kill(os.getpid(), signal.SIGTERM)


if "die_in_write" in asked:
    checkpoint.save_file = save_half
try:
    fit(
        from_dict(RunConfig, read_yaml(Path(config)), "config"),
        Path(folder),
        cache=Path(folder).parent / "cache",
        device="cpu",
        resume="resume" in asked,
        on_step=told,
        reporter=Reporter(),
    )
except Interrupted as note:
    print(f"Interrupted: {note}", flush=True)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@dataclass
class Bench:
    """Small runs, here and in other processes."""

    folder: Path

    def csv(self, name: str, rows: Sequence[tuple[object, ...]], header: tuple[str, ...] = ("text", "label")) -> str:
        path = self.folder / name
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
        return str(path)

    def config(self, *, task: str = "sentence", rows: int = 37, **settings: Any) -> RunConfig:
        """Settings by dotted name with _ for the point: ``train_lr``; without files of its own, a task by chance."""
        values = to_dict(
            RunConfig(
                task=task,
                files=self.news(rows) if task == "recommend" else self.texts(rows),
                model=ModelConfig(heads=2, head_dim=4, embed_dim=6, feedforward_dim=11, dropout=0.0),
            )
        )
        values["train"] |= {"batch_size": 5, "epochs": 2, "log_every": 1, "lr": 0.01}
        for name, value in settings.items():
            group, _, key = name.partition("_")
            values[group][key] = value
        return from_dict(RunConfig, values, "config")

    def texts(self, rows: int) -> FileConfig:
        random = np.random.default_rng(rows)
        made = [
            (" ".join(f"w{word}" for word in random.integers(0, 9, random.integers(1, 13))), "ab"[number % 2])
            for number in range(rows + 11)
        ]
        return FileConfig(train=(self.csv("train.csv", made[:rows]),), dev=self.csv("dev.csv", made[rows:]))

    def news(self, rows: int, taste: bool = False) -> FileConfig:
        """Impressions; with ``taste`` users click on news of the topic that they have read."""
        random = np.random.default_rng(rows)
        for name, count in (("train", rows), ("dev", 23)):
            folder = self.folder / f"news_{name}_{taste}"
            folder.mkdir(exist_ok=True)
            # No two alike: candidates that tie by chance would make the metrics a matter of the last bit.
            titles = [f"topic{number % 3} " + f"word{number} " * (1 + number % 5) for number in range(31)]
            lines = [f"N{number}\tc\ts\t{title}\ta\tu\t[]\t[]" for number, title in enumerate(titles)]
            (folder / "news.tsv").write_text("\n".join(lines) + "\n")
            lines = []
            for number in range(count):
                liked = random.integers(3)
                of_topic, others = (
                    [news for news in range(31) if (news % 3 == liked) == same] for same in (True, False)
                )
                if not taste:
                    of_topic = others = list(range(31))
                read = random.choice(of_topic, random.integers(1, 6) if number % 5 else 0)
                clicked = random.choice(of_topic)
                beside = [one for one in random.choice(others, random.integers(2, 7), replace=False) if one != clicked]
                shown = [f"N{clicked}-1", *(f"N{one}-0" for one in beside)]
                history = " ".join(f"N{one}" for one in read)
                lines.append(f"{number}\tU\t11/11/2019 9:05:58 AM\t{history}\t{' '.join(shown)}")
            (folder / "behaviors.tsv").write_text("\n".join(lines) + "\n")
        train, dev = (str(self.folder / f"news_{name}_{taste}") for name in ("train", "dev"))
        return FileConfig(train=(train,), dev=dev)

    def fit(self, config: RunConfig, name: str = "run", **options: Any) -> dict[str, Any]:
        return fit(config, self.folder / name, cache=self.folder / "cache", device="cpu", **options)

    def command(self, config: RunConfig, name: str, *options: str) -> list[str]:
        """What another process runs, behind the name of a Python."""
        (self.folder / "script.py").write_text(SCRIPT, encoding="utf-8")
        path = self.folder / f"{name}.yaml"
        write_yaml(path, config)
        return [str(self.folder / "script.py"), str(path), str(self.folder / name), *options]

    def start(self, config: RunConfig, name: str, *options: str) -> "subprocess.Popen[str]":
        command = [sys.executable, *self.command(config, name, *options)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def lines(self, name: str = "run") -> list[dict[str, Any]]:
        """metrics.jsonl without what the clock says."""
        text = (self.folder / name / "metrics.jsonl").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        clock = ("tokens_per_second", "seconds")
        return [{key: value for key, value in line.items() if key not in clock} for line in lines]

    def losses(self, name: str = "run") -> list[float]:
        return [line["loss"] for line in self.lines(name) if "loss" in line]

    def dev(self, name: str = "run") -> list[dict[str, float]]:
        return [line["dev"] for line in self.lines(name) if "dev" in line]

    def weights(self, name: str = "run") -> bytes:
        return (self.folder / name / "model.safetensors").read_bytes()

    def checkpoints(self, name: str = "run") -> list[str]:
        return sorted(path.name for path in (self.folder / name / "checkpoints").iterdir())

    def content(self, name: str = "run") -> dict[str, bytes]:
        """Every file of a run."""
        folder = self.folder / name
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
