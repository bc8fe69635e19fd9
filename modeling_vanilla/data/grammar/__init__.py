"""The built-in corpus: everyday Chinese sentences with their English translations, drawn from a grammar.

One abstract `Clause` (who does what to what, when, where, in which mode) is spelled out by `chinese` and by `english`,
so that both sides always say the same. A Chinese sentence has exactly one translation, but not a word-by-word one:
time and place move to the end, question words move to the front, and articles, agreement, plurals, tenses and
do-support come from the English side alone.

Each module builds on those before it: `lexicon` (words, as tables), `clause` (one clause in both languages),
`vocabulary`, `events` and `states` (what is drawn at random), and `corpus` with the two entry points,
`generate_pairs` and `built_in_splits`.
"""

from modeling_vanilla.data.grammar.corpus import (
    MAX_HELD_OUT,
    MAX_PAIRS,
    built_in_splits,
    draw_sentence,
    generate_pairs,
    is_held_out,
)

__all__ = ["MAX_HELD_OUT", "MAX_PAIRS", "built_in_splits", "draw_sentence", "generate_pairs", "is_held_out"]
