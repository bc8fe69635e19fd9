"""BLEU, chrF and TER by sacreBLEU, with their signatures and bootstrap intervals."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric
from transformers import EvalPrediction, PreTrainedTokenizerBase

DEFAULT_MEASURES = ("bleu", "chrf")


@dataclass(frozen=True)
class Score:
    """
    One figure.

    Attributes:
        name: what the measure is called in a table: "BLEU", "chrF" ...
        value: from 0 to 100 (TER may be above).
        interval: half of the 95 % bootstrap interval's width, in points; None when it wasn't asked for.
        signature: sacreBLEU's own.
    """

    name: str
    value: float
    interval: float | None
    signature: str

    def __str__(self) -> str:
        interval = "" if self.interval is None else f" ± {self.interval:.2f}"
        return f"{self.name} {self.value:.2f}{interval}  {self.signature}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Measure:
    """
    A way to score.

    Attributes:
        name: for a table.
        metric: sacreBLEU's.
        prepare: what is done to hypotheses and references before.
        note: that, as it is added to sacreBLEU's signature.
    """

    name: str
    metric: Metric
    prepare: Callable[[Sequence[str]], list[str]] = list
    note: str = ""

    def __post_init__(self) -> None:
        """Scores as plain floats: sacreBLEU 2.6 can't average them where some resamplings give 0 and some a float32."""
        compute = self.metric._compute_score_from_stats

        def compute_plainly(stats: Any) -> Any:
            score = compute(stats)
            score.score = float(score.score)
            return score

        setattr(self.metric, "_compute_score_from_stats", compute_plainly)  # noqa: B010

    @property
    def signature(self) -> str:
        return f"{self.metric.get_signature().format()}{self.note}"


def measure(name: str, *, tokenize: str = "13a", lowercase: bool = False) -> Measure:
    """
    A measure by its name.

    Args:
        name:
            `bleu`: BLEU of detokenised text.
            `chrf`: chrF2. `ter`: translation edit rate, where less is better.
            `bleu_tok_lc`: BLEU of text that is tokenised and lower-cased already, as Multi30k and IWSLT14 results are
            published. It says nothing beside other tokenisations.
            `bleu_compound`: BLEU after Moses's tokenizer with words split at hyphens, as the paper has it and
            get_ende_bleu.sh; 0.7 to 1 above `bleu` in German. Needs the extra `moses`.
        tokenize: sacreBLEU's tokenizer, for `bleu` alone (13a, intl, zh, char, none ...).
        lowercase: compare without case, for `bleu`, `chrf` and `ter`.

    Raises:
        ValueError: for an unknown name or tokenizer, or without the extra.
    """
    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"tokenize={tokenize!r} is unknown: one of {', '.join(BLEU.TOKENIZERS)}")
    if name == "bleu":
        try:
            return Measure("BLEU", BLEU(tokenize=tokenize, lowercase=lowercase))
        except (ImportError, RuntimeError) as error:  # one that needs another package
            raise ValueError(f"tokenize={tokenize!r}: {' '.join(str(error).split())}") from error
    if name == "chrf":
        return Measure("chrF", CHRF(lowercase=lowercase))
    if name == "ter":
        return Measure("TER", TER(case_sensitive=not lowercase))
    if name == "bleu_tok_lc":
        return Measure("BLEU (tokenised, lower-cased)", BLEU(tokenize="none", lowercase=True, force=True))
    if name == "bleu_compound":
        return Measure(
            "BLEU (compounds split)",
            BLEU(tokenize="none", lowercase=lowercase, force=True),
            _split_compounds(),
            "|moses|compounds",
        )
    raise ValueError(f"measure {name!r} is unknown: one of {', '.join(MEASURES)}")


MEASURES = ("bleu", "chrf", "ter", "bleu_tok_lc", "bleu_compound")


def _split_compounds() -> Callable[[Sequence[str]], list[str]]:
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError as error:
        raise ValueError('bleu_compound needs sacremoses: pip install "vanilla-transformer[moses]"') from error
    import re

    tokenizer, normalizer = MosesTokenizer(lang="de"), MosesPunctNormalizer(lang="de")
    compound = re.compile(r"(\S)-(\S)")  # as in its script, a letter between two hyphens is taken once

    def prepare(texts: Sequence[str]) -> list[str]:
        tokenised = (tokenizer.tokenize(normalizer.replace_unicode_punct(text), return_str=True) for text in texts)
        return [compound.sub(r"\1 ##AT##-##AT## \2", text) for text in tokenised]

    return prepare


def tokenize_option(target_lang: str | None) -> str:
    """The sacreBLEU tokenizer for a target language: `zh` for Chinese, `char` for Japanese, else `13a`."""
    language = (target_lang or "").split("_")[0].split("-")[0].lower()
    return {"zh": "zh", "ja": "char"}.get(language, "13a")


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
    tokenize: str = "13a",
    lowercase: bool = False,
    bootstrap: int = 1000,
) -> list[Score]:
    """
    Scores a test set.

    Args:
        hypotheses, references: one string a sentence, as many of each.
        measures: names, as `measure` explains them.
        tokenize, lowercase: as there.
        bootstrap: resamplings for the 95 % interval; 0 for none.

    Raises:
        ValueError: when the two differ in number, are empty, or a measure or tokenizer is unknown.
    """
    check_parallel(hypotheses, references)
    if bootstrap < 0 or bootstrap == 1:
        raise ValueError(f"bootstrap={bootstrap}: 0 for no interval, or at least 2 resamplings")
    if len(hypotheses) == 1:
        bootstrap = 0  # an interval from resamplings of one sentence would always be 0
    chosen = [measure(name, tokenize=tokenize, lowercase=lowercase) for name in measures]
    return [_score(one, one.prepare(hypotheses), one.prepare(references), bootstrap) for one in chosen]


def _score(one: Measure, hypotheses: Sequence[str], references: Sequence[str], bootstrap: int) -> Score:
    """The figure of texts that are prepared already."""
    result = one.metric.corpus_score(hypotheses, [references], n_bootstrap=max(bootstrap, 1))
    return Score(one.name, float(result.score), float(result._ci) if bootstrap else None, one.signature)


def check_parallel(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuses what can't be scored."""
    for texts in (hypotheses, references):
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise ValueError("hypotheses and references are lists of strings, one string a sentence")
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses but {len(references)} references: there must be as many")
    if not hypotheses:
        raise ValueError("nothing to score: no hypotheses")


def generation_metrics(
    tokenizer: PreTrainedTokenizerBase, *, measures: Sequence[str] = DEFAULT_MEASURES, tokenize: str = "13a"
) -> Callable[[EvalPrediction], dict[str, float]]:
    """
    A `compute_metrics` for Trainer: each measure of generated ids, under its name (`bleu`, `chrf` ...).

    Raises:
        ValueError: when called, for logits or a model's other outputs, which are no ids.
    """
    score = partial(corpus_scores, measures=measures, tokenize=tokenize, bootstrap=0)

    def decode(ids: np.ndarray) -> list[str]:
        ids = np.where(ids < 0, tokenizer.pad_token_id, ids)  # -100 is no token
        return tokenizer.batch_decode(ids, skip_special_tokens=True)

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        if isinstance(prediction.predictions, tuple) or np.ndim(prediction.predictions) != 2:
            raise ValueError(
                "generation_metrics: the predictions are the model's outputs, not generated ids: "
                "set predict_with_generate=True in Seq2SeqTrainingArguments"
            )
        scores = score(decode(prediction.predictions), decode(prediction.label_ids))
        return {name: score.value for name, score in zip(measures, scores, strict=True)}

    return compute_metrics


@dataclass(frozen=True)
class Comparison:
    """
    A system beside the first one, by one measure.

    Attributes:
        system: its name.
        score: its own.
        p_bootstrap, p_randomization: the probability of a difference as large by chance, by paired bootstrap resampling
            (Koehn 2004) and paired approximate randomisation (Riezler and Maxwell 2005); None for the first system.
    """

    system: str
    score: Score
    p_bootstrap: float | None
    p_randomization: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_systems(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
    tokenize: str = "13a",
    lowercase: bool = False,
    bootstrap: int = 1000,
    trials: int = 10_000,
) -> list[Comparison]:
    """
    Whether systems differ from the first one by more than chance.

    Args:
        systems: name to hypotheses; the first is what the others are compared with.
        bootstrap: resamplings, of the interval and of the paired test.
        trials: of approximate randomisation.
        others: as in `corpus_scores`.

    Raises:
        ValueError: as `corpus_scores`; for less than two systems, or without resamplings.
    """
    from sacrebleu.significance import PairedTest

    if len(systems) < 2:
        raise ValueError("a comparison needs at least two systems")
    if bootstrap < 2 or trials < 1:
        raise ValueError(f"bootstrap={bootstrap}, trials={trials}: a comparison needs resamplings")
    for hypotheses in systems.values():
        check_parallel(hypotheses, references)
    comparisons: list[Comparison] = []
    for name in measures:
        one = measure(name, tokenize=tokenize, lowercase=lowercase)
        prepared: list[tuple[str, Sequence[str]]] = [(name, one.prepare(texts)) for name, texts in systems.items()]
        reference = one.prepare(references)
        scores = [_score(one, texts, reference, bootstrap if len(texts) > 1 else 0) for _, texts in prepared]
        p_values: dict[str, list[float | None]] = {}
        kinds: tuple[tuple[Literal["bs", "ar"], int], ...] = (("bs", bootstrap), ("ar", trials))
        for kind, samples in kinds:
            with _quiet_sacrebleu():
                test = PairedTest(prepared, {one.name: one.metric}, [reference], kind, samples)
                (results,) = (rows for key, rows in test()[1].items() if key != "System")
            # sacreBLEU counts differences above the one found, so that equal scores would seem to differ beyond chance.
            p_values[kind] = [
                1.0 if score.value == scores[0].value and number else getattr(result, "p_value", None)
                for number, (score, result) in enumerate(zip(scores, results, strict=True))
            ]
        comparisons += map(Comparison, systems, scores, p_values["bs"], p_values["ar"])
    return comparisons


@contextmanager
def _quiet_sacrebleu() -> Iterator[None]:
    """Without the lines on its progress that sacreBLEU logs."""
    logger = logging.getLogger("sacrebleu")
    level = logger.level
    logger.setLevel(max(logger.getEffectiveLevel(), logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)


__all__ = [
    "DEFAULT_MEASURES",
    "MEASURES",
    "Comparison",
    "Measure",
    "Score",
    "compare_systems",
    "corpus_scores",
    "generation_metrics",
    "measure",
    "tokenize_option",
]
