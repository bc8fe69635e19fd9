"""The kinds of training, by the name that a recipe calls them (`task`)."""

from modeling_vanilla.training.jobs.classification import ImageClassification, TextClassification
from modeling_vanilla.training.jobs.job import Job
from modeling_vanilla.training.jobs.language_model import LanguageModeling
from modeling_vanilla.training.jobs.translation import Translation

JOBS: dict[str, type[Job]] = {
    "translation": Translation,
    "language_modeling": LanguageModeling,
    "text_classification": TextClassification,
    "image_classification": ImageClassification,
}

__all__ = ["JOBS"]
