"""Pictures of attention in scripts that matplotlib's own font doesn't have."""

import warnings

import pytest

from modeling_vanilla.decoding import Translator
from modeling_vanilla.decoding.alignment import draw, fonts_with

pytest.importorskip("matplotlib")
LETTER, NOWHERE = "\u1d84", "漢"  # in STIX, which comes with matplotlib; in none of those that do


@pytest.fixture
def translator(trained, monkeypatch):
    """One whose tokens have those letters, on a machine with matplotlib's fonts alone."""
    from matplotlib import font_manager

    own = [font for font in font_manager.fontManager.ttflist if "mpl-data" in font.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    translator = Translator.from_pretrained(trained)
    tokens = translator.tokenizer.convert_ids_to_tokens
    monkeypatch.setattr(
        translator.tokenizer, "convert_ids_to_tokens", lambda ids: [LETTER + NOWHERE + token for token in tokens(ids)]
    )
    return translator


@pytest.mark.parametrize("name", ["a.png", "a.svg", "a.pdf"])
def test_letters_that_no_font_has_are_said_in_one_line(translator, tmp_path, caplog, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(translator.model, translator.tokenizer, "The dog.", "Der Hund.", tmp_path / name)
    messages = [record.getMessage() for record in caplog.records if record.name.endswith("alignment")]
    if name == "a.svg":
        assert not messages
        assert LETTER + NOWHERE in (tmp_path / name).read_text(encoding="utf-8")
    else:
        assert messages == [
            f"{tmp_path / name}: no font here has {NOWHERE}: an .svg leaves the letters to what shows it"
        ]


def test_a_font_that_has_the_letters_is_found(translator, tmp_path):
    from matplotlib import rcParams

    usual = rcParams["font.family"]
    assert fonts_with("The dog.␣") == (usual, "")
    families, missing = fonts_with(f"a{LETTER}{NOWHERE}\n")
    assert (families[: len(usual)], missing) == (usual, NOWHERE)
    assert len(families) == len(usual) + 1
    draw(translator.model, translator.tokenizer, "The dog.", "Der Hund.", tmp_path / "a.svg")
    assert families[-1] in (tmp_path / "a.svg").read_text(encoding="utf-8")
