"""From a checkpoint to text."""

from modeling_vanilla.decoding.translator import Translation, Translator

__all__ = ["Translation", "Translator"]
