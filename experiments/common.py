"""What the experiments share: their sizes and data, runs that are made once, and how a report is written."""

import hashlib
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
from matplotlib.figure import Figure

from modeling_vanilla.data import DataArguments, load_corpus
from modeling_vanilla.training import load_recipe, run

# Readable in grey: shade, line and marker differ.
STYLES = [
    {"color": color, "linestyle": line, "marker": marker}
    for color, line, marker in (
        ("black", "-", "o"), ("0.5", "--", "s"), ("0.2", ":", "^"), ("0.65", "-.", "D"), ("0.35", (0, (5, 1)), "v"),
        ("0.1", (0, (1, 1)), "x"), ("0.75", "-", "P"), ("0.45", (0, (3, 1, 1, 1)), "*"),
    )
]  # fmt: skip
Value = TypeVar("Value")


@dataclass(frozen=True)
class Options:
    """
    What an experiment is run with.

    Attributes:
        size: "small" (seconds to minutes on two cores), "full" (what docs/experiments.md shows: minutes to hours on two
            cores) or "published" (the sizes of the literature, for a machine with a GPU).
        folder: where its runs, table and picture go; runs that are finished there aren't made again.
        data: the folder that multi30k/ is in, or None for the built-in corpus.
        seeds: one run each.
        spent: of each training that this report needs, the seconds that were spent on it before.
    """

    size: str = "small"
    folder: Path = Path("runs/experiments")
    data: Path | None = None
    seeds: tuple[int, ...] = (1,)
    spent: list[float] = field(default_factory=list)

    def choose(self, small: Value, full: Value, published: Value | None = None) -> Value:
        """The value for this size; what isn't given for "published" is that for "full"."""
        values = {"small": small, "full": full, "published": full if published is None else published}
        return values[self.size]

    @property
    def seed(self) -> int:
        """The seed of an experiment with one model."""
        if len(self.seeds) > 1:
            raise ValueError(f"--seeds {' '.join(map(str, self.seeds))}: this experiment has one run: give one seed")
        return self.seeds[0]

    def runs(self) -> str:
        """The seeds, in words."""
        return f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"

    def pairs(self) -> dict[str, Any]:
        """The settings of text: Multi30k English-German, or the built-in corpus, which is Chinese-English."""
        if self.data is None:
            return {"dataset_name": "builtin", "source_lang": "zh", "target_lang": "en", "vocab_size": 1500}
        folder = self.data / "multi30k"
        return {"data_dir": folder, "source_lang": "en", "target_lang": "de", "vocab_size": 4000}

    def text(self) -> str:
        """Where the text of `pairs` and of the tests comes from."""
        return "Multi30k en-de, test_2016_flickr" if self.data else "the built-in corpus"

    def place(self, name: str, *settings: Any) -> Path:
        """The folder of a run: its name and a digest of all that makes it what it is."""
        name = re.sub(r"[^\w-]", "_", name)
        digest = hashlib.sha256(json.dumps(settings, default=str, sort_keys=True).encode()).hexdigest()[:8]
        return self.folder / f"{name}-{digest}"


@dataclass
class Report:
    """
    What an experiment found.

    Attributes:
        tables: header and rows each.
        figure: the picture.
        found: the paragraph, made from the figures.
        data: what was trained or measured on, in a few words.
    """

    tables: list[tuple[Sequence[str], list[Sequence[object]]]]
    figure: Figure
    found: str
    data: str
    machine: str = field(default_factory=lambda: machine())

    def markdown(self, name: str, command: str, duration: str, picture: str) -> str:
        made = f"`{command}`: {duration}; {self.data}; {self.machine}."
        tables = "\n\n".join(table(header, rows) for header, rows in self.tables)
        return f"{made}\n\n{tables}\n\n![{name}]({picture})\n\n{self.found}\n"


def machine() -> str:
    """Device, threads and versions, in one line."""
    threads = torch.get_num_threads()
    on_cpu = f"{threads} CPU thread{'s' if threads > 1 else ''}"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else on_cpu
    return f"{device}, " + ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (header, ["---"] * len(header), *rows))


def trained(options: Options, name: str, recipe: str | None = None, **settings: Any) -> tuple[Path, dict[str, Any]]:
    """
    What `vanilla train [RECIPE] --setting value ...` gives, made once: the model's folder, and its results.json.

    Args:
        name: of the run; its folder also carries a digest of the settings, so that others make another run.
        recipe: a name in configuration/.
        settings: as on the command line.
    """
    words = words_of(**settings)
    folder = options.place(name, recipe, words)
    start, done = time.monotonic(), folder / "results.json"
    if not done.is_file():  # what a run that was stopped after its training left may be in the way
        run(load_recipe(recipe, [*words, "--output_dir", str(folder), "--overwrite_output_dir", "true"]))
    results = json.loads(done.read_text(encoding="utf-8"))
    options.spent.append(max(results["seconds"] - (time.monotonic() - start), 0))
    return folder, results


def once(
    options: Options, name: str, settings: Any, make: Callable[[Path], dict[str, Any]]
) -> tuple[Path, dict[str, Any]]:
    """What a training of an experiment's own gives, made once: its folder, and what `make` found there."""
    folder, start = options.place(name, settings), time.monotonic()
    done = folder / "found.json"
    if done.is_file():
        found = json.loads(done.read_text(encoding="utf-8"))
        options.spent.append(found["seconds"])
        return folder, found
    folder.mkdir(parents=True, exist_ok=True)
    found = {**make(folder), "seconds": time.monotonic() - start}
    options.spent.append(0.0)
    done.write_text(json.dumps(found), encoding="utf-8")
    return folder, found


def words_of(**settings: Any) -> list[str]:
    """Settings as on the command line, of a run that says little."""
    quiet = {"disable_tqdm": True, "report_to": "none"}
    return [word for key, value in {**settings, **quiet}.items() for word in (f"--{key}", str(value))]


def translator(options: Options) -> tuple[Path, dict[str, Any]]:
    """A translation model: configuration/multi30k_en_de.yaml's, or a small one."""
    if options.data is not None and options.size != "small":
        seed = {} if options.seed == 1 else {"seed": options.seed}  # 1 is the recipe's
        return trained(options, "translator", "multi30k_en_de", data_dir=options.data / "multi30k", **seed)
    return trained(options, "translator", **options.pairs(), **SMALL_TRANSLATION, seed=options.seed)


# Of a translation model that is there in a minute, for experiments in small.
SMALL_TRANSLATION: dict[str, Any] = {
    "model": "tiny", "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128, "dropout": 0.1, "max_tokens": 1024, "lr_scheduler_type": "cosine", "learning_rate": 5e-3,
    "warmup_steps": 50, "max_steps": 250, "logging_steps": 25, "eval_strategy": "no", "save_strategy": "no",
    "max_eval_samples": 100,
}  # fmt: skip


def lines(options: Options, split: str, most: int | None = None) -> tuple[list[str], list[str]]:
    """The sources and targets of a split of `options.pairs()`."""
    settings: dict[str, Any] = {name: value for name, value in options.pairs().items() if name != "vocab_size"}
    corpus = load_corpus(DataArguments(**settings))
    name = split if split in corpus else next((one for one in corpus if one.startswith(split)), None)
    if name is None:
        raise ValueError(f"{settings.get('data_dir')}: has no {split} set, only {', '.join(corpus)}")
    return list(corpus[name]["source"])[:most], list(corpus[name]["target"])[:most]


def figure_of(results: dict[str, Any], dataset: str, name: str) -> float:
    """One of the figures in a results.json, as BLEU on a test set."""
    return next(x["value"] for x in results["results"] if (x["dataset"], x["name"]) == (dataset, name))


def axes_of(columns: int = 1, **labels: str) -> tuple[Figure, list[Any]]:
    """A figure with axes beside each other, all with these labels."""
    figure = Figure(figsize=(1 + 4.5 * columns, 3.6), layout="constrained")
    axes = [figure.add_subplot(1, columns, column + 1) for column in range(columns)]
    for one in axes:
        one.set(**labels)
        one.grid(color="0.9")
    return figure, axes


def styled(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each name with a line style of its own."""
    return zip(names, (STYLES[number % len(STYLES)] for number in range(len(names))), strict=True)


def write(report: Report, name: str, options: Options, command: str, seconds: float, docs: Path | None) -> Path:
    """
    Writes NAME.md and NAME.png into the options' folder, or a page's section between `<!-- NAME -->` and
    `<!-- end of NAME -->` and the picture beside that page.

    Raises:
        ValueError: the page has no such section.
    """
    section = check_section(name, docs)
    duration = f"{(seconds + sum(options.spent)) / 60:.1f} minutes{', trainings included' if options.spent else ''}"
    folder = options.folder if docs is None else docs.parent / docs.stem
    folder.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    report.figure.savefig(content, format="png", dpi=110)
    (folder / f"{name}.png").write_bytes(content.getvalue())
    if docs is None or section is None:
        page = folder / f"{name}.md"
        page.write_text(report.markdown(name, command, duration, f"{name}.png"), encoding="utf-8")
        return page
    content_of = report.markdown(name, command, duration, f"{docs.stem}/{name}.png")
    text = docs.read_text(encoding="utf-8")
    docs.write_text(section.sub(lambda found: found[1] + content_of + found[2], text), encoding="utf-8")
    return docs


def check_section(name: str, docs: Path | None) -> re.Pattern[str] | None:
    """What finds an experiment's section in a page; a `ValueError` where there is none."""
    if docs is None:
        return None
    section = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not section.search(docs.read_text(encoding="utf-8")):
        raise ValueError(f"{docs}: no section <!-- {name} --> ... <!-- end of {name} -->: add one")
    return section
