"""The main job: from parallel text to a folder that anyone can load."""

import json
import logging
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from datasets import DatasetDict
from transformers import AutoTokenizer, PreTrainedTokenizerFast, set_seed

from modeling_vanilla.data import FilterReport, PairTexts, load_corpus, prepare_pairs, train_tokenizer
from modeling_vanilla.decoding.lengths import max_new_tokens
from modeling_vanilla.decoding.translator import Translator, as_line
from modeling_vanilla.evaluation.metrics import corpus_scores, generation_metrics, tokenize_option
from modeling_vanilla.modeling_vanilla import VanillaForConditionalGeneration
from modeling_vanilla.training.output import RESULTS, open_output_dir
from modeling_vanilla.training.recipe import Recipe, config_fields
from modeling_vanilla.training.trainer import VanillaTrainer

logger = logging.getLogger(__name__)


@dataclass
class RunResult:
    """
    What a run gave.

    Attributes:
        folder: the finished model.
        results: one dict a figure: `dataset`, `name`, `value`, `interval`, `signature`.
        samples: the first test sentences: `source`, `translation`, `target`.
    """

    folder: Path
    results: list[dict[str, Any]]
    samples: list[dict[str, str]]


def run(recipe: Recipe) -> RunResult:
    """
    Trains a model as a recipe says, or goes on with the unfinished run that its output folder holds; then translates
    the test sets and writes the finished model, its tokenizer, results and card into the folder's root.

    Raises:
        ValueError: for a mistake in the recipe, the data or the output folder, with the remedy.
        TrainingInterrupted: after Ctrl-C, once the checkpoint is written.
    """
    args = recipe.training
    if args.output_dir in (None, "", "trainer_output"):
        raise ValueError("no output_dir: say where the model is to go with --output_dir FOLDER")
    folder = Path(args.output_dir)
    recipe.vanilla_config(vocab_size=recipe.model.vocab_size)  # a mistake there is known before the data is read
    set_seed(args.seed)
    checkpoint = _open_output_dir(recipe, folder)
    with args.main_process_first(local=False, desc="the tokenizer and the data"):
        corpus = load_corpus(recipe.data)
        tokenizer = _tokenizer(recipe, corpus, folder)
        pairs, report = _prepare(recipe, corpus, tokenizer)
    logger.info("training pairs: %s", report)

    model = VanillaForConditionalGeneration(_config(recipe, tokenizer))
    attention = recipe.model.attn_implementation or ("eager" if args.bf16 and args.use_cpu else None)
    if attention:
        model.set_attn_implementation(attention)
    # generate() has no limit relative to the source, so a plain model gets the longest source's.
    model.generation_config.max_length = max_new_tokens(recipe.data.max_length)
    model.generation_config.num_beams = recipe.model.num_beams
    model.generation_config.length_penalty = recipe.model.length_penalty
    logger.info("model: %s, %s parameters", recipe.model.model, f"{model.num_parameters():,}")
    tokenize = tokenize_option(recipe.data.target_lang)
    try:
        trainer = VanillaTrainer(
            model=model,
            args=args,
            train_dataset=pairs["train"],
            eval_dataset=pairs["validation"],
            processing_class=tokenizer,
            compute_metrics=generation_metrics(tokenizer, tokenize=tokenize) if args.predict_with_generate else None,
        )
    except RuntimeError as error:
        if "requires" not in str(error):
            raise
        raise ValueError(f"report_to={args.report_to}: {error}") from error  # a package that isn't installed
    if checkpoint:
        logger.info("going on from %s", checkpoint)
    start = time.monotonic()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    seconds = time.monotonic() - start

    trainer.save_model(str(folder))  # on all processes: a sharded model is gathered
    result = RunResult(folder, [], [])
    if trainer.is_world_process_zero():
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle
        tokenizer.save_pretrained(folder)
    if trainer.interruption.requested:  # after the last update, when no more checkpoint was due
        raise KeyboardInterrupt(f"interrupted before the test sets were translated; the model is in {folder}")
    if trainer.is_world_process_zero():
        # What was saved, not what was trained: the latter computes in the precision of training.
        _translate_tests(Translator.from_pretrained(folder, device=args.device), corpus, tokenize, result)
        facts = _facts(recipe, report, trainer, seconds, result)
        text = json.dumps(facts, indent=2, ensure_ascii=False)
        (folder / RESULTS).write_text(text + "\n", encoding="utf-8")
        from modeling_vanilla.model_card import write_card

        write_card(folder, facts)
    trainer.accelerator.wait_for_everyone()
    return result


def _open_output_dir(recipe: Recipe, folder: Path) -> Path | None:
    """The checkpoint to go on from: found, or the folder refused, by the first process for all."""
    outcome: list[Any] = [None, None]
    if recipe.training.process_index == 0:
        try:
            outcome[0] = open_output_dir(folder, recipe.settings, recipe.model.overwrite_output_dir)
        except ValueError as error:
            outcome[1] = str(error)
    checkpoint, refusal = broadcast_object_list(outcome)
    if refusal:
        raise ValueError(refusal)
    return checkpoint


def _tokenizer(recipe: Recipe, corpus: DatasetDict, folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer named, or the one that this run trained before, or a new one, left in the folder's root."""
    name = recipe.model.tokenizer_name_or_path
    if name or (folder / "tokenizer.json").is_file():
        try:
            tokenizer = AutoTokenizer.from_pretrained(name or folder)
        except (OSError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise ValueError(f"tokenizer_name_or_path={name!r}: can't load a tokenizer from there: {first}") from error
        tokenizer.model_max_length = recipe.data.max_length  # this model's, whatever the tokenizer was made for
        return tokenizer
    logger.info("training a tokenizer of %s tokens", f"{recipe.model.vocab_size:,}")
    tokenizer = train_tokenizer(
        PairTexts(corpus["train"]), recipe.model.vocab_size, model_max_length=recipe.data.max_length
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def _prepare(
    recipe: Recipe, corpus: DatasetDict, tokenizer: PreTrainedTokenizerFast
) -> tuple[DatasetDict, FilterReport]:
    train, report = prepare_pairs(corpus["train"], tokenizer, recipe.data, training=True)
    validation, _ = prepare_pairs(corpus["validation"], tokenizer, recipe.data, training=False)
    return DatasetDict(train=train, validation=validation), report


def _config(recipe: Recipe, tokenizer: PreTrainedTokenizerFast):
    return recipe.vanilla_config(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
    )


def _translate_tests(translator: Translator, corpus: DatasetDict, tokenize: str, result: RunResult) -> None:
    """Translates each test set once, keeps the translations beside the model, and scores them."""
    for name in (name for name in corpus if name not in ("train", "validation")):
        sources, references = list(corpus[name]["source"]), list(corpus[name]["target"])
        hypotheses = [translation.text for translation in translator.translate(sources)]
        file = result.folder / "translations" / f"{name}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{as_line(text)}\n" for text in hypotheses), encoding="utf-8")
        scores = corpus_scores(hypotheses, references, tokenize=tokenize)
        result.results += [{"dataset": name, **score.to_dict()} for score in scores]
        result.samples = result.samples or [
            {"source": source, "translation": hypothesis, "target": reference}
            for source, hypothesis, reference in zip(sources[:10], hypotheses, references, strict=False)
        ]


def _facts(
    recipe: Recipe, report: FilterReport, trainer: VanillaTrainer, seconds: float, result: RunResult
) -> dict[str, Any]:
    """What the card and `results.json` say of the run."""
    data, device = recipe.data, trainer.args.device
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    config = trainer.model.config.to_dict()
    return {
        "source_lang": data.source_lang,
        "target_lang": data.target_lang,
        "data": data.dataset_name or Path(data.data_dir or "unknown").name,
        "pairs": str(report),
        "parameters": trainer.model.num_parameters(),
        "config": {name: config[name] for name in ("vocab_size", *config_fields())},
        "settings": {name: value for name, value in recipe.settings.items() if not name.endswith("_dir")},
        "updates": trainer.state.global_step,
        "seconds": round(seconds, 1),
        "hardware": f"{trainer.args.world_size} × {hardware}",
        "results": result.results,
        "samples": result.samples,
        "history": trainer.state.log_history,
        "versions": {name: version(name) for name in ("torch", "transformers", "datasets", "tokenizers", "sacrebleu")},
    }


def _processor() -> str:
    return f"CPU, {torch.get_num_threads()} threads, {platform.processor() or platform.machine()}"


__all__ = ["RunResult", "run"]
