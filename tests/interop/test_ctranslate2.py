"""Models on CTranslate2's engine: the same tokens and scores as ours."""

import json
import shutil
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_vanilla.decoding import Glossary, Translator
from modeling_vanilla.interop import ctranslate2 as ours
from modeling_vanilla.scripts.main import main
from tests.fixtures import corpus

pytest.importorskip("ctranslate2")
SOURCES = [source for source, _ in corpus(5, 2700, 45)]


@pytest.fixture(scope="module")
def converted(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ct2") / "float32"
    ours.convert(trained, folder)
    return folder


@pytest.mark.parametrize(("num_beams", "length_penalty"), [(1, 1.0), (4, 1.0), (4, 0.3)])
def test_translations_and_scores_are_ours(trained, converted, num_beams, length_penalty):
    """Its beam search ends as ours does with early_stopping=True."""
    settings = {"num_beams": num_beams, "early_stopping": True, "length_penalty": length_penalty}
    expected = Translator.from_pretrained(trained).translate(SOURCES, **settings)
    found = Translator.from_pretrained(converted, engine="ctranslate2").translate(SOURCES, **settings)
    assert [t.text for t in found] == [t.text for t in expected]
    assert [t.score for t in found] == pytest.approx(
        [t.score for t in expected], abs=1e-3
    )  # its exp is an approximation


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_position": "pre"},
        {"position_encoding": "learned", "max_position_embeddings": 200, "position_offset": 2},
        {"activation_function": "gelu"},
        {"use_bias": False},
        {"output_bias": False},
        {"tied_embeddings": "none"},
        {"scale_embedding": False},
        {"sinusoid_layout": "tensor2tensor", "position_offset": 2},
        {"encoder_layers": 1, "decoder_layers": 3, "encoder_ffn_dim": 24},
    ],
    ids=str,
)
def test_every_kind_of_model_that_it_takes(trained, lively, tmp_path, changes):
    translator = Translator.from_pretrained(trained)
    config = translator.model.config
    sizes = {"vocab_size": config.vocab_size, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = lively(4, **sizes, decoder_vocab_size=config.vocab_size, **changes)
    model.save_pretrained(tmp_path / "model")
    translator.tokenizer.save_pretrained(tmp_path / "model")
    ours.convert(tmp_path / "model", tmp_path / "ct2")
    settings = {"num_beams": 1, "max_tokens": 100}
    expected = Translator.from_pretrained(tmp_path / "model").translate(SOURCES[:20], **settings)
    found = Translator.from_pretrained(tmp_path / "ct2", engine="ctranslate2").translate(SOURCES[:20], **settings)
    assert [t.text for t in found] == [t.text for t in expected]


def test_learned_positions_are_room_for_so_many_tokens(trained, lively, tmp_path):
    tokenizer = Translator.from_pretrained(trained).tokenizer
    config = AutoConfig.from_pretrained(trained)
    changes = {"position_encoding": "learned", "max_position_embeddings": 40, "decoder_attention_heads": 2}
    lively(4, vocab_size=config.vocab_size, decoder_vocab_size=config.vocab_size, **changes).save_pretrained(
        tmp_path / "model"
    )
    tokenizer.save_pretrained(tmp_path / "model")
    ours.convert(tmp_path / "model", tmp_path / "ct2")
    expected, found = (Translator.from_pretrained(tmp_path / name).translate(SOURCES[:5], num_beams=1)
                       for name in ("model", "ct2"))  # fmt: skip
    assert [t.text for t in found] == [t.text for t in expected]


def test_positions_reach_as_far_as_the_tokenizer_lets_texts(trained, tmp_path):
    """And the 50 tokens that a translation may be longer: the engine's table doesn't grow."""
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(trained / name, tmp_path)
    Translator.from_pretrained(trained).tokenizer.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 3000}))
    ours.convert(tmp_path, tmp_path / "ct2")
    translator = Translator.from_pretrained(tmp_path / "ct2")
    long = "the " * 2500
    assert 2048 < len(translator.tokenizer(long).input_ids) <= 3000
    (found,) = translator.translate([long], num_beams=1, max_len_a=0, max_len_b=5)
    assert found.text


@pytest.mark.parametrize(("name", "content"), [("tokenizer.json", "{}"), ("tokenizer.json", "{"),
                                               ("generation_config.json", None), ("config.json", "[")])  # fmt: skip
def test_a_spoiled_folder_is_named(converted, tmp_path, name, content):
    shutil.copytree(converted, tmp_path / "ct2")
    (tmp_path / "ct2" / name).unlink()
    if content:
        (tmp_path / "ct2" / name).write_text(content)
    with pytest.raises(ValueError, match=r"ct2: (can't load the tokenizer and settings|CTranslate2 can't open it)"):
        Translator.from_pretrained(tmp_path / "ct2")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"position_encoding": "rotary"}, "rotary"),
        ({"d_k": 6}, "d_k"),
        ({"encoder_attention_heads": 2, "decoder_attention_heads": 4}, "heads"),
        ({"activation_function": "relu2"}, "relu2"),
        ({"position_encoding": "alibi"}, "alibi"),
        ({"tied_embeddings": "none", "decoder_vocab_size": 30}, "separate vocabularies"),
    ],
)
def test_what_it_cannot_compute_is_refused(tiny_config, changes, said):
    with pytest.raises(ValueError, match=said):
        ours.check_config(tiny_config(**changes))


def test_int8_translates_much_alike(trained, tmp_path):
    ours.convert(trained, tmp_path / "int8", "int8")
    expected = Translator.from_pretrained(trained).translate(SOURCES, num_beams=1)
    found = Translator.from_pretrained(tmp_path / "int8", engine="ctranslate2").translate(SOURCES, num_beams=1)
    assert sum(a.text == b.text for a, b in zip(found, expected, strict=True)) > 0.7 * len(SOURCES)


def test_an_argument_that_only_our_models_know_is_refused(converted):
    with pytest.raises(ValueError, match="engine='ctranslate2' knows no attn_implementation"):
        Translator.from_pretrained(converted, attn_implementation="eager")


def test_threads_are_as_before(converted):
    before = torch.get_num_threads()
    Translator.from_pretrained(converted, engine="ctranslate2")
    assert torch.get_num_threads() == before


def test_empty_and_long_texts_are_as_ever(converted):
    translator = Translator.from_pretrained(converted, engine="ctranslate2")
    long = " ".join(SOURCES)
    empty, joined = translator.translate(["", long])
    translator.tokenizer.model_max_length = 30
    assert (empty.text, bool(joined.text)) == ("", True)
    with pytest.raises(ValueError, match="text 1 has"):
        translator.translate([long], on_too_long="refuse")


def test_a_long_source_is_read_to_its_end(trained, converted):
    """The engine's own limit is 1,024 tokens, and what is longer was cut there in silence."""
    long = " ".join(SOURCES)
    engine, ours_alone = (Translator.from_pretrained(folder) for folder in (converted, trained))
    for translator in (engine, ours_alone):
        translator.tokenizer.model_max_length = 5000
    while len(engine.tokenizer(long)["input_ids"]) < 1100:
        long += " " + long
    settings = {"num_beams": 1, "max_len_a": 0, "max_len_b": 60}
    (found,), (expected,) = (t.translate([long], **settings) for t in (engine, ours_alone))
    (cut,) = engine.translate([engine.tokenizer.decode(engine.tokenizer(long)["input_ids"][:1000])], **settings)
    assert found.text == expected.text
    assert found.score != pytest.approx(cut.score, abs=1e-4)


def test_a_search_without_an_early_end_is_refused(converted):
    with pytest.raises(ValueError, match="can't search until nothing better can come"):
        Translator.from_pretrained(converted).translate(["the"], early_stopping="never")


@pytest.mark.parametrize(("settings", "message"), [
    ({"prefixes": ["x"]}, "knows no prefixes"), ({"glossary": Glossary({"no": "x"})}, "knows no prefixes, glossary"),
    ({"length_penalty_type": "paper", "num_beams": 4}, "length_penalty_type paper"),
    ({"top_k": 3}, "doesn't know top_k"), ({"do_sample": True}, "doesn't know do_sample"),
])  # fmt: skip
def test_what_the_engine_does_not_know_is_refused(converted, settings, message):
    with pytest.raises(ValueError, match=message):
        Translator.from_pretrained(converted).translate(["the"], **{"num_beams": 2} | settings)


def test_a_setting_that_changes_nothing_is_no_reason_to_refuse(converted):
    translator = Translator.from_pretrained(converted)
    neutral = {"do_sample": False, "forced_bos_token_id": None, "guidance_scale": 1.0}
    assert translator.translate(SOURCES, **neutral) == translator.translate(SOURCES)


@pytest.mark.parametrize("verb", ["score", "align"])
def test_given_translations_are_neither_scored_nor_aligned(converted, verb):
    with pytest.raises(ValueError, match="neither scores nor aligns"):
        getattr(Translator.from_pretrained(converted), verb)(["the"], ["x"])


def test_what_a_model_says_and_the_engine_does_not_know_is_said_at_once(trained, tmp_path, caplog):
    model = AutoModelForSeq2SeqLM.from_pretrained(trained)
    model.generation_config.update(early_stopping="never", length_penalty_type="paper", num_beams=4)
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(trained).save_pretrained(tmp_path / "model")
    ours.convert(tmp_path / "model", tmp_path / "ct2")
    assert "its early_stopping is never, which CTranslate2 doesn't know: give true or false" in caplog.text
    assert "its length_penalty_type is paper" in caplog.text
    with pytest.raises(ValueError, match="can't search until nothing better can come"):
        Translator.from_pretrained(tmp_path / "ct2").translate(["the"], length_penalty_type="power")


def converted_with(trained, folder, **settings):
    """A converted model whose generation config has these."""
    model = AutoModelForSeq2SeqLM.from_pretrained(trained)
    model.generation_config.update(num_beams=1, **settings)
    model.save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(trained).save_pretrained(folder / "model")
    ours.convert(folder / "model", folder / "ct2")
    return Translator.from_pretrained(folder / "ct2")


@pytest.mark.parametrize(
    "settings",
    [
        {"min_new_tokens": 30}, {"min_length": 31}, {"min_new_tokens": 900}, {"repetition_penalty": 5.0},
        {"no_repeat_ngram_size": 1}, {"suppress_tokens": 1}, {"bad_words_ids": 2},
    ],
    ids=lambda settings: next(iter(settings)),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Unfeasible length")
def test_what_a_model_says_of_its_search_is_done(trained, converted, tmp_path, settings):
    """By its generation config, or in a call; numbers stand for as many tokens of a translation."""
    own = Translator.from_pretrained(trained)
    plain = [t.text for t in own.translate(SOURCES, num_beams=1)]
    ids = own.tokenizer(plain[0]).input_ids
    if "suppress_tokens" in settings:
        settings = {"suppress_tokens": [ids[1]]}
    if "bad_words_ids" in settings:
        settings = {"bad_words_ids": [ids[1:3], [ids[4]]]}
    expected = [t.text for t in own.translate(SOURCES, num_beams=1, **settings)]
    assert expected != plain
    assert [t.text for t in converted_with(trained, tmp_path, **settings).translate(SOURCES)] == expected
    found = Translator.from_pretrained(converted).translate(SOURCES, num_beams=1, **settings)
    assert [t.text for t in found] == expected


def test_what_a_model_says_and_the_engine_cannot_do_is_left_out_and_said(trained, tmp_path, caplog):
    settings = {"do_sample": True, "temperature": 3.0, "encoder_repetition_penalty": 1.0, "eos_token_id": [2, 9]}
    translator = converted_with(trained, tmp_path, **settings)
    assert caplog.text.count("left out") == 2
    assert "its do_sample=True is left out" in caplog.text
    assert "its eos_token_id=[2, 9] is left out" in caplog.text
    expected = Translator.from_pretrained(trained).translate(SOURCES, num_beams=1)
    assert [t.text for t in translator.translate(SOURCES)] == [t.text for t in expected]
    with pytest.raises(ValueError, match="n_best=2"):
        translator.translate(["the"], n_best=2)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("max_len_b", [2, 12, 16])
def test_scores_of_what_is_cut_off_are_ours(trained, converted, num_beams, max_len_b):
    settings = {"num_beams": num_beams, "early_stopping": True, "length_penalty": 0.7, "max_len_a": 0}
    expected, found = (
        Translator.from_pretrained(folder).translate(SOURCES, max_len_b=max_len_b, **settings)
        for folder in (trained, converted)
    )
    assert [t.text for t in found] == [t.text for t in expected]
    assert [t.score for t in found] == pytest.approx([t.score for t in expected], abs=1e-3)


def test_a_device_may_have_a_number(converted, monkeypatch):
    translator = Translator.from_pretrained(converted, device="cpu:0")
    assert (translator.engine.device, translator.engine.device_index) == ("cpu", [0])
    asked = {}

    def record(folder, **settings):
        asked.update(settings)
        raise ValueError("no such device")

    monkeypatch.setattr(ours.library(), "Translator", record)
    with pytest.raises(ValueError, match="can't open it: no such device"):
        Translator.from_pretrained(converted, device="cuda:1")
    assert (asked["device"], asked["device_index"]) == ("cuda", 1)


def test_the_command_line_converts_and_translates(trained, tmp_path, capsys):
    file = tmp_path / "source"
    file.write_text("\n".join(SOURCES[:3]) + "\n", encoding="utf-8")
    assert main(["convert", str(trained), str(tmp_path / "ct2"), "--to", "ctranslate2"]) == 0
    capsys.readouterr()
    assert main(["translate", str(tmp_path / "ct2"), str(file), "--engine", "ctranslate2", "--num_beams", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [t.text for t in Translator.from_pretrained(trained).translate(SOURCES[:3], num_beams=1)]
    assert main(["convert", str(trained), str(tmp_path / "ct2"), "--to", "ctranslate2"]) == 2
    assert "is there already" in capsys.readouterr().err


def test_a_folder_without_a_converted_model_is_a_clear_error(trained):
    with pytest.raises(ValueError, match="no CTranslate2 model there"):
        Translator.from_pretrained(trained, engine="ctranslate2")


def test_without_the_extra_it_says_how_to_get_it(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ValueError, match=r"vanilla-transformer\[ctranslate2\]"):
        ours.convert(trained, tmp_path / "ct2")


def test_no_room_for_words_is_an_empty_translation(converted):
    assert [t.text for t in Translator.from_pretrained(converted).translate(SOURCES[:2], max_len_a=0, max_len_b=0)] == [
        "", "",
    ]  # fmt: skip
