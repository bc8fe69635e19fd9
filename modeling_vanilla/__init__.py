"""The Transformer of "Attention Is All You Need" as a first-class Hugging Face model."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast

from .configuration_vanilla import VanillaConfig
from .modeling_vanilla import VanillaForConditionalGeneration, VanillaModel, VanillaPreTrainedModel

__version__ = "0.1.0"

AutoConfig.register(VanillaConfig.model_type, VanillaConfig, exist_ok=True)
AutoModel.register(VanillaConfig, VanillaModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(VanillaConfig, VanillaForConditionalGeneration, exist_ok=True)
AutoTokenizer.register(VanillaConfig, fast_tokenizer_class=PreTrainedTokenizerFast, exist_ok=True)

__all__ = [
    "VanillaConfig",
    "VanillaForConditionalGeneration",
    "VanillaModel",
    "VanillaPreTrainedModel",
    "__version__",
]
