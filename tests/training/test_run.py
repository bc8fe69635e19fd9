"""The main job, from files to a folder that anyone can load."""

import json
import signal
import subprocess
import sys

import pytest
import torch
import yaml
from safetensors import safe_open
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from modeling_vanilla import VanillaForConditionalGeneration
from modeling_vanilla.training import load_recipe, run
from modeling_vanilla.training.interruption import CheckpointOnInterrupt
from modeling_vanilla.training.jobs import JOBS
from tests.fixtures import corpus, train_words, write_corpus


def test_root_of_the_output_folder_is_the_finished_model(trained):
    names = {path.name for path in trained.iterdir() if path.is_file()}
    assert names == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "recipe.yaml", "results.json",
        "tokenizer.json", "tokenizer_config.json", "training_curve.png",
    }  # fmt: skip


def test_no_pickle_is_left(trained):
    assert not [path for path in trained.rglob("*") if path.suffix in (".bin", ".pt", ".pkl", ".pth")]


def test_weights_hold_the_shared_matrix_once(trained):
    with safe_open(trained / "model.safetensors", "pt") as file:
        assert [key for key in file.keys() if "embed" in key or "lm_head" in key] == [  # noqa: SIM118
            "model.encoder.embed_tokens.weight"
        ]


def test_it_learnt_to_compose(trained):
    results = json.loads((trained / "results.json").read_text())
    bleu = next(r for r in results["results"] if r["name"] == "BLEU")
    assert bleu["dataset"] == "test"
    assert bleu["value"] > 60
    assert bleu["signature"].startswith("nrefs:1")


def test_recipe_beside_the_model_says_what_was_used(trained):
    recipe = yaml.safe_load((trained / "recipe.yaml").read_text())
    assert recipe["learning_rate"] == 0.01
    assert recipe["d_model"] == 32


def test_log_history_has_both_losses(trained):
    history = json.loads((trained / "results.json").read_text())["history"]
    assert {"loss", "nll", "ppl", "learning_rate"} <= history[0].keys()


def test_translations_of_the_test_set_are_kept(trained):
    lines = (trained / "translations" / "test.txt").read_text().splitlines()
    assert len(lines) == len(corpus(2, 2700, 182))


def test_card_says_languages_parameters_data_and_results(trained):
    from huggingface_hub import ModelCard

    card = ModelCard.load(trained / "README.md")
    assert card.data.language == ["en", "de"]
    assert card.data.library_name == "transformers"
    assert {result.metric_type for result in card.data.eval_results} == {"bleu", "chrf"}
    results = json.loads((trained / "results.json").read_text())
    assert f"{results['parameters']:,} parameters" in card.text
    assert "193" in card.text, "how many pairs it was trained on"


def test_generation_config_translates_as_the_translator_does(trained):
    """In a process that imports only transformers and this package, as its user would."""
    code = f"""
import modeling_vanilla
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
model, tokenizer = (c.from_pretrained({str(trained)!r}) for c in (AutoModelForSeq2SeqLM, AutoTokenizer))
sources = {[source for source, _ in corpus(2, 2700, 182)]!r}
batch = tokenizer(sources, return_tensors="pt", padding=True)
print("\\n".join(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)))
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == (trained / "translations" / "test.txt").read_text()


def test_the_same_command_on_a_finished_model_is_refused(trained):
    words = train_words(trained.parent / "data", trained)
    with pytest.raises(ValueError, match="holds a finished model"):
        run(load_recipe(None, words))


def test_without_an_output_dir_it_says_so(tmp_path):
    with pytest.raises(ValueError, match="--output_dir"):
        run(load_recipe(None, ["--data_dir", str(tmp_path)]))


def test_a_tokenizer_that_is_given_is_used(trained, tmp_path):
    words = train_words(
        trained.parent / "data",
        tmp_path / "out",
        tokenizer_name_or_path=trained,
        max_steps=1,
        predict_with_generate=False,
    )
    run(load_recipe(None, words))
    assert (tmp_path / "out" / "tokenizer.json").read_text() == (trained / "tokenizer.json").read_text()


def test_a_given_tokenizer_gets_this_models_limit(trained, tmp_path):
    from transformers import AutoTokenizer

    words = train_words(
        trained.parent / "data", tmp_path / "out", tokenizer_name_or_path=trained, max_steps=1, max_length=77
    )
    run(load_recipe(None, words))
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 77


def test_a_reporter_that_is_not_installed_is_named(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.integrations.integration_utils.is_tensorboard_available", lambda: False)
    with pytest.raises(ValueError, match=r"report_to=.*tensorboard.*requires"):
        run(load_recipe(None, train_words(trained.parent / "data", tmp_path / "out", report_to="tensorboard")))


def test_a_mistake_in_the_shape_is_known_before_the_data_is_read(tmp_path):
    with pytest.raises(ValueError, match="encoder_attention_heads=5"):
        run(load_recipe(None, train_words(tmp_path / "nowhere", tmp_path / "out", encoder_attention_heads=5)))


def test_a_tokenizer_that_ends_no_text_is_refused(trained, tmp_path):
    """A model that never saw an end would never write one."""
    tokenizer = Tokenizer(WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "a": 3}, unk_token="<pad>"))
    given = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    for name, special, said in (("no end", given, "don't end in '</s>'"), ("no tokens", {}, "a pad, a bos and an eos")):
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(tmp_path / name)
        words = train_words(trained.parent / "data", tmp_path / "out", tokenizer_name_or_path=tmp_path / name)
        with pytest.raises(ValueError, match=said):
            run(load_recipe(None, words))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attn_implementation": "flash_attention_2"}, "attn_implementation='flash_attention_2': "),
        ({"optim": "adamw_bnb_8bit"}, "optim=adamw_bnb_8bit: .*bitsandbytes"),
    ],
)
def test_a_package_that_a_setting_needs_is_named(trained, tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        run(load_recipe(None, train_words(trained.parent / "data", tmp_path / "out", max_steps=1, **changes)))


def test_a_tokenizer_that_is_not_there_is_named(trained, tmp_path):
    words = train_words(trained.parent / "data", tmp_path / "out", tokenizer_name_or_path=tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"nowhere.*can't load a tokenizer"):
        run(load_recipe(None, words))


def test_two_runs_with_one_seed_are_equal(trained, tmp_path):
    words = train_words(trained.parent / "data", tmp_path / "out")
    run(load_recipe(None, words))
    with safe_open(trained / "model.safetensors", "pt") as a, safe_open(tmp_path / "out/model.safetensors", "pt") as b:
        assert all(torch.equal(a.get_tensor(key), b.get_tensor(key)) for key in a.keys())  # noqa: SIM118


def test_a_second_signal_ends_the_run_at_once():
    interruption = CheckpointOnInterrupt(None)
    interruption._on_signal(2, None)
    assert interruption.requested
    with pytest.raises(KeyboardInterrupt):
        interruption._on_signal(2, None)


def test_chinese_is_scored_by_its_own_tokenizer(tmp_path):
    data = write_corpus(tmp_path / "data")
    for file in data.glob("*.de"):
        file.rename(file.with_suffix(".zh"))
    words = train_words(data, tmp_path / "out", target_lang="zh", max_steps=2)
    result = run(load_recipe(None, words))
    assert "tok:zh" in next(r["signature"] for r in result.results if r["name"] == "BLEU")


SIGNALS_ITSELF = """
import os, sys
from modeling_vanilla.scripts.main import main
from modeling_vanilla.training.interruption import CheckpointOnInterrupt

def on_step_begin(self, args, state, control, **kwargs):
    if state.global_step == 20:
        os.kill(os.getpid(), int(sys.argv[1]))

CheckpointOnInterrupt.on_step_begin = on_step_begin
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_a_signal_leaves_a_checkpoint_from_which_the_same_command_ends_as_if_undisturbed(trained, tmp_path, how):
    settings = {"dropout": 0.1, "max_steps": 40, "save_strategy": "steps", "save_steps": 1000}
    words = train_words(trained.parent / "data", tmp_path / "out", **settings)
    command = [sys.executable, "-c", SIGNALS_ITSELF, str(int(how)), "train", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert "interrupted at step 21" in done.stderr
    assert "the same command goes on from it" in done.stderr
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-21"]

    run(load_recipe(None, words))
    run(load_recipe(None, train_words(trained.parent / "data", tmp_path / "whole", **settings)))
    with (
        safe_open(tmp_path / "out/model.safetensors", "pt") as a,
        safe_open(tmp_path / "whole/model.safetensors", "pt") as b,
    ):
        assert all(torch.equal(a.get_tensor(key), b.get_tensor(key)) for key in a.keys())  # noqa: SIM118


def test_a_fresh_corpus_of_one_folder_needs_no_validation_files(tmp_path):
    data = write_corpus(tmp_path / "data")
    for lang in ("en", "de"):
        (data / f"val.{lang}").unlink()
        (data / f"test.{lang}").unlink()
    result = run(load_recipe(None, train_words(data, tmp_path / "out", max_steps=2)))
    assert result.results == []
    assert "No test set was given" in (tmp_path / "out" / "README.md").read_text()


def test_time_spent_is_recorded(trained):
    results = json.loads((trained / "results.json").read_text())
    assert 0 < results["seconds"] < 300
    assert results["updates"] == 120
    assert results["resumed_at"] is None


def test_settings_in_effect_are_recorded_though_nobody_gave_them(trained):
    results = json.loads((trained / "results.json").read_text())
    assert results["splits"] == {"train": 193, "validation": 20, "test": 15}
    hyperparameters = results["hyperparameters"]
    assert hyperparameters["learning_rate"] == 0.01
    assert (hyperparameters["adam_beta2"], hyperparameters["label_smoothing_factor"]) == (0.98, 0.1)
    assert hyperparameters["lr_scheduler_type"] == "inverse_sqrt"
    assert "per_device_train_batch_size" not in hyperparameters


def test_a_greedy_model_with_a_length_penalty_is_saved(tmp_path):
    """The library refuses to save the two beside each other; by then the model would be trained, and lost."""
    settings = {"num_beams": 1, "length_penalty": 0.6, "early_stopping": "never", "max_steps": 2}
    run(load_recipe(None, train_words(write_corpus(tmp_path / "data"), tmp_path / "model", **settings)))
    kept = VanillaForConditionalGeneration.from_pretrained(tmp_path / "model").generation_config
    assert (kept.num_beams or 1, kept.length_penalty or 1, kept.early_stopping or False) == (1, 1, False)


@pytest.mark.parametrize(("said", "kept"), [("true", True), ("false", False), ("never", "never")])
def test_the_end_of_the_beam_search_is_kept(tmp_path, said, kept):
    recipe = load_recipe(None, train_words(write_corpus(tmp_path / "data"), tmp_path / "model", early_stopping=said))
    job = JOBS["translation"](recipe, tmp_path / "model")
    job.prepare()
    job.build().save_pretrained(tmp_path / "model")
    loaded = VanillaForConditionalGeneration.from_pretrained(tmp_path / "model")
    assert loaded.generation_config.early_stopping == kept


def test_the_length_penalty_type_is_kept_when_the_model_is_loaded(tmp_path):
    words = train_words(write_corpus(tmp_path / "data"), tmp_path / "model", max_steps=5, length_penalty_type="paper")
    run(load_recipe(None, words))
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    assert model.generation_config.length_penalty_type == "paper"
    model.save_pretrained(tmp_path / "again")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again")
    assert again.generation_config.length_penalty_type == "paper"
