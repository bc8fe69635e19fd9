"""`vanilla train --init_from MODEL`: what is taken over, what is refused, and how such a run goes on."""

import json
import shutil

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_vanilla import VanillaConfig, VanillaForSequenceClassification
from modeling_vanilla.data import train_tokenizer
from modeling_vanilla.model_card import write_card
from modeling_vanilla.scripts import doctor, train
from modeling_vanilla.training import load_recipe, run
from modeling_vanilla.training.initial import load_initial
from modeling_vanilla.training.jobs import JOBS
from tests.fixtures import corpus, train_words

from .test_jobs import image_data

SHAPE = ("model", "d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim", "vocab_size")


def words(trained, output, **changes) -> list[str]:
    """A short run from the trained model, of which the command names no shape; None takes a setting away."""
    settings = dict.fromkeys((*SHAPE, "dropout")) | {"init_from": trained, "max_steps": 6, "learning_rate": 1e-4}
    given = train_words(trained.parent / "data", output, **settings | changes)
    pairs = zip(given[::2], given[1::2], strict=True)
    return [word for name, value in pairs if value != "None" for word in (name, value)]


@pytest.fixture(scope="module")
def continued(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("continued") / "model"
    recipe = load_recipe(None, words(trained, folder, logging_steps=1, save_strategy="steps", save_steps=3))
    run(recipe)
    return folder


def facts(folder) -> dict:
    return json.loads((folder / "results.json").read_text())


def test_a_trained_models_length_penalty_is_no_hindrance_to_greedy_search(trained, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(trained)
    model.generation_config.update(num_beams=4, length_penalty=0.6)
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(trained).save_pretrained(tmp_path / "model")
    given = words(trained, tmp_path / "out", num_beams=1, init_from=tmp_path / "model")
    job = JOBS["translation"](load_recipe(None, given), tmp_path / "out")
    job.prepare()
    job.build().save_pretrained(tmp_path / "out")
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").generation_config.num_beams == 1


def test_it_begins_where_the_trained_model_ended(trained, continued):
    old, new = facts(trained)["history"], facts(continued)["history"]
    at_the_end = [entry["nll"] for entry in old if "nll" in entry][-1]
    assert new[0]["nll"] == pytest.approx(at_the_end, rel=0.2)
    assert new[0]["nll"] < old[0]["nll"] / 5


def test_the_schedule_is_new(continued):
    rates = [entry["learning_rate"] for entry in facts(continued)["history"] if "learning_rate" in entry]
    assert rates == pytest.approx([1e-4 * (step + 1) / 20 for step in range(6)])


def test_the_tokenizer_is_the_trained_models(trained, continued):
    assert (continued / "tokenizer.json").read_bytes() == (trained / "tokenizer.json").read_bytes()


def test_where_it_began_is_recorded_without_a_path(trained, continued):
    assert facts(continued)["init_from"] == facts(continued)["settings"]["init_from"] == "model"
    card = ModelCard.load(continued / "README.md")
    assert "Fine-tuned from model with" in card.text
    assert card.data.base_model is None
    assert facts(trained)["init_from"] is None
    assert "Trained from scratch with" in (trained / "README.md").read_text()


def test_a_model_of_the_hub_is_the_cards_base_model(trained, tmp_path):
    write_card(tmp_path, facts(trained) | {"init_from": "someone/english-german"})
    assert ModelCard.load(tmp_path / "README.md").data.base_model == "someone/english-german"


def test_the_same_command_goes_on_with_an_unfinished_run(continued, trained, tmp_path, caplog):
    folder = tmp_path / "model"
    shutil.copytree(continued, folder)
    for path in (folder / "results.json", folder / "model.safetensors"):
        path.unlink()
    shutil.rmtree(folder / "checkpoint-6")
    caplog.set_level("INFO")
    run(load_recipe(None, words(trained, folder, logging_steps=1, save_strategy="steps", save_steps=3)))
    assert "going on from" in caplog.text
    assert "checkpoint-3" in caplog.text
    undisturbed, resumed = load_file(continued / "model.safetensors"), load_file(folder / "model.safetensors")
    assert all(torch.equal(weight, undisturbed[name]) for name, weight in resumed.items())


def test_another_beginning_is_another_run(continued, trained, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(continued, folder)
    (folder / "results.json").unlink()
    given = words(trained, folder, init_from=continued / "checkpoint-3", logging_steps=1, save_strategy="steps",
                  save_steps=3)  # fmt: skip
    with pytest.raises(ValueError, match=r"other settings \(init_from was .*model', is .*checkpoint-3'\)"):
        run(load_recipe(None, given))


def test_a_shape_that_is_the_models_may_be_asked_for(trained, tmp_path):
    shape = {"model": "tiny", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64,
             "decoder_ffn_dim": 64, "vocab_size": 340, "dropout": 0.25}  # fmt: skip
    config = load_recipe(None, words(trained, tmp_path / "out", **shape)).vanilla_config(vocab_size=7)
    assert (config.d_model, config.vocab_size, config.dropout) == (32, 340, 0.25)


def test_dropout_is_the_models_unless_asked_for(trained, tmp_path):
    own = {name: value for name, value in facts(trained)["config"].items() if "dropout" in name}
    asked = {"model": "tiny", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64,
             "decoder_ffn_dim": 64}  # fmt: skip
    config = load_recipe(None, words(trained, tmp_path / "out", **asked)).vanilla_config()  # the preset says 0.3
    assert {name: getattr(config, name) for name in own} == own


def test_another_shape_is_refused_with_the_differences_before_anything_is_written(trained, tmp_path, capsys):
    given = words(trained, tmp_path / "out", encoder_layers=2, position_encoding="rotary", vocab_size=500)
    assert train.run(given) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    for different in ("encoder_layers is 1, not 2", "position_encoding is 'sinusoidal', not 'rotary'",
                      "vocab_size is 340, not 500"):  # fmt: skip
        assert different in line
    assert not (tmp_path / "out").exists()


def test_of_words_the_vocabulary_may_be_smaller_than_asked_for(trained, tmp_path):
    recipe = load_recipe(None, words(trained, tmp_path / "out", tokens="words", vocab_size=500))
    assert recipe.vanilla_config().vocab_size == 340
    with pytest.raises(ValueError, match="vocab_size is 340, not 300"):
        load_recipe(None, words(trained, tmp_path / "out", tokens="words", vocab_size=300)).vanilla_config()


def other_model(folder):
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "marian"}')


def no_weights(folder):
    VanillaConfig(vocab_size=340).save_pretrained(folder)
    train_tokenizer(["a dog", "ein Hund"] * 50, 270).save_pretrained(folder)


def no_json(folder):
    folder.mkdir()
    (folder / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "init_from='.*source': no such folder here, and can't load a model from the Hub: "),
        (other_model, "its model_type is 'marian', and 'vanilla' is needed"),
        (no_weights, "can't load a model from there: .*safetensors"),
        (no_json, "can't load a model from there: "),
    ],
)
def test_what_is_no_model_of_ours_is_refused(trained, tmp_path, make, said):
    make(tmp_path / "source")
    with pytest.raises(ValueError, match=said):
        run(load_recipe(None, words(trained, tmp_path / "out", init_from=tmp_path / "source")))


def test_its_weights_are_not_overwritten(trained, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(trained, folder)
    before = (folder / "model.safetensors").read_bytes()
    for source in (folder, folder / "checkpoint-3"):
        with pytest.raises(ValueError, match="lies in the output folder: choose another --output_dir"):
            run(load_recipe(None, words(trained, folder, init_from=source, overwrite_output_dir=True)))
    assert (folder / "model.safetensors").read_bytes() == before


def test_a_second_tokenizer_is_refused(trained, tmp_path):
    with pytest.raises(ValueError, match="init_from and tokenizer_name_or_path: give one of the two"):
        load_recipe(None, words(trained, tmp_path / "out", tokenizer_name_or_path=trained))


def test_a_tokenizer_that_is_too_large_for_the_model_is_refused(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "source")
    tokenizer = AutoTokenizer.from_pretrained(trained)
    tokenizer.add_tokens(["one", "more"])
    tokenizer.save_pretrained(tmp_path / "source")
    with pytest.raises(ValueError, match="its tokenizer has 342 tokens, and the model 340"):
        run(load_recipe(None, words(trained, tmp_path / "out", init_from=tmp_path / "source")))


def test_its_beams_stay_unless_asked_for(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "source")
    settings = json.loads((trained / "generation_config.json").read_text())
    (tmp_path / "source" / "generation_config.json").write_text(
        json.dumps(settings | {"num_beams": 3, "length_penalty": 0.5, "length_penalty_type": "paper"})
    )
    given = words(trained, tmp_path / "out", init_from=tmp_path / "source", max_steps=1, length_penalty=0.7)
    run(load_recipe(None, given))
    kept = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (kept["num_beams"], kept["length_penalty"], kept["length_penalty_type"]) == (3, 0.7, "paper")


def test_weights_in_half_precision_are_trained_in_float32(trained, tmp_path):
    from modeling_vanilla import VanillaForConditionalGeneration

    VanillaForConditionalGeneration.from_pretrained(trained, dtype=torch.bfloat16).save_pretrained(tmp_path)
    config = VanillaConfig.from_pretrained(tmp_path)
    assert load_initial(VanillaForConditionalGeneration, str(tmp_path), config).dtype == torch.float32


def test_the_doctor_takes_it_too(trained, tmp_path, capsys):
    assert doctor.run(words(trained, tmp_path / "out", encoder_layers=2)) == 2
    assert "encoder_layers is 1, not 2" in capsys.readouterr().err


# Other tasks


CLASSIFIER = {"task": "text_classification", "source_lang": None, "target_lang": None, "max_tokens": None,
              "per_device_train_batch_size": 16, "max_steps": 2}  # fmt: skip


def questions(folder, *labels):
    folder.mkdir()
    rows = [json.dumps({"text": text, "label": labels[i % len(labels)]})
            for i, (text, _) in enumerate(corpus(0, 2700, 60))]  # fmt: skip
    (folder / "train.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def classifier(trained, tmp_path_factory):
    """A classifier of the labels a and b that began with the translation model's encoder."""
    root = tmp_path_factory.mktemp("classifier")
    changes = CLASSIFIER | {"data_dir": questions(root / "data", "a", "b"), "learning_rate": 1e-9}
    run(load_recipe(None, words(trained, root / "model", **changes)))
    return root / "model"


def test_a_classifier_begins_with_a_translation_models_encoder(trained, classifier):
    old, new = load_file(trained / "model.safetensors"), load_file(classifier / "model.safetensors")
    assert {name for name in new if name not in old} == {"classifier.weight", "classifier.bias"}
    assert all(torch.allclose(weight, old[name], atol=1e-6) for name, weight in new.items() if name in old)


@pytest.mark.parametrize(("labels", "kept"), [(("a", "b"), True), (("b", "c"), False), (("a", "b", "c"), False)])
def test_a_classifiers_last_layer_stays_where_the_labels_do(classifier, tmp_path, labels, kept):
    data = questions(tmp_path / "data", *labels)
    changes = CLASSIFIER | {"data_dir": data, "learning_rate": 1e-9, "cache_dir": tmp_path / "cache"}
    run(load_recipe(None, words(classifier, tmp_path / "out", **changes)))
    old, new = (VanillaForSequenceClassification.from_pretrained(folder) for folder in (classifier, tmp_path / "out"))
    assert torch.allclose(new.model.encoder.layers[0].fc1.weight, old.model.encoder.layers[0].fc1.weight, atol=1e-6)
    assert list(new.config.id2label.values()) == list(labels)
    assert (new.classifier.weight.shape == old.classifier.weight.shape
            and torch.allclose(new.classifier.weight, old.classifier.weight, atol=1e-6)) is kept  # fmt: skip


def test_a_language_model_goes_on_with_a_language_model(trained, tmp_path):
    lines = {"task": "language_modeling", "source_lang": None, "target_lang": "de"}
    shape = {"model": "tiny", "d_model": 32, "decoder_layers": 1, "decoder_ffn_dim": 64, "vocab_size": 330}
    run(load_recipe(None, words(trained, tmp_path / "old", init_from=None, max_steps=30, learning_rate=1e-2,
                                **lines | shape)))  # fmt: skip
    shape["encoder_layers"] = 4  # means nothing to it
    run(load_recipe(None, words(trained, tmp_path / "new", init_from=tmp_path / "old", max_steps=1, logging_steps=1,
                                **lines | shape)))  # fmt: skip
    assert facts(tmp_path / "new")["history"][0]["nll"] < facts(tmp_path / "old")["history"][0]["nll"] / 1.5


@pytest.mark.parametrize("task", ["translation", "language_modeling"])
def test_a_model_without_the_weights_that_a_task_needs_is_refused(trained, classifier, tmp_path, task):
    source = classifier if task == "translation" else trained
    data = {"data_dir": trained.parent / "data", "source_lang": "en" if task == "translation" else None}
    with pytest.raises(ValueError, match=r"give a model of the same task|load it as what it was saved as"):
        run(load_recipe(None, words(source, tmp_path / "out", task=task, **data)))


def test_an_image_classifier_goes_on_with_an_image_classifier(trained, tmp_path):
    image_data(tmp_path / "data")
    changes = CLASSIFIER | dict.fromkeys(("vocab_size", "cache_dir")) | {"data_dir": tmp_path / "data", "max_steps": 1}
    changes |= {"task": "image_classification", "learning_rate": 1e-9}
    shape = {"model": "tiny", "image_size": 4, "patch_size": 2}
    run(load_recipe(None, words(trained, tmp_path / "old", init_from=None, **changes | shape)))
    run(load_recipe(None, words(tmp_path / "old", tmp_path / "new", **changes)))
    old, new = (load_file(tmp_path / name / "model.safetensors") for name in ("old", "new"))
    assert all(torch.allclose(weight, old[name], atol=1e-6) for name, weight in new.items())


def test_recipes_keep_it_among_their_settings(trained, continued):
    assert yaml.safe_load((continued / "recipe.yaml").read_text())["init_from"] == str(trained)
