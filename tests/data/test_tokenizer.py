"""The shared vocabulary: exact round trips, literal special tokens, exact sizes, and what a saved one still does."""

import json
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers
from transformers import AutoTokenizer, NllbTokenizer, PreTrainedTokenizerFast

from modeling_vanilla.data import tokenizer_digest, train_tokenizer, train_word_tokenizer
from modeling_vanilla.data.tokenizer import BYTE_TOKENS, CHARACTER_COVERAGE

SPECIAL_TOKENS = ["<pad>", "<s>", "</s>"]

TEXTS = {
    "empty": "",
    "a space": " ",
    "three spaces": "   ",
    "a tab": "\t",
    "a line break": "\n",
    "spaces around": "  two before, three after   ",
    "spaces inside": "a  b   c",
    "tabs inside": "a\tb\t\tc",
    "carriage return": "a\r\nb",
    "CJK": "我爱你，東京へ行く。한국어",
    "never seen script": "Ελληνικά עברית हिन्दी ไทย",
    "emoji": "👩‍👩‍👧 😀🏽 🇩🇪",
    "SentencePiece's space mark": "\u2581a\u2581 \u2581\u2581b",
    "GPT-2's space mark": "Ġa",
    "end of sentence, spelled": "a </s> b</s>",
    "only end of sentence, spelled": "</s>",
    "other specials, spelled": "<pad><s>x<pad>",
    "byte token, spelled": "<0x41> <0xE2><0x98>",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "Unicode line breaks": "a\x85b\u2028c\u2029d",
    "lone combining mark": "\u0301",
    "combining marks": "x\u0301\u0323 \u0301y",
    "joiners": "می\u200cخواهم क्\u200dष",
    "replacement character": "a\ufffdb",
    "byte order mark": "\ufeffa",
    "noncharacters": "\ufdd0\uffff\U0010ffff",
    "no-break and ideographic spaces": "a\u00a0b\u3000c",
    "long word": "a" * 3000,
}


def ids(tokenizer, text):
    return tokenizer(text)["input_ids"]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_text_survives_a_round_trip(tokenizer, text):
    assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=True) == unicodedata.normalize("NFC", text)


# Python's NFC may know fewer characters than the tokenizer's: those of a later Unicode version are left out.
ASSIGNED = st.characters(exclude_categories=["Cs", "Cn"])
AWKWARD = st.sampled_from([" ", "  ", "\t", "<", "/s>", "</s>", "<0x41>", "\u2581", "\u0301", "é", "好", "'", "1", "a"])


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(AWKWARD, st.text(ASSIGNED, max_size=8)), max_size=8).map("".join))
def test_any_text_survives_a_round_trip_in_nfc(tokenizer, text):
    assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=True) == unicodedata.normalize("NFC", text)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(AWKWARD, st.text(ASSIGNED, max_size=8)), max_size=8).map("".join))
def test_a_text_never_yields_a_special_token_but_the_last(tokenizer, text):
    *body, last = ids(tokenizer, text)
    assert last == 2
    assert not {0, 1, 2} & set(body)


def test_every_character_of_the_basic_plane_and_some_of_the_others_survive_a_round_trip(tokenizer):
    codes = [*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x110000, 97)]
    characters = list(map(chr, codes))
    texts = ["".join(characters[start : start + 512]) for start in range(0, len(characters), 512)]
    decoded = tokenizer.batch_decode(tokenizer(texts)["input_ids"], skip_special_tokens=True)
    assert decoded == [normalizers.NFC().normalize_str(text) for text in texts]


def test_tokens_never_mix_letters_with_punctuation_or_digits(tokenizer):
    for token in set(tokenizer.get_vocab()) - {*SPECIAL_TOKENS, *BYTE_TOKENS}:
        kinds = {"L" if c.isalpha() else "N" if c.isnumeric() else "P" for c in token.strip()}
        assert len(kinds) <= 1, token


def test_first_word_of_a_text_is_the_token_it_is_elsewhere(tokenizer):
    assert ids(tokenizer, "dog")[:-1] == ids(tokenizer, "A dog")[1:-1]


def test_special_and_byte_tokens_come_first(tokenizer):
    assert tokenizer.convert_ids_to_tokens(range(259)) == SPECIAL_TOKENS + BYTE_TOKENS
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.unk_token is None


def test_bytes_are_no_added_tokens(tokenizer):
    assert sorted(token.content for token in tokenizer.added_tokens_decoder.values()) == sorted(SPECIAL_TOKENS)


def test_character_outside_the_alphabet_becomes_its_utf8_bytes(tokenizer):
    assert tokenizer.convert_ids_to_tokens(ids(tokenizer, "☃")) == [" ", "<0xE2>", "<0x98>", "<0x83>", "</s>"]


def test_canonically_equal_texts_have_equal_ids(tokenizer):
    assert ids(tokenizer, unicodedata.normalize("NFD", "über é")) == ids(tokenizer, "über é")


def test_source_and_target_end_in_end_of_sentence(tokenizer):
    batch = tokenizer(["a dog", ""], text_target=["ein Hund", "x"])
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert all(row[-1] == tokenizer.eos_token_id for row in batch["input_ids"] + batch["labels"])
    assert batch["input_ids"][1] == [tokenizer.eos_token_id]


def test_padding_is_on_the_right(tokenizer):
    batch = tokenizer(["a dog runs", "a"], padding=True)
    assert batch["input_ids"][1][0] != tokenizer.pad_token_id == batch["input_ids"][1][-1]
    assert batch["attention_mask"][1][-1] == 0


def test_decoding_a_padded_batch_gives_the_texts(tokenizer):
    texts = ["a dog </s>", " <pad> two", ""]
    assert tokenizer.batch_decode(tokenizer(texts, padding=True)["input_ids"], skip_special_tokens=True) == texts


@pytest.mark.parametrize("text", [" , .", "do n't", "a ."])
def test_decoding_leaves_spaces_before_punctuation(tokenizer, text):
    assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=True) == text


def test_saved_tokenizer_does_the_same_in_a_process_without_this_package(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    texts = list(TEXTS.values())
    program = (
        "import json, sys\n"
        "from transformers import AutoTokenizer\n"
        "tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "rows = tokenizer(json.load(sys.stdin), text_target=['a'])\n"
        "assert 'modeling_vanilla' not in sys.modules\n"
        "rows['decoded'] = tokenizer.batch_decode(rows['input_ids'], skip_special_tokens=True)\n"
        "rows['facts'] = [type(tokenizer).__name__, tokenizer.padding_side, tokenizer.model_max_length]\n"
        "json.dump(dict(rows), sys.stdout)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], input=json.dumps(texts), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    there = json.loads(result.stdout)
    assert there["input_ids"] == tokenizer(texts)["input_ids"]
    assert there["labels"] == tokenizer(["a"])["input_ids"]
    assert there["decoded"] == [unicodedata.normalize("NFC", text) for text in texts]
    assert there["facts"] == [PreTrainedTokenizerFast.__name__, "right", 1024]


def test_tokenizer_is_no_subclass(tokenizer):
    assert type(tokenizer) is PreTrainedTokenizerFast


def test_model_max_length_is_kept(tmp_path, sentences):
    train_tokenizer(sentences, 330, model_max_length=77).save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length == 77


@pytest.mark.parametrize("vocab_size", [340, 401, 430])
def test_vocabulary_has_exactly_the_asked_size(vocab_size, sentences):
    tokenizer = train_tokenizer(sentences * 5, vocab_size)
    assert len(tokenizer) == tokenizer.vocab_size == len(tokenizer.get_vocab()) == vocab_size
    assert sorted(tokenizer.get_vocab().values()) == list(range(vocab_size))


def test_size_that_the_texts_cannot_fill_is_an_error_with_the_largest_that_they_can(sentences):
    with pytest.raises(ValueError, match=r"vocab_size=5,000 is above (\d+), which is all .* use \1 or less") as error:
        train_tokenizer(sentences, 5000)
    largest = int(str(error.value).split("above ")[1].split(",")[0])
    assert len(train_tokenizer(sentences, largest)) == largest


def test_size_too_small_for_the_characters_is_an_error_with_the_smallest_that_works(sentences):
    characters = len(set(" ".join(sentences)))
    smallest = 3 + 256 + characters
    with pytest.raises(ValueError, match=f"vocab_size=260 is below {smallest}, .* use {smallest} or more"):
        train_tokenizer(sentences, 260)
    assert len(train_tokenizer(sentences, smallest)) == smallest


def test_alphabet_covers_the_share_of_the_text_it_should_and_no_more():
    text = "a" * 9_980 + "b" * 14 + "c" * 3 + "d" * 2  # 10,000 characters with the leading space
    vocabulary = train_tokenizer([text], 3 + 256 + 3).get_vocab()
    assert CHARACTER_COVERAGE == 0.9995
    assert {"a", "b", "c", "d"} & set(vocabulary) == {"a", "b", "c"}


def test_merges_do_not_join_the_neighbours_of_a_rare_character():
    texts = ["x①y"] * 9 + ["x q y"] * 20_000
    tokens = [" ", "q", "x", "y", " q", " x", " y"]
    assert set(tokens) < set(train_tokenizer(texts, 259 + len(tokens)).get_vocab())
    with pytest.raises(ValueError, match="above 266"):  # "xy" would have been one more
        train_tokenizer(texts, 259 + len(tokens) + 1)


def test_training_is_the_same_in_every_process_and_for_every_kind_of_iterable(sentences, another_process):
    for texts in (sentences * 5, iter(sentences * 5)):
        assert tokenizer_digest(train_tokenizer(texts, 430)) == another_process.digest


def test_training_reads_its_texts_one_batch_at_a_time(sentences):
    alive, most = 0, 0

    class Text(str):
        def __init__(self, _):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    class Texts:
        def __iter__(self):
            return (Text(sentences[index % len(sentences)]) for index in range(60_000))

    train_tokenizer(Texts(), 400)
    assert most <= 20_001


def test_digest_tells_tokenizers_apart(tokenizer, sentences):
    other = train_tokenizer(sentences * 5, 429)
    no_split = train_tokenizer(sentences * 5, 430)
    no_split.split_special_tokens = False
    assert len({tokenizer_digest(each) for each in (tokenizer, other, no_split)}) == 3


@pytest.mark.parametrize("mode", ["src_lang", "tgt_lang"])
def test_digest_tells_languages_apart_that_a_tokenizer_marks(mode):
    vocabulary = {token: number for number, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "▁", "a", "▁a"])}
    languages = {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}

    def nllb(**changes):
        return NllbTokenizer(vocab=vocabulary, merges=[("▁", "a")], **languages | changes)

    one, same, other = nllb(), nllb(), nllb(**{mode: "fra_Latn"})
    assert one("a", text_target="a").data != other("a", text_target="a").data
    assert tokenizer_digest(one) == tokenizer_digest(same) != tokenizer_digest(other)


def test_digest_does_not_change_with_use_or_saving(tokenizer, tmp_path):
    before = tokenizer_digest(tokenizer)
    tokenizer(["a", "a dog"], padding=True, truncation=True, max_length=2)
    assert tokenizer_digest(tokenizer) == before
    tokenizer.save_pretrained(tmp_path)
    assert tokenizer_digest(AutoTokenizer.from_pretrained(tmp_path)) == before


def test_multi30k_is_cut_into_fewer_tokens_than_characters_and_round_trips(shared_data):
    import gzip

    texts = []
    for language in ("en", "de"):
        with gzip.open(shared_data / f"multi30k/val.{language}.gz", "rt", encoding="utf-8") as file:
            texts += file.read().split("\n")[:-1]
    tokenizer = train_tokenizer(texts, 2000)
    rows = tokenizer(texts)["input_ids"]
    assert tokenizer.batch_decode(rows, skip_special_tokens=True) == [unicodedata.normalize("NFC", t) for t in texts]
    assert sum(map(len, rows)) < sum(map(len, texts)) / 3


# --- words ---

WORDS = ["Who is it ?", "Who was that ?", "What is that ?"]


def test_words_seen_twice_are_tokens_and_others_unknown(tmp_path):
    train_word_tokenizer(WORDS, 100).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert set(tokenizer.get_vocab()) == {"<pad>", "<s>", "</s>", "<unk>", "Who", "is", "that", "?"}
    assert tokenizer.convert_ids_to_tokens(tokenizer("Who was Ada?")["input_ids"]) == [
        "Who", "<unk>", "<unk>", "?", "</s>",
    ]  # fmt: skip
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


def test_the_most_frequent_words_come_first_where_not_all_fit():
    assert set(train_word_tokenizer(WORDS, 5).get_vocab()) == {"<pad>", "<s>", "</s>", "<unk>", "?"}


def test_a_vocabulary_of_words_is_the_same_each_time():
    digests = {tokenizer_digest(train_word_tokenizer(WORDS, 7)) for _ in range(3)}
    assert len(digests) == 1


def test_an_end_token_in_a_text_is_no_end_token_among_words():
    ids = train_word_tokenizer(WORDS, 100)("Who </s> is")["input_ids"]
    assert ids.count(2) == 1
