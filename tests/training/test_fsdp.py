"""Two processes (gloo) with shares of the model, as configuration/accelerate/fsdp.yaml has it, against one process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from modeling_vanilla.training import VanillaTrainer, load_recipe, run
from tests.fixtures import train_words, write_corpus

from .conftest import make_model
from .test_trainer import arguments

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SETTINGS = {"max_steps": 4, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps",
            "save_steps": 2, "bf16": "false", "metric_for_best_model": "nll"}  # fmt: skip


def launch(words: list[str]) -> None:
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--config_file", str(ROOT / "configuration" / "accelerate" / "fsdp.yaml"), "--main_process_port", "0"),
        *("--mixed_precision", "no"),
        *("--fsdp_sync_module_states", "false", "--fsdp_cpu_ram_efficient_loading", "false"),  # ask for a GPU
        *(str(Path(__file__).with_name("fsdp_on_cpus.py")), *words),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("fsdp")
    data = write_corpus(root / "data")
    run(load_recipe(None, train_words(data, root / "one", gradient_accumulation_steps=2, **SETTINGS)))
    launch(train_words(data, root / "shares", **SETTINGS))
    return root


def results(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("key", ["loss", "nll", "grad_norm", "learning_rate", "eval_loss", "eval_nll"])
def test_curves_are_those_of_one_process(folders, key):
    one, two = (
        [entry[key] for entry in results(folders / name)["history"] if key in entry] for name in ("one", "shares")
    )
    assert len(one) == (2 if key.startswith("eval") else 4)
    assert two == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize("place", ["", "checkpoint-2"])
def test_weights_are_those_of_one_process_and_a_shared_matrix_is_kept_once(folders, place):
    one, two = (load_file(folders / name / place / "model.safetensors") for name in ("one", "shares"))
    assert one.keys() == two.keys()
    for name, weight in two.items():
        torch.testing.assert_close(weight, one[name], rtol=1e-4, atol=1e-6)


def test_shares_were_trained(folders):
    assert results(folders / "shares")["hardware"].startswith("2 × ")
    assert (folders / "shares" / "checkpoint-2" / "pytorch_model_fsdp.bin").is_file()


class WithShares(VanillaTrainer):
    """A trainer that takes itself for one under FSDP."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.is_fsdp_enabled = True


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"metric_for_best_model": "bleu"}, "metric_for_best_model='bleu': under FSDP only the loss is known: use nll"),
        ({"average_last": 2}, "not under FSDP; run `vanilla average`"),
    ],
)
def test_what_shares_do_not_allow_is_refused(tmp_path, settings, said):
    with pytest.raises(ValueError, match=said):
        WithShares(make_model(), arguments(tmp_path, save_strategy="steps", predict_with_generate=True, **settings))


@pytest.mark.slow
def test_the_same_command_goes_on_from_a_checkpoint_of_shares(folders):
    folder = folders / "again"
    shutil.copytree(folders / "shares", folder)
    shutil.rmtree(folder / "checkpoint-4")
    for name in ("results.json", "model.safetensors"):
        (folder / name).unlink()
    launch(train_words(folders / "data", folder, **SETTINGS))
    one, two = (load_file(folders / name / "model.safetensors") for name in ("shares", "again"))
    assert all(torch.equal(weight, one[name]) for name, weight in two.items())
