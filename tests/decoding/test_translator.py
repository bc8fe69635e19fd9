"""`Translator`: order, batches, scores, ugly input."""

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration

from modeling_vanilla import VanillaForCausalLM, VanillaForImageClassification, VanillaForSequenceClassification
from modeling_vanilla.decoding import Glossary, Translation, Translator
from modeling_vanilla.decoding.translator import _join, as_line
from tests.fixtures import corpus

SOURCES = [source for source, _ in corpus(2, 2700, 182)]


@pytest.fixture(scope="module")
def translator(trained):
    return Translator.from_pretrained(trained)


def log_prob(translator, source, target):
    """log p(target | source) and the target's length, from the model's full logits."""
    source, target = (torch.tensor([translator.tokenizer(text).input_ids]) for text in (source, target))
    logits = translator.model(input_ids=source, labels=target).logits[0]
    return logits.log_softmax(-1)[range(target.shape[1]), target[0]].sum().item(), target.shape[1]


def test_order_is_kept_whatever_the_batches(translator):
    alone = [translator.translate([source])[0].text for source in SOURCES]
    for max_tokens in (8192, 100, 1):
        assert [t.text for t in translator.translate(SOURCES, max_tokens=max_tokens)] == alone


def test_equals_the_models_own_generate(translator):
    batch = translator.tokenizer(SOURCES, return_tensors="pt", padding=True)
    generated = translator.tokenizer.batch_decode(translator.model.generate(**batch), skip_special_tokens=True)
    assert [t.text for t in translator.translate(SOURCES)] == generated


def test_a_model_that_asks_for_a_static_cache_gets_it(translator, monkeypatch):
    expected = [t.text for t in translator.translate(SOURCES[:2])]
    monkeypatch.setattr(translator.generation_config, "cache_implementation", "static")
    assert [t.text for t in translator.translate(SOURCES[:2])] == expected


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_score_is_the_log_probability_over_the_length_penalty(translator, num_beams, length_penalty):
    for source in SOURCES[:4]:
        (translation,) = translator.translate([source], num_beams=num_beams, length_penalty=length_penalty)
        total, length = log_prob(translator, source, translation.text)
        assert translation.score == pytest.approx(total / length**length_penalty, abs=1e-4)


@pytest.mark.parametrize("as_ensemble", [False, True])
def test_another_librarys_model_is_refused_by_name(translator, as_ensemble):
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
    other = BartForConditionalGeneration(BartConfig(vocab_size=9, max_position_embeddings=9, **sizes, **heads))
    models = (translator.model, [other]) if as_ensemble else (other, [])
    with pytest.raises(ValueError, match="BartForConditionalGeneration: a bart model, not one of ours: use"):
        Translator(models[0], translator.tokenizer, models[1])


def test_greedy_scores_do_not_depend_on_the_batch(translator):
    together = translator.translate(SOURCES, num_beams=1)
    for source, translation in zip(SOURCES, together, strict=True):
        assert translator.translate([source], num_beams=1)[0].score == pytest.approx(translation.score, abs=1e-5)


def test_n_best_are_different_sorted_and_begin_with_the_best(translator):
    for translation in translator.translate(SOURCES, n_best=4):
        texts, scores = zip(*translation.n_best, strict=True)
        assert len(texts) == 4
        assert list(scores) == sorted(scores, reverse=True)
        assert (texts[0], scores[0]) == (translation.text, translation.score)


@pytest.mark.parametrize("empty", ["", " ", "\t", "\u3000"])
def test_empty_lines_stay_empty(translator, empty):
    translations = translator.translate([SOURCES[0], empty, SOURCES[1]], n_best=2)
    assert translations[1] == Translation("", 0.0, (("", 0.0),))
    assert translations[0].text
    assert translations[2].text


@pytest.mark.parametrize("num_beams", [1, 3])
def test_translating_says_nothing(translator, num_beams, caplog, recwarn, monkeypatch):
    from transformers.utils import logging as library

    library.warning_once.cache_clear()
    monkeypatch.setattr(library.get_logger("transformers"), "propagate", True)
    translator.translate(SOURCES[:5], num_beams=num_beams)
    assert not caplog.records
    assert not recwarn.list


def test_nothing_gives_nothing(translator):
    assert translator.translate([]) == []


def test_a_text_too_long_is_split_and_its_sentences_translated(translator, monkeypatch):
    sentences = SOURCES[:5]
    longest = max(len(ids) for ids in translator.tokenizer(sentences).input_ids)
    monkeypatch.setattr(translator.tokenizer, "model_max_length", longest)
    parts = translator.translate(sentences)
    (whole,) = translator.translate([" ".join(sentences)])
    assert whole.text == " ".join(part.text for part in parts)
    assert whole.score == pytest.approx(sum(part.score for part in parts) / 5, abs=1e-5)


def test_a_text_too_long_is_refused_when_asked(translator, monkeypatch):
    monkeypatch.setattr(translator.tokenizer, "model_max_length", 20)
    with pytest.raises(ValueError, match=r"text 2 has \d+ tokens.*at most 20"):
        translator.translate([SOURCES[0][:10], " ".join(SOURCES)], on_too_long="refuse")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ("a string", {}, "list of strings"),
        (["a"], {"n_best": 5}, "n_best=5: must be from 1 to num_beams=4"),
        (["a"], {"n_best": 0}, "n_best=0"),
        (["a"], {"num_return_sequences": 2}, "is called n_best"),
        (["a"], {"on_too_long": "cut"}, "on_too_long='cut'"),
        (["a"], {"num_beams": 0}, "num_beams=0"),
        (["a"], {"max_tokens": 0}, "max_tokens=0"),
        (["a"], {"max_tokens": 1.5}, "max_tokens=1.5: must be a whole number"),
        (["a", None], {}, "texts: .* number 2 is None"),
        (None, {}, "list of strings, not None"),
        (["a", "b", "c"], {"prefixes": "Der"}, "prefixes: must be a list of strings, not 'Der'"),
        (["a"], {"prefixes": [None]}, "prefixes: .* number 1 is None"),
        (["a"], {"num_beams": 2.5}, "num_beams=2.5: must be a whole number"),
        (["a"], {"length_penalty": "1"}, "length_penalty='1': must be a number"),
        (["a"], {"max_len_a": "1"}, "max_len_a='1': must be a number"),
    ],
)
def test_what_cannot_be_done_is_refused(translator, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        translator.translate(arguments, **options)


@pytest.mark.parametrize("name", ["score", "align"])
@pytest.mark.parametrize(
    ("sources", "max_tokens", "message"), [(["a"], -5, "max_tokens=-5"), ([None], 8, "sources: .* number 1 is None")]
)
def test_what_cannot_be_scored_or_aligned_is_refused(translator, name, sources, max_tokens, message):
    with pytest.raises(ValueError, match=message):
        getattr(translator, name)(sources, ["b"], max_tokens=max_tokens)


def test_texts_may_come_one_by_one(translator):
    assert translator.translate(text for text in SOURCES[:3]) == translator.translate(SOURCES[:3])
    for scored_or_aligned in (translator.score, translator.align):
        assert scored_or_aligned(iter(SOURCES[:3]), iter(SOURCES[3:6])) == scored_or_aligned(SOURCES[:3], SOURCES[3:6])


def test_sampling_goes_through_to_generate(translator):
    torch.manual_seed(0)
    first = translator.translate(SOURCES, num_beams=1, do_sample=True, temperature=5.0)
    torch.manual_seed(1)
    second = translator.translate(SOURCES, num_beams=1, do_sample=True, temperature=5.0)
    assert [t.text for t in first] != [t.text for t in second]


def test_several_samples_of_each_text(translator):
    """At a temperature at which nothing ends by itself, so that rows of unequal limits are ended by force."""
    settings = {"num_beams": 1, "n_best": 3, "do_sample": True, "temperature": 1000.0, "top_k": 0}
    for translation in translator.translate([SOURCES[0], "The dog."], **settings):
        assert len({text for text, _ in translation.n_best}) == 3


def test_a_line_break_in_a_translation_does_not_break_the_line():
    assert as_line("a\r\nb\nc\u2028d") == "a b c\u2028d"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_loads_in_a_precision(trained, dtype):
    translator = Translator.from_pretrained(trained, dtype=dtype)
    assert str(translator.model.dtype) == f"torch.{dtype}"
    assert translator.translate(SOURCES[:2])[0].text


def test_progress_bar_when_asked(translator, capsys):
    translator.translate(SOURCES, progress=True)
    assert "15" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["nowhere", "empty"])
def test_a_folder_without_a_model_is_named(tmp_path, what):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=what):
        Translator.from_pretrained(tmp_path / what)


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        (VanillaForSequenceClassification, "text-classification"),
        (VanillaForImageClassification, "image-classification"),
        (VanillaForCausalLM, "text-generation"),
    ],
)
def test_a_model_that_does_not_translate_is_named_with_what_it_is_for(tmp_path, tiny_config, kind, task):
    kind(tiny_config()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"holds a {kind.__name__}, which doesn't translate: .*{task}"):
        Translator.from_pretrained(tmp_path)


# What callers and models may ask for ----------------------------------------------------------------------------------


def texts_of(translations) -> list[str]:
    return [translation.text for translation in translations]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_model_that_was_saved_without_cache_translates(translator, monkeypatch, num_beams):
    expected = texts_of(translator.translate(SOURCES, num_beams=num_beams))
    monkeypatch.setattr(translator.generation_config, "use_cache", False)
    assert texts_of(translator.translate(SOURCES, num_beams=num_beams)) == expected


def test_what_looks_at_the_source_does_on_the_librarys_path_too(translator):
    """`use_cache=False` leaves the search to the library."""
    settings = {"num_beams": 1, "encoder_repetition_penalty": 3.0}
    expected = texts_of(translator.translate(SOURCES, **settings))
    assert expected != texts_of(translator.translate(SOURCES, num_beams=1))
    assert texts_of(translator.translate(SOURCES, use_cache=False, **settings)) == expected


@pytest.mark.parametrize("option", [{"use_cache": True}, {"output_scores": False}, {"streamer": None}])
def test_what_is_off_anyway_may_be_given(translator, option):
    expected = translator.translate(SOURCES[:1], prefixes=["Die"])
    assert translator.translate(SOURCES[:1], prefixes=["Die"], **option) == expected


def test_a_model_that_samples_is_searched_when_told_not_to(translator, monkeypatch):
    expected = translator.translate(SOURCES[:1], prefixes=["Die"])
    monkeypatch.setattr(translator.generation_config, "do_sample", True)
    assert translator.translate(SOURCES[:1], prefixes=["Die"], do_sample=False) == expected
    with pytest.raises(ValueError, match="do_sample, given or the model's own"):
        translator.translate(SOURCES[:1], prefixes=["Die"])


def test_an_assistant_drafts(translator):
    expected = texts_of(translator.translate(SOURCES[:3], num_beams=1))
    drafted = [translator.translate([x], num_beams=1, assistant_model=translator.model)[0].text for x in SOURCES[:3]]
    assert drafted == expected


def test_scores_and_alignments_do_not_depend_on_the_side_of_padding(translator, monkeypatch):
    said = [translation.text for translation in translator.translate(SOURCES)]
    totals, aligned = [one.total for one in translator.score(SOURCES, said)], translator.align(SOURCES, said)
    monkeypatch.setattr(translator.tokenizer, "padding_side", "left")
    assert [one.total for one in translator.score(SOURCES, said)] == pytest.approx(totals, abs=1e-4)
    assert translator.align(SOURCES, said) == aligned


@pytest.mark.parametrize("settings", [{}, {"use_cache": False}], ids=["our search", "the library's"])
@pytest.mark.parametrize("num_beams", [1, 2])
def test_another_end_gives_the_scores_of_each_sentence_alone(translator, settings, num_beams):
    """What follows that end in a batch is padding, not text."""
    another = translator.tokenizer(translator.translate(SOURCES[:1])[0].text).input_ids[2]
    settings = {"num_beams": num_beams, "eos_token_id": [2, another], **settings}
    together = translator.translate(SOURCES, **settings)
    for source, translation in zip(SOURCES, together, strict=True):
        (alone,) = translator.translate([source], **settings)
        assert (alone.text, alone.score) == (translation.text, pytest.approx(translation.score, abs=1e-4))


@pytest.mark.parametrize("of_model", [False, True])
@pytest.mark.parametrize("cached", [{}, {"use_cache": False}], ids=["our search", "the library's"])
def test_a_word_may_be_the_end(translator, monkeypatch, of_model, cached):
    word = translator.translate(SOURCES[:1])[0].text.split()[1]
    batch = translator.tokenizer(SOURCES[:1], return_tensors="pt")
    given = {"num_beams": 1, "stop_strings": [word], "tokenizer": translator.tokenizer}
    expected = translator.tokenizer.batch_decode(translator.model.generate(**batch, **given), skip_special_tokens=True)
    assert expected[0].endswith(word)
    if of_model:
        monkeypatch.setattr(translator.generation_config, "stop_strings", [word])
        given = {"num_beams": 1}
    assert texts_of(translator.translate(SOURCES[:1], **given, **cached)) == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_length_penalty_that_is_no_number_is_refused(translator, value):
    with pytest.raises(ValueError, match="must be a finite number"):
        translator.translate(SOURCES[:1], length_penalty=value)


def test_a_text_in_pieces_has_as_many_hypotheses_as_every_piece():
    pieces = [Translation("a", -1.0, (("a", -1.0), ("b", -2.0))), Translation("c", -3.0, (("c", -3.0),))]
    assert _join(pieces).n_best == (("a c", -2.0),)


def test_samples_may_be_more_than_beams_where_there_are_none(translator):
    torch.manual_seed(0)
    assert len(translator.translate(SOURCES[:1], num_beams=1, do_sample=True, n_best=6)[0].n_best) == 6
    with pytest.raises(ValueError, match="any number with do_sample and num_beams=1"):
        translator.translate(SOURCES[:1], num_beams=4, do_sample=True, n_best=6)


def test_samples_count_in_a_batch(translator):
    shapes = []
    hook = translator.model.get_encoder().register_forward_pre_hook(
        lambda _, args, settings: shapes.append(settings["input_ids"].shape), with_kwargs=True
    )
    translator.translate(SOURCES, num_beams=1, do_sample=True, n_best=5, max_tokens=300)
    hook.remove()
    assert max(5 * B * S for B, S in shapes) <= 300


def test_an_ensemble_reads_all_source_tokens(translator, lively):
    V = translator.model.config.vocab_size
    other = lively(vocab_size=20, decoder_vocab_size=V, tied_embeddings="none")
    with pytest.raises(ValueError, match="doesn't read all source tokens"):
        Translator(translator.model, translator.tokenizer, [other])


@pytest.fixture
def of_20_positions(translator, lively):
    V = translator.model.config.vocab_size
    changes = {"position_encoding": "learned", "max_position_embeddings": 20, "pad_token_id": 0, "bos_token_id": 1}
    model = lively(vocab_size=V, decoder_vocab_size=V, eos_token_id=2, **changes)
    model.lm_head.bias.data[2] = -30  # never ends by itself
    return Translator(model, translator.tokenizer)


def test_learned_positions_are_as_many_as_there_are(of_20_positions):
    for num_beams in (1, 3):
        assert of_20_positions.translate(SOURCES[:2], num_beams=num_beams)[0].text


def test_a_prefix_fits_into_learned_positions_or_is_refused(of_20_positions):
    """The start token and the end token have one each."""
    prefix = " ".join(["Der"] * 18)  # a token a word
    (found,) = of_20_positions.translate(["The dog."], prefixes=[prefix], num_beams=1)
    assert found.text == prefix
    with pytest.raises(ValueError, match=r"text 2 has a prefix and terms of 19 tokens .* positions for 18: shorten"):
        of_20_positions.translate(["The dog."] * 2, prefixes=["", f"{prefix} Der"], num_beams=1)
    with pytest.raises(ValueError, match="text 1 has a prefix and terms of 19 tokens"):
        of_20_positions.translate(["The dog."], glossary=Glossary({"dog": f"{prefix} Der"}), num_beams=2)
