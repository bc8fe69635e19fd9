"""The model card: a template, and what fills it in."""

from .card import write_card

__all__ = ["write_card"]
