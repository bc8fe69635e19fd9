"""Checkpoint averaging, in the run and by the command line, beside plain means; and which checkpoints are kept."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_vanilla.decoding.engines import target_language
from modeling_vanilla.scripts.main import main
from modeling_vanilla.training import VanillaTrainer, VanillaTrainingArguments, load_recipe, run
from modeling_vanilla.training.averaging import (
    average_checkpoints,
    average_weights,
    best_checkpoints,
    last_checkpoints,
    metric_by_step,
    ranked,
)
from tests.fixtures import train_words, write_corpus

from .conftest import make_model


def plain_mean(folders) -> dict[str, torch.Tensor]:
    states = [AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict() for folder in folders]
    return {name: sum(s[name].double() for s in states).div(len(states)).to(w.dtype) for name, w in states[0].items()}


def checkpoints(folder) -> list[str]:
    return sorted((path.name for path in folder.glob("checkpoint-*")), key=lambda name: int(name.split("-")[1]))


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A run whose model is the mean of its last 3 checkpoints; it kept 4."""
    root = tmp_path_factory.mktemp("averaged")
    words = train_words(
        write_corpus(root / "data"), root / "model", max_steps=50, save_strategy="steps", save_steps=10,
        eval_strategy="steps", eval_steps=10, save_total_limit=4, average_last=3,
    )  # fmt: skip
    run(load_recipe(None, words))
    return root / "model"


def of_checkpoint(run) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoint-50" / "model.safetensors")


def test_a_run_ends_with_the_mean_of_its_last_checkpoints(averaged):
    expected = plain_mean([averaged / f"checkpoint-{step}" for step in (30, 40, 50)])
    found = AutoModelForSeq2SeqLM.from_pretrained(averaged).state_dict()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert not torch.equal(
        found["model.encoder.layers.0.fc1.weight"],
        AutoModelForSeq2SeqLM.from_pretrained(averaged / "checkpoint-50").state_dict()[
            "model.encoder.layers.0.fc1.weight"
        ],
    )
    history = json.loads((averaged / "results.json").read_text())["history"]
    assert any("average_nll" in entry for entry in history)
    assert load_file(averaged / "model.safetensors").keys() == of_checkpoint(averaged).keys()  # each matrix once


@pytest.mark.parametrize(("options", "steps"), [(["--last", "2"], (40, 50)), (["--last", "4"], (20, 30, 40, 50))])
def test_the_command_averages_a_runs_checkpoints(averaged, tmp_path, options, steps):
    assert main(["average", str(averaged), *options, "--output", str(tmp_path / "mean")]) == 0
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "mean")
    expected = plain_mean([averaged / f"checkpoint-{step}" for step in steps])
    torch.testing.assert_close(model.state_dict(), expected, rtol=1e-6, atol=1e-7)
    assert AutoTokenizer.from_pretrained(tmp_path / "mean")("a").input_ids
    assert model.generation_config.num_beams == 4
    assert load_file(tmp_path / "mean" / "model.safetensors").keys() == of_checkpoint(averaged).keys()


@pytest.mark.parametrize("is_old", [False, True])
def test_the_mean_knows_its_target_language(averaged, tmp_path, is_old):
    """An earlier version's run has it in results.json alone."""
    shutil.copytree(averaged, tmp_path / "run")
    if is_old:
        for file in (tmp_path / "run").rglob("tokenizer_config.json"):
            settings = json.loads(file.read_text())
            assert settings.pop("target_lang") == "de"
            file.write_text(json.dumps(settings))
    else:
        (tmp_path / "run" / "results.json").unlink()
    folders = [str(tmp_path / "run" / f"checkpoint-{step}") for step in (40, 50)]
    assert main(["average", *folders, "--output", str(tmp_path / "mean")]) == 0
    assert target_language(tmp_path / "mean") == "de"


def test_the_command_averages_the_best(averaged, tmp_path):
    history = json.loads((averaged / "checkpoint-50" / "trainer_state.json").read_text())["log_history"]
    nll = {entry["step"]: entry["eval_nll"] for entry in history if "eval_nll" in entry}
    kept = [step for step in sorted(nll, key=nll.get) if step >= 20][:2]
    assert main(["average", str(averaged), "--best", "2", "--output", str(tmp_path / "mean")]) == 0
    found = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "mean").state_dict()
    expected = plain_mean([averaged / f"checkpoint-{step}" for step in kept])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("best", "warns"), [(0.01, True), (50.0, False)])
def test_a_mean_that_is_worse_than_a_single_checkpoint_is_said(tmp_path, caplog, pairs, best, warns):
    args = VanillaTrainingArguments(
        str(tmp_path), max_steps=4, max_tokens=100, save_steps=2, eval_strategy="no", average_last=2, warmup_steps=2,
        report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = VanillaTrainer(make_model(), args, train_dataset=pairs, eval_dataset=pairs)
    trainer.train()
    trainer.state.log_history.append({"eval_nll": best, "step": 2})
    trainer.average()
    assert ("average fewer, or none" in caplog.text) == warns


def test_a_run_ends_with_the_mean_of_its_best_checkpoints(tmp_path):
    words = train_words(
        write_corpus(tmp_path / "data"), tmp_path / "model", max_steps=60, save_strategy="steps", save_steps=10,
        eval_strategy="steps", eval_steps=10, average_best=2, keep_best=2, learning_rate=0.2, warmup_steps=60,
        predict_with_generate="false",
    )  # fmt: skip
    run(load_recipe(None, words))
    facts = json.loads((tmp_path / "model" / "results.json").read_text())
    nll = {entry["step"]: entry["eval_nll"] for entry in facts["history"] if "eval_nll" in entry}
    best = sorted(nll, key=nll.get)[:2]
    assert sorted(best) != [50, 60]  # else the last two would do
    assert facts["weights"] == sorted(best)
    found = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").state_dict()
    expected = plain_mean([tmp_path / "model" / f"checkpoint-{step}" for step in best])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_half_precision_is_summed_in_double(tmp_path):
    """In bf16 a sum of 300 ones and a hundredth would stay at 256."""
    for index in range(300):
        (tmp_path / str(index)).mkdir()
        save_file(
            {"w": torch.full((2,), 1.0 + (index % 2) / 128, dtype=torch.bfloat16)},
            tmp_path / f"{index}/model.safetensors",
        )
    average = average_weights([tmp_path / str(index) for index in range(300)])["w"]
    assert average.dtype == torch.bfloat16
    assert average.float().tolist() == pytest.approx([1 + 1 / 256] * 2, abs=1 / 256)


def test_sharded_checkpoints(tmp_path):
    models = [make_model() for _ in range(2)]
    for number, model in enumerate(models):
        model.save_pretrained(tmp_path / str(number), max_shard_size="20KB")
    assert len(list((tmp_path / "0").glob("*.safetensors"))) > 1
    average = average_weights([tmp_path / "0", tmp_path / "1"])
    states = [model.state_dict() for model in models]
    for name, weight in average.items():
        torch.testing.assert_close(weight, (states[0][name] + states[1][name]) / 2)
    assert "lm_head.weight" not in average  # the embedding, saved and averaged once


def set_in(file: Path, **changes) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def to_int8(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    name = next(name for name in state if name.endswith("fc1.weight"))
    save_file(state | {name: state[name].to(torch.int8)}, folder / "model.safetensors")


@pytest.mark.parametrize("words", [["--last", "2", "--metric", "bleu"], []])
def test_options_that_would_do_nothing_are_refused(averaged, tmp_path, capsys, words):
    assert main(["average", str(averaged), *words, "--output", str(tmp_path / "c")]) == 2
    assert ("no effect without --best" if words else "alone: give two or more") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "no model in safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"rubbish"), "no model in safetensors"),
        (lambda folder: save_file({"w": torch.ones(2)}, folder / "model.safetensors"), "another model"),
        (shutil.rmtree, "no model in safetensors"),
        (lambda folder: set_in(folder / "config.json", encoder_attention_heads=1), "differ in encoder_attention_heads"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "differ in tokenizer"),
        (to_int8, "torch.int8: quantised weights have no mean"),
    ],
)
def test_what_cannot_be_averaged_is_named(tmp_path, capsys, spoil, message):
    for name in ("a", "b"):
        make_model().save_pretrained(tmp_path / name)
        (tmp_path / name / "tokenizer.json").write_text('{"of": "both"}')
    spoil(tmp_path / "b")
    assert main(["average", str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "c")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert str(tmp_path / "b") in error
    assert not (tmp_path / "c").exists()


def test_another_shape_is_refused(tmp_path):
    make_model().save_pretrained(tmp_path / "a")
    state = load_file(tmp_path / "a" / "model.safetensors")
    (tmp_path / "b").mkdir()
    save_file({name: weight[:1].contiguous() for name, weight in state.items()}, tmp_path / "b" / "model.safetensors")
    with pytest.raises(ValueError, match="another model"):
        average_weights([tmp_path / "a", tmp_path / "b"])


def test_too_few_checkpoints(averaged):
    with pytest.raises(ValueError, match="holds 4 complete checkpoints, not 5"):
        last_checkpoints(averaged, 5)
    with pytest.raises(ValueError, match=r"scored by rouge: they were by bleu, chrf, loss, nll, ppl$"):
        best_checkpoints(averaged, 1, "rouge", True)
    with pytest.raises(ValueError, match="nowhere: no such folder"):
        last_checkpoints(averaged / "nowhere", 1)


def test_whatever_a_tokenizer_is_made_of_goes_along(tmp_path):
    make_model().save_pretrained(tmp_path / "a")
    made_of = ("tokenizer_config.json", "vocab.txt", "bpe.codes", "source.spm", "added_tokens.json")
    for name in (*made_of, "notes.txt"):
        (tmp_path / "a" / name).write_text("{}")
    (tmp_path / "a" / "vocab_old").mkdir()
    average_checkpoints([tmp_path / "a", tmp_path / "a"], tmp_path / "b")
    model = {"config.json", "generation_config.json", "model.safetensors"}
    assert {path.name for path in (tmp_path / "b").iterdir()} == {*model, *made_of}


def test_keeps_the_best_and_the_newest(tmp_path):
    words = train_words(
        write_corpus(tmp_path / "data"), tmp_path / "model", max_steps=60, save_strategy="steps", save_steps=10,
        eval_strategy="steps", eval_steps=10, keep_best=2, learning_rate=0.05, warmup_steps=60,
        predict_with_generate="false",
    )  # fmt: skip
    run(load_recipe(None, words))
    history = json.loads((tmp_path / "model" / "results.json").read_text())["history"]
    nll = {entry["step"]: entry["eval_nll"] for entry in history if "eval_nll" in entry}
    assert len(nll) == 6
    best = sorted(nll, key=nll.get)[:2]
    assert checkpoints(tmp_path / "model") == [f"checkpoint-{step}" for step in sorted({*best, 60})]


def test_stops_early(tmp_path):
    words = train_words(
        write_corpus(tmp_path / "data"), tmp_path / "model", max_steps=200, save_strategy="steps", save_steps=5,
        eval_strategy="steps", eval_steps=5, early_stopping_patience=2, learning_rate=1e-9,
        lr_scheduler_type="constant", keep_best=1, predict_with_generate="false",
    )  # fmt: skip
    run(load_recipe(None, [*words, "--dropout", "0.5"]))
    results = json.loads((tmp_path / "model" / "results.json").read_text())
    evaluated = [entry["eval_nll"] for entry in results["history"] if "eval_nll" in entry]
    best = evaluated.index(min(evaluated))
    assert results["updates"] < 200
    assert len(evaluated) == best + 3


@pytest.mark.parametrize(
    ("metric", "greater"),
    [
        ("nll", False),
        ("eval_ppl", False),
        ("bleu", True),
        ("loss", False),
        ("ter", False),
        ("eval_news_nll", False),
        ("eval_news_bleu", True),
    ],
)
def test_knows_which_way_a_metric_is_better(tmp_path, metric, greater):
    args = VanillaTrainingArguments(str(tmp_path), metric_for_best_model=metric)
    assert args.greater_is_better is greater


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"average_last": 3, "average_best": 3}, "one of the two"),
        ({"average_last": 5, "save_total_limit": 4}, "save_total_limit=5"),
        ({"average_last": 2, "keep_best": 5, "eval_strategy": "steps"}, "no keep_best"),
        ({"average_best": 3, "keep_best": 2, "eval_strategy": "steps"}, "keep_best=3"),
        ({"keep_best": 2, "save_total_limit": 2, "eval_strategy": "steps"}, "one of the two"),
        ({"early_stopping_patience": 2}, "eval_strategy"),
        ({"average_last": 2, "save_strategy": "no"}, "save_strategy is 'no'"),
        ({"average_best": 2, "save_total_limit": 2, "eval_strategy": "steps"}, "no save_total_limit"),
        ({"average_best": -1}, "at least 0"),
        ({"save_only_model": True}, "couldn't go on"),
        ({"generation_num_beams": 0}, "at least 1"),
        ({"average_last": 2, "load_best_model_at_end": True, "eval_strategy": "steps"}, "takes its place"),
        ({"average_best": 2, "load_best_model_at_end": True, "eval_strategy": "steps"}, "takes its place"),
        ({"warmup_init_lr": -1.0}, "at least 0"),
        ({"warmup_init_lr": math.nan}, "at least 0"),
        ({"warmup_init_lr": 1e-7, "lr_scheduler_type": "cosine"}, "no effect with lr_scheduler_type=cosine"),
        ({"bpe_dropout": 1.0}, "below 1"),
        ({"r_drop": -1.0}, "at least 0"),
        ({"r_drop": math.nan}, "at least 0"),
        ({"explosion_ratio": -1.0}, "above 1, or 0"),
        ({"explosion_ratio": math.nan}, "above 1, or 0"),
        ({"gradient_accumulation_steps": 0}, "at least 1"),
        ({"keep_best": 2, "eval_strategy": "epoch"}, "eval_strategy and save_strategy alike"),
        ({"average_best": 2, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 3}, "a multiple of eval_steps"),
    ],
)
def test_contradictions_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        VanillaTrainingArguments(str(tmp_path), **settings)


@pytest.mark.parametrize("needs", [{"load_best_model_at_end": True}, {"save_strategy": "best"}])
def test_the_best_one_is_by_plain_likelihood_unless_said(tmp_path, needs):
    settings = {"eval_strategy": "steps", "save_strategy": "steps", **needs}
    assert VanillaTrainingArguments(str(tmp_path), **settings).metric_for_best_model == "nll"


def test_of_equals_the_first_is_kept_as_the_librarys_best_one():
    """Trainer loads the first of equals at the end: it must be there still. What isn't a number is worth nothing."""
    paths = [Path(f"checkpoint-{step}") for step in (2, 4, 6, 8)]
    history = [{"step": step, "eval_accuracy": value} for step, value in ((2, 50), (4, 50), (6, 20), (8, math.nan))]
    values = metric_by_step(history, "accuracy")
    assert values == {2: 50, 4: 50, 6: 20}
    assert ranked(paths, values, True) == paths


def test_too_few_checkpoints_leave_the_model_as_it_is(tmp_path, caplog):
    """Not the end of a finished training."""
    words = train_words(
        write_corpus(tmp_path / "data"), tmp_path / "model", max_steps=20, save_strategy="steps", save_steps=10,
        average_last=5, predict_with_generate="false",
    )  # fmt: skip
    run(load_recipe(None, words))
    assert "not averaged" in caplog.text
    last = load_file(tmp_path / "model" / "checkpoint-20" / "model.safetensors")
    finished = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(finished[name], weight) for name, weight in last.items())
    assert (tmp_path / "model" / "results.json").is_file()


def test_the_last_are_the_last_although_a_metric_is_watched(tmp_path):
    words = train_words(
        write_corpus(tmp_path / "data"), tmp_path / "model", max_steps=60, save_strategy="steps", save_steps=10,
        eval_strategy="steps", eval_steps=10, average_last=2, save_total_limit=2, learning_rate=0.2, warmup_steps=60,
        metric_for_best_model="loss", predict_with_generate="false",
    )  # fmt: skip
    run(load_recipe(None, words))
    assert checkpoints(tmp_path / "model") == ["checkpoint-50", "checkpoint-60"]
