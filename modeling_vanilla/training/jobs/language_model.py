"""Training the decoder alone as a language model."""

from typing import Any

import pyarrow as pa
import torch
from datasets import DatasetDict
from transformers import PreTrainedModel

from modeling_vanilla.data import FilterReport, load_corpus, prepare_pairs
from modeling_vanilla.data.batching import PairCollator
from modeling_vanilla.data.corpus import SourceTexts
from modeling_vanilla.heads import VanillaForCausalLM
from modeling_vanilla.training.jobs.job import Job, RunResult, test_sets
from modeling_vanilla.training.trainer import VanillaTrainer, perplexity

START_OF_SAMPLE = 4  # tokens of a test line that a sample goes on from


class LineCollator(PairCollator):
    """Batches of lines for a language model: the start token, then the line; every token but the start is predicted."""

    def __init__(self, pad_token_id: int, start_token_id: int):
        super().__init__(pad_token_id)
        self.start_token_id = start_token_id

    def __call__(self, batch: pa.Table | list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Returns `input_ids` and `labels`, both `(n, T + 1)`, padded on the right."""
        labels = torch.nn.functional.pad(super().__call__(batch)["labels"], (1, 0), value=-100)  # (n, T + 1)
        input_ids = labels.masked_fill(labels == -100, self.pad_token_id)
        input_ids[:, 0] = self.start_token_id
        return {"input_ids": input_ids, "labels": labels}


class LanguageModeling(Job):
    """From lines of text to a `VanillaForCausalLM`."""

    lines: DatasetDict
    report: FilterReport

    def prepare(self) -> None:
        data = self.recipe.data
        self.corpus = load_corpus(data)
        self.processor = self.make_tokenizer(SourceTexts(self.corpus["train"]))
        train, self.report = prepare_pairs(self.corpus["train"], self.processor, data, training=True)
        others = {name: prepare_pairs(self.corpus[name], self.processor, data, training=False)[0]
                  for name in self.corpus if name != "train"}  # fmt: skip
        self.lines = DatasetDict(train=train, **others)

    def data_report(self) -> str:
        return str(self.report).replace("pairs", "lines")

    def build(self) -> PreTrainedModel:
        self.check_positions(
            self.recipe.data.max_length + 1, *(self.lines[name] for name in self.lines if name != "train")
        )
        model = self.make_model(VanillaForCausalLM, self.text_config())
        model.generation_config.max_length = self.recipe.data.max_length
        return model

    def trainer(self, model: PreTrainedModel) -> VanillaTrainer:
        config = model.config
        return VanillaTrainer(
            model=model,
            args=self.recipe.training,
            data_collator=LineCollator(config.pad_token_id, config.decoder_start_token_id),
            train_dataset=self.lines["train"],
            eval_dataset=self.lines["validation"],
            processing_class=self.processor,
        )

    @torch.inference_mode()
    def test(self, result: RunResult) -> None:
        """Perplexity on each test set, or on the validation set where there is none; and how the first lines go on."""
        device = self.recipe.training.device
        model = VanillaForCausalLM.from_pretrained(self.folder).to(device).eval()
        collate = LineCollator(model.config.pad_token_id, model.config.decoder_start_token_id)
        for name in test_sets(self.corpus) or ["validation"]:
            nll, tokens, lines = 0.0, 0, self.lines[name].sort("target_length")
            for start in range(0, len(lines), 32):
                batch = collate([lines[i] for i in range(start, min(start + 32, len(lines)))])
                count = int((batch["labels"] != -100).sum())
                output = model(**{key: value.to(device) for key, value in batch.items()}, return_logits=False)
                nll, tokens = nll + float(output.nll) * count, tokens + count
            signature = f"nats:{nll / tokens:.4f}|tokens:{tokens}|vocab:{len(self.processor)}|end:yes"
            value = perplexity(nll / tokens)
            result.results.append(
                {"dataset": name, "name": "perplexity", "value": value, "interval": None, "signature": signature}
            )
            for line in list(self.corpus[name]["source"])[: 10 - len(result.samples)]:
                ids = self.processor(line)["input_ids"][:-1][:START_OF_SAMPLE]  # without the end token
                prompt = torch.tensor([[model.config.decoder_start_token_id, *ids]], device=device)
                longest = max(model.generation_config.max_length, prompt.shape[1] + 1)
                written = model.generate(
                    prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_length=longest
                )
                texts = (self.processor.decode(x, skip_special_tokens=True) for x in (prompt[0], written[0]))
                result.samples.append(dict(zip(("source", "translation"), texts, strict=True), target=line))


__all__ = ["LanguageModeling", "LineCollator"]
