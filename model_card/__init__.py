"""The model card: a template, and what fills it in."""

from modeling_vanilla.model_card.card import write_card

__all__ = ["write_card"]
