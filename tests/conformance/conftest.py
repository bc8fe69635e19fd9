"""Puts the library's `tests` on the path before the test files import it, and prints what became of its tests."""

import gc
import os
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["RUN_SLOW"] = "1"  # on models of this size nothing is slow

import pytest
import torch
from sdist import NoSdist, library_tests

torch.set_num_threads(1)
CACHE = Path(os.environ.get("VANILLA_CONFORMANCE_CACHE", Path(__file__).parents[2] / "build" / "conformance"))
# Every reason for which the library skips a test, and why it can't be avoided here.
REMAINING = {
    r"accelerator|Flash Attention|kernels library|MPS": "needs a GPU, and packages for one",
    r"deepspeed": "needs DeepSpeed, and a GPU",
    r"RoPE|base_model_class": "for configs with rope_parameters; our rotary positions have none",
    r"grouped_mm|experts|router_logits": "for mixtures of experts",
    r"composite|subconfigs|does not support SDPA": "for models made of models, each with a config",
    r"sliding window": "all our attention is global",
    r"_keep_in_fp32": "for models with modules that stay in float32; our sinusoids do so by themselves",
    r"TP plan": "we have no plan for tensor parallelism",
    r"conversion": "for models whose saved names are not the module's names",
    r"position embeddings": "for models that resize their table of positions; ours grows, or ends where it was learned",
    r"propagate hidden states": "for models with one list of hidden states: run on the encoder and the decoder alone",
    r"_torch_compile_train_cls": "for models of texts",
    r"language modeling head": "for another kind of head, of another class here",
    r"take a cache": "an encoder has no cache",
    r"inputs_embeds|test_resize_embeddings": "images have no embeddings of words",
    r"chat templates|Extractor": "for a tokenizer class with code of its own; ours is a plain one",
}
outcomes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))  # class -> test -> what its parts did
reasons: dict[str, set[str]] = defaultdict(set)  # why -> tests


def pytest_sessionstart() -> None:
    try:
        sys.path.insert(0, str(library_tests(CACHE)))
    except NoSdist as error:
        pytest.exit(f"skipped: {error}", returncode=0)


def pytest_collection_finish() -> None:
    gc.freeze()  # the tests collect garbage before and after each: not among all that the imports made


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.passed:
        return
    (_, group, test) = report.nodeid.split("::")
    outcomes[group][test].add(report.outcome)
    if report.skipped:
        reason = report.longrepr[2].removeprefix("Skipped: ")
        why = next((why for pattern, why in REMAINING.items() if re.search(pattern, reason)), f"NEW: {reason}")
        reasons[why].add(report.nodeid)


def pytest_terminal_summary(terminalreporter) -> None:
    if not outcomes:
        return
    write = terminalreporter.write_line
    terminalreporter.section("the library's common tests")
    write(f"{'class':24}{'passed':>8}{'skipped':>8}{'failed':>8}")
    for group, tests in outcomes.items():
        # The parts of a test are its subtests, one for each model class: one that skips makes it skipped.
        worst = Counter(next(w for w in ("failed", "skipped", "passed") if w in done) for done in tests.values())
        write(f"{group:24}{worst['passed']:8}{worst['skipped']:8}{worst['failed']:8}")
    write("")
    write("skipped  because the test")
    for why, tests in sorted(reasons.items(), key=lambda item: -len(item[1])):
        write(f"{len(tests):7}  {why}")
