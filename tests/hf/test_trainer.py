from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification, Trainer
from transformers import TrainingArguments as Arguments

from datransformer.hf import DATransformerForSequenceClassification, make_distance_aware, parameter_groups

pytest.importorskip("accelerate")

N, V = 13, 17


def examples(count: int) -> list[dict[str, Any]]:
    """The label is which of 4 and 5 the text begins with."""
    made = []
    for number in range(count):
        tokens = torch.randint(6, V, (N - number % 3,))
        kind = number // 2 % 2
        tokens[0] = 4 + kind
        made.append({"input_ids": tokens, "labels": kind})
    return made


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": ids != 0, "labels": torch.tensor([row["labels"] for row in rows])}


def ours(small: Callable[..., Any]) -> Any:
    return DATransformerForSequenceClassification(
        small(hidden_size=32, num_attention_heads=4, head_dim=8, intermediate_size=64, hidden_dropout_prob=0.0)
    )


def turned(small: Callable[..., Any]) -> Any:
    config = BertConfig(vocab_size=31, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    return make_distance_aware(BertForSequenceClassification(config))


@pytest.mark.parametrize("build", [ours, turned])
def test_the_trainer_trains_and_saves(build: Callable[..., Any], small: Callable[..., Any], tmp_path: Path) -> None:
    model = build(small)
    weights = {name: one for name, one in model.named_parameters() if name.endswith(".distance_weight")}
    before = {name: one.detach().clone() for name, one in weights.items()}
    arguments = Arguments(
        str(tmp_path / "out"),
        num_train_epochs=6,
        per_device_train_batch_size=16,
        save_steps=50,
        logging_steps=8,
        report_to=[],
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=5e-3)
    trainer = Trainer(model, arguments, collate, examples(128), examples(64), optimizers=(optimizer, None))
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.6
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.05
    assert len(weights) == 2
    for name, one in weights.items():
        assert not torch.equal(one, before[name])
    trainer.save_model(str(tmp_path / "saved"))
    batch = collate(examples(5))
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    with torch.no_grad():
        torch.testing.assert_close(again(**batch).logits, model.eval()(**batch).logits)
