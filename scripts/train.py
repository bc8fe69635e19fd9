"""`vanilla train RECIPE.yaml [--any_argument value ...]`; `accelerate launch` takes this file too."""

import sys
from collections.abc import Sequence

from modeling_vanilla.scripts.common import hide_progress_bars, run_verb

USAGE = """usage: vanilla train RECIPE.yaml [--any_argument value ...]

RECIPE.yaml gives defaults and the command line wins. Every argument below may stand in either; so may the
fields of VanillaConfig (--d_model 256 --encoder_layers 3 ...). The package brings these recipes and presets: {}.
The same command again goes on with an unfinished run.
"""


AUTO = """import modeling_vanilla; from transformers import {model}, AutoTokenizer
model, tokenizer = (c.from_pretrained("{{folder}}") for c in ({model}, AutoTokenizer))"""
PIPELINE = """import modeling_vanilla; from transformers import pipeline
classify = pipeline("{task}", "{{folder}}")"""
LOADING = {
    "translation": AUTO.format(model="AutoModelForSeq2SeqLM"),
    "language_modeling": AUTO.format(model="AutoModelForCausalLM"),
    "text_classification": PIPELINE.format(task="text-classification"),
    "image_classification": PIPELINE.format(task="image-classification"),
}


def main(argv: Sequence[str]) -> int:
    from modeling_vanilla.training.recipe import load_recipe, make_parser, shipped_names

    if not argv or {"-h", "--help"} & set(argv):
        print(USAGE.format(", ".join(shipped_names())))
        if argv:
            print(make_parser().format_help().partition("\n\n")[2])
        return 0 if argv else 2
    name, rest = (None, argv) if argv[0].startswith("--") else (argv[0], argv[1:])
    recipe = load_recipe(name, list(rest))

    from modeling_vanilla.training.interruption import TrainingInterrupted
    from modeling_vanilla.training.run import run

    hide_progress_bars()
    try:
        result = run(recipe)
    except TrainingInterrupted as interrupt:
        raise KeyboardInterrupt(
            f"{interrupt}; the checkpoint is in {recipe.training.output_dir}, and the same command goes on from it"
        ) from None
    if recipe.training.process_index == 0:
        print(summary(result))
    return 0


def summary(result) -> str:
    """What a finished run says: figures, sample translations, and how to load the model."""
    from modeling_vanilla.evaluation.metrics import Score

    fields = ("name", "value", "interval", "signature")
    lines = [f"{r['dataset']}: {Score(**{field: r[field] for field in fields})}" for r in result.results]
    said = "translation" if result.task == "translation" else "model      "
    for sample in result.samples:
        lines += ["", f"  source       {sample['source']}", f"  {said}  {sample['translation']}"]
        lines += [f"  reference    {sample['target']}"]
    lines += [
        "",
        f"The model is in {result.folder}. To load it:",
        "",
        *(f"  {line}" for line in LOADING[result.task].format(folder=result.folder).splitlines()),
    ]
    return "\n".join(lines)


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("train", main, argv)


if __name__ == "__main__":
    sys.exit(run())
