"""From a checkpoint to text."""

from modeling_vanilla.decoding.glossary import Glossary
from modeling_vanilla.decoding.translator import Scored, Translation, Translator

__all__ = ["Glossary", "Scored", "Translation", "Translator"]
