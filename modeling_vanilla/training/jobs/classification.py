"""Training the encoder to name what a text or an image shows."""

import logging
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedModel

from modeling_vanilla.configuration_vanilla import VanillaConfig
from modeling_vanilla.data import load_corpus
from modeling_vanilla.data.corpus import SourceTexts
from modeling_vanilla.data.images import image_processor, load_images
from modeling_vanilla.heads import VanillaForImageClassification, VanillaForSequenceClassification
from modeling_vanilla.training.jobs.job import Job, RunResult, test_sets
from modeling_vanilla.training.paper import PaperTrainer

logger = logging.getLogger(__name__)


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Per cent of examples whose largest logit is the label's; and the plain loss beside the smoothed one."""
    logits, labels = torch.as_tensor(prediction.predictions).float(), torch.as_tensor(prediction.label_ids)
    nll = torch.nn.functional.cross_entropy(logits, labels)
    return {"accuracy": 100 * float((logits.argmax(-1) == labels).float().mean()), "nll": float(nll)}


def wilson(share: float, n: int) -> float:
    """Half the width of Wilson's 95 % interval of a share of n examples."""
    z = 1.959964
    return z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))


def in_colours(image: Any) -> Any:
    """An image as the library's pipeline reads it, in three colours of 8 bits; what would be lost of it is refused."""
    if image.mode == "F" or (image.mode.startswith("I") and image.getextrema()[1] > 255):
        raise ValueError(f"an image of Pillow's mode {image.mode} has more than 8 bits a pixel: convert it to 8")
    return image.convert("RGB")


class Classification(Job):
    """What text and images have in common: labels, and accuracy."""

    examples: DatasetDict  # the columns that the model reads, and "label"
    labels: list[str]
    collate: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]
    model_class: type[PreTrainedModel]

    def data_report(self) -> str:
        counts = ", ".join(f"{len(split):,} {name}" for name, split in self.examples.items())
        return f"{counts} examples of {len(self.labels)} labels"

    def label_settings(self) -> dict[str, Any]:
        if len(self.labels) < 2:
            raise ValueError(f"the training set has one label, {self.labels}: there is nothing to tell apart")
        return {
            "id2label": dict(enumerate(self.labels)),
            "label2id": {label: number for number, label in enumerate(self.labels)},
            "problem_type": "single_label_classification",
        }

    def trainer(self, model: PreTrainedModel) -> PaperTrainer:
        self.recipe.training.remove_unused_columns = False  # the collators take what they need
        return PaperTrainer(
            model=model,
            args=self.recipe.training,
            data_collator=self.collate,
            train_dataset=self.examples["train"],
            eval_dataset=self.examples["validation"],
            processing_class=self.processor,
            compute_metrics=accuracy,
        )

    @torch.inference_mode()
    def test(self, result: RunResult) -> None:
        """Accuracy on each test set, or on the validation set where there is none; predictions beside the model."""
        args = self.recipe.training
        model = self.model_class.from_pretrained(self.folder).to(args.device).eval()
        for name in test_sets(self.examples) or ["validation"]:
            split, predicted = self.examples[name], []
            for start in range(0, len(split), args.per_device_eval_batch_size):
                rows = range(start, min(start + args.per_device_eval_batch_size, len(split)))
                batch = {key: x.to(args.device) for key, x in self.collate([split[i] for i in rows]).items()}
                del batch["labels"]
                predicted += model(**batch).logits.argmax(-1).tolist()
            right = np.asarray(predicted) == np.asarray(split["label"][:])
            share, n = float(right.mean()), len(right)
            result.results.append(
                {"dataset": name, "name": "accuracy", "value": 100 * share, "interval": 100 * wilson(share, n),
                 "signature": f"n:{n}|labels:{len(self.labels)}|interval:wilson"}
            )  # fmt: skip
            file = self.folder / "predictions" / f"{name}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{self.labels[number]}\n" for number in predicted), encoding="utf-8")
            for row in range(min(10 - len(result.samples), n)):
                answers = {"translation": self.labels[predicted[row]], "target": self.labels[split[row]["label"]]}
                result.samples.append({"source": self.describe(name, row), **answers})

    @abstractmethod
    def describe(self, split: str, row: int) -> str:
        """An example for a reader."""


class TextClassification(Classification):
    """From texts and labels to a `VanillaForSequenceClassification`."""

    model_class = VanillaForSequenceClassification

    def prepare(self) -> None:
        self.corpus = load_corpus(self.recipe.data)
        self.processor = self.make_tokenizer(SourceTexts(self.corpus["train"]))
        self.labels = sorted(set(self.corpus["train"]["target"][:]) - {"", None})
        self.examples = DatasetDict({name: self._encode(name, split) for name, split in self.corpus.items()})
        self.collate = self._collate

    def _encode(self, name: str, split: Dataset) -> Dataset:
        number = {label: index for index, label in enumerate(self.labels)}
        for row, label in enumerate(split["target"][:], start=1):
            if not label:
                raise ValueError(f"{name}, row {row}: there is no label: fill it in or take the row out")
            if label not in number:
                known = ", ".join(self.labels[:12])
                raise ValueError(f"{name}, row {row}: the label {label!r} is none of the training set's: {known}")
        tokenizer, limit = self.processor, self.recipe.data.max_length
        texts = [text or "" for text in split["source"][:]]
        ids = tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]
        cut = sum(len(x) > limit for x in ids)
        if cut:
            logger.warning("%s: %s of %s texts are cut to max_length=%s tokens", name, cut, len(ids), limit)
            ids = tokenizer(texts, truncation=True, max_length=limit, return_attention_mask=False)["input_ids"]
        labels = [number[label] for label in split["target"][:]]
        return Dataset.from_dict({"input_ids": ids, "length": list(map(len, ids)), "label": labels})

    def _collate(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        pad = DataCollatorWithPadding(self.processor)
        return dict(pad([{key: example[key] for key in ("input_ids", "label")} for example in examples]))

    def build(self) -> PreTrainedModel:
        self.check_positions(self.recipe.data.max_length)
        return self.make_model(self.model_class, self.text_config(**self.label_settings()))

    def describe(self, split: str, row: int) -> str:
        return self.corpus[split][row]["source"]


class ImageClassification(Classification):
    """From images and labels to a `VanillaForImageClassification`."""

    model_class = VanillaForImageClassification
    config: VanillaConfig

    def prepare(self) -> None:
        self.examples, self.labels = load_images(self.recipe.data)
        self.corpus = self.examples
        tokens = {"vocab_size": 2, "pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": None}  # not used
        self.config = self.recipe.vanilla_config(**tokens, **self.label_settings())
        if self.config.num_channels != 3:
            raise ValueError(
                f"num_channels={self.config.num_channels}: images are read in three colours, as the library's pipeline "
                "reads them: use 3"
            )
        self.check_positions((self.config.image_size // self.config.patch_size) ** 2)
        self.processor = image_processor(self.config.image_size, self.config.num_channels)
        self.collate = self._collate

    def _collate(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        try:
            images = [in_colours(example["image"]) for example in examples]
        except OSError as error:
            raise ValueError(f"an image can't be read: {error}: mend it or take it out") from error
        pixels = self.processor(images, return_tensors="pt")["pixel_values"]
        return {"pixel_values": pixels, "labels": torch.tensor([example["label"] for example in examples])}

    def build(self) -> PreTrainedModel:
        return self.make_model(self.model_class, self.config)

    def describe(self, split: str, row: int) -> str:
        return f"image {row + 1}"


__all__ = ["ImageClassification", "TextClassification", "accuracy"]
