"""`VanillaTrainer`: what training the paper's way needs beyond `Seq2SeqTrainer`."""

import hashlib
import logging
import math
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import Seq2SeqTrainer
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction

from modeling_vanilla.data.batching import PairCollator, TokenBatchSampler, TokenPairs
from modeling_vanilla.data.bpe_dropout import BPEDropout
from modeling_vanilla.decoding.lengths import MaxLengthPerSource, max_new_tokens
from modeling_vanilla.training.arguments import VanillaTrainingArguments, greater_is_better
from modeling_vanilla.training.paper import PaperTrainer
from modeling_vanilla.training.r_drop import r_drop_loss, twice
from modeling_vanilla.training.watch import check_outputs, check_padding

logger = logging.getLogger(__name__)


class VanillaTrainer(PaperTrainer, Seq2SeqTrainer):
    """
    `Seq2SeqTrainer` with batches as token budgets, the paper's schedule, the model's own smoothed loss, and the plain
    negative log-likelihood (`nll`, nats a token) and its perplexity (`ppl`) in every log beside it.

    Data sets have the columns `input_ids` and `labels` (`data.prepare_pairs` makes them); lengths are read from
    `source_length` and `target_length` where they exist.

    Example:
        >>> VanillaTrainer(model=model, args=arguments, train_dataset=pairs).train()  # doctest: +SKIP
    """

    args: VanillaTrainingArguments

    def __init__(self, model: Any = None, args: VanillaTrainingArguments | None = None, data_collator=None, **kwargs):
        if args is not None and args.n_gpu > 1:  # or the library would cut each batch up with torch.nn.DataParallel
            logger.warning("using one of %s GPUs; `accelerate launch` uses them all", args.n_gpu)
            args._n_gpu = 1
        if kwargs.get("compute_loss_func") is not None:
            raise ValueError("compute_loss_func: the model computes its loss itself, so that it never holds all logits")
        super().__init__(model=model, args=args, data_collator=data_collator, **kwargs)
        if data_collator is None:
            self.data_collator = PairCollator(self.model.config.pad_token_id)
        if self.is_fsdp_enabled and self.args.predict_with_generate:  # no process has all weights to decode with
            metric = self.args.metric_for_best_model
            if metric and greater_is_better(metric):
                raise ValueError(f"metric_for_best_model={metric!r}: under FSDP only the loss is known: use nll")
            logger.warning("under FSDP nothing is translated while training: the validation set's loss alone is known")
            self.args.predict_with_generate = False
        self.label_smoother = None  # it needs all the logits; the model's loss doesn't
        self._nll = torch.zeros((), device=self.args.device)  # summed over updates since the last log ...
        self._sound_nll = self._nll  # before the update at hand
        self._lost = torch.zeros_like(self._nll)  # updates whose share of that was no number
        self._nll_since: int | None = None  # ... which was at this step
        self._data = ""  # a digest of the training data's lengths

    # Batches ------------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader:
        if self.train_dataset is None:
            raise ValueError("VanillaTrainer: training needs a train_dataset")
        return self._token_loader(self.train_dataset, training=True)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        if isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset[eval_dataset]
        eval_dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if eval_dataset is None:
            raise ValueError("VanillaTrainer: evaluation needs an eval_dataset")
        return self._token_loader(eval_dataset, training=False)

    get_test_dataloader = get_eval_dataloader

    def _token_loader(self, dataset: Any, training: bool) -> DataLoader:
        dropout = None
        if training and self.args.bpe_dropout:
            dropout = BPEDropout(self.processing_class, self.args.bpe_dropout, self._data_seed())
        longest = min(self.processing_class.model_max_length, self.args.max_tokens) if dropout else None
        pairs = TokenPairs(dataset, dropout, longest)
        source, target = pairs.lengths()
        if training:
            self._data = hashlib.sha256(source.tobytes() + target.tobytes()).hexdigest()
        processes = self.accelerator.num_processes
        sampler = TokenBatchSampler(
            source,
            target,
            self.args.max_tokens,
            seed=self._data_seed(),
            shuffle=training,
            longer_alone=not training,  # nothing was filtered out of a validation set
            multiple_of=processes * (self.args.gradient_accumulation_steps if training else 1),
            redraw=pairs.lengths if dropout else None,
        )
        if training:
            logger.info(
                "%s batches of at most %s tokens a side, %.1f %% of them padding",
                f"{len(sampler):,}", f"{self.args.max_tokens:,}", 100 * sampler.padding,
            )  # fmt: skip
            check_padding(sampler.padding)
        loader = DataLoader(
            pairs if dropout or isinstance(self.data_collator, PairCollator) else dataset,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type != "cpu",
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )
        loader = self.accelerator.prepare(loader)
        if loader.batch_sampler is not sampler:  # accelerate's shard passes no epoch on to what it wraps
            loader.batch_sampler.set_epoch = sampler.set_epoch
        return loader

    def _data_seed(self) -> int:
        return self.args.data_seed if self.args.data_seed is not None else self.args.seed

    def set_initial_training_values(self, args: VanillaTrainingArguments, dataloader: DataLoader):
        epochs, updates_per_epoch, examples, _, *rest = super().set_initial_training_values(args, dataloader)
        samples = examples * rest[-1] / updates_per_epoch  # not per_device_train_batch_size times updates
        return epochs, updates_per_epoch, examples, samples, *rest

    # Loss ---------------------------------------------------------------------------------------------------------

    def _left_out(self) -> None:
        is_sound = self._nll.isfinite()
        self._lost += ~is_sound
        self._nll = torch.where(is_sound, self._nll, self._sound_nll)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        inputs = {**inputs, "label_smoothing": self.args.label_smoothing_factor}
        if self.args.r_drop and model.training:
            inputs = {**twice(inputs), "loss_function": partial(r_drop_loss, self.args.r_drop)}
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        if len(self._update) <= 1:
            self._sound_nll = self._nll.clone()
        self._nll += outputs["nll"].detach()  # a share of the update's: pieces and processes add up
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            since = self._initial_global_step if self._nll_since is None else self._nll_since
            nll, lost = self.accelerator.reduce(torch.stack((self._nll, self._lost)), reduction="sum").tolist()
            updates = self.state.global_step - since - lost / self.accelerator.num_processes
            if updates > 0:
                logs["nll"] = nll / updates
                logs["ppl"] = perplexity(logs["nll"])
            self._nll, self._lost = torch.zeros_like(self._nll), torch.zeros_like(self._nll)
            self._nll_since = self.state.global_step
        super().log(logs, start_time)

    def _running_loss(self) -> dict[str, Any]:
        since = self._initial_global_step if self._nll_since is None else self._nll_since
        sums = {"nll": self._nll.item(), "lost": self._lost.item()}
        return {**super()._running_loss(), **sums, "nll_since": since, "data": self._data}

    def _restore_running_loss(self, saved: dict[str, Any]) -> None:
        super()._restore_running_loss(saved)
        if saved.get("data", self._data) != self._data:
            logger.warning(
                "the training data isn't what it was when this run was stopped: it goes on with what is there now, and "
                "its batches are others"
            )
        self._nll.fill_(saved["nll"])
        self._lost.fill_(saved.get("lost", 0))
        self._nll_since = int(saved["nll_since"])

    def _inner_training_loop(self, *args: Any, **kwargs: Any):
        self._nll, self._lost, self._nll_since = torch.zeros_like(self._nll), torch.zeros_like(self._nll), None
        return super()._inner_training_loop(*args, **kwargs)

    # Evaluation ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """
        Averages over tokens, not batches (the library's loop weighs batches by their sentences), counts every sentence
        once on any number of processes, and hands `compute_metrics` the predictions in the order of the data.
        """
        if not self.accelerator._models:  # evaluation without training before it
            self.model_wrapped = self.accelerator.prepare_model(self.model, evaluation_mode=True)
        self.model.eval()
        if callable(turn_to_eval := getattr(self.optimizer, "eval", None)):
            turn_to_eval()  # a schedule-free one has other weights for it, as in the library's loop
        loss_only = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        wanted = self.compute_metrics is not None or description == "Prediction"  # by predict()
        can_generate = self.accelerator.unwrap_model(self.model).config.is_encoder_decoder
        generate = self.args.predict_with_generate and wanted and not loss_only and can_generate
        sums = torch.zeros(3)  # smoothed loss, plain loss, tokens
        mine: list[tuple[list[list[int]], list[list[int]]]] = []  # a batch: predictions, labels
        for batch in tqdm(dataloader, desc=description, leave=False, disable=self._hide_progress()):
            batch = self._prepare_inputs(batch)
            with self.accelerator.autocast():
                outputs = self.model(**batch, label_smoothing=self.args.label_smoothing_factor, return_logits=False)
                if generate:
                    mine.append((self._generate(batch), batch["labels"].tolist()))
            predicted = batch["labels"][:, 1:] if self._loss_shifts_labels else batch["labels"]
            tokens = int((predicted != -100).sum())
            sums += torch.tensor([float(outputs.loss) * tokens, float(outputs.nll) * tokens, tokens])

        loss, nll, tokens = self.accelerator.reduce(sums.to(self.args.device), reduction="sum").tolist()
        metrics = {
            f"{metric_key_prefix}_loss": loss / max(tokens, 1),
            f"{metric_key_prefix}_nll": nll / max(tokens, 1),
            f"{metric_key_prefix}_ppl": perplexity(nll / max(tokens, 1)),
        }
        predictions: np.ndarray | None = None
        labels: np.ndarray | None = None
        if generate:
            predictions, labels = self._in_order(dataloader, gather_object(mine))
            config = self.model.config
            check_outputs(predictions.tolist(), (config.pad_token_id, config.bos_token_id, config.eos_token_id))
            both = EvalPrediction(predictions=predictions, label_ids=labels)
            scores = self.compute_metrics(both) if self.compute_metrics else {}
            metrics |= {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        return EvalLoopOutput(predictions, labels, metrics, num_samples=len(dataloader.dataset))

    def _hide_progress(self) -> bool:
        return self.args.disable_tqdm or not self.is_local_process_zero()

    def _generate(self, batch: dict[str, torch.Tensor]) -> list[list[int]]:
        settings = {name: value for name, value in getattr(self, "_gen_kwargs", {}).items() if value is not None}
        ids, mask = batch["input_ids"], batch["attention_mask"]
        model = self.accelerator.unwrap_model(self.model)
        if not {"max_new_tokens", "max_length"} & settings.keys():  # each sentence's own, whatever its neighbours
            limits = [max_new_tokens(length) for length in mask.sum(1).tolist()]
            num_beams = settings.get("num_beams") or model.generation_config.num_beams or 1
            end = MaxLengthPerSource(limits, num_beams, model.config.eos_token_id, ids.device)
            settings |= {"max_length": max(limits) + 1, "logits_processor": [end]}  # with the start token
        if settings.get("num_beams") == 1:
            settings |= {"length_penalty": None, "early_stopping": None}  # of which greedy search would complain
        return model.generate(input_ids=ids, attention_mask=mask, **settings)[:, 1:].tolist()

    def _in_order(self, dataloader: Any, gathered: list) -> tuple[np.ndarray, np.ndarray]:
        """Batches of all processes, one process after the other, to arrays in the order of the data set."""
        sampler = dataloader.batch_sampler
        batches = list(getattr(sampler, "batch_sampler", sampler))  # out of accelerate's shard
        processes = self.accelerator.num_processes
        dealt = [batch for process in range(processes) for batch in batches[process::processes]]
        rows: list[tuple[list[int], list[int]]] = [([], [])] * len(dataloader.dataset)
        for batch, (predictions, labels) in zip(dealt, gathered, strict=True):
            for index, prediction, label in zip(batch, predictions, labels, strict=True):
                rows[index] = prediction, label
        columns = list(zip(*rows, strict=True))
        return _stack(columns[0], self.model.config.pad_token_id), _stack(columns[1], -100)


def perplexity(nll: float) -> float:
    """exp(nll), infinite where a float can't hold it."""
    return math.exp(nll) if nll < 700 else math.inf


def _stack(rows: tuple[list[int], ...], fill: int) -> np.ndarray:
    table = np.full((len(rows), max(map(len, rows))), fill)
    for row, ids in zip(table, rows, strict=True):
        row[: len(ids)] = ids
    return table


__all__ = ["VanillaTrainer", "perplexity"]
