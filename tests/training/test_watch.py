"""Warnings while training: each for its fault, none without one."""

import logging
import time

import pytest
import torch
from transformers import TrainerControl, TrainerState

from modeling_vanilla import VanillaForConditionalGeneration
from modeling_vanilla.training import VanillaTrainer
from modeling_vanilla.training.watch import UPDATES, Watch, check_outputs, check_padding, long_warmup

from .conftest import make_model, make_pairs
from .test_trainer import arguments


def warnings(caplog) -> str:
    return "\n".join(
        r.getMessage() for r in caplog.records if r.name.endswith("watch") and r.levelno == logging.WARNING
    )


def train(folder, model=None, **changes):
    args = arguments(folder, **{"max_steps": 60, **changes})
    trainer = VanillaTrainer(model or make_model(), args, train_dataset=make_pairs(), eval_dataset=make_pairs(9))
    trainer.train()
    return trainer


def test_a_run_that_learns_is_left_in_peace(tmp_path, caplog):
    train(tmp_path, learning_rate=0.01)
    assert warnings(caplog) == ""


def test_a_flat_loss_is_said_once(tmp_path, caplog):
    train(tmp_path, learning_rate=1e-9)
    assert warnings(caplog).count("the loss is flat") == 1


def test_a_trained_model_is_not_asked_to_learn_much(tmp_path, caplog):
    make_model().save_pretrained(tmp_path / "model")
    train(tmp_path / "run", VanillaForConditionalGeneration.from_pretrained(tmp_path / "model"), learning_rate=1e-9)
    assert "flat" not in warnings(caplog)


def test_a_flat_loss_during_warm_up_is_none(tmp_path, caplog):
    train(tmp_path, learning_rate=1e-9, warmup_steps=40)
    assert "flat" not in warnings(caplog)


def test_a_warm_up_that_takes_the_whole_run_is_said_once(tmp_path, caplog):
    trainer = train(tmp_path, max_steps=3, warmup_steps=30, learning_rate=0.5)
    trainer.train()
    (said,) = warnings(caplog).splitlines()
    assert "the warm-up of 30 updates takes all of the run's 3: the rate gets to about 0.05 of 0.5" in said
    assert max(entry.get("learning_rate", 0) for entry in trainer.state.log_history) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"warmup_steps": 5}, True),
        ({"warmup_steps": 4}, False),
        ({"warmup_steps": 1.0, "lr_scheduler_type": "linear"}, False),
        ({"warmup_steps": 5, "lr_scheduler_type": "linear"}, True),
        ({"warmup_steps": 5, "lr_scheduler_type": "constant"}, False),
        ({"warmup_steps": 5, "lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"}, False),
    ],
)
def test_a_warm_up_that_ends_or_that_the_schedule_lacks_is_not(tmp_path, changes, said):
    assert bool(long_warmup(arguments(tmp_path, **changes), 5)) is said


def test_a_resumed_run_is_compared_with_its_own_beginning(tmp_path, caplog):
    """Far along, the loss hardly falls any more, and did so long before."""
    history = [{"loss": 8.0 - 6 * step / 100, "grad_norm": 1.0, "step": step} for step in range(100)]
    history.append({"eval_loss": 2.0, "step": 100})
    args, control = arguments(tmp_path), TrainerControl()
    watch, state = Watch(), TrainerState(global_step=100, max_steps=300, log_history=history)
    watch.on_train_begin(args, state, control)
    for state.global_step in range(101, 120):
        watch.on_log(args, state, control, logs={"loss": 2.0, "grad_norm": 1.0})
    assert warnings(caplog) == ""
    watch.on_log(args, state, control, logs={"loss": 7.9, "grad_norm": 11.0})
    assert "7.90 at update 119, long after warm-up, and 8.00 at first" in warnings(caplog)
    assert "the gradient's norm is 11 at update 119, and was 1 before" in warnings(caplog)


def test_a_norm_out_of_range(tmp_path, caplog):
    class Jumping(VanillaTrainer):
        def compute_loss(self, *args, return_outputs=False, **kwargs):
            loss, outputs = super().compute_loss(*args, return_outputs=True, **kwargs)
            loss = loss * (50 if self.state.global_step == 30 else 1)
            return (loss, outputs) if return_outputs else loss

    args = arguments(tmp_path, max_steps=40)
    Jumping(make_model(), args, train_dataset=make_pairs()).train()
    assert warnings(caplog).count("the gradient's norm is") == 1
    assert "at update 31" in warnings(caplog)


def test_a_slow_loader(tmp_path, caplog):
    class Slow(VanillaTrainer):
        def get_batch_samples(self, *args, **kwargs):
            time.sleep(0.05)
            return super().get_batch_samples(*args, **kwargs)

    args = arguments(tmp_path, max_steps=2 * UPDATES, logging_steps=1000)
    Slow(make_model(), args, train_dataset=make_pairs()).train()
    assert warnings(caplog).count("waiting for batches") == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[5, 6, 2], [2, 0, 0], [0]], "67 % of the validation set's translations are empty"),
        ([[5, 7, 7, 7, 7, 2], [5, 6], [7, 7, 7, 8, 7]], "33 % of the validation set's translations repeat a token"),
        ([[5, 6, 2], [7, 8, 2]], None),
        ([], None),
    ],
)
def test_odd_outputs(caplog, rows, message):
    check_outputs(rows, {0, 1, 2})
    assert warnings(caplog) == "" if message is None else message in warnings(caplog)


def test_padding_above_its_bound(caplog):
    check_padding(0.29)
    assert warnings(caplog) == ""
    check_padding(0.31)
    assert "31 % of the batches' positions are padding" in warnings(caplog)


def test_validation_outputs_are_looked_at(tmp_path, caplog):
    model = make_model()
    with torch.no_grad():
        model.model.decoder.layer_norm = torch.nn.LayerNorm(16)
        model.model.decoder.layer_norm.weight.zero_()
        model.model.decoder.layer_norm.bias.copy_(10 * model.lm_head.weight[7])  # it says 7 for ever
    trainer = VanillaTrainer(
        model, arguments(tmp_path), eval_dataset=make_pairs(9), train_dataset=make_pairs(), compute_metrics=lambda _: {}
    )
    trainer.evaluate()
    assert "repeat a token 4 times" in warnings(caplog)
