"""Models on ONNX Runtime: the same tokens and scores as ours, from graphs that need nothing of ours."""

import contextlib
import json
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from modeling_vanilla.decoding import Glossary, Translator
from modeling_vanilla.interop import onnx as ours
from modeling_vanilla.scripts.main import main
from tests.fixtures import POSITION_ENCODINGS, corpus
from tests.test_readme import README

pytestmark = pytest.mark.slow
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
SOURCES = [source for source, _ in corpus(5, 2700, 90)]


@pytest.fixture(scope="module")
def converted(trained, tmp_path_factory):
    """Exported once, for it takes long: by the README's command."""
    root = tmp_path_factory.mktemp("converted")
    (root / "my_model").symlink_to(trained)
    command = next(line for line in README.splitlines() if line.endswith("--to onnx"))
    with contextlib.chdir(root):
        assert main(shlex.split(command)[1:]) == 0
    return root / "my_model_onnx"


@pytest.fixture(scope="module")
def pair(trained, converted):
    return Translator.from_pretrained(trained), Translator.from_pretrained(converted)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 1},
        {"num_beams": 4},
        {"num_beams": 3, "num_return_sequences": 2, "repetition_penalty": 1.3, "early_stopping": True},
        {"do_sample": True},
    ],
    ids=str,
)
def test_generate_gives_the_same_tokens(pair, settings):
    batch = pair[0].tokenizer([*SOURCES[:6], "The dog.", "man"], padding=True, return_tensors="pt")
    outputs = []
    for translator in pair:
        torch.manual_seed(0)
        outputs.append(translator.model.generate(**batch, max_length=40, **settings))
    assert torch.equal(*outputs)


def test_generate_goes_on_from_several_tokens(pair):
    batch = pair[0].tokenizer(SOURCES[:2], padding=True, return_tensors="pt")
    begun = torch.tensor([[1, 40, 50], [1, 41, 51]])
    found, expected = (t.model.generate(**batch, decoder_input_ids=begun, num_beams=2, max_length=40) for t in pair)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 1},
        {"num_beams": 4, "n_best": 4, "max_tokens": 400},
        {"num_beams": 4, "length_penalty_type": "paper", "prefixes": ["Der alte"] * len(SOURCES)},
        {"num_beams": 4, "glossary": Glossary({"dog": "Baum"})},
    ],
    ids=lambda settings: " ".join(settings),
)
def test_translations_and_scores_are_ours(pair, settings):
    found, expected = (translator.translate(SOURCES, **settings) for translator in pair)
    assert [t.text for t in found] == [t.text for t in expected]
    scores = [[score for t in translations for _, score in t.n_best] for translations in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_the_graphs_need_nothing_of_ours(pair, converted):
    """A greedy search as one would write it elsewhere, in NumPy on ONNX Runtime alone."""
    sessions = {
        name: onnxruntime.InferenceSession(converted / f"{name}.onnx") for name in ("encoder", "memory", "decoder")
    }

    def run(name, **inputs):
        outputs = [output.name for output in sessions[name].get_outputs()]
        return dict(zip(outputs, sessions[name].run(outputs, inputs), strict=True))

    batch = pair[0].tokenizer(SOURCES[:3], padding=True, return_tensors="np")
    mask, B = batch["attention_mask"], 3
    source = run("memory", **run("encoder", input_ids=batch["input_ids"], attention_mask=mask))
    shapes = {one.name: one.shape for one in sessions["decoder"].get_inputs() if one.name.startswith("past")}
    past = {name: np.zeros((B, 1, shape[2], 0, shape[4]), np.float32) for name, shape in shapes.items()}
    tokens = np.ones((B, 1), np.int64)
    while not (tokens == 2).any(1).all():
        step = run("decoder", decoder_input_ids=tokens[:, None, -1:], attention_mask=mask, **source, **past)
        tokens = np.concatenate((tokens, step.pop("logits").argmax(-1)[:, None]), 1)
        past = {name.replace("present", "past"): x[:, None] for name, x in step.items()}
    found = [row[: row.index(2)] for row in tokens.tolist()]
    expected = pair[0].translate(SOURCES[:3], num_beams=1)
    assert pair[0].tokenizer.batch_decode(found, skip_special_tokens=True) == [t.text for t in expected]


@pytest.mark.parametrize("name", ["encoder", "memory", "decoder"])
def test_the_graphs_are_valid_and_name_no_file_of_this_machine(converted, name):
    onnx.checker.check_model(converted / f"{name}.onnx", full_check=True)
    content = (converted / f"{name}.onnx").read_bytes()
    assert str(Path(ours.__file__).parent).encode() not in content
    assert b".py" not in content


def test_the_command_line_converts_and_translates(trained, converted, tmp_path, capfd):
    file = tmp_path / "source"
    file.write_text("\n".join(SOURCES[:3]) + "\n", encoding="utf-8")
    for words in ([], ["--engine", "onnx"]):
        assert main(["translate", str(converted), str(file), *words]) == 0
        expected = [t.text for t in Translator.from_pretrained(trained).translate(SOURCES[:3])]
        assert capfd.readouterr().out.splitlines() == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["convert", "{onnx}", "{tmp}/other", "--to", "bf16"], "holds a model for engine 'onnx'"),
        (["convert", "{trained}", "{onnx}", "--to", "onnx"], "is there already"),
        (["translate", "{onnx}", "{file}", "--engine", "ctranslate2"], "no CTranslate2 model there"),
        (["translate", "{onnx}", "{file}", "--engine", "vanilla"], "holds a model for engine 'onnx'"),
        (["translate", "{trained}", "{file}", "--engine", "onnx"], "no ONNX model there"),
        (["translate", "{onnx}", "{file}", "--dtype", "bfloat16"], "computes in float32"),
        (["translate", "{onnx}", "{file}", "--device", "mps"], "can't open it: .*cannot run on mps"),
        (["translate", "{onnx}", "{file}", "--ensemble", "{trained}"], "knows no ensembles"),
        (["translate", "{onnx}", "{file}", "--alignments", "{tmp}/a"], "keeps no attention"),
        (["score", "{onnx}", "--source", "{file}", "--target", "{file}"], "holds a model for engine 'onnx'"),
        (["attention", "{onnx}", "--source", "The dog."], "holds a model for engine 'onnx'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_one_line(trained, converted, tmp_path, capsys, words, message):
    import re

    file = tmp_path / "file"
    file.write_text("The dog.\n")
    places = {"onnx": converted, "trained": trained, "tmp": tmp_path, "file": file}
    assert main([word.format(**places) for word in words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert re.search(message, lines[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"do_sample": True}, "no other way"), ({"output_attentions": True}, "no other way")],
)
def test_what_it_cannot_search_is_refused(pair, settings, message):
    with pytest.raises(ValueError, match=message):
        pair[1].translate(SOURCES[:1], **settings)


def test_what_the_graphs_cannot_do_is_refused(pair):
    translator = pair[1]
    with pytest.raises(ValueError, match="neither scores nor aligns"):
        translator.score(SOURCES[:1], SOURCES[:1])
    with pytest.raises(ValueError, match="1025 positions are more than this ONNX model's 1024"):
        translator.model.generate(torch.full((1, 1025), 5))
    with pytest.raises(ValueError, match=r"ONNX Runtime: .*indices element out of data bounds"):
        translator.model.generate(torch.full((1, 3), 10**6))
    ids = torch.full((1, 3), 5)
    with pytest.raises(ValueError, match="knows no decoder_"):
        translator.model.generate(ids, decoder_input_ids=ids, decoder_attention_mask=torch.ones_like(ids), max_length=9)


def spoil(folder, kind):
    if kind == "graph":
        (folder / "decoder.onnx").write_bytes(b"spoiled")
    elif kind == "weights":
        content = (folder / "encoder.onnx.data").read_bytes()
        (folder / "encoder.onnx.data").write_bytes(content[: len(content) // 2])
    elif kind == "missing":
        (folder / "memory.onnx").unlink()
    elif kind == "manifest":
        (folder / "export.json").write_text("{")
    elif kind == "config":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"decoder_layers": 3}))
    else:
        (folder / kind).unlink()


@pytest.mark.parametrize("kind", ["graph", "weights", "missing", "manifest", "config", "config.json", "tokenizer.json"])
def test_a_spoiled_folder_is_a_clear_error(converted, tmp_path, kind):
    shutil.copytree(converted, tmp_path / "spoiled")
    spoil(tmp_path / "spoiled", kind)
    with pytest.raises(ValueError, match=r"spoiled: (ONNX Runtime can't open it|can't load the tokenizer)") as caught:
        Translator.from_pretrained(tmp_path / "spoiled")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_extra_it_says_how_to_get_it(trained, converted, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    for attempt in (lambda: ours.convert(trained, tmp_path / "onnx"), lambda: Translator.from_pretrained(converted)):
        with pytest.raises(ValueError, match=r"vanilla-transformer\[onnx\]"):
            attempt()


OTHERS = {
    "pre-norm": {"norm_position": "pre", "activation_function": "gelu", "use_bias": False, "output_bias": True},
    "sizes": {"d_k": 6, "d_v": 10, "encoder_attention_heads": 4, "encoder_layers": 1, "decoder_layers": 2},
    "vocabularies": {"tied_embeddings": "decoder", "decoder_vocab_size": 30},
}


@pytest.mark.parametrize(
    "changes",
    [*OTHERS.values(), *({"position_encoding": kind} for kind in POSITION_ENCODINGS)],
    ids=[*OTHERS, *POSITION_ENCODINGS],
)
def test_every_kind_of_model(lively, tmp_path, changes):
    model = lively(3, max_position_embeddings=60, **changes)
    ours.export(model).save_pretrained(tmp_path)
    ids, mask = torch.randint(3, 20, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    mask[1, 4:], mask[2, :3] = 0, 0  # padding on either side
    for beams in (1, 3):
        settings = {"attention_mask": mask, "num_beams": beams, "max_length": 25}
        assert torch.equal(ours.open_model(tmp_path).generate(ids, **settings), model.generate(ids, **settings))
