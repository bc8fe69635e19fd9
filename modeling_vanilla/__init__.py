"""The Transformer of "Attention Is All You Need" as a first-class Hugging Face model."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .configuration_vanilla import VanillaConfig
from .decoding.search import take_over
from .heads import (
    VanillaEncoderModel,
    VanillaForCausalLM,
    VanillaForImageClassification,
    VanillaForSequenceClassification,
)
from .interop import int8  # noqa: F401  (registers what loads such weights)
from .interop.hub import carry_code
from .interop.peft import default_targets
from .modeling_vanilla import VanillaForConditionalGeneration, VanillaModel, VanillaPreTrainedModel

__version__ = "0.1.0"

AutoConfig.register(VanillaConfig.model_type, VanillaConfig, exist_ok=True)
AUTO_CLASSES = {
    AutoModel: VanillaModel,
    AutoModelForSeq2SeqLM: VanillaForConditionalGeneration,
    AutoModelForTextEncoding: VanillaEncoderModel,
    AutoModelForSequenceClassification: VanillaForSequenceClassification,
    AutoModelForImageClassification: VanillaForImageClassification,
    AutoModelForCausalLM: VanillaForCausalLM,
}
for auto, model in AUTO_CLASSES.items():
    auto.register(VanillaConfig, model, exist_ok=True)
# By this table the library's Trainer knows whose labels to shift when it smooths them.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[VanillaConfig.model_type] = VanillaForCausalLM.__name__
AutoTokenizer.register(VanillaConfig, fast_tokenizer_class=PreTrainedTokenizerFast, exist_ok=True)
take_over(VanillaForConditionalGeneration)  # the package's search, which a Hub repository doesn't carry
carry_code(VanillaConfig, VanillaPreTrainedModel)
default_targets()

__all__ = [
    "VanillaConfig",
    "VanillaEncoderModel",
    "VanillaForCausalLM",
    "VanillaForConditionalGeneration",
    "VanillaForImageClassification",
    "VanillaForSequenceClassification",
    "VanillaModel",
    "VanillaPreTrainedModel",
    "__version__",
]
