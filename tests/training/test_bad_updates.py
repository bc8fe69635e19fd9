"""Losses that aren't finite and gradients that explode: stopped or skipped, kept, named, explained."""

import json
import math
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file

from modeling_vanilla.data.batching import PairCollator
from modeling_vanilla.scripts import train
from modeling_vanilla.training import VanillaTrainer
from modeling_vanilla.training.bad_updates import ENOUGH, REMEMBERED, BadUpdate, GradientWatch, save_update
from tests.fixtures import train_words, write_corpus

from .conftest import make_model, make_pairs
from .test_trainer import arguments, losses, text_pairs, weights  # noqa: F401  (a fixture)


def test_norms_are_judged_by_their_median():
    watch = GradientWatch(10.0)
    for number in range(ENOUGH):
        assert watch.fault(1000.0 if number == 3 else 1.0) is None  # too few before them to judge by
    assert watch.fault(9.9) is None
    assert "10.1, 10 times" in watch.fault(10.1)
    assert 10.1 not in watch.norms
    for norm in (math.nan, math.inf):
        assert "isn't finite" in watch.fault(norm)
    watch = GradientWatch(0.0)
    assert not any(watch.fault(10.0**n) for n in range(30))


def test_a_norm_that_was_usual_before_is_no_explosion():
    """As where a task is solved, and the norms fall to nothing but for a few."""
    watch = GradientWatch(10.0)
    assert not any(watch.fault(norm) for norm in [3.0] * ENOUGH + [0.001] * 300)
    assert watch.fault(2.9) is None
    assert "3.1, 3,100 times" in watch.fault(3.1)


def test_a_clipped_update_explodes_by_what_is_left_of_it():
    watch = GradientWatch(10.0, clipped_to=2.0)
    assert not any(watch.fault(1.0) for _ in range(ENOUGH))
    assert watch.fault(1e6) is None
    assert watch.norms[-1] == 2.0
    for norm in (math.nan, math.inf):
        assert "isn't finite" in watch.fault(norm)
    watch = GradientWatch(10.0, clipped_to=20.0)
    assert not any(watch.fault(1.0) for _ in range(ENOUGH))
    assert "20, 20 times" in watch.fault(1e6)


def test_the_remedy_of_an_exploding_gradient_lets_the_run_end(tmp_path, pairs, poisoned):
    args = arguments(tmp_path, max_steps=40, max_grad_norm=1.0)
    trainer = poisoned(1e5, 28)(make_model(), args, train_dataset=pairs)
    trainer.train()
    assert trainer.state.global_step == 40


def test_a_long_runs_norms_are_judged_by_the_last_hundred():
    watch = GradientWatch(10.0)
    for norm in [1.0] * ENOUGH + [5.0] * 300 + [1.0] * REMEMBERED:
        assert watch.fault(norm) is None
    assert "times" in watch.fault(11.0)


def test_norms_of_before_are_known_after_resuming(tmp_path, pairs):
    args = arguments(tmp_path, max_steps=30, save_strategy="steps", save_steps=25)
    first = VanillaTrainer(make_model(), args, train_dataset=pairs)
    first.train()
    trainer = VanillaTrainer(make_model(), args, train_dataset=pairs)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-25"))
    assert list(trainer._watch.norms) == list(first._watch.norms)
    assert trainer._watch.first == first._watch.first


class Poisoned(VanillaTrainer):
    """The `at`-th pass's loss is multiplied: by NaN, by infinity, or by a large number."""

    factor, at, passes = math.nan, 4, 0

    def compute_loss(self, *args, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(*args, return_outputs=True, **kwargs)
        Poisoned.passes += 1
        if Poisoned.passes == self.at:
            loss = loss * self.factor
        return (loss, outputs) if return_outputs else loss


@pytest.fixture
def poisoned(monkeypatch):
    def build(factor: float, at: int) -> type[Poisoned]:
        for name, value in {"factor": factor, "at": at, "passes": 0}.items():
            monkeypatch.setattr(Poisoned, name, value)
        return Poisoned

    return build


@pytest.mark.parametrize(
    ("factor", "message"), [(math.nan, "isn't finite"), (math.inf, "isn't finite"), (1e5, "times the median")]
)
def test_a_bad_update_stops_the_run_before_it_is_made(tmp_path, pairs, poisoned, factor, message):
    args = arguments(tmp_path, max_steps=40, save_strategy="steps", save_steps=5)
    trainer = poisoned(factor, 28)(make_model(), args, train_dataset=pairs)
    with pytest.raises(BadUpdate, match=f"update 28: .*{message}"):
        trainer.train()
    assert trainer.state.global_step == 27
    assert all(weight.isfinite().all() for weight in trainer.model.parameters())
    saved = load_file(tmp_path / "bad-updates" / "update-28-process-0.safetensors")
    assert saved["0.input_ids"].shape == saved["0.attention_mask"].shape


class Scaler:
    """What float16 is trained with on a GPU: it doubles its scale until gradients overflow, and halves it then."""

    def __init__(self, scale: float):
        self.scale = scale

    def get_scale(self) -> float:
        return self.scale


@pytest.mark.parametrize(("scale", "stops"), [(65536.0, False), (1.0, True)])
def test_float16s_usual_overflow_is_left_to_its_scaler(tmp_path, pairs, monkeypatch, scale, stops):
    trainer = VanillaTrainer(make_model(), arguments(tmp_path), train_dataset=pairs)
    monkeypatch.setattr("transformers.Trainer._get_grad_norm", lambda *_, **__: torch.tensor(math.inf))
    trainer.create_optimizer_and_scheduler(10)
    trainer.accelerator.scaler = Scaler(scale)
    trainer._nll = torch.full_like(trainer._nll, math.nan)
    with pytest.raises(BadUpdate) if stops else nullcontext():
        assert trainer._get_grad_norm(trainer.model) == math.inf
    assert trainer._nll == 0  # as it was before that update


def test_a_bad_update_is_skipped_when_told_so(tmp_path, pairs, poisoned, caplog):
    """The other updates are the same as without it, but for the schedule, which counts it."""
    args = arguments(tmp_path, max_steps=10, on_bad_update="skip", lr_scheduler_type="constant", warmup_steps=0)
    trainer = poisoned(math.nan, 10)(make_model(), args, train_dataset=pairs)
    trainer.train()
    assert "update 10: the loss or its gradient isn't finite" in caplog.text
    assert "skipped" in caplog.text
    nine = VanillaTrainer(
        make_model(),
        arguments(tmp_path, max_steps=9, lr_scheduler_type="constant", warmup_steps=0),
        train_dataset=pairs,
    )
    nine.train()
    for name, value in weights(nine.model).items():
        assert torch.equal(weights(trainer.model)[name], value), name
    assert all(math.isfinite(entry["nll"]) for entry in trainer.state.log_history if "nll" in entry)
    assert losses(trainer)[:9] == losses(nine)


@pytest.mark.parametrize("every", [1, 3])
def test_a_skipped_update_has_no_part_in_the_logged_loss(tmp_path, pairs, poisoned, every):
    """Nor in what it is divided by: the mean is that of the others."""
    settings = {"max_steps": 6, "on_bad_update": "skip", "learning_rate": 0.0, "logging_steps": every}

    class Lost(poisoned(math.nan, 2)):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            if Poisoned.passes == self.at:
                self._nll += math.nan
            return loss

    trainer = Lost(make_model(), arguments(tmp_path, **settings), train_dataset=pairs)
    trainer.train()
    sound = VanillaTrainer(make_model(), arguments(tmp_path, **settings | {"logging_steps": 1}), train_dataset=pairs)
    sound.train()
    each = [entry["nll"] for entry in sound.state.log_history if "nll" in entry]  # of weights that stay as they are
    first = [each[0], each[2]] if every == 3 else [each[0]]
    logged = [entry.get("nll") for entry in trainer.state.log_history if "loss" in entry]
    assert logged[0] == pytest.approx(sum(first) / len(first), rel=1e-5)
    assert every == 3 or logged[1:] == [None, *map(pytest.approx, each[2:])]


def test_accumulated_batches_are_all_kept(tmp_path, pairs, poisoned):
    args = arguments(tmp_path, max_steps=40, gradient_accumulation_steps=3)
    with pytest.raises(BadUpdate, match="update 2:"):
        poisoned(math.nan, 5)(make_model(), args, train_dataset=pairs).train()
    saved = load_file(tmp_path / "bad-updates" / "update-2-process-0.safetensors")
    assert {name.split(".")[0] for name in saved} == {"0", "1", "2"}


def test_sentences_are_named(tmp_path, text_pairs):  # noqa: F811
    """A token whose embedding isn't finite: those sentences, and no others, have no finite loss."""
    tokenizer, data = text_pairs
    model = make_model(vocab_size=380)
    token = tokenizer(" painted tree").input_ids[-2]
    bad = [row for row in data["input_ids"] if token in row]
    assert 0 < len(bad) < len(data)
    with torch.no_grad():
        model.model.encoder.embed_tokens.weight[token] = math.inf
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    model.model.decoder.embed_tokens.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    args = arguments(tmp_path, max_tokens=4000)
    with pytest.raises(BadUpdate, match=rf"{len(bad)} of {len(data)} sentences have no finite loss"):
        VanillaTrainer(model, args, train_dataset=data, processing_class=tokenizer).train()
    rows = [
        json.loads(line)
        for line in (tmp_path / "bad-updates" / "update-1-process-0.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len(rows) == len(data)
    assert all(row["nll"] is None for row in rows[: len(bad)])
    assert sorted(row["source"] for row in rows[: len(bad)]) == sorted(
        tokenizer.batch_decode(bad, skip_special_tokens=True)
    )
    finite = [row["nll"] for row in rows[len(bad) :]]
    assert finite == sorted(finite, reverse=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda trainer: trainer.model.model.decoder.layers[0].fc1.weight.data.fill_(math.nan), "decoder.layers.0.fc1"),
        (lambda trainer: setattr(trainer.args, "learning_rate", 9.0), "times the paper's peak"),
        (lambda trainer: setattr(trainer.args, "fp16", True), "float16 ends at 65,504"),
        (lambda trainer: None, "unusual sentences"),
    ],
)
def test_the_likely_cause_is_said(tmp_path, pairs, poisoned, spoil, message):
    args = arguments(tmp_path, lr_scheduler_type="constant", warmup_steps=0, learning_rate=1e-4)
    trainer = poisoned(math.nan, 1)(make_model(), args, train_dataset=pairs)
    trainer.create_accelerator_and_postprocess()
    spoil(trainer)
    with pytest.raises(BadUpdate, match=message):
        trainer.train()


def test_the_command_line_says_it_in_one_line(tmp_path, capsys):
    words = train_words(write_corpus(tmp_path / "data"), tmp_path / "out", learning_rate=1e30, max_steps=30)
    assert train.run(words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1
    assert "times the paper's peak" in lines[0] or "weights weren't finite" in lines[0]


def test_ordinary_training_is_not_disturbed(tmp_path):
    pairs = make_pairs(60)
    trainer = VanillaTrainer(make_model(), arguments(tmp_path, max_steps=60, learning_rate=0.01), train_dataset=pairs)
    trainer.train()
    assert trainer.state.global_step == 60
    assert not (tmp_path / "bad-updates").exists()


def test_a_bad_updates_losses_are_without_dropout(tmp_path, text_pairs):  # noqa: F811
    tokenizer, data = text_pairs
    model, expected = make_model(dropout=0.5, vocab_size=380).train(), []
    rows = save_update(tmp_path, "x", [PairCollator(0)([data[i] for i in range(4)])], model, tokenizer)
    assert model.training
    for pair in data.select(range(4)):
        ids, labels = (torch.tensor([pair[name]]) for name in ("input_ids", "labels"))
        expected.append(float(model.eval()(input_ids=ids, labels=labels).nll))
    assert [row["nll"] for row in rows] == pytest.approx(sorted(expected, reverse=True), rel=1e-5)
