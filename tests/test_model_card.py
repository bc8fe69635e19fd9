"""The card, made from facts at hand."""

import ast
import re

from huggingface_hub import ModelCard

from modeling_vanilla.model_card import write_card

FACTS = {
    "source_lang": "en",
    "target_lang": "de",
    "data": "files",
    "pairs": "kept 9 of 10 pairs (90.0%); dropped: duplicate 1",
    "parameters": 1234567,
    "config": {"d_model": 16},
    "settings": {"seed": 1},
    "updates": 10,
    "seconds": 90.0,
    "hardware": "1 × CPU",
    "results": [{"dataset": "test", "name": "BLEU", "value": 31.256, "interval": None, "signature": "nrefs:1|tok:13a"}],
    "samples": [{"source": 'He said "a\\b | c".', "translation": "Er sagte es.", "target": "Er sagte |."}],
    "versions": {"torch": "2"},
}


def test_card_says_the_facts(tmp_path):
    card = ModelCard.load(write_card(tmp_path, FACTS))
    for text in ("1,234,567 parameters", "kept 9 of 10 pairs", "31.26", "nrefs:1|tok:13a", "in 2 minutes on 1 × CPU"):
        assert text in card.text
    assert card.data.language == ["en", "de"]
    assert card.data.eval_results[0].metric_value == 31.26


def test_example_is_python_whatever_the_sentence(tmp_path):
    block = re.search(r"```python\n(.*?)```", write_card(tmp_path, FACTS).read_text(), re.DOTALL).group(1)
    texts = [node.value for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Constant)]
    assert FACTS["samples"][0]["source"] in texts


def test_what_is_not_known_is_said_to_be_unknown(tmp_path):
    facts = {**FACTS, "source_lang": None, "target_lang": None, "results": [], "samples": [], "updates": None}
    text = write_card(tmp_path, facts).read_text()
    assert "translates unknown languages" in text
    assert "Updates: unknown" in text
    assert "none are known" in text
