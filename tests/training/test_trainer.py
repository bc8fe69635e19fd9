"""`VanillaTrainer` against plain loops, the library's own trainer, and itself resumed."""

import math

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast, Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.trainer_pt_utils import LabelSmoother

from modeling_vanilla import VanillaForCausalLM
from modeling_vanilla.data import train_tokenizer
from modeling_vanilla.training import VanillaTrainer, VanillaTrainingArguments
from tests.fixtures import corpus

from .conftest import VOCAB, make_model, make_pairs


def arguments(folder, **changes):
    settings = {
        "max_tokens": 120,
        "max_steps": 6,
        "warmup_steps": 10,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "report_to": "none",
    }
    return VanillaTrainingArguments(output_dir=str(folder), **{**settings, **changes})


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_defaults_are_the_papers(tmp_path):
    trainer = VanillaTrainer(make_model(), VanillaTrainingArguments(str(tmp_path)), train_dataset=make_pairs())
    trainer.create_optimizer_and_scheduler(100)
    group = trainer.optimizer.param_groups[0]
    assert group["betas"] == (0.9, 0.98)
    assert group["eps"] == 1e-9
    assert group["weight_decay"] == 0
    assert trainer.args.label_smoothing_factor == 0.1
    assert trainer.args.learning_rate == pytest.approx(16**-0.5 * 4000**-0.5)


def test_learning_rate_of_every_update_equals_the_formula(tmp_path, pairs):
    trainer = VanillaTrainer(
        make_model(), arguments(tmp_path, learning_rate=None, warmup_steps=3, max_steps=8), train_dataset=pairs
    )
    trainer.train()
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert logged == pytest.approx([16**-0.5 * min(n**-0.5, n * 3**-1.5) for n in range(1, 9)])


def test_another_schedule_of_the_library_works(tmp_path, pairs):
    trainer = VanillaTrainer(
        make_model(), arguments(tmp_path, lr_scheduler_type="linear", warmup_steps=0, max_steps=4), train_dataset=pairs
    )
    trainer.train()
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert logged == pytest.approx([1e-2, 0.75e-2, 0.5e-2, 0.25e-2])


def test_log_has_plain_likelihood_and_perplexity_of_the_update(tmp_path, pairs):
    """Computed again from the weights before the first update and its batch."""
    model = make_model()
    reference = make_model()
    trainer = VanillaTrainer(model, arguments(tmp_path, max_steps=1), train_dataset=pairs)
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.train()
    logits = reference.eval()(**batch).logits
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    smoothed = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)
    log = trainer.state.log_history[0]
    assert log["nll"] == pytest.approx(nll.item(), rel=1e-5)
    assert log["ppl"] == pytest.approx(math.exp(nll.item()), rel=1e-5)
    assert log["loss"] == pytest.approx(smoothed.item(), rel=1e-5)


def test_likelihood_is_averaged_over_the_updates_between_two_logs(tmp_path, pairs):
    every = VanillaTrainer(make_model(), arguments(tmp_path, max_steps=4), train_dataset=pairs)
    fourth = VanillaTrainer(make_model(), arguments(tmp_path, max_steps=4, logging_steps=4), train_dataset=pairs)
    every.train()
    fourth.train()
    nlls = [entry["nll"] for entry in every.state.log_history if "nll" in entry]
    assert fourth.state.log_history[0]["nll"] == pytest.approx(sum(nlls) / 4, rel=1e-5)


def test_one_update_equals_a_hand_written_one(tmp_path, pairs):
    model, reference = make_model(), make_model()
    trainer = VanillaTrainer(model, arguments(tmp_path, max_steps=1), train_dataset=pairs)
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.train()

    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9, weight_decay=0)
    logits = reference.eval()(**batch).logits.flatten(0, 1)
    torch.nn.functional.cross_entropy(logits, batch["labels"].flatten(), label_smoothing=0.1).backward()
    optimizer.step()  # 1e-2 at its first of 10 warm-up updates
    for (name, parameter), trained in zip(reference.named_parameters(), model.parameters(), strict=True):
        moved = parameter.grad.abs() > 1e-6  # Adam turns a key bias's gradient, 0 but for rounding, into a whole step
        torch.testing.assert_close(trained[moved], parameter[moved], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_accumulated_gradients_equal_those_of_one_batch(tmp_path, pairs, smoothing):
    """The same sentences in one piece and in four of uneven padding."""
    model = make_model()
    batch = next(iter(VanillaTrainer(model, arguments(tmp_path), train_dataset=pairs).get_train_dataloader()))
    model.train()
    gradients = []
    for pieces in (1, 4):
        trainer = VanillaTrainer(
            model,
            arguments(tmp_path, label_smoothing_factor=smoothing, gradient_accumulation_steps=pieces),
            train_dataset=pairs,
        )
        trainer.create_optimizer_and_scheduler(1)
        tokens = (batch["labels"] != -100).sum()
        model.zero_grad()
        for piece in zip(*(tensor.tensor_split(pieces) for tensor in batch.values()), strict=True):
            trainer.training_step(model, dict(zip(batch, piece, strict=True)), num_items_in_batch=tokens)
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-5, atol=1e-6)


def test_gradient_clipping_bounds_the_norm(tmp_path, pairs):
    trainer = VanillaTrainer(make_model(), arguments(tmp_path, max_steps=1, max_grad_norm=0.01), train_dataset=pairs)
    norms = []
    step = torch.optim.AdamW.step
    trainer.create_optimizer_and_scheduler(1)

    def recording(*args, **kwargs):
        norms.append(torch.stack([p.grad.norm() for p in trainer.model.parameters()]).norm().item())
        return step(trainer.optimizer.optimizer, *args, **kwargs)

    trainer.optimizer.step = recording
    trainer.train()
    assert norms[0] <= 0.0101


def test_loss_falls_on_a_task_that_can_be_learnt(tmp_path, pairs):
    trainer = VanillaTrainer(make_model(), arguments(tmp_path, max_steps=60, max_tokens=400), train_dataset=pairs)
    trainer.train()
    assert sum(losses(trainer)[-5:]) / 5 < losses(trainer)[0] - 0.5


def test_bf16_trains(tmp_path, pairs):
    trainer, seen = (
        VanillaTrainer(make_model(0.1), arguments(tmp_path, bf16=True, max_steps=20), train_dataset=pairs),
        set(),
    )
    layer = trainer.model.model.encoder.layers[0].fc1
    layer.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    trainer.train()
    assert seen == {torch.bfloat16}
    assert losses(trainer)[-1] < losses(trainer)[0]
    assert all(p.dtype == torch.float32 for p in trainer.model.parameters())


def test_tensorboard_gets_the_likelihood(tmp_path, pairs):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    VanillaTrainer(make_model(), arguments(tmp_path, report_to="tensorboard"), train_dataset=pairs).train()
    (file,) = tmp_path.rglob("events.out.tfevents.*")
    accumulator = events.EventAccumulator(str(file))
    accumulator.Reload()
    assert {"train/loss", "train/nll", "train/ppl", "train/learning_rate"} <= set(accumulator.Tags()["scalars"])


def test_data_seed_decides_on_the_batches(tmp_path, pairs):
    def batches(**seeds):
        loader = VanillaTrainer(make_model(), arguments(tmp_path, **seeds), train_dataset=pairs).get_train_dataloader()
        return [batch["labels"].tolist() for batch in loader]

    assert batches(seed=1, data_seed=7) == batches(seed=2, data_seed=7)
    assert batches(seed=1, data_seed=7) != batches(seed=1, data_seed=8)


def test_fairseqs_warm_up_begins_at_the_rate_given(tmp_path, pairs):
    args = arguments(tmp_path, warmup_init_lr=1e-3, max_steps=4)  # to 1e-2 in 10 updates
    trainer = VanillaTrainer(make_model(), args, train_dataset=pairs)
    trainer.train()
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert logged == pytest.approx([1e-3 + n * 9e-3 / 10 for n in range(4)])


# Evaluation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "smoothing"), [("eval_nll", 0.0), ("eval_loss", 0.1)])
def test_evaluation_drops_nothing_and_smooths(tmp_path, pairs, key, smoothing):
    few, model = make_pairs(9, seed=1), make_model(dropout=0.5).train()
    found = VanillaTrainer(model, arguments(tmp_path), train_dataset=pairs, eval_dataset=few).evaluate()[key]
    total = tokens = 0
    for pair in few:
        labels = torch.tensor([pair["labels"]])
        logits = model.eval()(input_ids=torch.tensor([pair["input_ids"]]), labels=labels).logits
        loss = torch.nn.functional.cross_entropy(logits[0], labels[0], label_smoothing=smoothing, reduction="sum")
        total += loss.item()
        tokens += labels.numel()
    assert found == pytest.approx(total / tokens, rel=1e-5)


def test_a_schedule_free_optimizer_is_told_of_evaluation(tmp_path, pairs):
    """Its weights for evaluation aren't those of training."""
    modes, seen = [], []

    class ScheduleFree(torch.optim.SGD):
        train, eval = (lambda self, mode=mode: modes.append(mode) for mode in ("train", "eval"))

    class Watched(VanillaTrainer):
        def _prepare_inputs(self, inputs):
            seen.append((self.model.training, modes[-1]))
            return super()._prepare_inputs(inputs)

    model = make_model()
    optimizers = (ScheduleFree(model.parameters(), lr=0.1), None)
    args = arguments(tmp_path, max_steps=2, eval_strategy="steps", eval_steps=1, lr_scheduler_type="constant")
    Watched(model, args, train_dataset=pairs, eval_dataset=pairs, optimizers=optimizers).train()
    assert set(seen) == {(True, "train"), (False, "eval")}


def test_evaluation_averages_over_tokens(tmp_path, pairs):
    model = make_model()
    trainer = VanillaTrainer(model, arguments(tmp_path), train_dataset=pairs, eval_dataset=make_pairs(37, seed=1))
    metrics = trainer.evaluate()
    total = tokens = 0
    for pair in make_pairs(37, seed=1):
        labels = torch.tensor([pair["labels"]])
        logits = model.eval()(input_ids=torch.tensor([pair["input_ids"]]), labels=labels).logits
        total += torch.nn.functional.cross_entropy(logits[0], labels[0], reduction="sum").item()
        tokens += labels.numel()
    assert metrics["eval_nll"] == pytest.approx(total / tokens, rel=1e-5)
    assert metrics["eval_ppl"] == pytest.approx(math.exp(total / tokens), rel=1e-4)


def test_predictions_come_in_the_order_of_the_data(tmp_path, pairs):
    seen = {}

    def compute_metrics(prediction):
        seen["labels"] = [[i for i in row if i != -100] for row in prediction.label_ids.tolist()]
        seen["predictions"] = prediction.predictions
        return {"count": len(prediction.predictions)}

    evaluation = make_pairs(37, seed=1)
    trainer = VanillaTrainer(
        make_model(), arguments(tmp_path), train_dataset=pairs, eval_dataset=evaluation, compute_metrics=compute_metrics
    )
    assert trainer.evaluate()["eval_count"] == 37
    assert seen["labels"] == evaluation["labels"][:]
    for pair, prediction in zip(evaluation, seen["predictions"], strict=True):
        source = torch.tensor([pair["input_ids"]])
        alone = trainer.model.generate(source, attention_mask=torch.ones_like(source), max_new_tokens=50)[
            0, 1:
        ].tolist()
        assert prediction.tolist()[: len(alone)] == alone


def test_evaluation_leaves_the_generation_config_alone(tmp_path, pairs):
    model = make_model()
    before = model.generation_config.to_dict()
    trainer = VanillaTrainer(
        model, arguments(tmp_path), train_dataset=pairs, eval_dataset=make_pairs(5), compute_metrics=lambda p: {}
    )
    trainer.evaluate()
    assert model.generation_config.to_dict() == before


def test_a_validation_pair_above_the_budget_is_evaluated(tmp_path, pairs):
    trainer = VanillaTrainer(make_model(), arguments(tmp_path, max_tokens=15), train_dataset=pairs)
    long = make_pairs(1).map(lambda p: {"input_ids": [5] * 80, "labels": [6] * 80})
    assert trainer.evaluate(long)["eval_nll"] > 0


def test_several_validation_sets_by_name(tmp_path, pairs):
    trainer = VanillaTrainer(
        make_model(), arguments(tmp_path), train_dataset=pairs, eval_dataset={"a": make_pairs(5), "b": make_pairs(6)}
    )
    metrics = trainer.evaluate()
    assert {"eval_a_nll", "eval_b_nll"} <= metrics.keys()


# Checkpoints and resuming -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [3, 7, 12, 16], ids=["first epoch", "mid-epoch", "later epoch", "end"])
def test_a_resumed_run_equals_the_undisturbed_one(tmp_path, pairs, stop):
    """With dropout, accumulation and evaluation: losses of every update and final weights, bit for bit."""
    settings = {
        "max_steps": 16, "save_strategy": "steps", "save_steps": stop, "max_tokens": 100, "eval_strategy": "steps",
        "eval_steps": 5, "gradient_accumulation_steps": 2,
    }  # fmt: skip

    def trainer(folder):
        return VanillaTrainer(
            make_model(0.1), arguments(folder, **settings), train_dataset=pairs, eval_dataset=make_pairs(9, seed=5)
        )

    whole = trainer(tmp_path / "whole")
    whole.train()
    resumed = trainer(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{stop}"))
    assert losses(resumed) == losses(whole)
    assert resumed.state.global_step == 16
    assert [e["nll"] for e in resumed.state.log_history if "nll" in e] == [
        e["nll"] for e in whole.state.log_history if "nll" in e
    ]
    for name, value in weights(whole.model).items():
        assert torch.equal(weights(resumed.model)[name], value), name


@pytest.mark.parametrize(
    "changes",
    [{"learning_rate": 1e-4}, {"warmup_steps": 8}, {"adam_beta2": 0.9}, {"adam_epsilon": 1e-3}, {"weight_decay": 0.5}],
    ids=str,
)
def test_a_resumed_run_goes_on_by_the_settings_that_it_is_given(tmp_path, pairs, changes):
    """After 4 updates by others the rate, and what the optimizer works with, are those of an undisturbed run."""
    settings = {"max_steps": 6, "learning_rate": 1e-3, "warmup_steps": 2}

    def trainer(name, **settings):
        args = arguments(tmp_path / name, save_strategy="steps", save_steps=4, **settings)
        return VanillaTrainer(make_model(), args, train_dataset=pairs)

    trainer("one", **settings).train()
    runs = trainer("new", **settings | changes), trainer("resumed", **settings | changes)
    for run, checkpoint in zip(runs, (None, str(tmp_path / "one" / "checkpoint-4")), strict=True):
        run.train(resume_from_checkpoint=checkpoint)
    whole, resumed = runs
    rates = [[entry["learning_rate"] for entry in run.state.log_history if "loss" in entry][-2:] for run in runs]
    assert rates[0] == rates[1]
    for one, other in zip(whole.optimizer.param_groups, resumed.optimizer.param_groups, strict=True):
        assert {name: one[name] for name in one if name != "params"} == {n: other[n] for n in other if n != "params"}


@pytest.fixture(scope="module")
def text_pairs():
    """A tokenizer, and pairs of what it makes of short texts."""
    texts = corpus(0, 2700, 30)
    tokenizer = train_tokenizer([text for pair in texts for text in pair], vocab_size=380)
    sources, targets = (tokenizer(list(side)).input_ids for side in zip(*texts, strict=True))
    return tokenizer, Dataset.from_dict({"input_ids": sources, "labels": targets})


def test_bpe_dropout_keeps_to_the_models_length(tmp_path, text_pairs, monkeypatch):
    tokenizer, pairs = text_pairs
    longest = max(max(map(len, pairs[:][name])) for name in ("input_ids", "labels"))
    monkeypatch.setattr(tokenizer, "model_max_length", longest)
    args = arguments(tmp_path, bpe_dropout=0.9, max_tokens=400)
    trainer = VanillaTrainer(make_model(vocab_size=380), args, train_dataset=pairs, processing_class=tokenizer)
    for batch in trainer.get_train_dataloader():
        assert max(batch["input_ids"].shape[1], batch["labels"].shape[1]) <= longest


def test_a_run_with_bpe_dropout_and_r_drop_resumes_where_it_was(tmp_path, text_pairs):
    tokenizer, pairs = text_pairs
    settings = {
        "max_steps": 9, "save_strategy": "steps", "save_steps": 5, "max_tokens": 400, "bpe_dropout": 0.3, "r_drop": 1.0,
    }  # fmt: skip
    runs = []
    for workers, checkpoint in ((0, None), (1, "0/checkpoint-5")):
        args = arguments(tmp_path / str(workers), dataloader_num_workers=workers, **settings)
        model = make_model(0.1, vocab_size=380)
        trainer = VanillaTrainer(model, args, train_dataset=pairs, processing_class=tokenizer)
        trainer.train(resume_from_checkpoint=checkpoint and str(tmp_path / checkpoint))
        runs.append((losses(trainer), weights(trainer.model)))
    assert runs[0][0] == runs[1][0]
    for name, value in runs[0][1].items():
        assert torch.equal(runs[1][1][name], value), name


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_shapes_that_never_come_again_have_no_kernels_kept(monkeypatch, tmp_path, text_pairs, dropout):
    called = []
    monkeypatch.setattr("modeling_vanilla.training.paper.keep_kernels", lambda: called.append(True))
    tokenizer, pairs = text_pairs
    args = arguments(tmp_path, bf16=True, bpe_dropout=dropout, use_cpu=True)
    VanillaTrainer(make_model(vocab_size=len(tokenizer)), args, train_dataset=pairs, processing_class=tokenizer)
    assert bool(called) is (dropout == 0)


def test_bpe_dropout_is_for_training_alone(tmp_path, text_pairs):
    tokenizer, pairs = text_pairs
    trainer = VanillaTrainer(
        make_model(), arguments(tmp_path, bpe_dropout=0.5, max_tokens=400), train_dataset=pairs, eval_dataset=pairs,
        processing_class=tokenizer,
    )  # fmt: skip
    plain = sorted(map(str, pairs["labels"]))

    def labels(loader) -> list[str]:
        return sorted(str([i for i in row if i != -100]) for batch in loader for row in batch["labels"].tolist())

    assert labels(trainer.get_eval_dataloader()) == plain
    assert labels(trainer.get_train_dataloader()) != plain


def test_best_model_is_loaded_at_the_end_without_a_warning(tmp_path, pairs, caplog):
    settings = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    trainer = VanillaTrainer(
        make_model(),
        arguments(
            tmp_path, **settings, load_best_model_at_end=True, metric_for_best_model="nll", greater_is_better=False
        ),
        train_dataset=pairs,
        eval_dataset=make_pairs(9),
    )
    trainer.evaluate = lambda *_, **__: {"eval_nll": 1.0 if trainer.state.global_step == 4 else 2.0}
    trainer.train()
    best = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    state = trainer.model.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in best.items())
    assert "missing keys" not in caplog.text


def test_saved_config_keeps_the_cache_on(tmp_path, pairs):
    trainer = VanillaTrainer(make_model(), arguments(tmp_path), train_dataset=pairs)
    trainer.save_model(str(tmp_path))
    assert type(trainer.model).from_pretrained(tmp_path).config.use_cache is True


def test_a_share_of_known_updates_is_a_warm_up(tmp_path, pairs):
    settings = {"learning_rate": None, "warmup_steps": 0.25, "max_steps": 40}
    trainer = VanillaTrainer(make_model(), arguments(tmp_path, **settings), train_dataset=pairs)
    assert trainer.args.learning_rate == pytest.approx((16 * 10) ** -0.5)
    trainer.create_optimizer_and_scheduler(40)
    rates = []
    for _ in range(12):
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    assert rates == pytest.approx([16**-0.5 * min(n**-0.5, n * 10**-1.5) for n in range(1, 13)])


def test_a_schedules_unknown_setting_is_named(tmp_path, pairs):
    settings = {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"foo": 1}}
    trainer = VanillaTrainer(make_model(), arguments(tmp_path, **settings), train_dataset=pairs)
    with pytest.raises(ValueError, match=r"lr_scheduler_kwargs=.*foo"):
        trainer.create_optimizer_and_scheduler(10)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_translations_do_not_depend_on_the_batches_of_validation(tmp_path, num_beams):
    """Each ends at its own limit, not at that of the longest sentence beside it."""
    pairs, model, found = make_pairs(30), make_model(), []
    model.lm_head.weight.data[2] = 0  # an end token that nothing is in favour of
    for max_tokens in (16, 400):
        args = arguments(tmp_path, max_tokens=max_tokens, predict_with_generate=True, generation_num_beams=num_beams)
        score = {"compute_metrics": lambda prediction: found.append(prediction.predictions.tolist()) or {}}
        VanillaTrainer(model, args, train_dataset=pairs, eval_dataset=pairs, **score).evaluate()
    few, many = ([[token for token in row if token > 2] for row in rows] for rows in found)
    assert few == many


def test_of_several_gpus_one_is_used_without_a_launcher(tmp_path, pairs, caplog):
    args = arguments(tmp_path)
    args._n_gpu = 2
    assert VanillaTrainer(make_model(), args, train_dataset=pairs).args.n_gpu == 1
    assert "accelerate launch" in caplog.text


def test_samples_per_second_counts_real_samples(tmp_path, pairs):
    trainer = VanillaTrainer(make_model(), arguments(tmp_path, max_steps=-1, num_train_epochs=2), train_dataset=pairs)
    metrics = trainer.train().metrics
    assert metrics["train_samples_per_second"] * metrics["train_runtime"] == pytest.approx(240, rel=0.02)


# The library's trainer ----------------------------------------------------------------------------------------------


@pytest.fixture
def tokenizer():
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.WordLevel({str(i): i for i in range(40)}, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="0", bos_token="1", eos_token="2")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_stock_trainer_gives_the_same_losses(tmp_path, pairs, tokenizer, smoothing, accumulation):
    """The library's trainer, collator and label smoother on our model, on the batches that ours takes."""
    ours = VanillaTrainer(
        make_model(),
        arguments(
            tmp_path, label_smoothing_factor=smoothing, gradient_accumulation_steps=accumulation, max_steps=5,
            lr_scheduler_type="constant",
        ),
        train_dataset=pairs,
    )  # fmt: skip
    order = list(ours.get_train_dataloader().batch_sampler)

    class Fixed(Seq2SeqTrainer):
        def get_train_dataloader(self):
            loader = torch.utils.data.DataLoader(self.train_dataset, batch_sampler=order, collate_fn=self.data_collator)
            return self.accelerator.prepare(loader)

    model = make_model()
    stock = Fixed(
        model=model,
        args=Seq2SeqTrainingArguments(
            output_dir=str(tmp_path), max_steps=5, learning_rate=1e-2, lr_scheduler_type="constant", adam_beta2=0.98,
            adam_epsilon=1e-9, label_smoothing_factor=smoothing, gradient_accumulation_steps=accumulation,
            max_grad_norm=0, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        ),
        train_dataset=pairs,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )  # fmt: skip
    ours.train()
    stock.train()
    assert losses(stock) == pytest.approx(losses(ours), rel=1e-4)


def test_stock_trainer_evaluates_and_generates(tmp_path, pairs, tokenizer):
    model = make_model()
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            output_dir=str(tmp_path), predict_with_generate=True, generation_max_length=20, report_to="none",
            disable_tqdm=True, use_cpu=True,
        ),
        eval_dataset=pairs,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        compute_metrics=lambda prediction: {"rows": len(prediction.predictions)},
    )  # fmt: skip
    metrics = trainer.evaluate()
    assert metrics["eval_rows"] == len(pairs)
    assert metrics["eval_loss"] > 0


def test_library_smoother_equals_the_models_loss(pairs, tokenizer):
    model = make_model()
    batch = DataCollatorForSeq2Seq(tokenizer, model=model)([dict(pairs[i]) for i in range(8)])
    output = model.eval()(**batch, label_smoothing=0.1)
    smoothed = LabelSmoother(epsilon=0.1)({"logits": output.logits}, batch["labels"])
    torch.testing.assert_close(output.loss, smoothed, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"label_smoothing_factor": 1.0}, "label_smoothing_factor=1.0"),
        ({"learning_rate": None, "warmup_steps": 0}, "warmup_steps=0"),
        ({"learning_rate": None, "warmup_steps": 0.1, "max_steps": -1}, r"warmup_steps=0.1.*give learning_rate"),
        ({"lr_scheduler_kwargs": {"timescale": 5}}, "lr_scheduler_kwargs"),
        ({"average_tokens_across_devices": False}, "average_tokens_across_devices"),
    ],
)
def test_impossible_arguments_are_refused(tmp_path, pairs, change, message):
    with pytest.raises(ValueError, match=message):
        VanillaTrainer(make_model(), arguments(tmp_path, **change), train_dataset=pairs)


def test_it_has_the_librarys_defaults(tmp_path, monkeypatch, pairs):
    monkeypatch.chdir(tmp_path)
    assert VanillaTrainer(make_model(), train_dataset=pairs).args.output_dir == "tmp_trainer"
    trainer = VanillaTrainer(args=arguments(tmp_path), train_dataset=pairs, model_init=lambda: make_model())
    trainer.train()
    assert math.isfinite(losses(trainer)[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"args": Seq2SeqTrainingArguments("x", report_to="none")}, "give VanillaTrainingArguments, not Seq2Seq"),
        ({"compute_loss_func": print}, "compute_loss_func: the model computes its loss itself"),
        ({"train_dataset": [{"input_ids": [1], "labels": [2]}]}, "a list has no lengths"),
    ],
)
def test_what_it_does_not_take_is_refused(tmp_path, pairs, settings, message):
    with pytest.raises(ValueError, match=message):
        VanillaTrainer(make_model(), **{"args": arguments(tmp_path), "train_dataset": pairs} | settings).train()


def test_predictions_need_no_metric_and_a_loss_alone_no_predictions(tmp_path, pairs):
    few = pairs.select(range(5))
    predicted = VanillaTrainer(make_model(), arguments(tmp_path)).predict(few)
    assert predicted.predictions.shape[0] == predicted.label_ids.shape[0] == 5
    assert predicted.metrics["test_nll"] > 0
    args = arguments(tmp_path, prediction_loss_only=True)
    trainer = VanillaTrainer(make_model(), args, eval_dataset=few, compute_metrics=lambda p: {"rows": 5})
    assert "eval_rows" not in trainer.evaluate()


def test_a_language_models_tokens_are_counted_as_they_are_predicted(tmp_path):
    torch.manual_seed(0)
    model = VanillaForCausalLM(make_model().config)
    rows = [torch.randint(3, VOCAB, (length,)).tolist() for length in (2, 3, 9)]
    data = Dataset.from_dict({"input_ids": rows, "labels": rows})
    found = VanillaTrainer(model, arguments(tmp_path, max_tokens=9), eval_dataset=data).evaluate()["eval_nll"]
    total = sum(model(torch.tensor([row]), labels=torch.tensor([row])).loss.item() * (len(row) - 1) for row in rows)
    assert found == pytest.approx(total / sum(len(row) - 1 for row in rows), rel=1e-5)


@pytest.mark.parametrize("changed", [False, True])
def test_resuming_over_other_data_is_said(tmp_path, pairs, caplog, changed):
    args = arguments(tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
    VanillaTrainer(make_model(), args, train_dataset=pairs).train()
    data = pairs.select(range(1, len(pairs))) if changed else pairs
    VanillaTrainer(make_model(), args, train_dataset=data).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert ("the training data isn't what it was" in caplog.text) is changed
