import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    DistilBertConfig,
    GPT2Config,
    GPT2Model,
    RobertaConfig,
    ViTConfig,
    pipeline,
)
from transformers.masking_utils import eager_mask

from datransformer.hf import make_distance_aware
from datransformer.hf.retrofit import SELF_ATTENTION

B, H, N, V = 2, 3, 7, 31
TEXT = {"vocab_size": V, "num_hidden_layers": 2, "num_attention_heads": H, "pad_token_id": 1}
CONFIGS: dict[str, Any] = {
    "bert": BertConfig(hidden_size=15, intermediate_size=11, **TEXT),
    "roberta": RobertaConfig(hidden_size=15, intermediate_size=11, max_position_embeddings=23, **TEXT),
    "distilbert": DistilBertConfig(vocab_size=V, dim=15, hidden_dim=11, n_layers=2, n_heads=H, pad_token_id=1),
    "vit": ViTConfig(
        hidden_size=15, intermediate_size=11, num_hidden_layers=2, num_attention_heads=H, image_size=6, patch_size=2
    ),
}


@pytest.fixture(params=SELF_ATTENTION)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def build(kind: str, auto: Any = AutoModel) -> Any:
    """A model whose scores are not all about 0."""
    model = auto.from_config(copy.deepcopy(CONFIGS[kind])).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embedding" not in name:
                parameter.mul_(20)
    return model


def inputs(kind: str) -> dict[str, Tensor]:
    if kind == "vit":
        return {"pixel_values": torch.randn(B, 3, 6, 6)}
    return {"input_ids": torch.randint(3, V, (B, N)), "attention_mask": torch.arange(N) < torch.tensor([[5], [7]])}


def real(kind: str, output: Tensor) -> Tensor:
    return output if kind == "vit" else output[inputs(kind)["attention_mask"]]


def rectified(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
    """softmax(ReLU(QKᵀ)·scale) V, the test's own."""
    scores = torch.relu(query @ key.mT) * options["scaling"]
    weights = (scores if mask is None else scores + mask).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register("rectified", rectified)
AttentionMaskInterface.register("rectified", eager_mask)


@torch.no_grad()
def test_with_f_of_1_only_the_relu_is_new(kind: str) -> None:
    stock, batch = build(kind), inputs(kind)
    plain = stock(**batch).last_hidden_state
    stock.set_attn_implementation("rectified")
    with_relu = stock(**batch).last_hidden_state
    stock.set_attn_implementation("eager")
    turned = make_distance_aware(stock, distance_weight_init=0.0, distance_shift_init=0.7)
    assert turned is stock
    output = turned(**batch).last_hidden_state
    torch.testing.assert_close(real(kind, output), real(kind, with_relu), atol=1e-5, rtol=1e-5)
    assert (real(kind, output) - real(kind, plain)).abs().max() > 0.01


@torch.no_grad()
def test_with_f_of_1_and_no_relu_it_is_the_stock_model(kind: str) -> None:
    stock, batch = build(kind), inputs(kind)
    expected = stock(**batch).last_hidden_state
    output = make_distance_aware(stock, adjust="late_multiply", distance_weight_init=0.0)(**batch).last_hidden_state
    torch.testing.assert_close(real(kind, output), real(kind, expected), atol=1e-5, rtol=1e-5)


def test_weights_stay_and_2_heads_numbers_a_layer_come(kind: str) -> None:
    model = build(kind)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    make_distance_aware(model)
    after = dict(model.named_parameters())
    new = sorted(set(after) - set(before))
    assert len(new) == 4
    assert sum(after[name].numel() for name in new) == 2 * H * 2
    for name in new:
        wanted = [-0.5, 0.0, 0.5] if name.endswith(".distance_weight") else [0.0, 0.0, 0.0]
        assert after[name].tolist() == wanted
    for name, parameter in before.items():
        assert torch.equal(after[name], parameter)


def test_a_step_of_training_moves_w_and_v(kind: str) -> None:
    model = make_distance_aware(build(kind)).train()
    distances = {name: parameter for name, parameter in model.named_parameters() if "distance_" in name}
    before = {name: parameter.detach().clone() for name, parameter in distances.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(**inputs(kind)).last_hidden_state.square().sum().sin().backward()
    optimizer.step()
    for name, parameter in distances.items():
        assert not torch.equal(parameter, before[name]), name


HEADS = {
    "bert": AutoModelForSequenceClassification,
    "roberta": AutoModelForMaskedLM,
    "distilbert": AutoModelForSequenceClassification,
    "vit": AutoModelForImageClassification,
}


@torch.no_grad()
@pytest.mark.parametrize("head", [False, True])
def test_what_is_saved_loads_again(kind: str, head: bool, tmp_path: Path) -> None:
    auto: Any = HEADS[kind] if head else AutoModel
    build(kind, auto).save_pretrained(tmp_path / "stock")
    model = make_distance_aware(auto.from_pretrained(tmp_path / "stock"), mapping="clip", adjust="early_add")
    for name, parameter in model.named_parameters():
        if "distance_" in name:
            parameter.uniform_(-1, 1)
    model.save_pretrained(tmp_path / "turned")
    again, found = auto.from_pretrained(tmp_path / "turned", output_loading_info=True)
    assert not any(found.values()), found
    assert type(again) is type(model)
    assert again.config.model_type == f"distance_aware_{kind}"
    assert (again.config.distance_mapping, again.config.distance_adjust) == ("clip", "early_add")
    batch = inputs(kind)
    expected = model(**batch)[0]
    assert torch.equal(again(**batch)[0], expected)
    again.save_pretrained(tmp_path / "twice")
    assert torch.equal(auto.from_pretrained(tmp_path / "twice")(**batch)[0], expected)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_masks_are_honoured(kind: str) -> None:
    model = make_distance_aware(build(kind))
    batch = inputs(kind)
    output = model(**batch).last_hidden_state
    torch.testing.assert_close(output[:1, :5], model(batch["input_ids"][:1, :5]).last_hidden_state)
    other = batch["input_ids"].masked_fill(~batch["attention_mask"], 2)
    torch.testing.assert_close(real(kind, model(other, batch["attention_mask"]).last_hidden_state), real(kind, output))
    pairs = batch["attention_mask"][:, None, None, :].expand(B, 1, N, N)
    torch.testing.assert_close(real(kind, model(batch["input_ids"], pairs).last_hidden_state), real(kind, output))


@torch.no_grad()
def test_a_mask_over_patches_is_honoured() -> None:
    model = make_distance_aware(build("vit"))
    batch, seen = inputs("vit"), torch.ones(B, 10, dtype=torch.bool)
    seen[:, 9] = False
    changed = {"pixel_values": batch["pixel_values"].clone()}
    changed["pixel_values"][:, :, 4:, 4:] += 1  # the last patch
    outputs = [model(**pixels, attention_mask=seen).last_hidden_state[:, :9] for pixels in (batch, changed)]
    torch.testing.assert_close(*outputs)
    assert not torch.allclose(model(**batch).last_hidden_state, model(**changed).last_hidden_state)


@torch.no_grad()
def test_attention_weights(kind: str) -> None:
    model = make_distance_aware(build(kind))
    batch = inputs(kind)
    output = model(**batch, output_attentions=True)
    length = 10 if kind == "vit" else N
    assert [weights.shape for weights in output.attentions] == [(B, H, length, length)] * 2
    for weights in output.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, length))
        assert kind == "vit" or not weights[0, :, :, 5:].any()
    torch.testing.assert_close(output.last_hidden_state, model(**batch).last_hidden_state)
    model.config.output_attentions = True
    assert torch.equal(model(**batch).attentions[1], output.attentions[1])
    assert not model(**batch, output_attentions=False).attentions


def test_dropout_of_the_model_is_applied(kind: str) -> None:
    model = make_distance_aware(build(kind))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for module in model.modules():
        if type(module).__name__ == SELF_ATTENTION[kind]:
            if kind == "vit":
                module.attention_dropout = 0.5
            else:
                module.dropout.p = 0.5
    batch = inputs(kind)
    assert torch.equal(model(**batch)[0], model(**batch)[0])
    model.train()
    assert not torch.equal(model(**batch)[0], model(**batch)[0])


@pytest.mark.parametrize(
    ("model", "name"),
    [(GPT2Model(GPT2Config(n_layer=1, n_embd=6, n_head=2, vocab_size=V)), "GPT2Model"), (nn.Linear(2, 3), "Linear")],
    ids=["gpt2", "linear"],
)
def test_other_models_are_refused(model: Any, name: str) -> None:
    message = f"model: got {name}, expected a model of transformers of the type bert, roberta, distilbert, vit"
    with pytest.raises(ValueError, match=message):
        make_distance_aware(model)


def test_what_cannot_be_turned_stays_as_it_was() -> None:
    decoder = BertModel(BertConfig(hidden_size=15, intermediate_size=11, is_decoder=True, **TEXT))
    with pytest.raises(ValueError, match="model: got a decoder, expected an encoder"):
        make_distance_aware(decoder)
    assert decoder.config._attn_implementation != "distance_aware"
    model = build("bert")
    for settings, message in (
        ({"mapping": "cubic"}, "mapping: got 'cubic', expected one of"),
        ({"adjust": "never"}, "adjust: got 'never', expected one of"),
        ({"distance_weight_init": [1.0, 2.0]}, r"distance_weight_init: got shape \(2,\), expected one number"),
    ):
        with pytest.raises(ValueError, match=message):
            make_distance_aware(model, **settings)
        assert type(model) is BertModel
        assert model.config.model_type == "bert"
        assert model.config._attn_implementation == "sdpa"
    make_distance_aware(model)
    with pytest.raises(ValueError, match="got a DistanceAwareBertModel, which is distance-aware already"):
        make_distance_aware(model)


def test_no_other_attention_takes_over(tmp_path: Path) -> None:
    model = make_distance_aware(build("bert"))
    with pytest.raises(ValueError, match="attn_implementation: got 'sdpa', expected 'distance_aware'"):
        model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="attn_implementation: got 'sdpa', expected 'distance_aware'"):
        AutoModel.from_pretrained(tmp_path, attn_implementation="sdpa")
    assert (
        AutoModel.from_pretrained(tmp_path, attn_implementation="eager").config._attn_implementation == "distance_aware"
    )


def test_the_attention_alone_is_not_enough() -> None:
    model = build("bert")
    model.set_attn_implementation("distance_aware")
    with pytest.raises(ValueError, match="BertSelfAttention has no w and v, expected a model that make_distance_aware"):
        model(**inputs("bert"))


def test_files_without_w_and_v_are_refused(tmp_path: Path) -> None:
    stock = BertForSequenceClassification(copy.deepcopy(CONFIGS["bert"]))
    stock.save_pretrained(tmp_path)
    settings = {name: value for name, value in CONFIGS["bert"].to_dict().items() if name != "model_type"}
    config = AutoConfig.for_model("distance_aware_bert", **settings)
    with pytest.raises(ValueError, match=r"the files have no bert\.encoder\.layer\.0\..*distance_shift, expected"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path, config=config)


def test_w_and_v_stay_in_fp32(tmp_path: Path) -> None:
    model = make_distance_aware(build("bert").to(torch.bfloat16))
    model.save_pretrained(tmp_path)
    for one in (model, AutoModel.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path, dtype=torch.float16)):
        attention = one.encoder.layer[1].attention.self
        assert attention.distance_weight.dtype == torch.float32
        assert attention.query.weight.dtype != torch.float32
        assert one(**inputs("bert")).last_hidden_state.isfinite().all()


def test_gradient_checkpointing_changes_no_gradient(kind: str) -> None:
    model = make_distance_aware(build(kind)).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    batch, gradients = inputs(kind), []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(**batch).last_hidden_state.square().sum().sin().backward()
        gradients.append({name: one.grad for name, one in model.named_parameters() if "distance_" in name})
    assert all(gradient.any() for gradient in gradients[0].values())
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_pipeline_reads_a_turned_model_and_its_tokenizer(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "dull", "film"]
    tokenizer = BertTokenizer(vocab={word: place for place, word in enumerate(words)})
    config = copy.deepcopy(CONFIGS["bert"])
    config.pad_token_id = 0
    model = make_distance_aware(BertForSequenceClassification(config)).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    classify = pipeline("text-classification", str(tmp_path), top_k=None)
    texts = ["a fine film", "dull"]
    with torch.no_grad():
        expected = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.softmax(-1)
    for row, answers in zip(expected, classify(texts, batch_size=2), strict=True):
        scores = {answer["label"]: answer["score"] for answer in answers}
        torch.testing.assert_close(torch.tensor([scores["LABEL_0"], scores["LABEL_1"]]), row)


def test_a_model_without_a_head_hands_out_weights_and_states(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before any model of its new class was built anew: transformers knows by class what can be handed out."""
    registry = vars(transformers.modeling_utils)["_CAN_RECORD_REGISTRY"]
    for name in [name for name in registry if "DistanceAware" in name]:
        monkeypatch.delitem(registry, name)
    outputs = make_distance_aware(build(kind))(**inputs(kind), output_attentions=True, output_hidden_states=True)
    assert len(outputs.attentions) == 2
    assert len(outputs.hidden_states) == 3
