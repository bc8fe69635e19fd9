"""From batches to checkpoints."""

from modeling_vanilla.training.arguments import VanillaTrainingArguments
from modeling_vanilla.training.recipe import Recipe, load_recipe
from modeling_vanilla.training.run import RunResult, run
from modeling_vanilla.training.trainer import VanillaTrainer

__all__ = ["Recipe", "RunResult", "VanillaTrainer", "VanillaTrainingArguments", "load_recipe", "run"]
