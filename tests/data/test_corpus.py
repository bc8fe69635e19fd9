"""Every format reads to the same pairs; splits are found by name; each mistake is one line that names it."""

import gzip
import json
import lzma
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from datasets import ClassLabel, Dataset, DatasetDict, Features, Translation, Value, concatenate_datasets
from transformers import HfArgumentParser

from modeling_vanilla.data import DataArguments, PairTexts, corpus, grammar, load_corpus
from modeling_vanilla.data.text_files import read_lines

PAIRS = [("a dog", "ein Hund"), ('it\'s 1, "two"', 'es ist 1, "zwei"'), ("我", "NA"), ("tail ", " Ende")]
VALIDATION = [("a cat", "eine Katze")]
TEST = [("a cow", "eine Kuh"), ("a hen", "ein Huhn")]


def text(lines):
    return "".join(line + "\n" for line in lines).encode()


def parallel(pairs):
    return {".en": text(source for source, _ in pairs), ".de": text(target for _, target in pairs)}


def quoted(field):
    return '"' + field.replace('"', '""') + '"'


def parquet(pairs, names=("source", "target")):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(zip(names, map(list, zip(*pairs, strict=True)), strict=True))), sink)
    return sink.getvalue().to_pybytes()


def twice(name):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([["a"], ["b"], ["c"]], names=["source", name, name]), sink)
    return sink.getvalue().to_pybytes()


def json_lines(pairs, record):
    return text(json.dumps(record(*pair), ensure_ascii=False) for pair in pairs)


# Format -> pairs -> the files of one split, by suffix. All need to read to the same pairs.
FORMATS = {
    "parallel": parallel,
    "parallel, no last line end": lambda pairs: {end: data[:-1] for end, data in parallel(pairs).items()},
    "parallel, CRLF": lambda pairs: {end: data.replace(b"\n", b"\r\n") for end, data in parallel(pairs).items()},
    "parallel, BOM": lambda pairs: {end: b"\xef\xbb\xbf" + data for end, data in parallel(pairs).items()},
    "tsv": lambda pairs: {".tsv": text("\t".join(pair) for pair in pairs)},
    "tsv, CRLF and BOM": lambda pairs: {".tsv": b"\xef\xbb\xbf" + text("\t".join(pair) + "\r" for pair in pairs)},
    "json, source": lambda pairs: {".jsonl": json_lines(pairs, lambda s, t: {"id": 1, "source": s, "target": t})},
    "json, src": lambda pairs: {".jsonl": json_lines(pairs, lambda s, t: {"tgt": t, "src": s})},
    "json, languages": lambda pairs: {".json": json_lines(pairs, lambda s, t: {"de": t, "en": s, "fr": ""})},
    "json, translation": lambda pairs: {
        ".jsonl": json_lines(pairs, lambda s, t: {"translation": {"de": t, "en": s, "fr": ""}})
    },
    "json, escaped": lambda pairs: {".jsonl": text(json.dumps({"source": s, "target": t}) for s, t in pairs)},
    "json, a list": lambda pairs: {
        ".json": json.dumps([{"source": s, "target": t} for s, t in pairs], indent=1).encode()
    },
    "csv": lambda pairs: {".csv": text(["source,target", *(f"{quoted(s)},{quoted(t)}" for s, t in pairs)])},
    "csv, CRLF": lambda pairs: {".csv": text(["id,de,en\r", *(f"1,{quoted(t)},{quoted(s)}\r" for s, t in pairs)])},
    "csv, where it is from": lambda pairs: {
        ".csv": text(["source,src,en,de", *(f"web,1,{quoted(s)},{quoted(t)}" for s, t in pairs)])
    },
    "csv, a column twice": lambda pairs: {
        ".csv": text(["id,id,en,de", *(f"1,2,{quoted(s)},{quoted(t)}" for s, t in pairs)])
    },
    "parquet": lambda pairs: {".parquet": parquet(pairs)},
    "parquet, languages": lambda pairs: {".parquet": parquet(pairs, ("en", "de"))},
}
COMPRESSIONS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


def write(folder: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def write_splits(folder: Path, make, compression="", **splits) -> Path:
    compress = COMPRESSIONS[compression]
    for name, pairs in splits.items():
        write(folder, {name + end + compression: compress(data) for end, data in make(pairs).items()})
    return folder


def pairs_of(dataset):
    return list(zip(dataset["source"][:], dataset["target"][:], strict=True))


@pytest.fixture
def load(arguments):
    def load(data_dir=None, source_lang="en", target_lang="de", **options):
        data_dir = None if data_dir is None else str(data_dir)
        return load_corpus(arguments(data_dir=data_dir, source_lang=source_lang, target_lang=target_lang, **options))

    return load


@pytest.fixture
def readings(monkeypatch):
    """Grows by one each time that a split is read rather than found in the cache."""
    readings, batches = [], corpus._batches

    def counting(pairs):
        readings.append(pairs)
        yield from batches(pairs)

    monkeypatch.setattr(corpus, "_batches", counting)
    return readings


# --- formats


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reads_to_the_same_pairs(tmp_path, load, name, compression):
    folder = write_splits(tmp_path / "data", FORMATS[name], compression, train=PAIRS, val=VALIDATION, test=TEST)
    loaded = load(folder)
    assert {split: pairs_of(pairs) for split, pairs in loaded.items()} == {
        "train": PAIRS,
        "validation": VALIDATION,
        "test": TEST,
    }
    for pairs in loaded.values():
        assert pairs.features == Features({"source": Value("string"), "target": Value("string")})


def test_saved_dataset_dict_reads_to_the_same_pairs(tmp_path, load):
    def table(pairs):
        return Dataset.from_list([{"id": 7, "translation": {"en": s, "de": t}} for s, t in pairs])

    DatasetDict(train=table(PAIRS), valid=table(VALIDATION), test_a=table(TEST)).save_to_disk(tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert {split: pairs_of(pairs) for split, pairs in loaded.items()} == {
        "train": PAIRS,
        "validation": VALIDATION,
        "test_a": TEST,
    }


def test_saved_single_dataset_is_the_training_split(tmp_path, load):
    Dataset.from_dict({"src": ["a"] * 10, "tgt": ["b"] * 10}).save_to_disk(tmp_path / "saved")
    assert load(tmp_path / "saved").num_rows == {"train": 9, "validation": 1}


def test_one_column_of_a_hub_data_set_is_both_sides_of_a_language_model(load, monkeypatch):
    table = Dataset.from_dict({"text": ["a", "b", "c"]})
    loaded = DatasetDict(train=table, validation=table.select([2, 0]))
    monkeypatch.setattr(corpus, "load_dataset", lambda *args, **options: loaded)
    loaded = load(dataset_name="some/texts", task="language_modeling")
    assert pairs_of(loaded["train"]) == [("a", "a"), ("b", "b"), ("c", "c")]
    assert pairs_of(loaded["validation"]) == [("c", "c"), ("a", "a")]
    source, target = (loaded["train"].data.column(side).chunk(0).buffers()[2] for side in ("source", "target"))
    assert source.address == target.address  # no copy, let alone item by item


@pytest.mark.parametrize("shape", ["translation", "columns", "columns of large_string"])
def test_hub_data_set_reads_to_the_same_pairs(load, monkeypatch, shape):
    if shape == "translation":
        rows = [{"translation": {"de": t, "en": s}} for s, t in PAIRS]
        features = Features({"translation": Translation(languages=["de", "en"])})
    else:
        rows = [{"en": s, "de": t, "id": 0} for s, t in PAIRS]
        kind = Value("large_string" if "large" in shape else "string")
        features = Features({"en": kind, "de": kind, "id": Value("int32")})
    table = Dataset.from_list(rows, features=features)
    asked = []

    def load_dataset(*args, **options):
        asked.append((args, options))
        return DatasetDict(train=table, validation=table.select([0]), test=table.select([1]), other=table)

    monkeypatch.setattr(corpus, "load_dataset", load_dataset)
    loaded = load(dataset_name="some/corpus", dataset_config_name="en-de", max_eval_samples=1)
    assert asked[0][0] == ("some/corpus", "en-de")
    assert list(loaded) == ["train", "validation", "test"]
    assert pairs_of(loaded["train"]) == PAIRS
    assert loaded["train"].features == Features({"source": Value("string"), "target": Value("string")})


def test_dataset_name_may_be_a_local_data_set(tmp_path, load):
    folder = write_splits(tmp_path / "local", FORMATS["json, source"], train=PAIRS, validation=VALIDATION)
    loaded = load(dataset_name=str(folder))
    assert pairs_of(loaded["train"]) == PAIRS
    assert pairs_of(loaded["validation"]) == VALIDATION


def test_built_in_grammar_is_generated_once(load, monkeypatch, readings):
    calls = []

    def built_in_splits():
        calls.append(1)
        return {"train": PAIRS, "validation": VALIDATION, "test": TEST}

    monkeypatch.setattr(grammar, "built_in_splits", built_in_splits)
    for _ in range(2):
        loaded = load(dataset_name="builtin", source_lang="zh", target_lang=None)
        assert pairs_of(loaded["train"]) == PAIRS
        assert pairs_of(loaded["validation"]) == VALIDATION
        assert pairs_of(loaded["test"]) == TEST
    assert len(calls) == 1
    assert len(readings) == 3


def test_built_in_grammar_loads_as_it_is(load):
    loaded = load(dataset_name="builtin", source_lang=None, target_lang=None)
    assert loaded.num_rows == {"train": 20_000, "validation": 500, "test": 500}


def test_single_file_is_the_training_split(tmp_path, load):
    write(tmp_path, {"pairs.tsv.gz": gzip.compress(b"a\tb\n" * 200)})
    assert load(tmp_path / "pairs.tsv.gz").num_rows == {"train": 198, "validation": 2}


@pytest.mark.parametrize("suffix", [".zst", ".gz", ".xz"])
def test_concatenated_compressed_streams_are_one_file(tmp_path, suffix):
    parts = [b"first\nsec", b"ond\n", b"", b"third\n"]
    write(tmp_path, {"train.en" + suffix: b"".join(map(COMPRESSIONS[suffix], parts))})
    assert list(read_lines(tmp_path / f"train.en{suffix}", strict=True)) == ["first", "second", "third"]


# --- lines


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"])
def test_only_a_line_feed_ends_a_line(tmp_path, load, character):
    pairs = [(f"a{character}b", "c"), ("d", f"e{character}f")]
    folder = write_splits(tmp_path / "data", parallel, train=pairs, val=VALIDATION)
    assert pairs_of(load(folder)["train"]) == pairs


def test_empty_lines_keep_their_place(tmp_path, load):
    pairs = [("", "a"), ("b", ""), ("", ""), ("c", "d"), ("", "")]
    folder = write_splits(tmp_path / "data", parallel, train=pairs, val=VALIDATION)
    assert pairs_of(load(folder)["train"]) == pairs


def test_byte_order_mark_is_taken_off_the_first_line_only(tmp_path):
    write(tmp_path, {"a": "\ufeffone\n\ufefftwo\n"})
    assert list(read_lines(tmp_path / "a", strict=True)) == ["one", "\ufefftwo"]


def test_tsv_fields_are_taken_as_they_are(tmp_path, load):
    pairs = [('"a', "b"), ("c\\t", "'d'"), ("#e", '"')]
    folder = write_splits(tmp_path / "data", FORMATS["tsv"], train=pairs, val=VALIDATION)
    assert pairs_of(load(folder)["train"]) == pairs


def test_training_line_that_is_not_utf8_keeps_its_place(tmp_path, load):
    files = {"train.en": b"a\n\xff\xfeb\nc\n", "train.de": b"x\ny\nz\n", "val.en": b"v\n", "val.de": b"w\n"}
    loaded = load(write(tmp_path / "data", files))
    assert pairs_of(loaded["train"]) == [("a", "x"), ("\ufffd\ufffdb", "y"), ("c", "z")]


def test_half_a_surrogate_pair_in_json_becomes_the_replacement_character(tmp_path, load):
    lines = '{"source": "a\\ud83d", "target": "b"}\n{"source": "\\ud83d\\ude00", "target": "c"}\n'
    loaded = load(write(tmp_path / "data", {"train.jsonl": lines, "val.tsv": "a\tb\n"}))
    assert loaded["train"]["source"][:] == ["a\ufffd", "😀"]


@pytest.mark.parametrize(
    ("name", "content"),
    {
        "train.jsonl": '{"source": null, "target": "b"}\n{"target": "d", "source": "c"}\n{"target": "d"}\n',
        "train.parquet": parquet([(None, "b"), ("c", "d"), (None, "d")]),
    }.items(),
)
def test_missing_training_text_is_an_empty_text(tmp_path, load, name, content):
    loaded = load(write(tmp_path / "data", {name: content, "val.tsv": "a\tb\n"}))
    assert pairs_of(loaded["train"]) == [("", "b"), ("c", "d"), ("", "d")]


@pytest.mark.parametrize("value", ["NA", "null", "None", "nan", "1", "2020-01-01", "true", ""])
@pytest.mark.parametrize("name", ["csv", "json, source"])
def test_text_that_looks_like_another_type_stays_text(tmp_path, load, name, value):
    folder = write_splits(tmp_path / "data", FORMATS[name], train=[(value, "x"), (value, value)], val=VALIDATION)
    assert pairs_of(load(folder)["train"]) == [(value, "x"), (value, value)]


def test_a_csv_cell_may_be_long(tmp_path, load):
    folder = write_splits(tmp_path / "data", FORMATS["csv"], train=[("a" * 200_000, "b")], val=VALIDATION)
    assert pairs_of(load(folder)["train"]) == [("a" * 200_000, "b")]


def test_asked_columns_are_taken_before_usual_ones(tmp_path, load):
    content = json_lines(PAIRS, lambda s, t: {"source": "no", "target": "no", "question": s, "answer": t})
    folder = write(tmp_path / "data", {"train.jsonl": content, "val.jsonl": content})
    loaded = load(folder, source_column="question", target_column="answer")
    assert pairs_of(loaded["train"]) == PAIRS


# --- splits


@pytest.mark.parametrize("name", ["val", "valid", "validation", "dev"])
def test_validation_split_has_four_names(tmp_path, load, name):
    folder = write_splits(tmp_path / "data", parallel, train=PAIRS, **{name: VALIDATION})
    assert pairs_of(load(folder)["validation"]) == VALIDATION


def test_test_sets_keep_their_names(tmp_path, load):
    splits = {"train": PAIRS, "val": VALIDATION, "test_2016_flickr": TEST, "test": VALIDATION, "test-b": TEST}
    folder = write_splits(tmp_path / "data", parallel, ".gz", **splits)
    write(folder, {"test_notes.txt": "not a test set", "test_half.en": "no German\n", ".test.tsv": "hidden"})
    loaded = load(folder)
    assert list(loaded) == ["train", "validation", "test", "test-b", "test_2016_flickr"]
    assert pairs_of(loaded["test_2016_flickr"]) == TEST


def test_other_versions_of_a_file_are_left_alone_unless_named(tmp_path, load):
    tokenised = {name: [(s + " .", t + " .") for s, t in pairs] for name, pairs in {"a": PAIRS, "b": TEST}.items()}
    splits = {"train": PAIRS, "val": VALIDATION, "test": TEST}
    other = {"train.lc.norm.tok": tokenised["a"], "val.lc.norm.tok": tokenised["b"], "test.lc.norm.tok": tokenised["b"]}
    folder = write_splits(tmp_path / "data", parallel, ".gz", **splits, **other)
    assert pairs_of(load(folder)["train"]) == PAIRS
    assert list(load(folder)) == ["train", "validation", "test"]
    named = load(
        folder,
        train_prefix="train.lc.norm.tok",
        validation_prefix="val.lc.norm.tok",
        test_prefix="test.lc.norm.tok, test",
    )
    assert pairs_of(named["train"]) == tokenised["a"]
    assert pairs_of(named["validation"]) == tokenised["b"]
    assert list(named) == ["train", "validation", "test.lc.norm.tok", "test"]


@pytest.mark.parametrize("outside", ["../elsewhere/test", "{root}/elsewhere/test"])
def test_a_test_set_from_elsewhere_has_a_plain_name(tmp_path, load, outside):
    """Its translations are written under that name into the model's folder."""
    folder = write_splits(tmp_path / "data", parallel, train=PAIRS, val=VALIDATION)
    write_splits(tmp_path / "elsewhere", parallel, test=TEST)
    assert list(load(folder, test_prefix=outside.format(root=tmp_path))) == ["train", "validation", "test"]


@pytest.mark.parametrize("tests", ["validation", "train", "test,../other/test", "test,test"])
def test_a_test_set_takes_no_other_splits_name(tmp_path, load, tests):
    """Or it would take that split's place: be trained on, or decide which model is the best."""
    names = {"train.big": PAIRS, "train": TEST, "dev": VALIDATION, "validation": TEST, "test": TEST}
    folder = write_splits(tmp_path / "data", parallel, **names)
    write_splits(tmp_path / "other", parallel, test=TEST)
    with pytest.raises(ValueError, match="is the name of another split"):
        load(folder, train_prefix="train.big", validation_prefix="dev", test_prefix=tests)
    saved = DatasetDict(
        {name: Dataset.from_dict({"en": ["a"], "de": ["b"]}) for name in ("train", "dev", "validation")}
    )
    saved.save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match="is the name of another split"):
        load(tmp_path / "saved", validation_prefix="dev", test_prefix="validation")


def test_prefix_may_lead_into_a_folder(tmp_path, load):
    folder = write_splits(tmp_path / "data", parallel, **{"deep/corpus": PAIRS, "dev": VALIDATION})
    assert pairs_of(load(folder, train_prefix="deep/corpus")["train"]) == PAIRS


def test_direction_follows_the_languages(tmp_path, load):
    folder = write_splits(tmp_path / "data", parallel, train=PAIRS, val=VALIDATION)
    assert pairs_of(load(folder, source_lang="de", target_lang="en")["train"]) == [(t, s) for s, t in PAIRS]


@pytest.mark.parametrize(("lines", "held_out"), [(2, 1), (99, 1), (200, 2), (1_050, 10), (120_000, 1_000)])
def test_without_a_validation_split_some_training_pairs_are_held_out(tmp_path, load, caplog, lines, held_out):
    pairs = [(f"{n:06}", f"t{n}") for n in range(lines)]
    loaded = load(write_splits(tmp_path / "data", parallel, train=pairs))
    train, validation = pairs_of(loaded["train"]), pairs_of(loaded["validation"])
    assert len(validation) == held_out
    assert sorted(train + validation) == pairs
    assert train == sorted(train)  # in their order
    assert f"{held_out} of the {lines} training pairs are held out" in caplog.text


def test_held_out_pairs_are_the_same_each_time(tmp_path, load):
    folder = write_splits(tmp_path / "data", parallel, train=[(f"s{n}", "t") for n in range(500)])
    first = pairs_of(load(folder)["validation"])
    assert pairs_of(load(folder, cache_dir=str(tmp_path / "other cache"))["validation"]) == first
    assert first != pairs_of(load(folder)["train"])[: len(first)]


def test_only_text_is_held_out(tmp_path, load):
    bad = [("", "t"), ("s", " "), ("s\ufffd", "t")]
    folder = write_splits(tmp_path / "data", parallel, train=bad * 100 + [("s", "t")] + bad * 100)
    assert pairs_of(load(folder)["validation"]) == [("s", "t")]


def test_what_training_would_drop_is_not_held_out(tmp_path, load):
    bad = [("a " * 1200, "t " * 1100), ("one", "eins " * 90), ("s\x07", "t")]
    folder = write_splits(tmp_path / "data", parallel, train=bad * 100 + [("s", "t")] + bad * 100)
    assert pairs_of(load(folder)["validation"]) == [("s", "t")]


@pytest.mark.parametrize("header", ["source\ttarget", "Source\tTarget", "src\ttgt", "en\tde"])
def test_a_header_in_a_tsv_file_is_no_pair(tmp_path, load, header):
    (tmp_path / "train.tsv").write_text(f"{header}\na\tb\nsource\ttarget\n")
    (tmp_path / "val.tsv").write_text(f"{header}\nc\td\n")
    loaded = load(tmp_path)
    assert pairs_of(loaded["train"]) == [("a", "b"), ("source", "target")]
    assert pairs_of(loaded["validation"]) == [("c", "d")]


def test_a_single_file_has_no_use_for_prefixes(tmp_path, load):
    (tmp_path / "all.tsv").write_text("a\tb\nc\td\n")
    with pytest.raises(ValueError, match="is one file, so validation_prefix has no effect"):
        load(tmp_path / "all.tsv", validation_prefix="val")


def test_a_classifiers_text_must_be_utf8(tmp_path, load):
    """It drops nothing, so that it would learn from what is left of the letters."""
    (tmp_path / "train.tsv").write_bytes("gr\u00fcn\tcolour\n".encode("latin-1") * 3)
    with pytest.raises(ValueError, match=r"train\.tsv:1: byte 3 of the line"):
        load(tmp_path, task="text_classification")


def test_a_test_set_without_labels_is_left_out(tmp_path, load, caplog):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    rows = {"train": [0, 1, 0, 1], "validation": [1, 0], "test": [-1, -1]}
    data = {
        name: Dataset.from_dict({"text": [f"{name} {i}" for i in range(len(labels))], "label": labels}, features)
        for name, labels in rows.items()
    }
    DatasetDict(data).save_to_disk(tmp_path / "data")
    loaded = load(tmp_path / "data", task="text_classification")
    assert set(loaded) == {"train", "validation"}
    assert "test is left out: it has no labels" in caplog.text


def test_sample_limits_take_the_first(tmp_path, load):
    folder = write_splits(tmp_path / "data", parallel, train=PAIRS, val=TEST, test=TEST)
    loaded = load(folder, max_train_samples=2, max_eval_samples=1)
    assert pairs_of(loaded["train"]) == PAIRS[:2]
    assert loaded.num_rows == {"train": 2, "validation": 1, "test": 1}


# --- the cache


def test_files_are_read_once_wherever_they_move(tmp_path, load, readings):
    folder = write_splits(tmp_path / "data", parallel, train=PAIRS, val=VALIDATION)
    first = load(folder)
    assert len(readings) == 2
    moved = shutil.move(folder, tmp_path / "elsewhere")
    os.utime(tmp_path / "elsewhere/train.en", (1, 1))
    again = load(moved)
    assert len(readings) == 2
    assert pairs_of(again["train"]) == PAIRS
    assert again["train"]._fingerprint == first["train"]._fingerprint


def test_edited_file_is_read_again(tmp_path, load):
    folder = write_splits(tmp_path / "data", parallel, train=PAIRS, val=VALIDATION)
    before = load(folder)
    times = (folder / "train.en").stat()
    edited = [("A DOG", "ein Hund"), *PAIRS[1:]]  # the same size and time
    write_splits(folder, parallel, train=edited)
    os.utime(folder / "train.en", ns=(times.st_atime_ns, times.st_mtime_ns))
    after = load(folder)
    assert pairs_of(after["train"]) == edited
    assert after["train"]._fingerprint != before["train"]._fingerprint
    assert pairs_of(before["train"]) == PAIRS


@pytest.mark.parametrize("kind", ["string", "large_string"])
def test_a_saved_data_set_made_anew_is_read_again(tmp_path, load, kind):
    features = Features({"source": Value(kind), "target": Value(kind)})
    fingerprints = set()
    for word in ("old", "new"):
        table = Dataset.from_dict({"source": [word] * 9, "target": [word] * 9}, features=features)
        table._fingerprint = "made by the same program"
        table.save_to_disk(tmp_path / "saved")
        loaded = load(tmp_path / "saved")
        assert pairs_of(loaded["validation"]) == [(word, word)]
        assert pairs_of(loaded["train"]) == [(word, word)] * 8
        fingerprints.add(loaded["train"]._fingerprint)
    assert len(fingerprints) == 2


def test_a_data_sets_digest_is_of_its_rows_however_they_are_stored():
    table = Dataset.from_dict({"source": ["a", None, "c"], "target": ["d", "e", ""]})
    digest = corpus._content_digest(table)
    assert corpus._content_digest(concatenate_datasets([table.select([0]), table.select([1, 2])])) == digest
    turned = table.select([2, 1, 0])
    assert corpus._content_digest(turned) != digest
    assert corpus._content_digest(turned.select([2, 1, 0])) == digest


def test_what_is_held_out_for_one_task_is_not_for_another(tmp_path, load):
    # The only example of a label, which is to stay in training, is the first that would be held out.
    first = np.random.default_rng(corpus.HELD_OUT_SEED).permutation(20)[0]
    pairs = [(f"s{n}", "rare" if n == first else "usual") for n in range(20)]
    folder = write_splits(tmp_path / "data", parallel, train=pairs)
    assert load(folder)["validation"]["target"][:] == ["rare"]
    assert load(folder, task="text_classification")["validation"]["target"][:] == ["usual"]


def test_columns_are_part_of_what_is_cached(tmp_path, load):
    content = json_lines(PAIRS, lambda s, t: {"source": s, "target": t, "other": "o"})
    folder = write(tmp_path / "data", {"train.jsonl": content, "val.jsonl": content})
    assert load(folder)["train"]["source"][0] == "a dog"
    assert load(folder, source_column="other")["train"]["source"][0] == "o"


def test_pairs_are_memory_mapped_from_the_cache(tmp_path, load):
    folder = write_splits(tmp_path / "data", parallel, train=PAIRS)
    for pairs in load(folder).values():
        assert [Path(file["filename"]).parent.parent for file in pairs.cache_files] == [tmp_path / "cache"]


def test_failed_reading_leaves_nothing_in_the_cache(tmp_path, load):
    folder = write(tmp_path / "data", {"train.tsv": "a\tb\n" * 20_000 + "c\n"})
    for _ in range(2):
        with pytest.raises(ValueError, match=r"train.tsv:20001: "):
            load(folder)
    assert list((tmp_path / "cache/vanilla_transformer").iterdir()) == []


# --- mistakes


GOOD = {"train.tsv": "a\tb\n" * 3, "val.tsv": "a\tb\n"}
TEXT = {"train.en": "a\n", "train.de": "b\n", "val.en": "a\n", "val.de": "b\n"}
XZ = lzma.compress(b"a\tb\n" * 99)
ZST = zstandard.compress(bytes(range(1, 10)) * 9 + os.urandom(3000).replace(b"\0", b"x"))

# name: (files, options, what the message must say)
MISTAKES = {
    "line counts": (
        {"train.en": "a\n" * 1234, "train.de": "b\n" * 1200},
        {},
        "data/train.en has 1,234 lines but .*data/train.de has 1,200",
    ),
    "line counts, the other way": (
        {"train.en": "a\n" * 3, "train.de": "b\n" * 5 + "c"},
        {},
        "data/train.de has 6 lines but .*data/train.en has 3",
    ),
    "one side empty": ({"train.en": "", "train.de": "b\n"}, {}, "train.de has 1 lines but .*train.en has 0"),
    "no training split": (
        {"trian.en": "a\n", "trian.de": "b\n"},
        {},
        r"data: no train split: looked for train.en \+ train.de, train.tsv, .*files there: trian.de, trian.en; .*"
        r"give train_prefix \(did you mean 'trian'",
    ),
    "no files": ({"sub/x": ""}, {}, "no train split: .*files there: none"),
    "no target side": ({"train.en": "a\n", "train.fr": "b\n"}, {}, "no train.de: there are train.en, train.fr"),
    "unknown language": (
        {"train.en": "a\n", "train.ger": "b\n"},
        {"target_lang": "gre"},
        r"no train.gre: there are train.en, train.ger \(did you mean 'ger'",
    ),
    "no languages given": (
        TEXT,
        {"source_lang": None, "target_lang": None},
        "give source_lang and target_lang: there are train.de, train.en",
    ),
    "the same language twice": (TEXT, {"target_lang": "en"}, "both 'en'"),
    "half a validation split": (TEXT | {"val.de": None}, {}, "no val.de: there are val.en"),
    "prefix that isn't there": (
        TEXT,
        {"train_prefix": "train.tok"},
        r"no train.tok split: looked for train.tok.en \+ train.tok.de.* files there: train.de, train.en.*'train'",
    ),
    "validation prefix that isn't there": (TEXT, {"validation_prefix": "valid"}, "no valid split: .*'val'"),
    "test prefix that isn't there": (TEXT, {"test_prefix": "test"}, "no test split"),
    "two training files": (
        {"train.tsv": "a\tb\n", "train.jsonl": "{}"},
        {},
        "data: train.jsonl, train.tsv are more than one train split: rename what isn't to be read, or take it away$",
    ),
    "plain and compressed": (
        TEXT | {"train.en.gz": gzip.compress(b"a\n")},
        {},
        "data: train.de, train.en, train.en.gz are more than one train split: rename what isn't to be read, or take it "
        "away$",
    ),
    "two validation sets": (
        GOOD | {"dev.tsv": "a\tb\n"},
        {},
        "data: dev.tsv, val.tsv are more than one val split: choose with validation_prefix$",
    ),
    "NUL bytes": ({"train.en": b"a\0b\n", "train.de": "b\n"}, {}, "train.en: isn't a text file: byte 2 is NUL"),
    "gzip data under a plain name": (
        {"train.en": gzip.compress(b"a\n"), "train.de": "b\n"},
        {},
        r'train.en: isn\'t a text file: it is gzip data: end its name in ".gz"',
    ),
    "UTF-16": ({"train.en": "a\n".encode("utf-16"), "train.de": "b\n"}, {}, "train.en: .* is UTF-16: .*iconv"),
    "a zip archive": ({"train.tsv": b"PK\x03\x04ab\tc\n"}, {}, "train.tsv: .* zip archive: unpack"),
    "one field": ({"train.tsv": "a\tb\nc\n"}, {}, "train.tsv:2: has 1 tab-separated fields, needs exactly 2"),
    "three fields": ({"train.tsv": "a\tb\tc\n"}, {}, "train.tsv:1: has 3 tab-separated fields, needs exactly 2"),
    "validation not UTF-8": (
        GOOD | {"val.tsv": b"a\tb\na\xe4\tb\n"},
        {},
        r"val.tsv:2: byte 2 of the line \(0xE4\) isn't UTF-8",
    ),
    "test not UTF-8": (
        TEXT | {"test.en": b"a\nb\n", "test.de": b"c\n\xff\n"},
        {},
        r"test.de:2: byte 1 of the line \(0xFF\) isn't UTF-8",
    ),
    "half a surrogate pair in validation": (
        {"train.tsv": "a\tb\n", "val.jsonl": '{"source": "\\ud83d", "target": ""}'},
        {},
        "val.jsonl:1: 'source' has half a surrogate pair",
    ),
    "cut gzip": ({"train.tsv.gz": gzip.compress(b"a\tb\n" * 99)[:-12]}, {}, "train.tsv.gz: the .gz data is corrupt or"),
    "not gzip": ({"train.tsv.gz": b"a\tb\n"}, {}, "train.tsv.gz: the .gz data is corrupt or cut short"),
    "damaged gzip": (
        {"train.tsv.gz": gzip.compress(os.urandom(999))[:500] + b"x" * 600},
        {},
        "train.tsv.gz: the .gz data is corrupt or cut short",
    ),
    "cut xz": ({"train.tsv.xz": XZ[:-20]}, {}, "train.tsv.xz: the .xz data is corrupt or cut short"),
    "damaged xz": ({"train.tsv.xz": XZ[:20] + b"x" + XZ[21:]}, {}, "train.tsv.xz: the .xz data is corrupt or"),
    "cut zstandard": ({"train.tsv.zst": ZST[:2000]}, {}, "train.tsv.zst: the .zst data is corrupt or cut short"),
    "not zstandard": ({"train.tsv.zst": b"a\tb\n"}, {}, "train.tsv.zst: the .zst data is corrupt or cut short"),
    "cut compressed JSON": (
        {"train.jsonl.gz": gzip.compress(b'{"source":"a","target":"b"}\n' * 99)[:-12]},
        {},
        "train.jsonl.gz: the .gz data is corrupt or cut short",
    ),
    "not JSON": (
        {"train.jsonl": '{"source": "a", "target": "b"}\n{"source": "a\n'},
        {},
        "train.jsonl:2: isn't one JSON object a line",
    ),
    "broken JSON list": ({"train.json": '[{"source": "a",\n "target" "b"}]'}, {}, "train.json:2: isn't JSON"),
    "JSON lines of lists": ({"train.jsonl": '"a"\n'}, {}, "train.jsonl:1: is a str, not an object"),
    "JSON number": (
        {"train.jsonl": '{"source": "a", "target": "b"}\n{"source": "a", "target": 7}\n'},
        {},
        "train.jsonl:2: 'target' is a int, not text",
    ),
    "JSON without a target in validation": (
        {"train.tsv": "a\tb\n", "val.jsonl": '{"source": "a", "target": "b"}\n\n{"source": "a"}\n'},
        {},
        "val.jsonl:3: 'target' is missing",
    ),
    "JSON without the columns": (
        {"train.jsonl": '{"question": "a", "answer": "b"}\n'},
        {},
        "train.jsonl:1: no columns 'source' and 'target' or 'src' and 'tgt' or 'en' and 'de': give source_column and "
        "target_column: the columns are question, answer$",
    ),
    "one side of each convention": (
        {"train.csv": "source,tgt,de\na,b,c\n"},
        {"source_lang": None},
        "train.csv: no columns 'source' and 'target' or 'src' and 'tgt': give .*: the columns are source, tgt, de: ",
    ),
    "CSV without a header": (
        {"train.csv": "A dog.,Ein Hund.\nA cat.,Eine Katze.\n"},
        {},
        "train.csv: no columns 'source' and 'target' .*: the columns are A dog., Ein Hund.: the first line has to name "
        "the columns$",
    ),
    "nested too deeply": ({"train.jsonl": '{"source":' + "[" * 100_000}, {}, "train.jsonl:1: isn't one JSON object"),
    "a list nested too deeply": ({"train.json": "[" * 100_000}, {}, "train.json:1: isn't JSON: "),
    "a number of too many digits": ({"train.jsonl": "1" * 5_000}, {}, "train.jsonl:1: isn't one JSON object a line: "),
    "a CSV header with a column twice": (
        {"train.csv": "source,target,source\na,b,c\n"},
        {},
        "train.csv: there is more than one column 'source': rename all but one$",
    ),
    "a Parquet file with a column twice": (
        {"train.parquet": twice("target")},
        {},
        "train.parquet: there is more than one column 'target': rename all but one$",
    ),
    "a Parquet file with the translation twice": (
        {"train.parquet": twice("translation")},
        {},
        "train.parquet: no columns 'source' and 'target'",
    ),
    "unknown column": (
        {"train.jsonl": '{"question": "a", "answer": "b"}\n'},
        {"source_column": "qestion", "target_column": "answer"},
        r"train.jsonl:1: no source_column 'qestion': the columns are question, answer \(did you mean 'question'",
    ),
    "the same column twice": (
        {"train.jsonl": '{"source": "a", "target": "b"}\n'},
        {"target_column": "source"},
        "source and target are both column 'source'",
    ),
    "unknown language of a translation": (
        {"train.jsonl": '{"translation": {"en": "a", "ger": "b"}}\n'},
        {"target_lang": "gre"},
        r"no target_lang 'gre': \"translation\" has en, ger \(did you mean 'ger'",
    ),
    "translation without languages": (
        {"train.jsonl": '{"translation": {"en": "a", "de": "b"}}\n'},
        {"source_lang": None},
        'train.jsonl:1: give source_lang: "translation" has de, en',
    ),
    "CSV without the column": (
        {"train.csv": "source,traget\na,b\n"},
        {"target_column": "target"},
        r"train.csv: no target_column 'target': the columns are source, traget \(did you mean 'traget'",
    ),
    "CSV row too long": (
        {"train.csv": 'source,target\n"a\nb",c\na,b,c\n'},
        {},
        "train.csv:4: has 3 fields, the header has 2",
    ),
    "CSV quote never closed": ({"train.csv": 'source,target\na,"b\n'}, {}, "train.csv:2: isn't well-formed CSV: "),
    "not Parquet": ({"train.parquet": b"a" * 100}, {}, "train.parquet: isn't a Parquet file: "),
    "Parquet of numbers": (
        {"train.parquet": parquet([(1, "a"), (2, "b")])},
        {},
        "train.parquet, row 1: 'source' is a int, not text",
    ),
    "empty training set": ({"train.tsv": "", "val.tsv": "a\tb\n"}, {}, "the train split has no pairs"),
    "empty compressed training set": ({"train.csv.gz": gzip.compress(b"")}, {}, "the train split has no pairs"),
    "header alone": ({"train.csv": "source,target\n"}, {}, "the train split has no pairs"),
    "empty validation set": (GOOD | {"val.tsv": ""}, {}, "the validation split has no pairs"),
    "nothing that can be held out": ({"train.tsv": "\tb\n" * 9}, {}, "no training pair that is fit to be held out"),
    "one pair and nothing to hold out": ({"train.tsv": "a\tb\n"}, {}, "one training pair and no validation split"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_one_line_that_names_it(tmp_path, load, name):
    files, options, message = MISTAKES[name]
    folder = write(tmp_path / "data", {file: content for file, content in files.items() if content is not None})
    with pytest.raises(ValueError, match=message) as error:
        load(folder, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("splits", "options", "message"),
    [
        ({"test": PAIRS}, {}, "no split 'train': there are test"),
        (
            {"train": PAIRS, "val": PAIRS, "dev": PAIRS},
            {},
            "has the splits val, dev: choose one with validation_prefix",
        ),
        ({"train": PAIRS}, {"test_prefix": "tran"}, r"no split 'tran': there are train \(did you mean 'train'"),
        ({"train": PAIRS, "test": [("a", None), ("b", "c")]}, {}, "test, row 1: the target is missing"),
        ({"train": PAIRS, "val": [("a", "b"), (None, "c")]}, {}, "val, row 2: the source is missing"),
        (
            {"train": PAIRS},
            {"source_column": "sourc"},
            "train: no source_column 'sourc': the columns are source, target",
        ),
        ({"train": [(1, "a")]}, {}, "train: column 'source' holds int64, not text"),
    ],
)
def test_mistake_with_a_saved_data_set_is_one_line_that_names_it(tmp_path, load, splits, options, message):
    DatasetDict(
        {
            name: Dataset.from_dict({"source": [s for s, _ in pairs], "target": [t for _, t in pairs]})
            for name, pairs in splits.items()
        }
    ).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path / "saved", **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one of data_dir and dataset_name .* neither is given"),
        ({"data_dir": "x", "dataset_name": "y"}, "give one of data_dir and dataset_name .* both are given"),
        ({"dataset_name": "builtin", "source_lang": "en"}, "dataset_name='builtin': source_lang='en' must be 'zh'"),
        ({"data_dir": "no/such/folder"}, r"data_dir='no/such/folder' doesn't exist \(working directory: "),
        ({"data_dir": __file__}, "test_corpus.py: a single file must be .tsv, .jsonl, .json, .csv, .parquet"),
    ],
)
def test_place_that_is_not_one_is_an_error(load, options, message):
    with pytest.raises(ValueError, match=message):
        load(**options)


def test_failure_of_the_hub_is_one_line(load, monkeypatch):
    def load_dataset(*args, **options):
        try:
            raise ConnectionError("no route to host\nmore\nand more")
        except ConnectionError as error:
            raise RuntimeError("Couldn't load") from error

    monkeypatch.setattr(corpus, "load_dataset", load_dataset)
    with pytest.raises(ValueError, match="dataset_name='no/such': cannot be loaded: no route to host") as error:
        load(dataset_name="no/such")
    assert "\n" not in str(error.value)


def test_broken_saved_data_set_is_one_line(tmp_path, load):
    write(tmp_path / "saved", {"dataset_dict.json": '{"splits": ["train"]}'})
    with pytest.raises(ValueError, match="cannot be read as a saved DatasetDict: ") as error:
        load(tmp_path / "saved")
    assert "\n" not in str(error.value)


def test_zstandard_without_its_package_says_what_to_install(tmp_path, load, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    folder = write(tmp_path / "data", {"train.tsv.zst": ZST})
    with pytest.raises(ValueError, match=r"train.tsv.zst: .*pip install zstandard"):
        load(folder)


def test_unreadable_file_is_named(tmp_path, load):
    folder = write(tmp_path / "data", GOOD)
    (folder / "train.tsv").chmod(0)
    if os.access(folder / "train.tsv", os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(ValueError, match=r"train.tsv: can't be opened: Permission denied"):
        load(folder)


def test_cache_that_cannot_be_made_is_named(tmp_path, load):
    folder = write(tmp_path / "data", GOOD)
    with pytest.raises(ValueError, match=r"cache_dir: .*can't be made: .*give another cache_dir"):
        load(folder, cache_dir=str(folder / "train.tsv"))


# --- arguments and texts


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_length", 1),
        ("max_length_ratio", 0.5),
        ("max_train_samples", 0),
        ("max_eval_samples", -1),
        ("preprocessing_num_workers", 0),
    ],
)
def test_number_out_of_range_is_an_error(name, value):
    with pytest.raises(ValueError, match=f"{name}={value} is below "):
        DataArguments(**{name: value})


@pytest.mark.parametrize("name", ["data_dir", "cache_dir"])
def test_home_of_nobody_is_an_error(name):
    with pytest.raises(ValueError, match=rf"^{name}='~nosuchuser/x': no home folder is known for this user: "):
        DataArguments(**{name: "~nosuchuser/x"})


def test_arguments_parse_from_a_command_line(capsys):
    parser = HfArgumentParser(DataArguments)
    (args,) = parser.parse_args_into_dataclasses(
        ["--data_dir", "x", "--drop_duplicates", "false", "--max_length", "99"]
    )
    assert (args.data_dir, args.drop_duplicates, args.max_length, args.cache_dir) == ("x", False, 99, None)
    with pytest.raises(SystemExit, match="0"):
        parser.parse_args(["--help"])
    assert "a hundredth of the training pairs" in " ".join(capsys.readouterr().out.split())


def test_default_number_of_workers_is_the_cores_of_this_process():
    assert DataArguments().num_workers == len(os.sched_getaffinity(0))
    assert DataArguments(preprocessing_num_workers=3).num_workers == 3


def test_pair_texts_can_be_read_again_and_leave_out_what_is_not_text():
    pairs = Dataset.from_dict({"source": ["a", "b\ufffd", None], "target": ["c", "d", ""]})
    texts = PairTexts(pairs)
    assert list(texts) == list(texts) == ["a", "c", "d"]


def test_multi30k_and_tatoeba_have_their_known_sizes(shared_data, load):
    multi30k = load(shared_data / "multi30k")
    assert multi30k.num_rows == {
        "train": 29_000,
        "validation": 1_014,
        "test_2016_flickr": 1_000,
        "test_2017_flickr": 1_000,
    }
    assert pairs_of(multi30k["train"])[0] == (
        "Two young, White males are outside near many bushes.",
        "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
    )
    assert list(load(shared_data / "tatoeba_zh_en", "zh", "en")) == ["train", "validation", "test"]
