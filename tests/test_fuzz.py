"""Bad input everywhere: a clear error (a ValueError of one kind) or a correct result, never another exception."""

import gzip
import io
import json
import lzma
import shutil
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from transformers import AutoTokenizer

from modeling_vanilla import VanillaConfig
from modeling_vanilla.data.arguments import DataArguments
from modeling_vanilla.data.corpus import load_corpus
from modeling_vanilla.data.images import load_images
from modeling_vanilla.data.iwslt14 import prepare_iwslt14
from modeling_vanilla.data.record_files import read_csv, read_json, read_parquet
from modeling_vanilla.data.text_files import read_lines, read_parallel, read_tsv
from modeling_vanilla.decoding import Glossary, Translator
from modeling_vanilla.training.averaging import average_weights
from modeling_vanilla.training.checkpoints import fault_of, last_checkpoint, seal
from modeling_vanilla.training.output import open_output_dir, save_results
from modeling_vanilla.training.recipe import load_preset, load_recipe

FRAGMENTS = [
    b"", b"a", b"The dog.", b"\n", b"\r\n", b"\r", b"\t", b"\x00", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80",
    b"\xc3", b"\x85", "\u2028".encode(), "\u0085".encode(), "é 日本 😀".encode(), b'"', b"'", b",", b"{", b"}", b"[",
    b"]", b":", b"- ", b"# ", b"null", b"1e999", b'{"source": "a", "target": "b"}', b"source,target\n",
    b"source\ttarget\n", b"\x1f\x8b", b"PAR1", b"!!python/object:os.system", b"&a [*a]", b"\x1b[0m",
    b" ", b"9" * 400, b"x" * 70_000,
]  # fmt: skip
hostile = st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=12), max_size=14).map(b"".join)
some = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def attempt(function, *arguments, allowed=ValueError, **options):
    """The result, or None for a ValueError, which must say something; any other exception fails the test."""
    try:
        result = function(*arguments, **options)
        return list(result) if hasattr(result, "__next__") else result
    except allowed as error:
        fault = error
    assert str(fault).strip()
    assert type(fault) is not UnicodeDecodeError, fault  # which names neither the file nor the line
    return None


def plain_lines(content: bytes) -> list[str]:
    lines = content.split(b"\n")
    lines = lines[:-1] if not lines[-1] else lines
    if lines:
        lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
    return [line.removesuffix(b"\r").decode(errors="replace") for line in lines]


@some
@given(content=hostile)
def test_lines(tmp_path, content):
    file = tmp_path / "x.en"
    file.write_bytes(content)
    found = attempt(read_lines, file, strict=False)
    assert found is None or found == plain_lines(content)
    strict = attempt(read_lines, file, strict=True)
    assert strict is None or strict == found


@some
@given(one=hostile, other=hostile)
def test_parallel_lines_are_never_paired_wrongly(tmp_path, one, other):
    files = [tmp_path / "x.en", tmp_path / "x.de"]
    for file, content in zip(files, (one, other), strict=True):
        file.write_bytes(content)
    found = attempt(read_parallel, *files, strict=False)
    if found is not None:
        assert found == list(zip(plain_lines(one), plain_lines(other), strict=True))


@some
@given(content=hostile, cut=st.integers(0, 400), pack=st.sampled_from([gzip.compress, lzma.compress]))
def test_compressed_files_that_end_early(tmp_path, content, cut, pack):
    packed = pack(content)[: cut or None]
    file = tmp_path / ("x.en.gz" if pack is gzip.compress else "x.en.xz")
    file.write_bytes(packed)
    found = attempt(read_lines, file, strict=False)
    assert found is None or found == plain_lines(content) or not packed


READERS = {
    "tsv": lambda path: read_tsv(path, strict=False),
    "jsonl": lambda path: read_json(path, DataArguments(source_lang="en", target_lang="de"), strict=False),
    "json": lambda path: read_json(path, DataArguments(source_lang="en", target_lang="de"), strict=False),
    "csv": lambda path: read_csv(path, DataArguments(source_lang="en", target_lang="de"), strict=False),
    "parquet": lambda path: read_parquet(path, DataArguments(source_lang="en", target_lang="de"), strict=False),
    "glossary": Glossary.read,
    "yaml": lambda path: load_recipe(str(path)),
    "preset.yaml": lambda path: load_preset(str(path)),
    "tgz": lambda path: prepare_iwslt14(path, path.parent / "out"),
}


@pytest.mark.parametrize("kind", READERS)
@some
@given(content=hostile)
def test_files_of_every_kind(tmp_path, kind, content):
    file = tmp_path / f"x.{kind}"
    file.write_bytes(content)
    found = attempt(READERS[kind], file)
    if isinstance(found, list):
        assert all(isinstance(text, str) for pair in found for text in pair)


@settings(some, max_examples=25)
@given(one=hostile, other=hostile)
def test_a_corpus_of_hostile_files(tmp_path, one, other):
    folder = tmp_path / "data"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "train.en").write_bytes(one)
    (folder / "train.de").write_bytes(other)
    args = DataArguments(data_dir=str(folder), source_lang="en", target_lang="de", cache_dir=str(tmp_path / "cache"))
    found = attempt(load_corpus, args)
    if found is not None:
        rows = [pair for name in found for pair in zip(found[name]["source"], found[name]["target"], strict=True)]
        expected = list(zip(plain_lines(one), plain_lines(other), strict=True))
        assert sorted(map(str, rows)) == sorted(map(str, expected))


def broken_utf8() -> pa.Array:
    return pa.StringArray.from_buffers(3, pa.py_buffer(np.arange(4, dtype="i4")), pa.py_buffer(b"a\xffc"))


TABLES = {
    "text": (pa.array(["a", "é", ""]), ["a", "é", ""]),
    "large text": (pa.array(["a", "b", "c"], pa.large_string()), ["a", "b", "c"]),
    "views": (pa.array(["a", "b", "c"], pa.string_view()), ["a", "b", "c"]),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    "missing": (pa.array(["a", None, "c"]), ["a", "", "c"]),
    "nothing": (pa.nulls(3), ["", "", ""]),
    "numbers": (pa.array([1, 2, 3]), None),
    "bytes": (pa.array([b"a", b"\xff", b"c"]), None),
    "lists": (pa.array([["a"], [], ["c"]]), None),
    "maps": (pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64())), None),
    "structs": (pa.array([{"x": "a"}] * 3), None),
    "times": (pa.array([1, 2, 3], pa.timestamp("ns")), None),
    "decimals": (pa.array([Decimal("1.5")] * 3), None),
    "broken UTF-8": (broken_utf8(), ["a", "\ufffd", "c"]),
    "broken UTF-8 in a dictionary": (broken_utf8().dictionary_encode(), ["a", "\ufffd", "c"]),
}  # fmt: skip


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("kind", TABLES)
def test_parquet_columns_of_every_type(tmp_path, kind, side):
    column, texts = TABLES[kind]
    other = "target" if side == "source" else "source"
    pq.write_table(pa.table({side: column, other: ["x", "y", "z"]}), tmp_path / "x.parquet")
    found = attempt(READERS["parquet"], tmp_path / "x.parquet")
    assert (found is None) == (texts is None)
    if texts is not None:
        assert [pair[side == "target"] for pair in found] == texts


@pytest.mark.parametrize("kind", ["broken UTF-8", "broken UTF-8 in a dictionary"])
def test_a_test_set_of_parquet_with_broken_utf8_is_refused(tmp_path, kind):
    pq.write_table(pa.table({"source": TABLES[kind][0], "target": ["x", "y", "z"]}), tmp_path / "x.parquet")
    args = DataArguments(source_lang="en", target_lang="de")
    with pytest.raises(ValueError, match=r"x.parquet, row 2: 'source' has half a surrogate pair, or bytes"):
        list(read_parquet(tmp_path / "x.parquet", args, strict=True))


def test_a_missing_struct_is_a_missing_pair(tmp_path):
    rows = pa.array([{"en": "a", "de": "b"}, None, {"en": "c", "de": None}])
    pq.write_table(pa.table({"translation": rows}), tmp_path / "x.parquet")
    assert attempt(READERS["parquet"], tmp_path / "x.parquet") == [("a", "b"), ("", ""), ("c", "")]


def picture(**size) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size.get("size", (9, 7)), "red").save(file, "PNG")
    return file.getvalue()


@settings(some, max_examples=25)
@given(content=hostile, cut=st.integers(0, 80), swap=st.integers(0, 80))
def test_a_folder_of_hostile_images(tmp_path, content, cut, swap):
    """A broken image is named before training begins, or read as what it is; its label stays with it."""
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
    whole = picture()
    for split, label, name, data in (
        ("train", "cat", "a.png", whole), ("train", "dog", "b.png", whole), ("validation", "cat", "c.png", whole),
        ("validation", "dog", "d.png", content if cut == 0 else whole[:-cut] + whole[:swap]),
    ):  # fmt: skip
        (tmp_path / "data" / split / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / split / label / name).write_bytes(data)
    args = DataArguments(
        task="image_classification", data_dir=str(tmp_path / "data"), cache_dir=str(tmp_path / "cache")
    )
    found = attempt(load_images, args)
    if found is not None:
        assert found[1] == ["cat", "dog"]
        assert found[0]["validation"]["label"] == [0, 1]


# Folders


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just([]) | st.just({})
FIELDS = (
    "d_model", "encoder_layers", "vocab_size", "dropout", "pad_token_id", "activation_function", "position_encoding",
    "tied_embeddings", "encoder_ffn_dim", "architectures",
)  # fmt: skip
FILES = ("config.json", "tokenizer.json", "model.safetensors", "generation_config.json", "tokenizer_config.json")
WORDS = (
    "--model", "tiny", "--d_model", "-1", "x", "--seed", "1e9", "--nothing", "--", "=", "--bf16", "maybe", "\x00",
    "\ud800", "--measures", "bleu", "--help=1",
)  # fmt: skip


@some
@given(changes=st.dictionaries(st.sampled_from(FIELDS), scalars, max_size=3))
def test_configs(changes):
    found = attempt(VanillaConfig, **changes, allowed=(ValueError, TypeError))  # the library's own check of types
    assert found is None or isinstance(found, VanillaConfig)


@settings(some, max_examples=30)
@given(name=st.sampled_from(FILES), content=hostile)
def test_model_folders_with_a_spoiled_file(trained, tmp_path, name, content):
    folder = tmp_path / "model"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in trained.iterdir():
        if file.is_file():
            shutil.copyfile(file, folder / file.name)
    (folder / name).write_bytes(content)
    attempt(Translator.from_pretrained, folder)


@some
@given(manifest=hostile, state=hostile)
def test_checkpoint_folders(tmp_path, manifest, state):
    folder = tmp_path / "checkpoint-5"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "trainer_state.json").write_bytes(state)
    seal(folder)
    assert fault_of(folder) is None
    (folder / "manifest.json").write_bytes(manifest)
    assert fault_of(folder)
    assert last_checkpoint(tmp_path) is None


@some
@given(content=hostile)
def test_weights_to_average(tmp_path, content):
    for name in ("a", "b"):
        (tmp_path / name).mkdir(exist_ok=True)
        save_file({"w": torch.ones(2)}, tmp_path / name / "model.safetensors")
    (tmp_path / "b" / "model.safetensors").write_bytes(content)
    assert attempt(average_weights, [tmp_path / "a", tmp_path / "b"]) is None
    (tmp_path / "b" / "model.safetensors.index.json").write_bytes(content)
    assert attempt(average_weights, [tmp_path / "a", tmp_path / "b"]) is None


@some
@given(content=hostile)
def test_what_a_run_left(tmp_path, content):
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "recipe.yaml").write_bytes(content)
    (folder / "results.json").write_bytes(content)
    attempt(save_results, folder, [])
    attempt(open_output_dir, folder, {"seed": 1})


@some
@given(words=st.lists(st.sampled_from(WORDS), max_size=6))
def test_command_lines(words):
    attempt(load_recipe, None, words)


def copied(trained, folder):
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("translations", "checkpoint-*", "runs"))
    return folder


def changed(file, **values) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


class Ran(Exception):
    """What a pickle would do, if it were loaded."""

    def __reduce__(self):
        return exec, ("raise SystemExit('a pickle was run')",)


def spoil_with_a_pickle(folder) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"w": Ran()}, folder / "pytorch_model.bin")


def add_tokens(folder) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"new{number}" for number in range(100)])
    tokenizer.save_pretrained(folder)


def linked(folder, name: str, to: str = "../secret") -> None:
    (folder.parent / "secret").write_text("root:x:0:0")
    (folder / name).unlink()
    (folder / name).symlink_to(to)


HOSTILE = {
    "a pickle": (spoil_with_a_pickle, "can't load a model"),
    "a billion layers": (lambda f: changed(f / "config.json", encoder_layers=10**9), "encoder_layers=1000000000"),
    "a width of its own": (lambda f: changed(f / "config.json", d_model=10**8), "can't load a model"),
    "a tokenizer of another size": (add_tokens, "don't belong together"),
    "weights that are a link to elsewhere": (lambda f: linked(f, "model.safetensors"), "can't load a model"),
    "a config that is a link to elsewhere": (lambda f: linked(f, "config.json"), "can't load a model"),
    "a tokenizer that is a link to elsewhere": (lambda f: linked(f, "tokenizer.json"), "can't load"),
    "a link in a circle": (lambda f: linked(f, "config.json", "config.json"), "no model there"),
    "code from elsewhere": (
        lambda f: changed(f / "config.json", model_type="other", auto_map={"AutoConfig": "evil.Config"}),
        "can't load a model",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_model_folders_run_nothing_and_say_why(trained, tmp_path, what):
    spoil, message = HOSTILE[what]
    folder = copied(trained, tmp_path / "model")
    (folder / "evil.py").write_text("raise SystemExit('code was run')")
    spoil(folder)
    with pytest.raises(ValueError, match=message) as error:
        Translator.from_pretrained(folder)
    assert "root:x" not in str(error.value)


def test_ten_megabytes_in_one_line(tmp_path):
    file = tmp_path / "x.en"
    file.write_bytes(b"word " * 2_000_000)
    (line,) = read_lines(file, strict=True)
    assert len(line) == 10_000_000
