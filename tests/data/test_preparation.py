"""What is dropped and why, what is never dropped, and that nothing is tokenised twice."""

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from datasets import Dataset, Features, List, Value
from transformers import AutoTokenizer

from modeling_vanilla.data import FilterReport, load_corpus, preparation, prepare_pairs, train_tokenizer
from modeling_vanilla.data.arrow_files import kept_batches, write_arrow

COLUMNS = ["input_ids", "labels", "source_length", "target_length"]


def dataset(pairs):
    return Dataset.from_dict({"source": [s for s, _ in pairs], "target": [t for _, t in pairs]})


def rows(prepared):
    return list(zip(prepared["input_ids"][:], prepared["labels"][:], strict=True))


@pytest.fixture
def prepare(tokenizer, arguments):
    def prepare(pairs, training=True, **options):
        pairs = pairs if isinstance(pairs, Dataset) else dataset(pairs)
        return prepare_pairs(pairs, options.pop("tokenizer", tokenizer), arguments(**options), training=training)

    return prepare


def expected_rows(tokenizer, pairs):
    encoded = tokenizer([s for s, _ in pairs], text_target=[t for _, t in pairs])
    return list(zip(encoded["input_ids"], encoded["labels"], strict=True))


GOOD = [("A dog runs.", "Ein Hund läuft."), ("two  men\t", " zwei"), ("我爱", "I love </s>")]


def test_ids_are_those_of_the_tokenizer_called(prepare, tokenizer):
    prepared, report = prepare(GOOD)
    assert rows(prepared) == expected_rows(tokenizer, GOOD)
    assert report == FilterReport(total=3, kept=3, dropped={})


def test_columns_are_ids_and_lengths(prepare):
    prepared, _ = prepare(GOOD)
    ids, length = List(Value("int32")), Value("int32")
    assert prepared.features == Features(dict(zip(COLUMNS, [ids, ids, length, length], strict=True)))
    assert prepared.column_names == COLUMNS


@pytest.mark.parametrize("training", [True, False])
def test_lengths_count_tokens_with_the_end_of_sentence(prepare, tokenizer, training):
    prepared, _ = prepare(GOOD, training=training)
    assert prepared["source_length"][:] == [len(tokenizer.tokenize(s)) + 1 for s, _ in GOOD]
    assert prepared["target_length"][:] == [len(tokenizer.tokenize(t)) + 1 for _, t in GOOD]


# Each is dropped from training for this reason, whichever side it is on. Each "dog" is one token.
BAD = {
    "empty": ("", "a dog", "empty side"),
    "blank": (" \t\u3000", "a dog", "empty side"),
    "missing": (None, "a dog", "empty side"),
    "not UTF-8": ("a \ufffd dog", "a dog", "invalid UTF-8"),
    "NUL": ("a\0dog", "a dog", "control character"),
    "line break": ("a\ndog", "a dog", "control character"),
    "delete": ("a\x7f", "a dog", "control character"),
    "C1": ("a\x85dog", "a dog", "control character"),
    "over-long": (" dog" * 40, "dog " * 20, "over-long"),
    "ratio": ("dog" + " dog" * 12, "dog", "length ratio"),
    "empty before control": ("a\0", " ", "empty side"),
    "invalid before control": ("a\0", "\ufffd", "invalid UTF-8"),
    "control before over-long": ("a\0" * 50, "a dog", "control character"),
    "over-long before ratio": (" dog" * 40, "dog", "over-long"),
}


@pytest.mark.parametrize("swapped", [False, True], ids=["source", "target"])
@pytest.mark.parametrize("name", BAD)
def test_bad_training_pair_is_dropped_and_its_reason_counted(prepare, tokenizer, name, swapped):
    *pair, reason = BAD[name]
    pairs = [GOOD[0], tuple(pair[::-1] if swapped else pair), GOOD[1]]
    prepared, report = prepare(pairs, max_length=30, max_length_ratio=4)
    assert rows(prepared) == expected_rows(tokenizer, GOOD[:2])
    assert report == FilterReport(total=3, kept=2, dropped={reason: 1})


@pytest.mark.parametrize("name", BAD)
def test_bad_pair_is_never_dropped_or_cut_where_it_is_scored(prepare, tokenizer, name):
    source, target, _ = BAD[name]
    pairs = [(source, target), GOOD[0], GOOD[0]]
    prepared, report = prepare(pairs, training=False, max_length=30, max_length_ratio=4)
    assert rows(prepared) == expected_rows(tokenizer, [(s or "", t) for s, t in pairs])
    assert report == FilterReport(total=3, kept=3, dropped={})


@pytest.mark.parametrize("character", ["\t", "\u2028", "\u200b", "\u00ad", "\ufeff", "\U000e0001"])
def test_characters_that_are_no_controls_are_kept(prepare, character):
    assert prepare([(f"a{character}b", "c")])[1].kept == 1


@pytest.mark.parametrize(("tokens", "kept"), [(30, 1), (31, 0)])
def test_max_length_counts_the_end_of_sentence(prepare, tokenizer, tokens, kept):
    text = " ".join(["dog"] * (tokens - 1))
    assert len(tokenizer(text)["input_ids"]) == tokens
    for pair in [(text, "dog " * 15), ("dog " * 15, text)]:
        assert prepare([pair, GOOD[0]], max_length=30)[1].kept == kept + 1


@pytest.mark.parametrize(("tokens", "kept"), [(8, 1), (9, 0)])
def test_length_ratio_may_be_reached_but_not_passed(prepare, tokenizer, tokens, kept):
    text = " ".join(["dog"] * (tokens - 1))
    assert (len(tokenizer(text)["input_ids"]), len(tokenizer("dog")["input_ids"])) == (tokens, 2)
    for pair in [(text, "dog"), ("dog", text)]:
        assert prepare([pair, GOOD[0]], max_length_ratio=4)[1].kept == kept + 1


def test_first_of_equal_pairs_is_kept_in_its_place(prepare, tokenizer):
    pairs = [("a", "b"), ("c", "d"), ("a", "b"), ("a", "d"), ("c", "b"), ("c", "d"), ("a", "b")]
    prepared, report = prepare(pairs)
    assert rows(prepared) == expected_rows(tokenizer, list(dict.fromkeys(pairs)))
    assert report.dropped == {"duplicate": 3}


def test_pairs_that_join_to_the_same_text_are_not_duplicates(prepare):
    assert prepare([("ab", "c"), ("a", "bc"), ("a b", "c"), ("a", "b c")])[1].kept == 4


def test_duplicates_are_kept_on_request(prepare):
    assert prepare([GOOD[0]] * 3, drop_duplicates=False)[1] == FilterReport(total=3, kept=3)


def test_dropped_pair_is_not_also_a_duplicate(prepare):
    assert prepare([("", "a"), ("", "a"), GOOD[0]])[1].dropped == {"empty side": 2}


def test_duplicates_are_those_of_a_plain_dictionary():
    hashes = np.random.default_rng(0).integers(0, 300, 1_000).astype(np.uint64) * np.uint64(2**55)
    hashes[::7] = 0
    reasons = np.zeros(1_000, dtype=np.int8)
    reasons[::7] = preparation.EMPTY
    seen, expected = set(), reasons.copy()
    for index in np.flatnonzero(reasons == 0):
        if hashes[index] in seen:
            expected[index] = preparation.DUPLICATE
        seen.add(hashes[index])
    if 0 in hashes[reasons == 0]:
        hashes[(hashes == 0) & (reasons == 0)] = 1
    preparation.mark_duplicates(reasons, hashes)
    assert (reasons == expected).all()


def test_nothing_left_is_an_error_that_says_what_dropped_it(prepare):
    message = r"no pair is left to train on: kept 0 of 3 pairs \(0.0%\); dropped: empty side 1, control character 2"
    for _ in range(2):  # also when it comes from the cache
        with pytest.raises(ValueError, match=message):
            prepare([("", "a"), ("a\0", "b"), ("a", "\0")])


def test_no_pairs_at_all_is_an_error(prepare):
    with pytest.raises(ValueError, match="no pairs to prepare"):
        prepare(dataset([]), training=False)


# --- the report


def test_report_reads_as_one_line():
    report = FilterReport(total=29_000, kept=28_990, dropped={"over-long": 7, "duplicate": 3})
    assert str(report) == "kept 28,990 of 29,000 pairs (100.0%); dropped: over-long 7, duplicate 3"
    assert str(FilterReport(total=5, kept=5)) == "kept all 5 pairs"


def test_report_becomes_plain_numbers():
    report = FilterReport(total=5, kept=3, dropped={"duplicate": 2})
    assert report.to_dict() == {"total": 5, "kept": 3, "dropped": {"duplicate": 2}}


# --- the cache


@pytest.fixture
def tokenised(monkeypatch):
    """Grows by one each time that a batch is tokenised."""
    batches, tokenise = [], preparation._tokenise

    def counting(batch, **options):
        batches.append(batch)
        return tokenise(batch, **options)

    monkeypatch.setattr(preparation, "_tokenise", counting)
    return batches


def test_second_call_finds_the_first_ones_result(prepare, tokenised):
    pairs = [*GOOD, GOOD[0], ("", "a")]
    first, first_report = prepare(pairs)
    assert len(tokenised) == 1
    second, second_report = prepare(pairs)
    assert len(tokenised) == 1
    assert rows(second) == rows(first)
    assert second._fingerprint == first._fingerprint
    assert second_report == first_report == FilterReport(5, 3, {"empty side": 1, "duplicate": 1})


@pytest.mark.parametrize(
    "change",
    [
        {"max_length": 20},
        {"max_length_ratio": 2.0},
        {"drop_duplicates": False},
        {"training": False},
        {"tokenizer": "another"},
        {"pairs": GOOD[::-1]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_any_changed_setting_tokenises_again(prepare, tokenised, sentences, change):
    first, _ = prepare(GOOD)
    if "tokenizer" in change:
        change = {"tokenizer": train_tokenizer(sentences * 5, 429)}
    second, _ = prepare(change.pop("pairs", GOOD), **change)
    assert len(tokenised) == 2
    assert second._fingerprint != first._fingerprint


@pytest.mark.parametrize(
    "change", [{"preprocessing_num_workers": 3}, {"max_train_samples": 9}], ids=["workers", "samples"]
)
def test_setting_that_does_not_matter_here_is_no_reason_to_tokenise_again(prepare, tokenised, change):
    prepare(GOOD)
    prepare(GOOD, **change)
    assert len(tokenised) == 1


def test_limits_are_no_reason_to_tokenise_a_scored_split_again(prepare, tokenised):
    prepare(GOOD, training=False)
    prepare(GOOD, training=False, max_length=20)
    assert len(tokenised) == 1


def test_loaded_corpus_that_another_process_prepared_is_found_again(another_process, arguments, tokenised):
    folder = another_process.folder
    args = arguments(data_dir=str(folder / "data"), cache_dir=str(folder / "cache"))
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    prepared, _ = prepare_pairs(load_corpus(args)["train"], tokenizer, args, training=True)
    assert prepared._fingerprint == another_process.fingerprint
    assert tokenised == []


def test_of_two_at_once_one_prepares_and_the_other_waits(prepare, monkeypatch):
    calls, real = [], preparation._prepare

    def slow(*args):
        calls.append(args)
        time.sleep(0.3)
        real(*args)

    monkeypatch.setattr(preparation, "_prepare", slow)
    with ThreadPoolExecutor(2) as pool:
        (one, _), (other, _) = pool.map(prepare, [GOOD, GOOD])
    assert len(calls) == 1
    assert rows(one) == rows(other)


def test_what_an_interrupted_run_has_tokenised_is_not_tokenised_again(prepare, tokenised, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "write_arrow", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(GOOD)
    assert prepare(GOOD)[1].kept == len(GOOD)
    assert len(tokenised) == 1


def test_result_is_memory_mapped_and_nothing_else_is_left_behind(prepare, tmp_path):
    prepared, _ = prepare([*GOOD, ("", "a")])
    (file,) = prepared.cache_files
    assert [str(path) for path in (tmp_path / "cache/vanilla_transformer").iterdir()] == [file["filename"]]
    assert prepared._indices is None  # reading a whole column through an index is 30 times slower


# --- processes


@pytest.fixture
def many():
    rng = random.Random(0)
    words = ["dog", "Hund", "我", "grass", "</s>", "3", "\u2028", "☃"]
    return [(" ".join(rng.choices(words, k=5)), " ".join(rng.choices(words, k=4))) for _ in range(3_000)]


def test_processes_give_what_one_gives(prepare, monkeypatch, many):
    one, one_report = prepare(many)
    monkeypatch.setattr(preparation, "PAIRS_PER_PROCESS", 500)
    monkeypatch.setattr(preparation, "PREPARATION_VERSION", -1)  # another cache key
    two, two_report = prepare(many, preprocessing_num_workers=2)
    assert two._fingerprint != one._fingerprint
    assert rows(two) == rows(one)
    assert two_report == one_report


def test_small_input_spawns_no_processes(prepare, monkeypatch):
    import datasets.arrow_dataset

    def no_pool(*args, **options):
        raise AssertionError("a pool was made")

    monkeypatch.setattr(datasets.arrow_dataset.mp, "Pool", no_pool)
    assert prepare(GOOD, preprocessing_num_workers=8)[1].kept == 3


def test_processes_start_quietly_after_the_tokenizer_has_used_threads(another_process):
    assert [kept for kept, *_ in another_process.forks] == [1000, 1000, 1000]
    assert "fork" not in another_process.errors.lower()
    assert "parallelism" not in another_process.errors.lower()


def test_setting_of_the_tokenizer_threads_is_restored(another_process):
    assert [settings for _, *settings in another_process.forks] == [[None, None], ["true", "true"], ["false", "false"]]


def test_tokenizer_with_modes_is_called_rather_than_bypassed(arguments, tokenizer):
    class Moded(type(tokenizer)):
        """As NLLB's: the target is tokenised otherwise than the source."""

        def _switch_to_target_mode(self):
            self.target = True

        def _switch_to_input_mode(self):
            self.target = False

        def _encode_plus(self, text, **options):
            if getattr(self, "target", False):
                text = [each.upper() for each in text] if isinstance(text, list) else text.upper()
            return super()._encode_plus(text, **options)

    moded = Moded(tokenizer_object=tokenizer.backend_tokenizer, split_special_tokens=True)
    prepared, _ = prepare_pairs(dataset([("a dog", "a dog")]), moded, arguments(), training=True)
    assert rows(prepared) == [(tokenizer("a dog")["input_ids"], tokenizer("A DOG")["input_ids"])]


def test_truncation_left_on_by_a_call_does_not_cut_pairs(prepare, tokenizer):
    tokenizer(["a dog runs over the grass", "a"], truncation=True, max_length=2, padding="max_length")
    prepared, _ = prepare(GOOD)
    assert prepared["source_length"][:] == [len(ids) for ids in tokenizer([s for s, _ in GOOD])["input_ids"]]


# --- Arrow files


def test_kept_rows_are_written_and_read_in_order(tmp_path):
    table = Dataset.from_dict({"a": list(range(25_000)), "b": ["x"] * 25_000})
    keep = np.random.default_rng(0).random(25_000) < 0.5
    schema = table.select_columns(["a"]).features.arrow_schema
    write_arrow(tmp_path / "kept.arrow", schema, kept_batches(table, keep, ["a"]))
    assert Dataset.from_file(str(tmp_path / "kept.arrow"))["a"][:] == np.flatnonzero(keep).tolist()


def test_file_that_could_not_be_finished_is_not_there(tmp_path):
    table = Dataset.from_dict({"a": [1, 2]})

    def batches():
        yield from kept_batches(table, np.array([True, True]), ["a"])
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_arrow(tmp_path / "kept.arrow", table.features.arrow_schema, batches())
    assert list(tmp_path.iterdir()) == []


def test_multi30k_loses_only_its_duplicates(shared_data, arguments):
    args = arguments(
        data_dir=str(shared_data / "multi30k"), source_lang="en", target_lang="de", max_train_samples=5_000
    )
    corpus = load_corpus(args)
    tokenizer = train_tokenizer(corpus["train"]["source"][:] + corpus["train"]["target"][:], 2000)
    prepared, report = prepare_pairs(corpus["train"], tokenizer, args, training=True)
    unique = set(zip(corpus["train"]["source"][:], corpus["train"]["target"][:], strict=True))
    assert report.kept == len(prepared) == len(unique)
    assert re.fullmatch(r"kept [\d,]+ of 5,000 pairs .*|kept all 5,000 pairs", str(report))
