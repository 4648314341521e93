"""Our models as transformers' own tests want them; `run.py` puts this file beside those tests and starts pytest."""

import unittest
from typing import Any

import transformers

from datransformer.hf.configuration import DATransformerConfig
from datransformer.hf.register import AUTO_MODELS
from datransformer.hf.retrofit import PREFIX, SELF_ATTENTION, auto_classes, turned_classes
from datransformer.nn.mixers import MIXERS

from . import test_modeling_common as common  # type: ignore[attr-defined] # in the source distribution alone
from .test_configuration_common import ConfigTester  # type: ignore[import-not-found]
from .test_training_mixin import TrainingTesterMixin  # type: ignore[import-not-found]

ROWS, LENGTH, WORDS = 13, 7, 99
PIXELS, PATCH = 6, 2
PATCHES = (PIXELS // PATCH) ** 2
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
WORDED = {"vocab_size": WORDS, "max_position_embeddings": 64, "pad_token_id": 1}
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
SETTINGS: dict[str, dict[str, Any]] = {
    "datransformer": {"vocab_size": WORDS, "hidden_size": 32, "head_dim": 8, **LAYERS, **DROPOUT},
    "bert": {"hidden_size": 32, **LAYERS, **WORDED},
    "roberta": {"hidden_size": 32, **LAYERS, **WORDED},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37, **WORDED},
    "vit": {"hidden_size": 32, "image_size": PIXELS, "patch_size": PATCH, **LAYERS},
}
STOCK: dict[str, tuple[type, ...]] = {
    "bert": (transformers.BertModel, transformers.BertForSequenceClassification, transformers.BertForMaskedLM),
    "roberta": (
        transformers.RobertaModel,
        transformers.RobertaForSequenceClassification,
        transformers.RobertaForMaskedLM,
    ),
    "distilbert": (
        transformers.DistilBertModel,
        transformers.DistilBertForSequenceClassification,
        transformers.DistilBertForMaskedLM,
    ),
    "vit": (transformers.ViTModel, transformers.ViTForImageClassification),
}


class Tester:
    """Small settings and inputs, under the names that the common tests ask for."""

    is_training = True
    batch_size, hidden_size, num_hidden_layers, num_attention_heads = ROWS, 32, 2, 4
    image_size, patch_size, num_channels = PIXELS, PATCH, 3
    num_masks, mask_length = 3, PATCHES

    def __init__(self, classes: tuple[Any, ...], settings: dict[str, Any]) -> None:
        self.config_class, self.settings = classes[0].config_class, settings
        self.causal_lm_class = next((one for one in classes if one.can_generate()), None)
        self.sees = "image_size" in settings
        self.seq_length = PATCHES + 1 if self.sees else LENGTH  # and the class token

    def get_config(self) -> Any:
        return self.config_class(**self.settings)

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        if self.sees:
            return self.get_config(), {"pixel_values": common.floats_tensor([ROWS, 3, PIXELS, PIXELS])}
        tokens = common.ids_tensor([ROWS, LENGTH], WORDS - 2) + 2  # neither of the ids of padding
        return self.get_config(), {"input_ids": tokens, "attention_mask": common.random_attention_mask([ROWS, LENGTH])}


class Judged(common.ModelTesterMixin, unittest.TestCase):
    """The common tests on ``all_model_classes``, and those of their config."""

    settings: dict[str, Any]

    def setUp(self) -> None:
        transformers.set_seed(0)
        common.global_rng.seed(0)
        self.model_tester = Tester(self.all_model_classes, self.settings)

    def test_config(self) -> None:
        tester = self.model_tester
        width = {"dim" if "dim" in self.settings else "hidden_size": 36}
        ConfigTester(self, tester.config_class, has_text_modality=not tester.sees, **width).run_common_tests()

    def test_generation_tester_mixin_inheritance(self) -> None:
        if self.all_generative_model_classes:
            self.skipTest("GenerationTesterMixin is in no archive")  # an empty one would pass


class Trained(TrainingTesterMixin):
    """A language model learns one batch by heart, and says it."""

    def test_training_overfit(self) -> None:
        # The gradient of the last step is held against that of the first, and dropout is noise on it.
        self.model_tester.settings = {**self.model_tester.settings, **dict.fromkeys(DROPOUT, 0.0)}
        super().test_training_overfit()


def judge(name: str, classes: tuple[Any, ...], settings: dict[str, Any], *mixins: type) -> type:
    """The tests of some classes, as a class that pytest finds under ``name``."""
    body = {
        "all_model_classes": classes,
        "settings": settings,
        "test_resize_embeddings": "vocab_size" in settings,
        "__module__": __name__,
    }
    return type(name, (Judged, *mixins), body)


# The tests look up what a model is for, and so which labels it gets, in tables that `register` of the Auto classes
# does not write to.
KNOWN = [(auto, DATransformerConfig, model) for auto, model in AUTO_MODELS.items()]
for auto, config, model in [*KNOWN, *((auto, turned.config_class, turned) for auto, _, turned in auto_classes())]:
    auto._model_mapping._model_mapping[config.model_type] = model.__name__

SUITES = {
    mixer: judge(mixer, tuple(AUTO_MODELS.values()), {**SETTINGS["datransformer"], "attention": mixer}, Trained)
    for mixer in MIXERS
}
for kind in SELF_ATTENTION:
    turned_kind = tuple(turned_classes()[stock] for stock in STOCK[kind])
    SUITES[f"{PREFIX}{kind}"] = judge(f"{PREFIX}{kind}", turned_kind, SETTINGS[kind])
    SUITES[f"stock_{kind}"] = judge(f"stock_{kind}", STOCK[kind], SETTINGS[kind])
globals().update(SUITES)  # where pytest looks
