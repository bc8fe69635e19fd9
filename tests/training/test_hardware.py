"""What is said of the machine."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from modeling_vanilla.training import hardware

MANY_SHAPES = """
import os, time, torch
from modeling_vanilla.training.hardware import keep_kernels
if os.environ.pop("KEEP"): keep_kernels()
torch.set_num_threads(1)
weight = torch.ones(128, 128, dtype=torch.bfloat16)
inputs = [torch.ones(n, 128, dtype=torch.bfloat16) for n in range(1, 1500)]
for _ in range(2):
    start = time.process_time()
    for x in inputs:
        x @ weight
    print(time.process_time() - start)
"""


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="oneDNN makes these kernels where there is AMX")
def test_kernels_of_more_shapes_than_onednn_keeps_are_made_once():
    again = {}
    for keep in ("yes", ""):
        environment = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
        done = subprocess.run(
            [sys.executable, "-c", MANY_SHAPES], env=environment | {"KEEP": keep}, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        again[keep] = float(done.stdout.split()[1])
    assert again["yes"] < again[""] / 3  # a tenth, as a rule


@pytest.mark.parametrize(("gigabytes", "kernels"), [(0.5, 1024), (8, 2684), (1000, 8192)])
def test_kernels_take_an_eighth_of_the_memory(monkeypatch, gigabytes, kernels):
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "")
    pages = {"SC_PHYS_PAGES": int(gigabytes * 2**30 / 4096), "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    hardware.keep_kernels()
    assert os.environ.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY") == str(kernels)


def test_what_the_environment_says_of_kernels_stays(monkeypatch):
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "")
    hardware.keep_kernels()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"


CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def zone(folder, number, name, microwatts):
    path = folder / f"intel-rapl:{number}"
    path.mkdir()
    (path / "name").write_text(f"{name}\n")
    (path / "constraint_0_power_limit_uw").write_text(f"{microwatts}\n")


def test_power_of_processors_is_the_sum_over_them_without_their_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "POWERCAP", tmp_path)
    zone(tmp_path, "0", "package-0", 125_000_000)
    zone(tmp_path, "0:0", "core", 90_000_000)
    zone(tmp_path, "1", "package-1", 65_500_000)
    assert hardware.power(CPU, 2)["watts"] == 190.5


@pytest.mark.parametrize("microwatts", [None, "", 0])
def test_power_that_the_machine_does_not_say_is_unknown(tmp_path, monkeypatch, microwatts):
    monkeypatch.setattr(hardware, "POWERCAP", tmp_path)
    if microwatts is not None:
        zone(tmp_path, "0", "package-0", microwatts)
    assert hardware.power(CPU, 1) is None


def test_power_of_several_machines_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "POWERCAP", tmp_path)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    zone(tmp_path, "0", "package-0", 125_000_000)
    assert hardware.power(CPU, 2)
    assert hardware.power(CPU, 4) is None


@pytest.mark.parametrize(("answer", "watts"), [("700.00\n", 1400.0), ("[N/A]\n", None), (None, None)])
def test_power_of_gpus_is_their_limit(monkeypatch, answer, watts):
    def nvidia_smi(words, **kwargs):
        if answer is None:
            raise FileNotFoundError(words[0])
        assert words[-2:] == ["-i", "GPU-1234"]
        return SimpleNamespace(stdout=answer)

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1234"))
    monkeypatch.setattr(subprocess, "run", nvidia_smi)
    power = hardware.power(GPU, 2)
    assert (power and power["watts"]) == watts


def test_describes_processors_by_threads():
    assert hardware.describe(CPU, 2).startswith(f"2 × CPU, {torch.get_num_threads()} thread")
