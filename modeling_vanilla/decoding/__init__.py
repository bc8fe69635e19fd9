"""From a checkpoint to text."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modeling_vanilla.decoding.glossary import Glossary
    from modeling_vanilla.decoding.scoring import Scored
    from modeling_vanilla.decoding.translator import Translation, Translator

__all__ = ["Glossary", "Scored", "Translation", "Translator"]


def __getattr__(name: str) -> Any:
    """The names above, imported when asked for: `import modeling_vanilla` needs the search, and not datasets."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from modeling_vanilla.decoding import glossary, scoring, translator

    return getattr({"Glossary": glossary, "Scored": scoring}.get(name, translator), name)
