"""Every recipe that the package brings runs a few steps, with its own settings but for what makes it large."""

import json

import pytest

from modeling_vanilla.training import load_recipe, run
from modeling_vanilla.training.recipe import load_preset, shipped_names
from tests.fixtures import corpus

PRESETS = ("tiny", "small", "base", "big")
RECIPES = [name for name in shipped_names() if name not in PRESETS]
SMALL = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
}  # fmt: skip


def write_data(folder, recipe) -> None:
    """Texts under the names that the recipe looks for."""
    data = recipe.data
    folder.mkdir()
    splits = {data.train_prefix or "train": 14, data.validation_prefix or "val": 141}
    splits |= dict.fromkeys((data.test_prefix or "test").split(","), 300)
    for name, step in splits.items():
        pairs = corpus(0, 2700, step)
        if data.task == "text_classification":
            rows = [json.dumps({"text": source, "label": number % 3}) for number, (source, _) in enumerate(pairs)]
            (folder / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
            continue
        for side, lang in enumerate((data.source_lang, data.target_lang)):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{name}.{lang}").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("name", RECIPES)
def test_runs_a_few_steps(tmp_path, name):
    recipe = load_recipe(name)
    changes = {"output_dir": tmp_path / "out", "max_steps": 4, "disable_tqdm": "true", "logging_steps": 1, **SMALL}
    if recipe.data.task not in ("image_classification",):
        changes |= {"vocab_size": 340, "preprocessing_num_workers": 1, "cache_dir": tmp_path / "cache"}
        if recipe.data.dataset_name != "builtin":
            write_data(tmp_path / "data", recipe)
            changes |= {"data_dir": tmp_path / "data"}
        else:
            changes |= {"max_train_samples": 200, "max_eval_samples": 20, "vocab_size": 700}
    if recipe.training.max_steps > 0:
        if recipe.training.save_strategy != "no":
            changes |= {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
        if recipe.training.average_last:
            changes |= {"average_last": 2, "save_total_limit": 2}
    words = [word for key, value in changes.items() for word in (f"--{key}", str(value))]
    result = run(load_recipe(name, words))
    assert result.results
    card = (tmp_path / "out" / "README.md").read_text()
    assert all(figure["signature"] in card for figure in result.results)


@pytest.mark.parametrize("name", shipped_names())
def test_says_at_its_top_what_it_is_and_how_to_run_it(name):
    from modeling_vanilla.training.recipe import shipped

    first, *rest = shipped(name).read_text(encoding="utf-8").splitlines()
    comments = [first, *(line for line in rest if line.startswith("#"))]
    assert first.startswith("# ")
    assert any("vanilla train" in line for line in comments)
    if name in PRESETS:
        assert load_preset(name)
    elif name.startswith(("wmt", "iwslt")):
        assert any(line.startswith("# Expected: ") for line in comments)


@pytest.mark.parametrize(("name", "last"), [("wmt14_en_de_base", 5), ("wmt14_en_de_big", 20), ("wmt14_en_fr_base", 5),
                                            ("wmt14_en_fr_big", 20)])  # fmt: skip
def test_the_papers_figures_are_measured_as_in_the_paper(name, last):
    """Section 6.1: averaged checkpoints, beam 4 with alpha 0.6, and a search that ends when nothing better can come."""
    recipe = load_recipe(name)
    assert recipe.training.average_last == last
    assert recipe.training.save_total_limit >= last
    assert (recipe.model.num_beams, recipe.model.length_penalty, recipe.model.length_penalty_type) == (4, 0.6, "paper")
    assert recipe.model.early_stopping == "never"
    assert ("bleu_compound" in recipe.model.measures) == (recipe.data.target_lang == "de")
