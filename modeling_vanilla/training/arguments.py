"""What a training run can be told beyond the library's own training arguments."""

from dataclasses import dataclass, field

import torch
from transformers import Seq2SeqTrainingArguments
from transformers.trainer_utils import SchedulerType


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
    adam_beta2: float = field(default=0.98, metadata={"help": "Adam's beta2 (section 5.3)."})
    adam_epsilon: float = field(default=1e-9, metadata={"help": "Adam's epsilon (section 5.3)."})
    label_smoothing_factor: float = field(default=0.1, metadata={"help": "Label smoothing (section 5.4)."})
    max_grad_norm: float = field(default=0.0, metadata={"help": "Clip gradients to this norm; 0: don't (the paper)."})
    predict_with_generate: bool = field(default=True, metadata={"help": "Translate the validation set to score it."})
    generation_num_beams: int | None = field(default=1, metadata={"help": "Beams while training; 1 is greedy."})

    ddp_timeout: int = field(
        default=86_400,
        metadata={"help": "Seconds that processes wait for the first one, which alone tokenises and translates tests."},
    )

    def __post_init__(self) -> None:
        if not torch.accelerator.is_available():
            self.use_cpu = True  # or else bf16 on a CPU is refused
        super().__post_init__()
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens}: a batch must hold at least 1 token")
        if self.lr_scheduler_type == SchedulerType.INVERSE_SQRT and self.lr_scheduler_kwargs:
            raise ValueError(
                f"lr_scheduler_kwargs={self.lr_scheduler_kwargs}: the paper's schedule has none; use warmup_steps and "
                "learning_rate"
            )
        if not self.average_tokens_across_devices:
            raise ValueError("average_tokens_across_devices=False: the loss is always averaged over all tokens")
        if not 0 <= self.label_smoothing_factor < 1:
            raise ValueError(
                f"label_smoothing_factor={self.label_smoothing_factor}: must be at least 0 and below 1 (the paper: 0.1)"
            )


def has_fast_bf16(use_cpu: bool = False) -> bool:
    """Whether the device that training would take multiplies bfloat16 natively: then `vanilla train` uses it."""
    if torch.accelerator.is_available() and not use_cpu:
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


__all__ = ["VanillaTrainingArguments", "has_fast_bf16"]
