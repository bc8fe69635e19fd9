"""What others get from the Hub: without this package, with it, over a bad line, while somebody changes it."""

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import RepositoryNotFoundError
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import modeling_vanilla
from modeling_vanilla.interop.hub import push
from modeling_vanilla.scripts import main
from tests.fixtures import corpus
from tests.hub.server import OTHER, WRITER

BARE = Path(__file__).parent / "bare.py"
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SHARE = README.partition("\n## Share\n")[2].partition("\n## ")[0]
SENTENCES = [source for source, _ in corpus(2, 2700, 182)]
HEADS = modeling_vanilla.AUTO_CLASSES


@pytest.fixture
def push_heads(tmp_path, tiny_config):
    """Pushes a small model of each class; Auto class and repository to the model."""

    def push_them() -> dict[str, transformers.PreTrainedModel]:
        models = {}
        for auto, model_class in HEADS.items():
            model = model_class(tiny_config(image_size=4, patch_size=2, num_channels=1)).eval()
            model.save_pretrained(tmp_path / auto.__name__)
            push(tmp_path / auto.__name__, f"me/{auto.__name__}")
            models[f"{auto.__name__}=me/{auto.__name__}"] = model
        return models

    return push_them


def run_without_the_package(hub, tmp_path, *words) -> str:
    """
    The README's example and `bare.py` in a new process that can't import this package: None in `sys.modules` is what
    Python itself takes for "not there", also where the package is installed in the tests' environment. Nothing may be
    written to standard error.
    """
    (tmp_path / "example.py").write_text(re.search(r"```python\n(.*?)```", SHARE, flags=re.DOTALL)[1])
    code = f"""
import runpy, sys
sys.modules["modeling_vanilla"] = None
from transformers.utils.logging import disable_progress_bar
disable_progress_bar()
runpy.run_path({str(tmp_path / "example.py")!r})
sys.argv = ["bare.py", *{[str(word) for word in words]!r}]
runpy.run_path({str(BARE)!r}, run_name="__main__")
"""
    environment = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "PYTHONPATH")}
    environment |= {
        "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": WRITER, "HF_HOME": str(tmp_path / "their_home"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_everything_works_without_this_package(hub, tmp_path, monkeypatch, trained, push_heads):
    """Pushed by the README's commands, loaded by the README's example, fine-tuned by the library's trainer."""
    from tests.hub.bare import digest

    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model").symlink_to(trained)
    commands = [line for line in re.search(r"```bash\n(.*?)```", SHARE, flags=re.DOTALL)[1].splitlines() if line]
    assert [main.main(shlex.split(line, comments=True)[1:]) for line in commands if line.startswith("vanilla ")] == [
        0,
        0,
    ]

    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(trained), AutoTokenizer.from_pretrained(trained)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    push(tmp_path / "sharded", "me/sharded")
    heads = push_heads()
    expected = {which: [type(head).__name__, digest(head)] for which, head in heads.items()}
    expected["AutoModelForSeq2SeqLM=me/sharded"] = [type(model).__name__, digest(model)]
    expected["AutoModel=me/en-de"] = ["VanillaModel", digest(model.model)]

    output = run_without_the_package(hub, tmp_path, "me/en-de", "tuned", *SENTENCES, "--also", *expected)
    results = json.loads(output.splitlines()[-1])
    assert {which: results[which] for which in expected} == expected
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    ours = tokenizer.batch_decode(model.generate(**batch, max_length=64), skip_special_tokens=True)
    assert results["downloaded"] == ours
    assert results["fine-tuned"] != ours
    assert results["reloaded"] == results["fine-tuned"]
    assert results["config"]["d_model"] == model.config.d_model


def test_with_this_package_it_loads_without_the_flag_and_warns_of_nothing(
    hub, push_heads, caplog, recwarn, monkeypatch
):
    models = push_heads()
    for name in ("transformers", "huggingface_hub"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    caplog.clear()
    recwarn.clear()
    for (auto, model_class), (which, model) in zip(HEADS.items(), models.items(), strict=True):
        for how in ({}, {"trust_remote_code": True}):
            loaded = auto.from_pretrained(which.partition("=")[2], **how)
            assert type(loaded) is model_class
            for name, weight in loaded.state_dict().items():
                torch.testing.assert_close(weight, model.state_dict()[name], rtol=0, atol=0)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not list(recwarn)


@pytest.fixture
def repository(hub, tmp_path, tiny_model):
    """A private one with a model, me/en-de; its folder."""
    tiny_model().save_pretrained(tmp_path / "model")
    push(tmp_path / "model", "me/en-de", private=True)
    return tmp_path / "model"


def weight_of(model) -> torch.Tensor:
    return model.get_input_embeddings().weight


def test_a_private_repository_is_its_owner_s_alone(repository):
    assert AutoModelForSeq2SeqLM.from_pretrained("me/en-de", token=WRITER).config.d_model == 16
    for token in (False, OTHER):
        with pytest.raises(OSError, match="en-de is not a local folder and is not a valid model identifier") as caught:
            AutoModelForSeq2SeqLM.from_pretrained("me/en-de", token=token, force_download=True)
        assert isinstance(caught.value.__cause__, RepositoryNotFoundError)


def test_a_commit_stays_what_it_was_when_its_branch_moves(hub, repository, tiny_model, tmp_path):
    first = hub.repositories["model", "me/en-de"].branches["main"]
    old = weight_of(AutoModelForSeq2SeqLM.from_pretrained("me/en-de")).clone()
    tiny_model().save_pretrained(tmp_path / "another")
    push(tmp_path / "another", "me/en-de")
    assert not weight_of(AutoModelForSeq2SeqLM.from_pretrained("me/en-de")).equal(old)
    assert weight_of(AutoModelForSeq2SeqLM.from_pretrained("me/en-de", revision=first)).equal(old)


def test_a_file_that_changes_while_a_model_is_loaded_is_not_mixed_in(hub, repository, tiny_model):
    """The library asks once what `main` is: what is committed in between isn't for these weights."""
    old = weight_of(tiny_model().from_pretrained(repository))
    config = json.loads(hub.files("me/en-de")["config.json"]) | {"d_model": 32}
    changed = {"config.json": json.dumps(config).encode(), "model.safetensors": b"not one"}
    hub.fail("GET", "/resolve/", times=1, before=lambda: hub.change("me/en-de", changed))
    assert weight_of(AutoModelForSeq2SeqLM.from_pretrained("me/en-de")).equal(old)
    assert hub.files("me/en-de")["model.safetensors"] == b"not one"


def test_a_download_that_is_cut_goes_on_where_it_was(hub, repository, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    hub.fail("GET", "/storage/", times=2, cut=5000)
    file = hf_hub_download("me/en-de", "model.safetensors")
    assert Path(file).read_bytes() == (repository / "model.safetensors").read_bytes()
    assert len([request for request in hub.requests if request.startswith("GET /storage/")]) == 3
