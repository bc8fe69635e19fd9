"""Two processes (gloo) under `accelerate launch` against one with twice the accumulation."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from modeling_vanilla.training import load_recipe, run
from tests.fixtures import train_words, write_corpus

TRAIN = Path(__file__).parents[2] / "scripts" / "train.py"
SETTINGS = {"max_steps": 12, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 6}


def launch(words: list[str], script: Path = TRAIN, **pipes) -> subprocess.Popen:
    # --multi_gpu is accelerate's word for one process each, on CPUs too; --cpu alone would start one.
    command = [
        *(
            sys.executable,
            "-m",
            "accelerate.commands.launch",
            "--multi_gpu",
            "--num_processes",
            "2",
            "--num_machines",
            "1",
        ),
        *("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0", str(script), *words),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | pipes
    return subprocess.Popen(command, env=environment, text=True, **pipes)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("distributed")
    data = write_corpus(root / "data")
    run(load_recipe(None, train_words(data, root / "one", gradient_accumulation_steps=2, **SETTINGS)))
    process = launch(train_words(data, root / "two", **SETTINGS))
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return root


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_two_processes_ran(folders):
    assert results(folders / "two")["hardware"].startswith("2 × ")


@pytest.mark.parametrize("key", ["loss", "nll", "learning_rate", "eval_loss", "eval_nll", "eval_bleu", "eval_chrf"])
def test_curves_are_the_same(folders, key):
    one, two = ([entry[key] for entry in results(folders / name)["history"] if key in entry] for name in ("one", "two"))
    assert len(one) == (2 if key.startswith("eval") else 12)
    assert two == pytest.approx(one, rel=1e-5)


def test_weights_are_the_same(folders):
    with (
        safe_open(folders / "one/model.safetensors", "pt") as one,
        safe_open(folders / "two/model.safetensors", "pt") as two,
    ):
        for key in one.keys():  # noqa: SIM118
            torch.testing.assert_close(two.get_tensor(key), one.get_tensor(key), rtol=1e-4, atol=1e-5)


def test_the_finished_folder_is_the_same(folders):
    names = [sorted(path.name for path in (folders / name).iterdir()) for name in ("one", "two")]
    assert names[0] == names[1]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_a_stopped_run_of_two_processes_goes_on_bit_for_bit(folders, how):
    """Dropout, BPE-dropout, accumulation and the middle of an epoch included."""

    def words(name: str) -> list[str]:
        return train_words(
            folders / "data", folders / name, max_steps=120, logging_steps=5, save_strategy="steps", save_steps=7,
            save_total_limit=3, dropout=0.1, bpe_dropout=0.1, gradient_accumulation_steps=2, eval_strategy="steps",
            eval_steps=30,
        )  # fmt: skip

    if not (folders / "undisturbed").exists():
        output, _ = (process := launch(words("undisturbed"))).communicate(timeout=300)
        assert process.returncode == 0, output
    stopped = folders / how.name
    process = launch(words(how.name))
    deadline = time.monotonic() + 120
    while not list(stopped.glob("checkpoint-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    workers = children(process.pid)
    for worker in workers if how == signal.SIGKILL else [process.pid]:
        os.kill(worker, how)
    output, _ = process.communicate(timeout=100)
    assert process.returncode != 0
    assert list(stopped.glob("checkpoint-*")), output
    assert not (stopped / "model.safetensors").exists()
    process = launch(words(how.name))
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "going on from" in output
    whole = folders / "undisturbed"
    assert (stopped / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    for one, other in zip(results(stopped)["history"], results(whole)["history"], strict=True):
        assert [one.get(key) for key in ("loss", "nll", "eval_nll")] == [
            other.get(key) for key in ("loss", "nll", "eval_nll")
        ]


def children(process: int) -> list[int]:
    """The processes that a process started, by /proc."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(status.parent.name))
        except (OSError, ValueError):  # it has ended meanwhile
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the processes through /proc")
def test_one_process_killed_ends_the_other_with_a_message(tmp_path):
    words = train_words(write_corpus(tmp_path / "data"), tmp_path / "out", max_steps=100_000, save_strategy="steps",
                        save_steps=2)  # fmt: skip
    process = launch(words)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "out").glob("checkpoint-*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    workers = children(process.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=100)
    assert process.returncode not in (0, None)
    assert "SIGKILL" in output or "exitcode  : -9" in output
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_a_file_is_translated_by_two_processes_in_order(folders, tmp_path):
    translate = TRAIN.with_name("translate.py")
    source = folders / "data" / "test.en"
    words = [str(folders / "one"), str(source), "--buffer", "4"]
    process = launch([*words, "--alignments", str(tmp_path / "two")], translate, stderr=subprocess.PIPE)
    output, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    alone = subprocess.run([sys.executable, str(translate), *words, "--alignments", str(tmp_path / "one")],
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert output == alone.stdout
    assert len(output.splitlines()) == len(source.read_text().splitlines())
    assert (tmp_path / "two").read_text() == (tmp_path / "one").read_text()
