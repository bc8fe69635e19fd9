"""Fixtures of the data tests: a cache of their own, and a small tokenizer."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from modeling_vanilla.data import DataArguments, train_tokenizer

SHARED_DATA = Path(__file__).parents[2].parent / "shared/data"

SENTENCES = [
    "A dog runs over the grass.",
    "Ein Hund läuft über das Gras.",
    "Two men, both in red hats, don't look up!",
    "Zwei Männer mit roten Hüten schauen nicht auf!",
    "我爱北京天安门，天安门上太阳升。",
    "The 3 children  have 12 apples\tand 7 pears...",
]


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return SENTENCES


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(SENTENCES * 5, vocab_size=430)


@pytest.fixture
def arguments(tmp_path: Path) -> Callable[..., DataArguments]:
    """DataArguments with a cache that no other test has."""

    def make(**options) -> DataArguments:
        return DataArguments(**{"cache_dir": str(tmp_path / "cache")} | options)

    return make


@pytest.fixture(scope="session")
def shared_data() -> Path:
    if not SHARED_DATA.is_dir():
        pytest.skip(f"needs the development corpora in {SHARED_DATA}")
    return SHARED_DATA


@dataclass
class AnotherProcess:
    """What a process of its own, which shares no hash seed with this one, did in `folder`."""

    folder: Path
    digest: str  # of a tokenizer trained on the sentences
    fingerprint: str  # of the prepared pairs of folder/data, cached in folder/cache
    forks: list[list]  # pairs kept by two worker processes, TOKENIZERS_PARALLELISM of Python and of C afterwards
    errors: str  # its standard error


PROGRAM = """
import ctypes, json, os, sys
from datasets import Dataset
from transformers import AutoTokenizer
from modeling_vanilla.data import *
from modeling_vanilla.data import preparation

digest = tokenizer_digest(train_tokenizer(json.load(sys.stdin) * 5, 430))

tokenizer = AutoTokenizer.from_pretrained("tokenizer")
args = DataArguments(data_dir="data", cache_dir="cache")
prepared, _ = prepare_pairs(load_corpus(args)["train"], tokenizer, args, training=True)

preparation.PAIRS_PER_PROCESS = 100
getenv = ctypes.CDLL(None).getenv  # what the tokenizer reads; os.environ may differ from it
getenv.restype = ctypes.c_char_p
forks = []
for length, setting in enumerate([None, "true", "false"], start=10):
    if setting is not None:
        os.environ["TOKENIZERS_PARALLELISM"] = setting
    texts = [f"a dog {n}" for n in range(1000)]
    tokenizer(texts)  # in threads
    pairs = Dataset.from_dict({"source": texts, "target": texts})
    args = DataArguments(cache_dir="other", preprocessing_num_workers=2, max_length=length)
    _, report = prepare_pairs(pairs, tokenizer, args, training=True)
    c_setting = getenv(b"TOKENIZERS_PARALLELISM")
    forks.append([report.kept, os.environ.get("TOKENIZERS_PARALLELISM"), c_setting and c_setting.decode()])

print(json.dumps({"digest": digest, "fingerprint": prepared._fingerprint, "forks": forks}))
"""


@pytest.fixture(scope="session")
def another_process(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> AnotherProcess:
    folder = tmp_path_factory.mktemp("another_process")
    (folder / "data").mkdir()
    (folder / "data/train.tsv").write_text("A dog\tEin Hund\n" * 3 + "Two men\tZwei\n")
    tokenizer.save_pretrained(folder / "tokenizer")
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(SENTENCES),
        capture_output=True,
        text=True,
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"},
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return AnotherProcess(folder=folder, errors=result.stderr, **json.loads(result.stdout))
