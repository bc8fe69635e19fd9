"""`vanilla convert`, whatever the format: results that `vanilla translate` reads, and mistakes in one line."""

import json
import resource
import shutil

import pytest
from transformers import ByT5Tokenizer, MarianConfig, MarianMTModel

from modeling_vanilla.decoding import Translator
from modeling_vanilla.scripts import average, convert, evaluate, tokenizer, translate
from tests.fixtures import corpus
from tests.scripts.test_command_line import one_line_error

SOURCES, REFERENCES = zip(*corpus(5, 2700, 182), strict=True)


@pytest.mark.parametrize("to", ["bf16", "int8"])
def test_the_result_is_used_as_any_model(trained, tmp_path, capfd, to):
    folder = tmp_path / "new" / to
    assert convert.run([str(trained), str(folder), "--to", to]) == 0
    assert capfd.readouterr().err == f"{folder}: vanilla translate {folder}\n"
    for name, lines in (("s", SOURCES), ("t", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert translate.run([str(folder), str(tmp_path / "s")]) == 0
    expected = [t.text for t in Translator.from_pretrained(folder).translate(SOURCES)]
    assert capfd.readouterr().out.splitlines() == expected
    assert evaluate.run([str(folder), "--source", str(tmp_path / "s"), "--target", str(tmp_path / "t")]) == 0
    assert capfd.readouterr().out.startswith("BLEU ")


@pytest.mark.parametrize("to", convert.FORMATS)
def test_the_result_is_scored_as_text_of_the_models_language(trained, tmp_path, capfd, to):
    """Also where that is known from results.json alone, as in the folders of earlier versions."""
    if to in ("ctranslate2", "onnx"):
        pytest.importorskip({"onnx": "onnxruntime"}.get(to, to))
    model, folder = tmp_path / "model", tmp_path / to
    shutil.copytree(trained, model)
    change(model / "results.json", target_lang="zh")
    change(model / "tokenizer_config.json", target_lang=None)
    for name, line in (("s", SOURCES[0]), ("t", REFERENCES[0])):
        (tmp_path / name).write_text(f"{line}\n", encoding="utf-8")
    assert convert.run([str(model), str(folder), "--to", to]) == 0
    words = ["--source", str(tmp_path / "s"), "--target", str(tmp_path / "t"), "--measures", "bleu", "--json"]
    capfd.readouterr()
    assert evaluate.run([str(folder), *words, "--bootstrap", "0"]) == 0
    assert "tok:zh" in json.loads(capfd.readouterr().out)["results"][0]["signature"]


def change(file, **settings):
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


@pytest.mark.parametrize("to", convert.FORMATS)
def test_a_folder_that_holds_something_is_refused(trained, tmp_path, capsys, to):
    (tmp_path / "mine").write_text("")
    assert "is there already" in one_line_error(capsys, convert.run, trained, tmp_path, "--to", to)
    assert "is there already" in one_line_error(capsys, convert.run, trained, tmp_path / "mine", "--to", to)


@pytest.mark.parametrize("to", convert.FORMATS)
def test_a_place_that_cannot_be_written_is_refused(trained, tmp_path, capsys, to):
    (tmp_path / "file").write_text("")
    error = one_line_error(capsys, convert.run, trained, tmp_path / "file" / "folder", "--to", to)
    assert "can't be written: Not a directory" in error


@pytest.mark.parametrize("to", convert.FORMATS)
def test_a_model_that_is_not_there(tmp_path, capsys, to):
    assert "nowhere" in one_line_error(capsys, convert.run, tmp_path / "nowhere", tmp_path / "out", "--to", to)
    (tmp_path / "empty").mkdir()
    error = one_line_error(capsys, convert.run, tmp_path / "empty", tmp_path / "out", "--to", to)
    assert "no model there" in error


def test_another_architecture_is_refused(trained, tmp_path, capsys):
    sizes = {"vocab_size": 340, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "pad_token_id": 0}
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    MarianMTModel(MarianConfig(**sizes, **heads)).save_pretrained(tmp_path / "marian")
    Translator.from_pretrained(trained).tokenizer.save_pretrained(tmp_path / "marian")
    capsys.readouterr()
    error = one_line_error(capsys, convert.run, tmp_path / "marian", tmp_path / "out", "--to", "int8")
    assert "a marian model; only our own" in error


@pytest.mark.parametrize("verb", ["convert", "average", "tokenizer"])
def test_a_full_disk_is_said(trained, tmp_path, capsys, verb):
    """The libraries that write weights and tokenizers have errors of their own for it."""
    out = tmp_path / "out"
    words = {
        "convert": [trained, out, "--to", "bf16"], "average": [trained, trained, "--output", out],
        "tokenizer": ["--vocab_size", "300", "--output", out, trained.parent / "data" / "train.en"],
    }  # fmt: skip
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))  # bytes of a file, which isn't a disk, but fails alike
    try:
        error = one_line_error(capsys, {"convert": convert, "average": average, "tokenizer": tokenizer}[verb].run,
                               *words[verb])  # fmt: skip
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"{out}: can't be written: " in error
    assert not out.exists() or not list(out.iterdir())


@pytest.mark.parametrize("to", ["ctranslate2", "onnx"])
def test_a_tokenizer_without_a_fast_version_is_refused(trained, tmp_path, capsys, to):
    pytest.importorskip({"onnx": "onnxruntime"}.get(to, to))
    model = tmp_path / "model"
    shutil.copytree(trained, model)
    (model / "tokenizer.json").unlink()
    ByT5Tokenizer(extra_ids=0).save_pretrained(model)
    assert "its ByT5Tokenizer can't be converted" in one_line_error(
        capsys, convert.run, model, tmp_path / "out", "--to", to
    )
    (tmp_path / "s").write_text("a\n")
    words = [model, tmp_path / "s", "--alignments", tmp_path / "a"]
    assert "alignments need a tokenizer" in one_line_error(capsys, translate.run, *words)


@pytest.mark.parametrize("to", ["bf16", "int8", "onnx"])
def test_quantization_is_an_option_of_ctranslate2_alone(trained, tmp_path, capsys, to):
    words = [trained, tmp_path / "out", "--to", to, "--quantization", "int8"]
    assert "is for ctranslate2" in one_line_error(capsys, convert.run, *words)
    assert not (tmp_path / "out").exists()


def test_an_unknown_format_is_refused(trained, tmp_path, capsys):
    error = one_line_error(capsys, convert.run, trained, tmp_path / "out", "--to", "tflite")
    assert "invalid choice: 'tflite'" in error
