"""What every kind of training has: data, a model, a trainer, and tests at the end."""

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from modeling_vanilla.configuration_vanilla import VanillaConfig
from modeling_vanilla.data import train_tokenizer, train_word_tokenizer
from modeling_vanilla.training.initial import load_initial, load_tokenizer
from modeling_vanilla.training.recipe import Recipe

logger = logging.getLogger(__name__)


@dataclass
class RunResult:
    """
    What a run gave.

    Attributes:
        folder: the finished model.
        task: as in `DataArguments.task`.
        results: one dict a figure: `dataset`, `name`, `value`, `interval`, `signature`.
        samples: the first test examples: `source`, `translation` (what the model says) and `target`.
    """

    folder: Path
    task: str = "translation"
    results: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, str]] = field(default_factory=list)


class Job(ABC):
    """
    One kind of training; `run` calls its methods in the order in which they stand here.

    Attributes:
        processor: the tokenizer or image processor, to be saved with the model.
        corpus: what was read, by split.
    """

    processor: Any
    corpus: DatasetDict

    def __init__(self, recipe: Recipe, folder: Path):
        self.recipe, self.folder = recipe, folder

    @abstractmethod
    def prepare(self) -> None:
        """Reads the data and makes the processor; the first process does it before the others."""

    @abstractmethod
    def data_report(self) -> str:
        """What was read and what was dropped, in one line."""

    def sizes(self) -> dict[str, int]:
        """How many examples each split has, before any is dropped."""
        return {name: len(split) for name, split in self.corpus.items()}

    @abstractmethod
    def build(self) -> PreTrainedModel:
        """The model to train."""

    @abstractmethod
    def trainer(self, model: PreTrainedModel) -> Any:
        """The trainer, which is a `PaperTrainer`."""

    @abstractmethod
    def test(self, result: RunResult) -> None:
        """Scores the saved model on the test sets: what was saved, not what was trained, in that precision."""

    def make_tokenizer(self, texts: Any) -> PreTrainedTokenizerFast:
        """What is named, or the tokenizer of `init_from`, or this run's from before, or a new one, left in its root."""
        setting = "init_from" if self.recipe.model.init_from else "tokenizer_name_or_path"
        name, max_length = getattr(self.recipe.model, setting), self.recipe.data.max_length
        if name or (self.folder / "tokenizer.json").is_file():
            tokenizer = load_tokenizer(setting, name or self.folder)
            if None in (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id):
                raise ValueError(f"{setting}={str(name)!r}: a tokenizer needs a pad, a bos and an eos token: set them")
            if tokenizer("a")["input_ids"][-1:] != [tokenizer.eos_token_id]:
                raise ValueError(
                    f"{setting}={str(name)!r}: its texts don't end in {tokenizer.eos_token!r}, so that no translation "
                    "would: give the tokenizer a post-processor that adds it"
                )
            tokenizer.model_max_length = max_length  # this model's, whatever the tokenizer was made for
            return tokenizer
        logger.info("training a tokenizer of %s tokens", f"{self.recipe.model.vocab_size:,}")
        train = train_word_tokenizer if self.recipe.model.tokens == "words" else train_tokenizer
        tokenizer = train(texts, self.recipe.model.vocab_size, model_max_length=max_length)
        tokenizer.save_pretrained(self.folder)
        return tokenizer

    def check_positions(self, longest: int, *scored: Dataset) -> None:
        """Refuses a learned table of positions that ends before the longest input, or the longest of what is scored."""
        config = self.recipe.vanilla_config()
        if config.position_encoding != "learned":
            return
        sides = [data[f"{side}_length"][:] for data in scored for side in ("source", "target")]
        longest = max([longest, *(max(lengths, default=0) + 1 for lengths in sides)])  # with the start token
        if config.max_position_embeddings < longest:
            raise ValueError(
                f"max_position_embeddings={config.max_position_embeddings}: inputs may have {longest} positions, and a "
                f"learned table must have as many: raise it, or lower what is let in"
            )

    def text_config(self, **changes: Any) -> VanillaConfig:
        """The recipe's config for `processor`'s vocabulary."""
        tokenizer = self.processor
        config = self.recipe.vanilla_config(
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.bos_token_id,
            **changes,
        )
        if len(tokenizer) > config.vocab_size:
            raise ValueError(
                f"init_from={self.recipe.model.init_from!r}: its tokenizer has {len(tokenizer):,} tokens, and the "
                f"model {config.vocab_size:,}: they don't belong together"
            )
        return config

    def make_model(self, model_class: type[PreTrainedModel], config: VanillaConfig) -> PreTrainedModel:
        """A model with the weights of `init_from`, or new ones."""
        name = self.recipe.model.init_from
        return load_initial(model_class, name, config) if name else model_class(config)


def test_sets(corpus: DatasetDict) -> list[str]:
    """The names of the splits that are neither for training nor for validation."""
    return [name for name in corpus if name not in ("train", "validation")]


__all__ = ["Job", "RunResult", "test_sets"]
