import csv
from collections.abc import Callable

import pytest

from datransformer.data.config import DataConfig
from datransformer.models.config import ModelConfig
from datransformer.train.config import FileConfig, RunConfig, TrainConfig
from datransformer.train.fit import fit
from datransformer.train.run import Run, load_run

HEADS = 3
WORDS = ["good film", "bad film", "a good and long story. it ends well!", "a bad story. it ends badly! why?"]
NEWS = "\n".join(f"N{number}\tc\ts\ttopic{number % 3} word{number} here\ta\tu\t[]\t[]" for number in range(7))
BEHAVIORS = "\n".join(f"{number}\tU\t11/11/2019 9:05:58 AM\tN1 N2\tN3-1 N{number % 3 + 4}-0" for number in range(9))

MakeRun = Callable[..., Run]


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """Trains a small run of a task, once for all tests."""
    folder = tmp_path_factory.mktemp("explored")
    rows = [(text, f"<b>{text}</b> twice", "yes" if "good" in text else "no <i>&", len(text)) for text in WORDS * 5]
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "other", "label", "stars"), *rows])
    (folder / "news").mkdir()
    (folder / "news" / "news.tsv").write_text(NEWS + "\n")
    (folder / "news" / "behaviors.tsv").write_text(BEHAVIORS + "\n")
    made: dict[str, Run] = {}

    def make(task: str = "sentence", attention: str = "distance_aware", **options: object) -> Run:
        name = "-".join(map(str, (task, attention, *options.values())))
        if name not in made:
            source = "news" if task == "recommend" else "rows.csv"
            label = "stars" if options.get("head") == "rating" else "label"
            second = "other" if task == "pair" else None
            model = ModelConfig(
                attention=attention, heads=HEADS, head_dim=4, embed_dim=11, **options  # type: ignore[arg-type]
            )  # fmt: skip
            config = RunConfig(
                task=task,
                files=FileConfig(train=(str(folder / source),)),
                data=DataConfig(text_pair_column=second, label_column=label, max_length=6000),
                model=model,
                train=TrainConfig(epochs=2, batch_size=4, lr=0.02),
            )
            fit(config, folder / name, cache=folder / "cache", device="cpu")
            made[name] = load_run(folder / name)
        return made[name]

    return make
