"""The card, made from facts at hand and by a run; and the curve on it."""

import ast
import json
import re
import struct
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, ModelCardData, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from modeling_vanilla.model_card import write_card
from modeling_vanilla.model_card.curve import draw_curve
from modeling_vanilla.scripts.main import main

ROOT = Path(__file__).parents[1]
FACTS = {
    "source_lang": "en",
    "target_lang": "de",
    "data": "files",
    "pairs": "kept 9 of 10 pairs (90.0%); dropped: duplicate 1",
    "splits": {"train": 10, "test": 1234},
    "parameters": 1234567,
    "config": {"d_model": 16},
    "settings": {"seed": 1, "output_dir": "/elsewhere/secret"},
    "hyperparameters": {"seed": 7, "adam_beta2": 0.98},
    "updates": 1000,
    "seconds": 90.0,
    "hardware": "1 × CPU",
    "results": [{"dataset": "test", "name": "BLEU", "value": 31.256, "interval": 1.5, "signature": "nrefs:1|tok:13a"}],
    "samples": [{"source": 'He said "a\\b | c".', "translation": "Er sagte es.", "target": "Er sagte |."}],
    "history": [
        {"step": 100, "loss": 5.0, "nll": 4.5},
        {"step": 200, "loss": 3.0, "nll": 2.5},
        {"step": 200, "eval_nll": 2.75},
    ],
    "versions": {"vanilla-transformer": "0.1.0", "torch": "2"},
}  # fmt: skip


def text_of(folder, **changes) -> str:
    """The card's text, without what keeps a table's cells apart."""
    return write_card(folder, {**FACTS, **changes}).read_text(encoding="utf-8").replace("\\|", "|")


def test_card_says_the_facts(tmp_path):
    text = text_of(tmp_path)
    for fact in (
        "translates en to de", "1,234,567 parameters", "kept 9 of 10 pairs", "train 10, test 1,234",
        "| test | BLEU | 31.26 | ± 1.50 | `nrefs:1|tok:13a` |", "1,000 updates, in 90 seconds", "Hardware: 1 × CPU",
        "| seed | 1 |", "| adam_beta2 | 0.98 |", "training 2.500 (update 200), validation 2.750 (update 200)",
        "Er sagte |.", "![Training and validation loss over the updates](training_curve.png)",
    ):  # fmt: skip
        assert fact in text
    assert "secret" not in text


def test_metadata_goes_through_the_hubs_own_reader_and_back(tmp_path):
    metadata = metadata_load(write_card(tmp_path, FACTS))
    data = ModelCardData(**metadata)
    assert data.to_dict() == metadata
    name, (result,) = model_index_to_eval_results(metadata["model-index"])
    assert name == tmp_path.name
    assert (result.metric_type, result.metric_value, result.dataset_name) == ("bleu", 31.26, "test")
    assert result.metric_name == "BLEU (nrefs:1|tok:13a)"
    assert (data.language, data.library_name, data.pipeline_tag) == (["en", "de"], "transformers", "translation")
    assert data.license == "unknown"


def test_a_name_that_is_no_languages_code_stays_out_of_the_metadata(tmp_path):
    card = ModelCard.load(write_card(tmp_path, {**FACTS, "source_lang": "lc.norm.en", "target_lang": "de"}))
    assert card.data.language == ["de"]
    assert "translates lc.norm.en to de" in card.text


def test_examples_are_python_whatever_the_sentence(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", write_card(tmp_path, FACTS).read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        texts = [node.value for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Constant)]
        assert FACTS["samples"][0]["source"] in texts


def test_the_example_of_a_run_runs_as_it_stands(trained, tmp_path, monkeypatch, capsys):
    (tmp_path / trained.name).symlink_to(trained)
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", (trained / "README.md").read_text(), re.DOTALL).group(1), {})
    assert capsys.readouterr().out.strip() == str((trained / "translations" / "test.txt").read_text().splitlines()[:1])


def test_the_example_without_the_package_asks_for_the_repositorys_code(tmp_path):
    text = text_of(tmp_path, repo_id="me/my-model")
    first, second = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert first.count('from_pretrained("me/my-model")') == 2
    assert second.count('from_pretrained("me/my-model", trust_remote_code=True)') == 2
    assert "modeling_vanilla" not in second
    assert ModelCard(text).data.model_name == "my-model"


def test_what_is_not_known_is_said_to_be_unknown(tmp_path):
    unknown = {"source_lang": None, "target_lang": None, "results": [], "samples": [], "updates": None, "history": []}
    text = text_of(tmp_path, **unknown)
    for phrase in (
        "translates unknown languages", "unknown updates", "none are known", "Energy: unknown", "Of the model: unknown",
        "Of the training data, and what it permits: unknown",
    ):  # fmt: skip
        assert phrase in text
    assert "training_curve.png" not in text
    assert not (tmp_path / "training_curve.png").exists()


def test_an_older_runs_facts_are_enough(tmp_path):
    newer = {"splits", "hyperparameters", "history"}
    text = write_card(tmp_path, {key: value for key, value in FACTS.items() if key not in newer}).read_text()
    assert "| seed | 1 |" in text
    assert "Trained from scratch" in text


def test_energy_is_power_times_time_and_called_an_estimate(tmp_path):
    text = text_of(tmp_path, seconds=7200.0, power={"watts": 350.0, "what": "the power limit of the GPUs"})
    assert "at most 0.7 kWh, an estimate: the power limit of the GPUs, 350 W, for the whole time" in text


@pytest.mark.parametrize(
    ("seconds", "time", "energy"),
    [
        (1.2, "1 second", "0.00012"), (89.0, "89 seconds", "0.0087"), (119.0, "119 seconds", "0.012"),
        (121.0, "2 minutes", "0.012"), (7300.0, "2.0 hours", "0.71"), (4_836_000.0, "1343.3 hours", "470"),
        (123_456_789.0, "34293.6 hours", "12,000"),
    ],
)  # fmt: skip
def test_times_and_energies_are_written_as_people_do(tmp_path, seconds, time, energy):
    text = text_of(tmp_path, seconds=seconds, power={"watts": 350.0, "what": "the limit"})
    assert f"1,000 updates, in {time}." in text
    assert f"at most {energy} kWh" in text


def test_time_before_an_interruption_is_not_made_up(tmp_path):
    text = text_of(tmp_path, resumed_at=600, power={"watts": 100.0, "what": "the limit"})
    assert "those after update 600 took 90 seconds" in text
    assert "before took is unknown" in text
    assert "Only the time above is counted" in text


@pytest.mark.parametrize(
    ("updates", "text"),
    [
        ([1000], "- Weights: after update 1,000."),
        ([800, 900, 1000], "- Weights: the mean of those after updates 800, 900 and 1,000."),
    ],
)
def test_says_which_weights_the_model_has(tmp_path, updates, text):
    assert text in text_of(tmp_path, weights=updates)


def test_a_model_that_began_with_another_says_so(tmp_path):
    text = text_of(tmp_path, init_from="me/first")
    assert "Fine-tuned from me/first" in text
    assert "from scratch" not in text


def test_paths_of_the_machine_that_trained_are_not_shown(tmp_path):
    text = text_of(tmp_path, settings={"init_from": "/elsewhere/first", "tokenizer_name_or_path": "/elsewhere/words"})
    assert "Fine-tuned from first" in text
    assert "| tokenizer_name_or_path | words |" in text
    assert "/elsewhere" not in text


def test_cites_the_paper_and_the_package_as_citation_cff_does(tmp_path):
    text, cff = text_of(tmp_path), yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    (paper,) = cff["references"]
    authors = re.search(r"author = \{(.*?)\},\n", text, re.DOTALL).group(1)
    assert re.findall(r"(\w+), ", authors) == [author["family-names"] for author in paper["authors"]]
    for value in (paper["title"], paper["collection-title"], str(paper["year"]), cff["title"], cff["version"]):
        assert f"{{{value}}}" in text
    assert f"author = {{{{{cff['authors'][0]['name']}}}}}" in text


# The curve ----------------------------------------------------------------------------------------------------------


def test_curve_is_a_small_picture(tmp_path):
    write_card(tmp_path, FACTS)
    content = (tmp_path / "training_curve.png").read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height) == (600, 350)
    assert len(content) < 60_000


def test_curve_draws_what_was_logged(tmp_path, monkeypatch):
    """Plain losses where there are some, else those trained on; what isn't finite is left out."""
    figure = pytest.importorskip("matplotlib.figure")
    lines, plot = {}, figure.Figure.savefig

    def savefig(self, *args, **kwargs):
        (axes,) = self.axes
        lines.update({line.get_label(): line.get_xydata().tolist() for line in axes.lines}, y=axes.get_ylabel())
        return plot(self, *args, **kwargs)

    monkeypatch.setattr(figure.Figure, "savefig", savefig)
    file = tmp_path / "curve.png"
    assert draw_curve(FACTS["history"], file, "token")
    assert lines == {
        "training": [[100, 4.5], [200, 2.5]], "validation": [[200, 2.75]],
        "y": "negative log-likelihood (nats per token)",
    }  # fmt: skip
    history = [
        {"step": 1, "loss": 2.0},
        {"step": 2, "loss": float("nan")},
        {"step": 2, "eval_loss": 1.0, "eval_nll": 0},
    ]
    assert draw_curve(history, file, "example")
    assert lines == {"training": [[1, 2.0]], "validation": [[2, 1.0]], "y": "loss (nats per example)"}


def test_without_matplotlib_the_card_has_no_picture(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "training_curve.png" not in text_of(tmp_path)


# vanilla card -------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(FACTS), encoding="utf-8")
    return folder


def test_what_a_person_knows_is_added_and_kept(run_folder):
    assert main(["card", str(run_folder), "--license", "cc-by-4.0", "--data_origin", "My letters"]) == 0
    assert main(["card", str(run_folder), "--author", "A. Person"]) == 0
    card = ModelCard.load(run_folder / "README.md")
    assert card.data.license == "cc-by-4.0"
    for text in ("files: My letters.", "The model: cc-by-4.0", "trained by A. Person"):
        assert text in card.text
    assert "unknown" not in card.text.partition("## Licence")[2]


def test_a_card_can_be_written_elsewhere(run_folder, tmp_path):
    before = (run_folder / "results.json").read_text()
    assert main(["card", str(run_folder), "--output", str(tmp_path / "new" / "card"), "--author", "A"]) == 0
    assert {path.name for path in (tmp_path / "new" / "card").iterdir()} == {"README.md", "training_curve.png"}
    assert {path.name for path in run_folder.iterdir()} == {"results.json"}
    assert (run_folder / "results.json").read_text() == before


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (None, [], "No such file"),
        ("[]", [], "not what `vanilla train` wrote"),
        ('{"results": []}', [], "not what `vanilla train` wrote"),
        (json.dumps(FACTS), ["--license", "My own licence"], "must be a name as the Hub has them"),
    ],
)
def test_mistakes_are_one_line(run_folder, capsys, content, words, message):
    (run_folder / "results.json").unlink() if content is None else (run_folder / "results.json").write_text(content)
    assert main(["card", str(run_folder), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("folder", sorted((ROOT / "model_card" / "examples").glob("*/")), ids=lambda path: path.name)
def test_committed_cards_are_whole(folder):
    card = ModelCard.load(folder / "README.md")
    assert card.data.to_dict() == metadata_load(folder / "README.md")
    assert card.data.eval_results
    for picture in re.findall(r"!\[.*\]\((.*)\)", card.text):
        assert (folder / picture).is_file()
