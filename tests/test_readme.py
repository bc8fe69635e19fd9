"""The README's examples, run as they stand."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from modeling_vanilla.scripts.main import VERBS, main
from tests.fixtures import write_corpus

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_python_examples_run(trained, tmp_path, monkeypatch, capsys):
    """In order and in one process, as a reader would paste them, with a trained model in the place of `my_model`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model").symlink_to(trained)
    data = write_corpus(tmp_path / "my_data")
    (data / "train.de").rename(data / "train.fr")  # any language but the model's
    namespace: dict[str, object] = {}
    without_hub = re.sub(r"\n## Share\n.*?\n## ", "\n## ", README, flags=re.DOTALL)  # run by tests/hub/test_loading.py
    blocks = re.findall(r"```python\n(.*?)```", without_hub, flags=re.DOTALL)
    assert len(blocks) == 7
    updates = []
    for block in blocks:
        exec(block, namespace)
        if "trainer.train()" in block:
            updates.append(namespace["trainer"].state.global_step)
    assert updates == [3, 6]
    ids = torch.tensor([[4, 5, 2]])
    weights = [AutoModelForSeq2SeqLM.from_pretrained(name)(input_ids=ids, labels=ids).logits
               for name in ("my_model", "merged", "looped")]  # fmt: skip
    assert not any(torch.allclose(weights[0], other, atol=1e-4) for other in weights[1:])


def test_the_commands_that_export_run(trained, tmp_path, monkeypatch, capfd):
    """But the one for ONNX, which tests/interop/test_onnx.py runs, for it takes long."""
    pytest.importorskip("ctranslate2")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model").symlink_to(trained)
    (tmp_path / "new.en").write_text("The big dog sees the red ball.\n")
    block = next(b for b in re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL) if "vanilla convert" in b)
    lines = [line for line in block.splitlines() if "--to onnx" not in line]
    assert len(lines) == 4
    for line in lines:
        assert main(shlex.split(line.partition(" >")[0])[1:]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", README))))
def test_links_lead_somewhere(link):
    assert (Path(__file__).parents[1] / link).exists()


def test_commands_are_those_that_exist():
    verbs = set(re.findall(r"vanilla (train|translate|evaluate|tokenizer|[a-z]+) [a-zA-Z-]", README))
    assert verbs <= set(VERBS)
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile
