"""Decoding as published: length penalties, limits, prefixes, glossaries, ensembles, scores, alignments."""

import copy
import itertools
import math
from itertools import pairwise

import pytest
import tokenizers
import torch
from transformers import PreTrainedTokenizerFast

from modeling_vanilla.decoding import Glossary, Translator
from modeling_vanilla.decoding.alignment import align, cross_attention, pharaoh, words
from modeling_vanilla.decoding.constraints import Constraints, State
from modeling_vanilla.decoding.glossary import going_on, phrase_ids, word_mark
from modeling_vanilla.decoding.lengths import length_divisor, max_new_tokens
from modeling_vanilla.decoding.search import Member, search
from tests.fixtures import corpus

from .test_search import sources

PAIRS = corpus(2, 2700, 182)
SOURCES = [source for source, _ in PAIRS]


@pytest.fixture(scope="module")
def translator(trained):
    return Translator.from_pretrained(trained)


@torch.no_grad()
def log_probs(models, source: list[int], prefix: list[int]) -> torch.Tensor:
    """Of the next token, by the mean of the models' probabilities, without a cache."""
    ids = torch.tensor([source])
    logits = [model(input_ids=ids, decoder_input_ids=torch.tensor([prefix])).logits[0, -1] for model in models]
    return torch.stack([x.softmax(-1) for x in logits]).mean(0).log()


def exhaustive(model, source: list[int], longest: int, alpha: float, kind: str, counts=lambda row: True):
    """The best of all translations of `longest` tokens, or less and an end, and its score."""
    best, best_score = None, -math.inf
    for length in range(1, longest + 1):
        for *body, last in itertools.product([3, 4, 5, 2], repeat=length):
            if 2 in body or (last != 2 and length < longest):
                continue
            total, prefix = 0.0, [1]
            for token in (*body, last):
                total += float(log_probs([model], source, prefix)[token])
                prefix.append(token)
            score = total / length_divisor(length, alpha, kind)
            if score > best_score and counts(prefix):
                best, best_score = prefix, score
    return best, best_score


@pytest.mark.parametrize(("kind", "alpha"), [("power", 1.0), ("paper", 0.6), ("paper", 2.0), ("power", 0.0)])
def test_a_beam_wide_enough_finds_the_best_of_all(lively, kind, alpha):
    """Canonical beam search cuts nothing off: with room for all hypotheses it is exhaustive."""
    model = lively(5, vocab_size=6)
    model.generation_config.length_penalty_type = kind
    ids = torch.tensor([[3, 4, 5, 2]])
    settings = {"num_beams": 130, "early_stopping": "never", "length_penalty": alpha, "max_length": 5}
    found = model.generate(ids, bad_words_ids=[[0], [1]], **settings)[0].tolist()
    best, _ = exhaustive(model, ids[0].tolist(), 4, alpha, kind)
    assert found[: len(best)] == best


def test_the_papers_length_penalty():
    assert length_divisor(7, 0.6, "paper") == pytest.approx(2**0.6)
    assert length_divisor(torch.tensor([1, 7]), 1.0, "paper").tolist() == [1, 2]
    assert length_divisor(7, 0.6) == pytest.approx(7**0.6)
    with pytest.raises(ValueError, match="power, paper"):
        length_divisor(7, 0.6, "gnmt")


@pytest.mark.parametrize("num_beams", [1, 4])
def test_scores_are_divided_by_the_papers_length_penalty(translator, num_beams):
    translations = translator.translate(
        SOURCES[:4], num_beams=num_beams, length_penalty=0.6, length_penalty_type="paper"
    )
    for source, translation in zip(SOURCES, translations, strict=False):
        (scored,) = translator.score([source], [translation.text])
        assert translation.score == pytest.approx(scored.total / ((5 + len(scored.tokens)) / 6) ** 0.6, abs=1e-4)


def test_a_models_own_length_penalty_type_is_used(translator, monkeypatch):
    expected = [t.score for t in translator.translate(SOURCES[:3], length_penalty_type="paper")]
    monkeypatch.setattr(translator.generation_config, "length_penalty_type", "paper", raising=False)
    assert [t.score for t in translator.translate(SOURCES[:3])] == expected


def test_the_limit_is_a_times_the_source_and_b():
    assert max_new_tokens(10, 1.2, 10) == 22
    assert max_new_tokens(10, 0, 0) == 1


@pytest.mark.parametrize("num_beams", [1, 3])
def test_translations_end_at_the_limit(translator, num_beams):
    translations = translator.translate(SOURCES, num_beams=num_beams, max_len_a=0.2, max_len_b=1)
    for source, translation in zip(SOURCES, translations, strict=True):
        tokens = translator.tokenizer(translation.text).input_ids
        assert len(tokens) <= int(0.2 * len(translator.tokenizer(source).input_ids)) + 1


@pytest.mark.parametrize("num_beams", [1, 4])
def test_prefixes_are_kept_and_scored(translator, num_beams):
    prefixes = [target.split()[0] + " " + target.split()[1] for _, target in PAIRS[:5]] + [""] * (len(PAIRS) - 5)
    prefixes[1] = "Das Pferd"
    found = translator.translate(SOURCES, prefixes=prefixes, num_beams=num_beams)
    free = translator.translate(SOURCES, num_beams=num_beams)
    for number, (source, prefix, translation) in enumerate(zip(SOURCES, prefixes, found, strict=True)):
        assert translation.text.startswith(prefix)
        if not prefix:
            assert translation.text == free[number].text
        (scored,) = translator.score([source], [translation.text])
        if number != 1:
            assert translation.score == pytest.approx(scored.total / len(scored.tokens), abs=1e-4)


def greedy_after(model, source: list[int], prefix: list[int], limit: int) -> list[int]:
    ids = [1, *prefix]
    while ids[-1] != 2 and len(ids) <= limit:
        ids.append(int(log_probs([model], source, ids).argmax()))
    return ids


def test_after_its_prefix_greedy_search_goes_on_as_usual(lively):
    model = lively(6)
    batch = sources(model, 4)
    prefixes = torch.tensor([[5, 6, 7], [9, -100, -100], [-100, -100, -100], [4, 4, -100]])
    found = model.generate(**batch, max_length=12, custom_generate=search, prefixes=prefixes).sequences
    for b in range(4):
        source = batch["input_ids"][b][batch["attention_mask"][b].bool()].tolist()
        expected = greedy_after(model, source, [i for i in prefixes[b].tolist() if i >= 0], 11)
        assert found[b].tolist()[: len(expected)] == expected


def test_an_ensemble_is_searched_by_the_mean_of_probabilities(lively, translator):
    models = [lively(seed) for seed in (1, 2, 3)]
    batch = sources(models[0], 5)
    members = [Member(m, m.get_encoder()(**batch).last_hidden_state, batch["attention_mask"]) for m in models[1:]]
    with torch.no_grad():
        found = models[0].generate(
            **batch, max_length=10, custom_generate=search, ensemble=members, return_dict_in_generate=True
        )
    for b in range(5):
        source = batch["input_ids"][b][batch["attention_mask"][b].bool()].tolist()
        ids, total = [1], 0.0
        while ids[-1] != 2 and len(ids) < 10:
            values = log_probs(models, source, ids)
            ids.append(int(values.argmax()))
            total += float(values.max())
        assert found.sequences[b].tolist()[: len(ids)] == ids
        assert float(found.sequences_scores[b]) == pytest.approx(total / (len(ids) - 1), abs=1e-5)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_an_ensemble_of_one_models_copies_is_that_model(translator, num_beams):
    copies = [copy.deepcopy(translator.model) for _ in range(2)]
    ensemble = Translator(translator.model, translator.tokenizer, copies)
    expected, found = (t.translate(SOURCES, num_beams=num_beams) for t in (translator, ensemble))
    assert [t.text for t in found] == [t.text for t in expected]
    assert [t.score for t in found] == pytest.approx([t.score for t in expected], abs=1e-5)


def test_an_ensemble_of_other_vocabularies_is_refused(translator, lively):
    with pytest.raises(ValueError, match="one vocabulary"):
        Translator(translator.model, translator.tokenizer, [lively(0)])


# Glossaries


def test_terms_are_found_as_whole_words_the_longest_first():
    glossary = Glossary({"ice": "Eis", "Ice cream": "Eiskrem", "狗": "dog", "C++": "C++"})
    assert glossary.translations("ICE, not mice") == ["Eis"]
    assert glossary.translations("ice cream and ice and ice") == ["Eiskrem", "Eis"]
    assert glossary.translations("一只狗跑") == ["dog"]
    assert glossary.translations("in C++.") == ["C++"]
    assert glossary.translations("ice   cream") == ["Eiskrem"]
    assert Glossary({}).translations("ice") == []


@pytest.mark.parametrize(
    ("term", "source", "found"),
    [
        ("राज", "राजा आया", False),  # a vowel sign goes on with the word
        ("राजा", "राजाओं ने", False),
        ("राजा", "एक राजा, दो", True),
        ("आ", "राजाआ", False),
        ("한국", "대한국민", False),
        ("한국", "저는 한국 사람", True),
        ("แมว", "ฉันมีแมวสองตัว", True),
        ("สี", "มีสีแดง", True),
        ("ส", "มีสีแดง", False),  # but a letter without its vowel sign is none
        ("猫", "黒い猫がいる", True),
    ],
)
def test_a_word_is_whole_as_its_script_is_written(term, source, found):
    assert Glossary({term: "x"}).translations(source) == ["x"] * found


def test_a_glossary_file(tmp_path):
    file = tmp_path / "terms.tsv"
    file.write_text("dog\tKöter\nbig\triesig\n", encoding="utf-8")
    assert Glossary.read(file).translations("The big dog") == ["riesig", "Köter"]
    file.write_text("dog\tKöter\nbig\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"terms\.tsv:2"):
        Glossary.read(file)
    file.write_text("dog\tKöter\ndog\tKöter \n\tHund\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"terms\.tsv:3: needs a term and its translation"):
        Glossary.read(file)
    file.write_text("dog\tKöter\ndog\tHund\n", encoding="utf-8")
    with pytest.raises(ValueError, match="two translations"):
        Glossary.read(file)
    with pytest.raises(ValueError, match="must both be given"):
        Glossary({"dog": " "})
    with pytest.raises(ValueError, match="two translations for 'us'"):
        Glossary({"US": "USA", "us": "uns"})


@pytest.mark.parametrize("num_beams", [2, 4, 8])
def test_prescribed_terms_are_in_the_translation(translator, num_beams):
    glossary = Glossary({"dog": "Stuhl", "tree": "Tisch", "the": "den", "carries": "malt"})
    found = translator.translate(SOURCES, glossary=glossary, num_beams=num_beams)
    free = translator.translate(SOURCES, num_beams=num_beams)
    for source, translation, other in zip(SOURCES, found, free, strict=True):
        terms = glossary.translations(source)
        found_words = translation.text.replace(".", "").split()
        assert all(term in found_words for term in terms), (source, translation.text)  # as words, not within others
        if all(term in other.text for term in terms) and num_beams == 8:
            assert translation.score >= other.score - 0.3
    assert any(t.text != o.text for t, o in zip(found, free, strict=True))


def test_a_glossary_needs_beams(translator):
    with pytest.raises(ValueError, match="num_beams of at least 2"):
        translator.translate(SOURCES[:1], glossary=Glossary({"dog": "Hund"}), num_beams=1)


def test_a_glossary_and_a_prefix(translator):
    glossary = Glossary({"the": "den", "ball": "Tisch"})
    found = translator.translate(SOURCES, glossary=glossary, prefixes=["Der"] * len(SOURCES))
    for source, translation in zip(SOURCES, found, strict=True):
        assert translation.text.startswith("Der")
        assert all(term in translation.text for term in glossary.translations(source))


def test_fewer_hypotheses_where_there_are_no_more(translator):
    (translation,) = translator.translate(SOURCES[:1], num_beams=4, n_best=4, max_len_a=0, max_len_b=1)
    assert all(score > -1e8 for _, score in translation.n_best)
    assert translation.n_best[0] == (translation.text, translation.score)


@pytest.mark.parametrize(
    ("phrases", "said", "left"),
    [
        ([(1, 1, 2)], (1, 1, 1, 2), 0),
        ([(1, 2), (1, 3)], (1, 3, 1, 2), 0),
        ([(1, 2, 1, 3)], (1, 2, 1, 2, 1, 3), 0),
        ([(1, 2), (1, 2)], (1, 2, 4), 2),
        ([(1, 2, 3)], (1, 2), 1),
        ([(1, 2, 3), (4,)], (1, 2, 4), 3),
    ],
)
def test_a_phrase_is_seen_whatever_was_begun_before_it(phrases, said, left):
    state = State(tuple(phrases))
    for token in said:
        state = state.after(token)
    assert state.left == left


@pytest.mark.parametrize(
    ("phrases", "said", "left"),
    [
        ([(5,), (5, 6)], [5], 2),
        ([(5,), (5, 6)], [5, 6], 0),
        ([(5,), (5, 6)], [5, 9], 2),
        ([(5,), (5, 6)], [5, -6], 1),  # the word with 6 in it isn't the word 5
        ([(5,), (5, 6)], [5, -6, 5], 0),
        ([(5,), (5, 6)], [5, -6, -7], 3),
        ([(5,), (5, 6)], [5, 6, -7], 2),
        ([(5,), (5,), (5, 6)], [5, 6, 5], 0),
    ],
)
def test_a_phrase_that_begins_another_is_seen_with_it_and_alone(phrases, said, left):
    state = State(tuple(phrases))
    for token in said:  # a token that goes on with the word before it is negative here
        assert abs(token) in {*state.wanted(), 7, 9}
        state = state.after(abs(token), token < 0)
    assert state.left == left


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_beams", [1, 3, 6])
def test_phrases_are_met_whatever_the_model(lively, seed, num_beams):
    model = lively(seed)
    batch = sources(model, 5)
    phrases = [[[5, 6, 5, 7]], [], [[8], [9, 9]], [[5, 6], [6, 5]], [[11, 12, 13, 14, 15], [4]]]
    found = model.generate(
        **batch, num_beams=num_beams, max_length=26, custom_generate=search,
        constraints=Constraints(phrases, num_beams, [2]),
    ).sequences.tolist()  # fmt: skip
    plain = model.generate(**batch, num_beams=num_beams, max_length=26).tolist()
    for b, row in enumerate(found):
        text = " ".join(map(str, row))
        for phrase in phrases[b]:
            assert f" {' '.join(map(str, phrase))} " in f" {text} ", (phrase, text)
    assert found[1][: len(plain[1])] == plain[1][: len(found[1])]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_beams", [2, 6])
def test_a_word_and_one_that_it_begins_are_both_met(lively, seed, num_beams):
    model = lively(seed)
    (row,) = model.generate(
        **sources(model, 1), num_beams=num_beams, max_length=26, custom_generate=search,
        constraints=Constraints([[[5], [5, 6]]], num_beams, [2], going_on={6}),
    ).sequences.tolist()  # fmt: skip
    followers = [after for token, after in pairwise([*row, 2]) if token == 5]  # one may be cut off behind it
    assert 6 in followers
    assert set(followers) != {6}


@pytest.mark.parametrize("phrases", [[[3]], [[4, 3]], [[5], [3]]])
def test_a_beam_wide_enough_finds_the_best_that_has_the_phrases(lively, phrases):
    model = lively(5, vocab_size=6)
    ids = torch.tensor([[3, 4, 5, 2]])
    found = model.generate(
        ids, num_beams=130, early_stopping="never", max_length=5, bad_words_ids=[[0], [1]], custom_generate=search,
        constraints=Constraints([phrases], 130, [2]),
    ).sequences[0].tolist()  # fmt: skip

    def has_all(row: list[int]) -> bool:
        text = " ".join(map(str, row))
        return all(" ".join(map(str, phrase)) in text for phrase in phrases)

    best, _ = exhaustive(model, ids[0].tolist(), 4, 1.0, "power", has_all)
    assert found[: len(best)] == best


def test_a_phrase_in_a_script_without_spaces_has_none_before_it(translator):
    ids = phrase_ids("猫", translator.tokenizer, word_mark(translator.tokenizer))
    assert translator.tokenizer.decode([translator.tokenizer.bos_token_id, 20, *ids])[-1] == "猫"
    assert " 猫" not in "x" + "".join(translator.tokenizer.convert_ids_to_tokens(ids))


@pytest.mark.parametrize("text", ["한국", "👍"])
def test_a_wide_phrase_in_a_script_with_spaces_has_one_before_it(translator, text):
    ids = phrase_ids(text, translator.tokenizer, word_mark(translator.tokenizer))
    sentence = translator.tokenizer(f"Der {text}", add_special_tokens=False).input_ids
    assert sentence[-len(ids) :] == ids
    assert translator.tokenizer.convert_ids_to_tokens(ids[0]).startswith(" ")


def other_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Of the kinds that aren't ours, made of the same text."""
    sides = [text for pair in PAIRS for text in pair]
    if kind == "WordPiece":
        tokenizer = tokenizers.BertWordPieceTokenizer(lowercase=False, strip_accents=False)
    elif kind == "byte-level":
        tokenizer = tokenizers.ByteLevelBPETokenizer()
    elif kind == "SentencePiece":
        tokenizer = tokenizers.SentencePieceBPETokenizer()
    else:
        tokenizer = tokenizers.CharBPETokenizer(suffix="</w>")
    tokenizer.train_from_iterator(sides, vocab_size=300, min_frequency=1, show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, unk_token="<unk>")


@pytest.mark.parametrize("kind", ["WordPiece", "byte-level", "SentencePiece"])
def test_what_goes_on_with_a_word_is_known_of_other_tokenizers(kind):
    """The pieces of each word but its first, and no first one."""
    tokenizer = other_tokenizer(kind)
    continuing, before = going_on(tokenizer, word_mark(tokenizer)), tokenizer("Der", add_special_tokens=False).input_ids
    every = {word for pair in PAIRS for text in pair for word in text.split() if word.isalnum()} | {"Köter", "ßß"}
    every |= {word[::-1] for word in every}  # which come in pieces
    several = 0
    for word in every:
        ids = tokenizer(f"Der {word}", add_special_tokens=False).input_ids
        assert ids[: len(before)] == before
        first, *others = ids[len(before) :]
        assert first not in continuing
        assert set(others) - {tokenizer.unk_token_id} <= continuing
        several += len(others)
    assert several > 30


@pytest.mark.parametrize("kind", ["WordPiece", "byte-level", "SentencePiece"])
def test_a_phrase_is_what_it_is_within_a_sentence(kind):
    tokenizer = other_tokenizer(kind)
    sentence = tokenizer("Der Hund", add_special_tokens=False).input_ids
    phrase = phrase_ids("Hund", tokenizer, word_mark(tokenizer))
    assert sentence[-len(phrase) :] == phrase


def test_a_tokenizer_that_marks_the_ends_of_words_knows_no_glossary():
    with pytest.raises(ValueError, match="marks their ends"):
        word_mark(other_tokenizer("ends"))


def test_bytes_within_a_letter_go_on(translator):
    vocabulary = translator.tokenizer.get_vocab()
    continuing = going_on(translator.tokenizer, word_mark(translator.tokenizer))
    assert vocabulary["<0xC3>"] in continuing
    assert vocabulary["<0x21>"] not in continuing


def test_a_vowel_sign_goes_on_with_its_word():
    vocabulary = {token: index for index, token in enumerate([" राज", "ा", "राज", "ี", "猫", "국", "👍"])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary))
    assert going_on(PreTrainedTokenizerFast(tokenizer_object=backend), " ") == {1, 2, 3, 5}


def test_a_space_behind_a_prefix_changes_nothing(translator):
    plain, spaced = (translator.translate(SOURCES[:2], prefixes=[p] * 2) for p in ("Der große", "Der große "))
    assert plain == spaced


def test_samples_come_best_first(translator):
    torch.manual_seed(0)
    (found,) = translator.translate(SOURCES[:1], num_beams=1, do_sample=True, n_best=6, top_k=0, temperature=1.5)
    scores = [score for _, score in found.n_best]
    assert len(set(scores)) > 1
    assert scores == sorted(scores, reverse=True)
    assert (found.text, found.score) == found.n_best[0]


def test_where_the_limit_leaves_one_translation_there_is_one(translator):
    prefix = "Der große Hund"
    (found,) = translator.translate(SOURCES[:1], num_beams=4, n_best=4, prefixes=[prefix], max_len_a=0, max_len_b=1)
    assert all(score > -1e6 for _, score in found.n_best)
    assert found.text == prefix


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_processor_has_no_say_in_a_prefix(translator, num_beams):
    (found,) = translator.translate(SOURCES[:1], num_beams=num_beams, prefixes=["Der Der"], no_repeat_ngram_size=1)
    assert found.text.startswith("Der Der")
    assert -1e6 < found.score < 0


@pytest.mark.parametrize(
    ("settings", "options"),
    [({"prefixes": ["Der"]}, {"do_sample": True}), ({"length_penalty_type": "paper"}, {"output_scores": True})],
)
def test_what_only_our_search_does_is_refused_elsewhere(translator, settings, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        translator.translate(SOURCES[:1], **settings, **options)


def test_as_many_prefixes_as_texts(translator):
    with pytest.raises(ValueError, match="2 prefixes for 1 texts"):
        translator.translate(["The dog."], prefixes=["Der", "Die"])


# Scores


def test_scores_are_the_models_nll(translator):
    targets = [target for _, target in PAIRS]
    targets[0] = ""
    scored = translator.score(SOURCES, targets, max_tokens=50)
    for source, target, result in zip(SOURCES, targets, scored, strict=True):
        source_ids, ids = (torch.tensor([translator.tokenizer(text).input_ids]) for text in (source, target))
        with torch.no_grad():
            output = translator.model(input_ids=source_ids, labels=ids)
        assert result.total == pytest.approx(-float(output.loss) * ids.shape[1], abs=1e-4)
        expected = output.logits[0].log_softmax(-1)[range(ids.shape[1]), ids[0]]
        assert [value for _, value in result.tokens] == pytest.approx(expected.tolist(), abs=1e-4)
        assert [token for token, _ in result.tokens] == translator.tokenizer.convert_ids_to_tokens(ids[0].tolist())


def test_scores_of_nothing_and_of_unequal_lists(translator):
    assert translator.score([], []) == []
    with pytest.raises(ValueError, match="1 sources but 2 targets"):
        translator.score(["a"], ["b", "c"])


# Alignments


def test_words_of_tokens(translator):
    text = "Der  große Hund."
    numbers = words(text, translator.tokenizer)
    tokens = translator.tokenizer.convert_ids_to_tokens(translator.tokenizer(text).input_ids)
    spelled: dict[int, str] = {}
    for number, token in zip(numbers, tokens, strict=True):
        spelled[number] = spelled.get(number, "") + token
    assert {n: s.strip() for n, s in spelled.items()} == {0: "Der", 1: "große", 2: "Hund.", -1: "</s>"}


def test_attention_is_the_models_own(translator):
    source, target = PAIRS[0]
    found = cross_attention(translator.model, translator.tokenizer, [source, "a"], [target, "b c d e f g"], -1)[0]
    source, target = (torch.tensor([translator.tokenizer(text).input_ids]) for text in (source, target))
    with torch.no_grad():
        output = translator.model(input_ids=source, labels=target, output_attentions=True)
    torch.testing.assert_close(found, output.cross_attentions[-1][0])
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:-1]))


@pytest.mark.parametrize(("given", "taken"), [(None, 1), (0, 0), (-1, 2)])
def test_an_alignment_is_by_one_layer_of_the_decoder(translator, lively, monkeypatch, given, taken):
    V = translator.model.config.vocab_size
    model = lively(vocab_size=V, decoder_vocab_size=V, decoder_layers=3, max_position_embeddings=64)
    source, target = PAIRS[0]
    ids = {"input_ids": translator.tokenizer(source).input_ids, "labels": translator.tokenizer(target).input_ids}
    with torch.no_grad():
        output = model(**{name: torch.tensor([row]) for name, row in ids.items()}, output_attentions=True)
    seen = []
    monkeypatch.setattr("modeling_vanilla.decoding.alignment.of_words", lambda weights, *_: seen.append(weights))
    align(model, translator.tokenizer, [source], [target], layer=given)
    torch.testing.assert_close(seen[0], output.cross_attentions[taken][0].mean(0))


def test_aligning_says_nothing(translator, caplog, monkeypatch):
    from transformers.utils import logging as library

    library.warning_once.cache_clear()
    monkeypatch.setattr(library.get_logger("transformers"), "propagate", True)
    translator.align(SOURCES[:2], SOURCES[:2])
    assert not caplog.records


def test_a_batch_of_long_pairs_has_no_more_attention_than_one_of_short_pairs(translator, monkeypatch):
    shapes = []

    def recorded(*arguments):
        found = cross_attention(*arguments)
        shapes.append((len(found), max(x.shape[1] for x in found), max(x.shape[2] for x in found)))
        return found

    monkeypatch.setattr("modeling_vanilla.decoding.alignment.cross_attention", recorded)
    long = "The dog. " * 60
    translator.align([long] * 6, [long] * 6, max_tokens=1200)
    assert sum(B for B, _, _ in shapes) == 6
    assert max(B * T * S for B, T, S in shapes) <= 100 * 1200


def test_alignment_is_the_argmax_over_words(translator, monkeypatch):
    source, target = "The big dog", "Der große Hund"
    S, T = (words(text, translator.tokenizer) for text in (source, target))
    weights = torch.rand(2, len(T), len(S))
    monkeypatch.setattr("modeling_vanilla.decoding.alignment.cross_attention", lambda *_: [weights])
    (found,) = align(translator.model, translator.tokenizer, [source], [target])
    mean = weights.mean(0)
    expected = []
    for t in range(3):
        sums = [sum(float(mean[i, j]) for i in range(len(T)) for j in range(len(S)) if T[i] == t and S[j] == s)
                for s in range(3)]  # fmt: skip
        expected.append((sums.index(max(sums)), t))
    assert list(found) == expected
    assert pharaoh(((2, 0), (0, 1))) == "0-1 2-0"


def test_a_trained_model_aligns(translator):
    """Its sentences keep their order, so the alignment is the diagonal, nearly."""
    alignments = translator.align(SOURCES, [target for _, target in PAIRS], max_tokens=60)
    right = [s == t for alignment in alignments for s, t in alignment]
    assert len(right) == sum(len(target.split()) for _, target in PAIRS)
    assert sum(right) / len(right) > 0.5


def test_alignments_of_empty_lines_and_unknown_layers(translator):
    assert translator.align(["", "a b"], ["c", ""]) == [(), ()]
    with pytest.raises(ValueError, match="layer=5: the decoder has 1 layers"):
        translator.align(["a"], ["b"], layer=5)


def test_each_member_of_an_ensemble_reads_the_source_by_itself(translator, lively):
    own = translator.model
    V = own.config.vocab_size
    other = lively(3, vocab_size=V, decoder_vocab_size=V, d_model=own.config.d_model)
    both = Translator(own, translator.tokenizer, [other])
    for source, found in zip(SOURCES[:3], both.translate(SOURCES[:3], num_beams=1), strict=True):
        ids, prefix, total = translator.tokenizer(source).input_ids, [1], 0.0
        while prefix[-1] != 2 and len(prefix) <= len(ids) + 50:
            values = log_probs([own, other], ids, prefix)
            prefix.append(int(values.argmax()))
            total += float(values.max())
        assert found.text == translator.tokenizer.decode(prefix, skip_special_tokens=True)
        assert found.score == pytest.approx(total / (len(prefix) - 1), abs=1e-4)


def test_a_model_in_training_mode_translates_without_dropout(translator):
    def dropping():
        model = copy.deepcopy(translator.model).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.5
        return model

    expected = [one.score for one in translator.translate(SOURCES[:3])]
    for ensemble in ([], [dropping()]):
        found = Translator(dropping(), translator.tokenizer, ensemble).translate(SOURCES[:3])
        assert [one.score for one in found] == pytest.approx(expected, abs=1e-4)


def test_prescribed_terms_have_room_beside_the_limit(translator):
    glossary = Glossary({"the": "den", "carries": "malt"})
    found = translator.translate(SOURCES, glossary=glossary, max_len_a=0, max_len_b=1)
    for source, translation in zip(SOURCES, found, strict=True):
        assert all(term in translation.text for term in glossary.translations(source))


def test_a_prefix_is_of_the_first_piece_alone(translator, monkeypatch):
    sentences = SOURCES[:3]
    longest = max(map(len, translator.tokenizer(sentences).input_ids))
    monkeypatch.setattr(translator.tokenizer, "model_max_length", longest)
    parts = translator.translate(sentences, prefixes=["Das alte", "", ""])
    (whole,) = translator.translate([" ".join(sentences)], prefixes=["Das alte"])
    assert whole.text == " ".join(part.text for part in parts)
