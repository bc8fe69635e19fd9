"""Recipes: what they may say, who wins, and what is said to a mistake."""

import re

import pytest
import torch
import yaml

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.configuration_vanilla import CHOICES
from modeling_vanilla.training.recipe import config_fields, load_preset, load_recipe, make_parser, shipped_names


def recipe_file(tmp_path, text):
    file = tmp_path / "recipe.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_recipe_gives_defaults_and_the_command_line_wins(tmp_path):
    file = recipe_file(tmp_path, "model: tiny\nmax_steps: 5\nlearning_rate: 5.0e-3\nbf16: true\ndropout: 0.25\n")
    recipe = load_recipe(file, ["--max_steps", "7", "--encoder_layers=2"])
    assert recipe.training.max_steps == 7
    assert recipe.training.learning_rate == 5e-3
    assert recipe.training.bf16 is True
    config = recipe.vanilla_config(vocab_size=100)
    assert (config.d_model, config.dropout, config.encoder_layers, config.decoder_layers) == (128, 0.25, 2, 4)


def test_numbers_that_yaml_takes_for_text_are_numbers(tmp_path):
    assert load_recipe(recipe_file(tmp_path, "learning_rate: 5e-3\n")).training.learning_rate == 5e-3


def test_false_in_a_recipe_turns_a_default_off(tmp_path):
    recipe = load_recipe(recipe_file(tmp_path, "predict_with_generate: false\nuse_bias: false\n"))
    assert recipe.training.predict_with_generate is False
    assert recipe.vanilla_config(vocab_size=100).use_bias is False


def test_without_a_recipe_the_command_line_says_all():
    recipe = load_recipe(None, ["--model", "tiny", "--max_tokens", "99"])
    assert recipe.training.max_tokens == 99
    assert recipe.vanilla_config(vocab_size=100).d_model == 128


def test_settings_are_what_was_asked_for_and_give_the_same_run(tmp_path):
    import yaml

    file = recipe_file(tmp_path, "model: tiny\nmax_steps: 5\neval_strategy: steps\n")
    recipe = load_recipe(file, ["--seed", "3", "--no_predict_with_generate", "--report-to", "tensorboard"])
    assert recipe.settings == {
        "model": "tiny", "max_steps": 5, "eval_strategy": "steps", "seed": 3, "predict_with_generate": False,
        "report_to": "tensorboard",
    }  # fmt: skip
    again = load_recipe(recipe_file(tmp_path, yaml.safe_dump(recipe.settings)))
    assert again.settings == recipe.settings


def test_negative_numbers_are_values_and_not_options(tmp_path):
    assert load_recipe(recipe_file(tmp_path, "max_steps: -1\n")).training.max_steps == -1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rte: 1\n", r"recipe.yaml: 'learning_rte' is not a setting; did you mean 'learning_rate'\?"),
        ("encoder_layer: 1\n", "did you mean 'encoder_layers'"),
        ("sorce_lang: en\n", "did you mean 'source_lang'"),
        ("vocab_size: many\n", "recipe.yaml: argument --vocab_size: invalid int value: 'many'"),
        ("bf16: perhaps\n", "recipe.yaml: argument --bf16"),
        ("use_bias: perhaps\n", "recipe.yaml: argument --use_bias.*neither true nor false"),
        ("max_steps: [1, 2\n", "line 2: not YAML"),
        ("just words\n", "must hold `key: value` lines"),
        ("1: 2\n", "must hold `key: value` lines"),
        ("help: true\n", "'help' is not a setting"),
        ("pad_token_id: 3\n", "'pad_token_id' is not a setting"),
        ("lr_scheduler_type: noam\n", "noam"),
        ("max_tokens: 0\n", "max_tokens=0"),
        ("max_length: 1\n", "max_length=1"),
        ("per_device_train_batch_size: 64\n", r"recipe.yaml: 'per_device_train_batch_size' has no effect.*max_tokens"),
        ("resume_from_checkpoint: x\n", "has no effect here: the same command"),
        ("bf16_full_eval: true\n", "'bf16_full_eval' has no effect here: leave it out"),
        ("do_train: true\n", "'do_train' has no effect here: `vanilla train` always trains: leave it out"),
        ("do_eval: true\n", "'do_eval' has no effect here: eval_strategy says when"),
        ("do_predict: true\n", "'do_predict' has no effect here: test sets are always scored"),
        ("sortish_sampler: true\n", "'sortish_sampler' has no effect here: leave it out"),
        ("hub_always_push: true\n", "'hub_always_push' has no effect here: the model is pushed once"),
        ("use_liger_kernel: true\n", "'use_liger_kernel' has no effect here: Liger has no kernels"),
        ("remove_unused_columns: false\n", "'remove_unused_columns' has no effect here: leave it out"),
        ("dataloader_in_order: false\n", "'dataloader_in_order' has no effect here: leave it out"),
    ],
)
def test_a_mistake_in_the_recipe_is_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load_recipe(recipe_file(tmp_path, text))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max_step", "3"], "command line: 'max_step' is not a setting; did you mean 'max_steps'"),
        (["--max_steps", "x"], "command line: argument --max_steps: invalid int value"),
        (["--max_steps"], "command line: argument --max_steps: expected one argument"),
        (["stray"], "stray"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(words, message):
    with pytest.raises(ValueError, match=message):
        load_recipe(None, words)


def test_a_missing_recipe_names_those_there_are():
    with pytest.raises(ValueError, match=r"nowhere.yaml: no such file; the package brings .*tiny"):
        load_recipe("nowhere.yaml")


def test_a_binary_recipe_is_refused(tmp_path):
    (tmp_path / "recipe.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a text file in UTF-8"):
        load_recipe(str(tmp_path / "recipe.yaml"))


@pytest.mark.parametrize("name", ["multi30k_en_de", "multi30k_en_de.yaml", "configuration/multi30k_en_de.yaml"])
def test_shipped_recipes_are_found_by_name_from_anywhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_recipe(name).data.target_lang == "de"


def test_a_missing_file_of_a_shipped_ones_name_is_not_taken_for_it(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        load_recipe(str(tmp_path / "multi30k_en_de.yaml"))


def test_a_mapping_in_a_recipe_reaches_the_library(tmp_path):
    recipe = load_recipe(recipe_file(tmp_path, "lr_scheduler_type: cosine\nlr_scheduler_kwargs: {num_cycles: 0.25}\n"))
    assert recipe.training.lr_scheduler_kwargs == {"num_cycles": 0.25}


@pytest.mark.parametrize(
    ("name", "vocab_size", "parameters"),
    [("tiny", 9700, 2_566_656), ("small", 9700, 36_509_696), ("base", 37000, 63_082_496), ("big", 37000, 214_245_376)],
)
def test_presets_have_the_size_they_say(name, vocab_size, parameters):
    """By the paper's arithmetic: attention 4 (D² + D), feed-forward 2 D F + D + F, norms 2 D each."""
    preset = load_preset(name)
    d, f, n = preset["d_model"], preset["encoder_ffn_dim"], preset["encoder_layers"]
    attention, feed_forward, norm = 4 * (d * d + d), 2 * d * f + d + f, 2 * d
    expected = (
        n * (attention + feed_forward + 2 * norm) + n * (2 * attention + feed_forward + 3 * norm) + vocab_size * d
    )
    assert expected == parameters
    with torch.device("meta"):
        model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=vocab_size, **preset))
    assert model.num_parameters() == parameters
    heads = {"tiny": 4, "small": 4, "base": 8, "big": 16}[name]
    assert (model.config.encoder_attention_heads, model.config.decoder_attention_heads) == (heads, heads)


def test_base_preset_is_the_default_config():
    assert VanillaConfig(**load_preset("base")).to_dict() == VanillaConfig().to_dict()


def test_every_shipped_file_reads():
    recipes = [name for name in shipped_names() if name not in ("tiny", "small", "base", "big")]
    for name in recipes:
        assert load_recipe(name).settings["output_dir"]


def test_no_setting_has_two_meanings():
    """The same word in the data's, the model's and the library's arguments, or in VanillaConfig, would clash."""
    options = [action.dest for action in make_parser()._actions if not action.dest.startswith("no_")]
    once = {name: options.count(name) for name in config_fields()}
    assert set(once.values()) == {1}


def test_a_preset_with_an_unknown_field_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'d_modle' is not a setting; did you mean 'd_model'"):
        load_preset(recipe_file(tmp_path, "d_modle: 3\n"))


@pytest.mark.parametrize("fast", [True, False])
def test_bf16_is_the_default_where_it_is_fast(tmp_path, monkeypatch, fast):
    monkeypatch.setattr("modeling_vanilla.training.recipe.has_fast_bf16", lambda *_: fast)
    assert load_recipe(recipe_file(tmp_path, "model: tiny\n")).training.bf16 is fast
    assert load_recipe(recipe_file(tmp_path, "model: tiny\nbf16: false\n")).training.bf16 is False
    assert load_recipe(recipe_file(tmp_path, "model: tiny\nbf16: true\n")).training.bf16 is True


def test_an_unknown_metric_is_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match="metric_for_best_model='blue': must be one of nll, loss, ppl, bleu, chrf"):
        load_recipe(recipe_file(tmp_path, "metric_for_best_model: blue\n"))
    load_recipe(recipe_file(tmp_path, "metric_for_best_model: ter\nmeasures: [ter]\n"))


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("metric_for_best_model: bleu\npredict_with_generate: false\n", "nll, loss, ppl$"),
        ("metric_for_best_model: bleu\ntask: language_modeling\n", "nll, loss, ppl$"),
        ("metric_for_best_model: acuracy\ntask: text_classification\n", "nll, loss, accuracy$"),
        ("source_lang: no\n", "source_lang: YAML reads this word as false: put it in quotes"),
        ("save_strategy: no\n", "save_strategy: YAML reads this word as false: put it in quotes"),
    ],
)
def test_what_would_fail_at_the_first_evaluation_is_refused_before(tmp_path, recipe, said):
    with pytest.raises(ValueError, match=said):
        load_recipe(recipe_file(tmp_path, recipe))


@pytest.mark.parametrize(("setting", "said"), [
    ("num_beams: 0", "num_beams=0: must be at least 1"), ("length_penalty: .nan", "length_penalty=nan: must be"),
    ("max_steps: 0", "there is nothing to train"), ("max_steps: -7", "there is nothing to train"),
    ("num_train_epochs: 0", "there is nothing to train"),
])  # fmt: skip
def test_what_would_fail_after_training_is_refused_before(tmp_path, setting, said):
    with pytest.raises(ValueError, match=said):
        load_recipe(recipe_file(tmp_path, f"{setting}\n"))


def test_a_date_is_a_folders_name_like_another(tmp_path):
    assert load_recipe(recipe_file(tmp_path, "output_dir: 2026-10-19\n")).training.output_dir == "2026-10-19"


def test_an_option_with_dashes_wins_as_the_one_with_underscores(tmp_path):
    recipe = load_recipe(recipe_file(tmp_path, "dataset_name: builtin\n"), ["--data-dir", "here"])
    assert (recipe.data.dataset_name, recipe.data.data_dir) == (None, "here")


def test_a_preset_of_ones_own_is_kept_with_the_settings(tmp_path):
    """So that a run notices when the file is another."""
    (tmp_path / "my.yaml").write_text("d_model: 32\nencoder_layers: 1\n")
    recipe = load_recipe(None, ["--model", str(tmp_path / "my.yaml"), "--encoder_layers", "2"])
    assert recipe.settings == {"model": str(tmp_path / "my.yaml"), "d_model": 32, "encoder_layers": 2}
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(recipe.settings))
    assert load_recipe(str(tmp_path / "again.yaml")).settings == recipe.settings


def test_words_that_are_yes_or_no_may_be_words(tmp_path):
    recipe = load_recipe(recipe_file(tmp_path, 'source_lang: "no"\nearly_stopping: true\nsave_strategy: "no"\n'))
    assert (recipe.data.source_lang, recipe.model.early_stopping) == ("no", "true")


VALUES = {"predict_with_generate": "false", "generation_max_length": 7, "generation_num_beams": 2}
OF_OTHERS = [
    ("text_classification", "r_drop"), ("image_classification", "bpe_dropout"), ("language_modeling", "bpe_dropout"),
    ("text_classification", "predict_with_generate"), ("image_classification", "generation_config"),
    ("text_classification", "generation_max_length"), ("language_modeling", "generation_num_beams"),
    ("language_modeling", "length_penalty"),
]  # fmt: skip


def test_settings_are_kept_as_yaml_has_them(tmp_path):
    words = ["--debug", "underflow_overflow", "--generation_config", str(tmp_path / "generation_config.json")]
    settings = load_recipe(None, words).settings
    assert yaml.safe_load(yaml.safe_dump(settings)) == settings
    assert settings == {"debug": ["underflow_overflow"], "generation_config": words[-1]}


@pytest.mark.parametrize(("task", "key"), OF_OTHERS)
def test_what_has_no_effect_on_a_task_is_refused(tmp_path, task, key):
    with pytest.raises(ValueError, match=f"'{key}' has no effect here"):
        load_recipe(recipe_file(tmp_path, f"task: {task}\ntarget_lang: en\n{key}: {VALUES.get(key, 0.1)}\n"))


def test_what_has_an_effect_on_another_task_is_no_mistake_there(tmp_path):
    translation = "generation_max_length: 7\ngeneration_num_beams: 2\nlength_penalty: 0.6\n"
    load_recipe(recipe_file(tmp_path, translation))
    load_recipe(recipe_file(tmp_path, "task: text_classification\ndataloader_in_order: false\n"))


# The help


def help_of(option: str) -> str:
    """What the help says of an option, in one line; nothing where it isn't listed."""
    entry = re.search(rf"^  --{option}\b.*?(?=^  --|^\S|\Z)", make_parser().format_help(), re.M | re.S)
    return " ".join(entry[0].split()) if entry else ""


@pytest.mark.parametrize(
    "option", ["do_train", "resume_from_checkpoint", "save_only_model", "hub_strategy", "no_remove_unused_columns"]
)
def test_what_is_always_refused_is_not_in_the_help(option):
    assert help_of(option) == ""


def test_the_help_says_for_which_tasks_an_option_is():
    assert "Only for text_classification, image_classification." in help_of("per_device_train_batch_size")
    assert "Only for translation." in help_of("num_beams")
    assert "Only" not in help_of("learning_rate")


@pytest.mark.parametrize(
    ("option", "right", "wrong"),
    [
        ("bf16", "where the processor or GPU multiplies it natively", "(default: False)"),
        ("push_to_hub", "once, at the end", "every time"),
        ("gradient_accumulation_steps", "add up to one update", "per_device_train_batch_size"),
    ],
)
def test_the_help_says_what_holds_here_and_not_in_the_library(option, right, wrong):
    assert right in help_of(option)
    assert wrong not in help_of(option)


@pytest.mark.parametrize("option", config_fields())
def test_the_help_says_what_a_field_of_the_model_is(option):
    text = help_of(option)
    assert len(text.partition(": ")[2]) > 10
    if option != "activation_function":  # of which there are dozens
        assert all(f'"{choice}"' in text for choice in CHOICES.get(option, ()))


def test_the_help_has_ours_first():
    text = make_parser().format_help()
    places = [text.index(f"\n  --{name} ") for name in ("data_dir", "model", "d_model", "average_last", "adam_beta1")]
    assert places == sorted(places)
