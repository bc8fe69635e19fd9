"""The library's common tests of models, configurations, training and export on all our model classes."""

import inspect
import unittest
from collections.abc import Callable
from typing import Any, ClassVar, Unpack
from unittest import mock

import pytest
import torch
from tests.generation.test_utils import GenerationTesterMixin
from tests.test_configuration_common import ConfigTester
from tests.test_memory_cleanup_mixin import MemoryCleanupMixin
from tests.test_modeling_common import ModelTesterMixin, floats_tensor, ids_tensor, random_attention_mask
from tests.test_monkey_patching import MonkeyPatchTest  # noqa: F401  (a test class, to be run as it is)
from tests.test_training_mixin import TrainingTesterMixin
from transformers import AutoModelForTextEncoding
from transformers.models.auto import modeling_auto
from transformers.testing_utils import torch_device
from transformers.utils import TransformersKwargs

from modeling_vanilla import (
    VanillaConfig,
    VanillaEncoderModel,
    VanillaForCausalLM,
    VanillaForConditionalGeneration,
    VanillaForImageClassification,
    VanillaForSequenceClassification,
    VanillaModel,
)
from tests import test_executorch

# The tests look up here, by name, which classes have which head: for these they make labels.
for mapping, name in {
    "MODEL_MAPPING_NAMES": ("VanillaModel", "VanillaEncoderModel"),
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "VanillaForConditionalGeneration",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "VanillaForSequenceClassification",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "VanillaForImageClassification",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "VanillaForCausalLM",
}.items():
    getattr(modeling_auto, mapping)[VanillaConfig.model_type] = name


def on_cpu_too(test: Callable) -> Callable:
    """One of the library's tests that asks for an accelerator, without that question where there is none."""
    return inspect.unwrap(test) if torch_device == "cpu" else test


class Tester:
    """What a test asks of a model: a small config and a batch of inputs."""

    __test__ = False
    batch_size = 3
    seq_length = encoder_seq_length = decoder_seq_length = key_length = 7
    vocab_size, hidden_size, num_hidden_layers, num_attention_heads = 99, 32, 2, 4
    is_training = True
    changes: ClassVar[dict[str, Any]] = {}

    def get_config(self) -> VanillaConfig:
        return VanillaConfig(
            vocab_size=self.vocab_size,
            d_model=self.hidden_size,
            encoder_layers=self.num_hidden_layers,
            decoder_layers=self.num_hidden_layers,
            encoder_attention_heads=self.num_attention_heads,
            decoder_attention_heads=self.num_attention_heads,
            encoder_ffn_dim=37,
            decoder_ffn_dim=37,
            max_position_embeddings=40,
            **self.changes,
        )

    def inputs(self) -> dict[str, torch.Tensor]:
        shape = [self.batch_size, self.seq_length]
        return {"input_ids": ids_tensor(shape, self.vocab_size), "attention_mask": random_attention_mask(shape)}

    def prepare_config_and_inputs_for_common(self) -> tuple[VanillaConfig, dict[str, torch.Tensor]]:
        return self.get_config(), self.inputs()


class CommonTests(MemoryCleanupMixin, ModelTesterMixin, TrainingTesterMixin):
    """All the mixins; a subclass names its model classes and its tester."""

    run_under_no_grad = False  # half of the tests train
    tester: type[Tester]
    model_tester = None

    def setUp(self) -> None:
        super().setUp()
        self.model_tester = self.tester()
        is_text = "input_ids" in self.model_tester.inputs()
        self.config_tester = ConfigTester(self, VanillaConfig, is_text, d_model=40)
        for model_class in self.all_model_classes:
            # A test reads from this annotation whether a model gives attention weights; ours says Any.
            inspect.unwrap(model_class.forward).__annotations__["kwargs"] = Unpack[TransformersKwargs]

    def test_config(self) -> None:
        self.config_tester.run_common_tests()

    @pytest.mark.torch_compile_test
    def test_flex_attention_with_grads(self) -> None:
        # PyTorch's flex attention has no backward pass on a CPU. The test makes none either, but is ready to.
        with torch.set_grad_enabled(torch_device != "cpu"):
            on_cpu_too(ModelTesterMixin.test_flex_attention_with_grads)(self)

    @pytest.mark.torch_compile_test
    def test_torch_compile_for_training(self) -> None:
        # Without dropout, which compiled code draws differently. The test gives ten labels a text: to a classifier, ten
        # numbers to predict.
        changes = {"dropout": 0.0, "num_labels": 10, "problem_type": "regression"}
        self.model_tester.changes = self.tester.changes | changes
        on_cpu_too(ModelTesterMixin.test_torch_compile_for_training)(self)


class Seq2SeqTester(Tester):
    causal_lm_class = VanillaForConditionalGeneration  # the training loop's name for what it trains

    def inputs(self) -> dict[str, torch.Tensor]:
        return super().inputs() | {f"decoder_{name}": value for name, value in super().inputs().items()}


class Seq2SeqTest(CommonTests, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (VanillaModel, VanillaForConditionalGeneration)
    is_encoder_decoder = True
    tester = Seq2SeqTester
    _torch_compile_train_cls = VanillaForConditionalGeneration

    def _create_text_training_batch(self, *args: int, **kwargs: int) -> dict[str, torch.Tensor]:
        # The loop was written for language models: in the end it gives the pattern's first token and wants the pattern
        # back. Here that token is the source, so training sees no other; and what is generated begins with
        # decoder_start_token_id, which is that token too, so the labels are those after it.
        batch = super()._create_text_training_batch(*args, **kwargs)
        mask = torch.zeros_like(batch["input_ids"])
        mask[:, 0] = 1
        return batch | {"labels": batch["labels"][:, 1:], "attention_mask": mask}


class EncoderTester(Tester):
    changes: ClassVar = {"is_encoder_decoder": False}
    sequence_classification_class = VanillaForSequenceClassification


class EncoderTest(CommonTests, unittest.TestCase):
    all_model_classes = (VanillaEncoderModel, VanillaForSequenceClassification)
    tester = EncoderTester
    _torch_compile_train_cls = VanillaForSequenceClassification

    def _create_text_training_batch(self, *args: int, **kwargs: int) -> dict[str, torch.Tensor]:
        # The loop's labels are tokens and its texts all the same; a classifier needs one label a text, and two texts.
        (text, *_) = super()._create_text_training_batch(*args, **kwargs)["input_ids"]
        return {"input_ids": torch.stack((text, text.flip(0))), "labels": torch.tensor([0, 1])}

    def test_load_with_mismatched_shapes(self) -> None:
        # AutoModel stands for encoder and decoder together: the encoder alone has an auto class of its own.
        with mock.patch("tests.test_modeling_common.AutoModel", AutoModelForTextEncoding):
            super().test_load_with_mismatched_shapes()


class CausalLMTester(Tester):
    causal_lm_class = VanillaForCausalLM
    changes: ClassVar = {"is_encoder_decoder": False}


class CausalLMTest(CommonTests, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (VanillaForCausalLM,)
    tester = CausalLMTester
    _torch_compile_train_cls = VanillaForCausalLM


class ImageTester(Tester):
    seq_length = encoder_seq_length = key_length = 9
    changes: ClassVar = {"is_encoder_decoder": False, "image_size": 12, "patch_size": 4}

    def inputs(self) -> dict[str, torch.Tensor]:
        return {"pixel_values": floats_tensor([self.batch_size, 3, 12, 12])}


class ImageTest(CommonTests, unittest.TestCase):
    all_model_classes = (VanillaForImageClassification,)
    tester = ImageTester
    test_resize_embeddings = False  # there are no words

    def _get_model_modality(self) -> str:
        return "text"  # the only one that the training loop knows; it asks for nothing but a batch

    def _create_text_training_batch(self, *args: int, **kwargs: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.model_tester.inputs()["pixel_values"][:2], "labels": torch.tensor([0, 1])}

    def test_model_get_set_embeddings(self) -> None:
        # As the library's ViT does: what comes in here is a projection of pixels, not an nn.Embedding.
        model = VanillaForImageClassification(self.model_tester.get_config())
        assert model.get_input_embeddings() is model.patch_projection
        model.set_input_embeddings(projection := torch.nn.Linear(48, 32))
        assert model.get_input_embeddings() is projection
        assert model.get_output_embeddings() is None


class ExportTest(test_executorch.ExecutorchTest):
    """Export for ExecuTorch, with our language model in the place of the one that the tests would download."""

    def setUp(self) -> None:
        model = VanillaForCausalLM(CausalLMTester().get_config())
        with mock.patch.object(test_executorch.AutoModelForCausalLM, "from_pretrained", return_value=model):
            super().setUp()
