"""A model trained for seconds on a small corpus of files, for the tests of what comes after training; and padding."""

from pathlib import Path

import pytest
import torch

POSITION_ENCODINGS = ["sinusoidal", "learned", "rotary", "alibi"]

NOUNS = {"Hund": "dog", "Mann": "man", "Baum": "tree", "Ball": "ball", "Tisch": "table", "Stuhl": "chair"}
ADJECTIVES = {"große": "big", "kleine": "small", "rote": "red", "alte": "old", "neue": "new"}
VERBS = {"sieht": "sees", "trägt": "carries", "malt": "paints"}


def corpus(start: int, stop: int, step: int = 1) -> list[tuple[str, str]]:
    """Every `step`-th of the 2,700 pairs "The big dog sees the red ball." from `start` to `stop`."""
    pairs = []
    for a, adjective_a in ADJECTIVES.items():
        for n, noun_n in NOUNS.items():
            for v, verb in VERBS.items():
                for b, adjective_b in ADJECTIVES.items():
                    for m, noun_m in NOUNS.items():
                        source = f"The {adjective_a} {noun_n} {verb} the {adjective_b} {noun_m}."
                        pairs.append((source, f"Der {a} {n} {v} den {b}n {m}."))
    return pairs[start:stop:step]


def write_corpus(folder: Path) -> Path:
    """Files train, val and test in English and German: 193, 20 and 15 pairs, none in two of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in {
        "train": corpus(0, 2700, 14),
        "val": corpus(1, 2700, 141),
        "test": corpus(2, 2700, 182),
    }.items():
        for side, lang in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{lang}").write_text(text, encoding="utf-8")
    return folder


def train_words(data: Path, output: Path, **changes) -> list[str]:
    """The words of `vanilla train` for a run of seconds."""
    settings = {
        "data_dir": data, "output_dir": output, "source_lang": "en", "target_lang": "de", "model": "tiny",
        "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        "dropout": 0.0, "vocab_size": 340, "max_tokens": 400, "learning_rate": 1e-2, "warmup_steps": 20,
        "max_steps": 120, "logging_steps": 20, "save_strategy": "no", "disable_tqdm": "true",
        "cache_dir": data / "cache", "preprocessing_num_workers": 1, **changes,
    }  # fmt: skip
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """The folder that `vanilla train` wrote; the corpus is in its `data` folder's files."""
    from modeling_vanilla.training import load_recipe, run

    root = tmp_path_factory.mktemp("trained")
    data = write_corpus(root / "data")
    run(load_recipe(None, train_words(data, root / "model")))
    return root / "model"


def padded(sentences: list[torch.Tensor], side: str = "right", extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask `(B, L)` with 0 as padding on this side, `extra` places more than the longest needs."""
    L = max(map(len, sentences)) + extra
    ids, mask = torch.zeros(2, len(sentences), L, dtype=torch.long)
    for b, sentence in enumerate(sentences):
        where = slice(L - len(sentence), L) if side == "left" else slice(0, len(sentence))
        ids[b, where], mask[b, where] = sentence, 1
    return ids, mask


def random_padded(lengths: list[int], side: str = "right", extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """`padded`, of random tokens from 3 to 19."""
    return padded([torch.randint(3, 20, (length,)) for length in lengths], side, extra)
