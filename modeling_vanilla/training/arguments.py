"""What a training run can be told beyond the library's own training arguments."""

import math
from dataclasses import dataclass, field

import torch
from transformers import Seq2SeqTrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType


@dataclass
class VanillaTrainingArguments(Seq2SeqTrainingArguments):
    """
    The library's arguments with the paper's defaults (section 5), and batches counted in tokens.

    `per_device_*_batch_size` and `train_sampling_strategy` have no effect: `max_tokens` decides. For classifiers, whose
    batches are counted in examples, it is the other way round.
    """

    max_tokens: int = field(
        default=4096,
        metadata={"help": "Padded source positions, and padded target positions, that one batch holds at most."},
    )
    gradient_accumulation_steps: int = field(
        default=1, metadata={"help": "Batches, on each device, whose gradients add up to one update."}
    )
    learning_rate: float | None = field(
        default=None,
        metadata={"help": "Peak rate, reached after warm-up. Default: the paper's d_model^-0.5 * warmup_steps^-0.5."},
    )
    lr_scheduler_type: str = field(
        default="inverse_sqrt",
        metadata={"help": "inverse_sqrt is the paper's schedule (section 5.3); any of the library's others works."},
    )
    warmup_steps: float = field(
        default=4000, metadata={"help": "Updates of linear warm-up (section 5.3); below 1, their share of all updates."}
    )
    warmup_init_lr: float | None = field(
        default=None,
        metadata={
            "help": "Warm up from this rate as fairseq does (1e-7 there), whose n-th update has the rate of n - 1. "
            "Default: the paper's, from 0, and the first update has the rate of 1."
        },
    )
    adam_beta2: float = field(default=0.98, metadata={"help": "Adam's beta2 (section 5.3)."})
    adam_epsilon: float = field(default=1e-9, metadata={"help": "Adam's epsilon (section 5.3)."})
    label_smoothing_factor: float = field(default=0.1, metadata={"help": "Label smoothing (section 5.4)."})
    max_grad_norm: float = field(default=0.0, metadata={"help": "Clip gradients to this norm; 0: don't (the paper)."})
    bf16: bool = field(
        default=False,
        metadata={
            "help": "Train in bfloat16, with the weights in float32. Default of `vanilla train`, without fp16: true "
            "where the processor or GPU multiplies it natively."
        },
    )
    predict_with_generate: bool = field(default=True, metadata={"help": "Translate the validation set to score it."})
    generation_num_beams: int | None = field(default=1, metadata={"help": "Beams while training; 1 is greedy."})

    average_last: int = field(
        default=0, metadata={"help": "Finish with the mean of the last so many checkpoints' weights (section 6.1)."}
    )
    average_best: int = field(
        default=0, metadata={"help": "The same of the best by metric_for_best_model. Only one of the two."}
    )
    keep_best: int = field(
        default=0,
        metadata={"help": "Keep so many best checkpoints, and the newest. Default: save_total_limit's newest."},
    )
    early_stopping_patience: int = field(
        default=0, metadata={"help": "Stop after so many evaluations without a better metric_for_best_model; 0: never."}
    )
    on_bad_update: str = field(
        default="stop",
        metadata={
            "help": "When a loss or gradient isn't finite, or explodes: stop the run, or skip the update. Its batch "
            "and sentences are kept in bad-updates, in output_dir.",
            "choices": ("stop", "skip"),
        },
    )
    explosion_ratio: float = field(
        default=100.0,
        metadata={
            "help": "A gradient, clipped, explodes above this times the median norm of the last 100 updates, and above "
            "the first 20's; 0: never."
        },
    )
    on_save_error: str = field(
        default="stop",
        metadata={
            "help": "When a checkpoint can't be written (a full disk, say): stop the run, which the same command then "
            "goes on with, or continue without it.",
            "choices": ("stop", "continue"),
        },
    )
    bpe_dropout: float = field(
        default=0.0, metadata={"help": "Cut words anew each time, each merge left out so often (0.1 in its paper)."}
    )
    r_drop: float = field(
        default=0.0,
        metadata={"help": "R-Drop's alpha (5 in its paper): two passes a batch, whose predictions are to agree."},
    )

    push_to_hub: bool = field(default=False, metadata={"help": "Push the finished model to the Hub, once, at the end."})
    hub_strategy: str = field(
        default="end",
        metadata={"help": "With push_to_hub: end, for the finished model alone is shared."},
    )
    ddp_timeout: int = field(
        default=86_400,
        metadata={"help": "Seconds that processes wait for the first one, which alone tokenises and translates tests."},
    )

    metric_for_best_model: str | None = field(
        default=None,
        metadata={"help": "Of the validation set: nll, loss, ppl, bleu, chrf ... Default, where needed: nll."},
    )
    greater_is_better: bool | None = field(
        default=None,
        metadata={"help": "Of metric_for_best_model. Default: false for loss, nll, ppl and ter, else true."},
    )

    def __post_init__(self) -> None:
        if not torch.accelerator.is_available():
            self.use_cpu = True  # or else bf16 on a CPU is refused
        by_metric = (self.early_stopping_patience, self.keep_best, self.average_best, self.load_best_model_at_end)
        if self.metric_for_best_model is None and (any(by_metric) or self.save_strategy == "best"):
            self.metric_for_best_model = "nll"
        if self.greater_is_better is None and self.metric_for_best_model is not None:
            self.greater_is_better = greater_is_better(self.metric_for_best_model)
        if self.hub_strategy != "end":
            raise ValueError(
                f"hub_strategy={str(self.hub_strategy)!r}: must be end: the finished model alone is shared"
            )
        if self.max_steps == 0 or self.max_steps < -1 or (self.max_steps < 0 and not self.num_train_epochs > 0):
            raise ValueError(
                f"max_steps={self.max_steps}, num_train_epochs={self.num_train_epochs}: there is nothing to train: "
                "give max_steps of at least 1, or num_train_epochs above 0 (and no max_steps, which is -1)"
            )
        super().__post_init__()
        self._check_checkpoints()
        if self.generation_num_beams is not None and self.generation_num_beams < 1:
            raise ValueError(f"generation_num_beams={self.generation_num_beams}: must be at least 1, which is greedy")
        if self.gradient_accumulation_steps < 1:
            raise ValueError(f"gradient_accumulation_steps={self.gradient_accumulation_steps}: must be at least 1")
        if self.explosion_ratio != 0 and not self.explosion_ratio > 1:
            raise ValueError(f"explosion_ratio={self.explosion_ratio}: must be above 1, or 0 for never")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens}: a batch must hold at least 1 token")
        if self.lr_scheduler_type == SchedulerType.INVERSE_SQRT and self.lr_scheduler_kwargs:
            raise ValueError(
                f"lr_scheduler_kwargs={self.lr_scheduler_kwargs}: the paper's schedule has none; use warmup_steps and "
                "learning_rate"
            )
        if self.warmup_init_lr is not None and self.lr_scheduler_type != SchedulerType.INVERSE_SQRT:
            raise ValueError(
                f"warmup_init_lr={self.warmup_init_lr}: has no effect with lr_scheduler_type="
                f"{SchedulerType(self.lr_scheduler_type).value}: "
                "leave it out"
            )
        if self.warmup_init_lr is not None and not self.warmup_init_lr >= 0:
            raise ValueError(f"warmup_init_lr={self.warmup_init_lr}: must be at least 0 (fairseq: 1e-7)")
        if not self.average_tokens_across_devices:
            raise ValueError("average_tokens_across_devices=False: the loss is always averaged over all tokens")
        if not 0 <= self.label_smoothing_factor < 1:
            raise ValueError(
                f"label_smoothing_factor={self.label_smoothing_factor}: must be at least 0 and below 1 (the paper: 0.1)"
            )

    def _check_checkpoints(self) -> None:
        for name in ("average_last", "average_best", "keep_best", "early_stopping_patience"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 0, which is without it")
        if not 0 <= self.bpe_dropout < 1:
            raise ValueError(f"bpe_dropout={self.bpe_dropout}: must be at least 0 and below 1 (0.1 in its paper)")
        if not 0 <= self.r_drop < math.inf:
            raise ValueError(f"r_drop={self.r_drop}: must be at least 0, which is without it (5 in its paper)")
        if self.average_last and self.average_best:
            raise ValueError("average_last and average_best: give one of the two")
        if self.load_best_model_at_end and (self.average_last or self.average_best):
            raise ValueError(
                "load_best_model_at_end: the mean by average_last or average_best takes its place: give one"
            )
        if self.keep_best and self.save_total_limit:
            raise ValueError("keep_best and save_total_limit: give one of the two; keep_best keeps the newest as well")
        kept = self.keep_best or self.save_total_limit or 0
        if self.average_last and (self.keep_best or 0 < kept < self.average_last):
            raise ValueError(
                f"average_last={self.average_last}: needs the last checkpoints kept; use save_total_limit="
                f"{self.average_last} or more, or leave it out, and no keep_best"
            )
        if self.average_best and (self.save_total_limit or 0 < kept < self.average_best):
            raise ValueError(
                f"average_best={self.average_best}: use keep_best={self.average_best} or more, and no save_total_limit"
            )
        if self.save_only_model:
            raise ValueError("save_only_model: a run couldn't go on from its checkpoints: leave it out")
        by_metric = {"early_stopping_patience", "keep_best", "average_best"}
        if self.eval_strategy == IntervalStrategy.NO:
            for name in sorted(by_metric):
                if getattr(self, name):
                    raise ValueError(f"{name} needs evaluations: set eval_strategy and save_strategy to steps or epoch")
        if self.save_strategy == "no" and (self.average_last or self.average_best or self.keep_best):
            raise ValueError("average_last, average_best, keep_best: need checkpoints: save_strategy is 'no'")
        if self.keep_best or self.average_best:
            apart = self.eval_strategy == IntervalStrategy.STEPS and self.save_steps % self.eval_steps
            if self.save_strategy != SaveStrategy.BEST and (self.eval_strategy != self.save_strategy or apart):
                raise ValueError(
                    "keep_best, average_best: a checkpoint is ranked by its own update's evaluation: give eval_strategy"
                    " and save_strategy alike, and save_steps as a multiple of eval_steps"
                )


def greater_is_better(metric: str) -> bool:
    """Whether a validation metric of ours is the better the greater it is: all but losses and edits."""
    return metric.rpartition("_")[2] not in ("loss", "nll", "ppl", "ter")  # eval_NAME_nll: of a named validation set


def has_fast_bf16(use_cpu: bool = False) -> bool:
    """Whether the device that training would take multiplies bfloat16 natively: then `vanilla train` uses it."""
    if torch.accelerator.is_available() and not use_cpu:
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


__all__ = ["VanillaTrainingArguments", "greater_is_better", "has_fast_bf16"]
