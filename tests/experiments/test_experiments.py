"""The experiments' own arithmetic, and that each runs to its report (in small, slow)."""

import itertools
import math
import random
import re
import statistics
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.decoding import Translator
from modeling_vanilla.experiments import (
    NAMES,
    attention_backends,
    attention_maps,
    decoding,
    length_extrapolation,
    table3,
)
from modeling_vanilla.experiments.common import Options, Report, once, write
from modeling_vanilla.scripts import experiment

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.05), (0.0, 0.05), (0.3, 0.0)])
def test_the_fit_finds_what_made_the_times(a, b):
    cells = {n: {"both": a * n / 1000 + b * (n / 1000) ** 2} for n in (512, 1024, 4096)}
    assert attention_backends.quadratic(cells, "both") == pytest.approx((a, b), abs=1e-9)


@pytest.mark.parametrize(("seconds", "alone"), [((0.1, 0.15, 0.2), 0), ((0.1, 0.5, 3.0), 1)])
def test_neither_part_of_the_fit_is_below_0(seconds, alone):
    cells = {n: {"both": value} for n, value in zip((256, 512, 1024), seconds, strict=True)}
    found = attention_backends.quadratic(cells, "both")
    assert found[alone] > 0
    assert found[1 - alone] == 0


def test_backends_that_do_not_run_are_not_compared():
    cell = {"forward": 1.0, "both": 2.0, "megabytes": 10.0, "difference": 0.0}
    cells = {("eager", "fp32"): {512: cell}, ("sdpa", "fp32"): {512: cell, 1024: cell}, ("sdpa", "bf16"): {512: cell}}
    text = attention_backends.sentence(cells)
    assert "sdpa in fp32 takes 1/1.0 of eager's time and 1/1.0 of its memory at 512 positions" in text
    assert "bf16" not in text


def test_runs_of_other_data_or_settings_have_other_folders(tmp_path):
    made = []

    def make(folder):
        made.append(folder)
        return {"figure": len(made)}

    options = Options(folder=tmp_path)
    for settings in ({"data": "one"}, {"data": "other"}, {"data": "one"}):
        _, found = once(options, "a run, w/o x", settings, make)
    assert found["figure"] == 1
    assert len(set(made)) == len(made) == 2
    assert options.spent == [0.0, 0.0, found["seconds"]]  # of the one that was there


def test_one_run_takes_one_seed():
    assert Options(seeds=(3,)).seed == 3
    with pytest.raises(ValueError, match="--seeds 1 2: this experiment has one run"):
        _ = Options(seeds=(1, 2)).seed


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a_backend_is_measured_and_gives_eagers_output(backend):
    cell = attention_backends.measure(backend, "fp32", 64, "cpu")
    assert 0 < cell["forward"] < cell["both"]
    assert cell["difference"] < 1e-5


def test_generated_tasks_are_copies_and_mirrors_of_the_lengths_asked():
    for task, step in (("copy", 1), ("reverse", -1)):
        pairs = length_extrapolation.generated(task, 50, 3, 7, 30, 0)
        assert all(target[:-1] == source[:-1][::step] and target[-1] == 2 for source, target in pairs)
        assert {len(source) - 1 for source, _ in pairs} == set(range(3, 8))


def test_paragraphs_are_sentences_joined_up_to_a_length():
    pairs = [([n, n, 2], [n, 2]) for n in range(10, 40)]
    found = length_extrapolation.paragraphs(pairs, 4, 8)
    assert all(4 < len(source) <= 8 for source, _ in found)
    for source, target in found:
        first = target[0]
        assert target == [*range(first, first + len(target) - 1), 2]
        assert source == [n for one in target[:-1] for n in (one, one)] + [2]


@pytest.mark.parametrize(("shortest", "longest"), [(0, 64), (32, 64), (128, 256)])
def test_paragraphs_are_as_long_as_their_column_says(shortest, longest):
    generator = random.Random(1)
    pairs = [([7] * generator.randint(4, 16) + [2], [8] * 3 + [2]) for _ in range(2000)]
    lengths = [len(source) for source, _ in length_extrapolation.paragraphs(pairs, shortest, longest)]
    assert shortest < min(lengths) <= shortest + 16
    assert 0.9 * longest < max(lengths) <= longest
    assert statistics.mean(lengths) == pytest.approx((shortest + longest) / 2, abs=8)  # a sentence's length


def test_perplexity_and_accuracy_are_those_of_a_plain_loop():
    torch.manual_seed(0)
    config = VanillaConfig(
        vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
    )  # fmt: skip
    model, pairs = (
        VanillaForConditionalGeneration(config).eval(),
        length_extrapolation.generated("copy", 9, 1, 6, 30, 1),
    )
    nll, right, tokens = 0.0, 0, 0
    for source, target in pairs:
        logits = model(torch.tensor([source]), decoder_input_ids=torch.tensor([[1, *target[:-1]]])).logits[0]
        nll -= float(logits.log_softmax(-1)[range(len(target)), target].sum())
        right += int((logits.argmax(-1) == torch.tensor(target)).sum())
        tokens += len(target)
    found = length_extrapolation.scored(model, pairs, batch=4)
    assert found == pytest.approx((math.exp(nll / tokens), right / tokens))


@pytest.mark.parametrize("size", ["full", "published"])
@pytest.mark.parametrize("row", table3.TABLE, ids=lambda row: table3.named(*row[:2]))
def test_each_row_of_table_3_is_a_recipe_that_changes_what_it_says(row, size):
    change = row[2 if size == "published" else 1]
    base, changed = (table3.settings_of(x, Options(size=size)) for x in ({}, change))
    different = {name for name in changed if changed[name] != base.get(name)}
    assert len(different) == sum(2 if name in ("heads", "layers", "ffn", "d_model") else 1 for name in change)
    by_width = base["learning_rate"] * (base["d_model"] / changed["d_model"]) ** 0.5  # as in the paper
    assert changed["learning_rate"] == pytest.approx(change.get("learning_rate", by_width))
    model = {name: value for name, value in changed.items() if name in VanillaConfig.__dataclass_fields__}
    assert isinstance(VanillaConfig(**model), VanillaConfig)


def test_a_change_counts_from_two_per_cent_of_perplexity():
    assert [table3.moved(x) for x in (-2.0, -1.9, 0.0, 1.9, 2.0)] == ["lower", "alike", "alike", "alike", "higher"]


@pytest.mark.parametrize(("ids", "answer"), [
    ([1, 2, 3, 1, 2, 3], True), ([9, 1, 2, 3, 4, 1, 2, 3, 4, 7], True), ([1, 1, 1], False), ([], False),
    ([1, 2, 3, 4, 1, 2, 3], False), ([5] * 6, True), ([*range(7)] * 2, True),
])  # fmt: skip
def test_repetitions_are_three_tokens_twice_in_a_row(ids, answer):
    assert decoding.repeats(ids) is answer


def test_the_cache_grows_by_the_keys_and_values_of_a_token_and_is_given_back(trained):
    model = Translator.from_pretrained(trained)
    source = "the dog sees a cat"
    sizes, returned = decoding.cache_bytes(model, source, 5)
    config = model.model.config
    width = 4 * 2 * config.decoder_layers * config.d_model  # bytes of a token's keys and values in all layers
    assert {b - a for a, b in itertools.pairwise(sizes)} == {width}
    assert sizes[0] == width * (1 + len(model.tokenizer(source).input_ids))
    assert returned


def test_entropy_is_0_for_one_key_and_1_for_all_alike():
    one, causal = torch.eye(5)[None, None], torch.tril(torch.ones(5, 5))
    assert attention_maps.spread(one, False).item() == 0
    assert attention_maps.spread(torch.full((1, 1, 5, 5), 0.2), False).item() == pytest.approx(1)
    even = (causal / causal.sum(-1, keepdim=True))[None, None]
    assert attention_maps.spread(even, True).item() == pytest.approx(1)


def test_nearness_counts_the_places_before_at_and_after():
    before = torch.eye(6).roll(-1, 1)[None, None]  # row i looks at i - 1, and the first at the last
    assert attention_maps.nearness(before)[0, 0].tolist() == pytest.approx([5 / 6, 0, 0])
    assert attention_maps.nearness(before.mT)[0, 0].tolist() == pytest.approx([0, 0, 5 / 6])


def test_the_dictionary_finds_words_that_come_together():
    known = attention_maps.dictionary(
        ["a dog", "a cat", "two cats", "a dog"], ["x hund", "x katze", "zwei", "x hund"], 1
    )
    assert known == {"x": {"a"}, "hund": {"dog"}, "katze": {"cat"}, "zwei": {"two"}}
    assert attention_maps.agreement([[(0, 0), (0, 1)]], ["a dog"], ["x hund"], known) == 0.5


def test_a_report_replaces_its_section_of_the_page_and_no_other(tmp_path):
    page = tmp_path / "experiments.md"
    page.write_text("<!-- one -->\nold\n<!-- end of one -->\n<!-- two -->\nkept\n<!-- end of two -->\n")
    report = Report([(("a", "b"), [(1, 2)])], Figure(), r"Found \1 that.", "nothing")
    write(report, "two", Options(), "vanilla experiment two", 30, page)
    assert "`vanilla experiment two`: 0.5 minutes; nothing" in page.read_text()
    page.write_text(page.read_text().replace("0.5", "kept"))
    write(report, "one", Options(spent=[10.0, 20.0]), "vanilla experiment one", 90, page)
    text = page.read_text()
    assert "old" not in text
    assert "kept" in text
    assert "`vanilla experiment one`: 2.0 minutes, trainings included" in text
    assert "| 1 | 2 |" in text
    assert r"Found \1 that." in text
    assert (tmp_path / "experiments" / "one.png").is_file()
    with pytest.raises(ValueError, match="no section <!-- three -->"):
        write(report, "three", Options(), "", 0, page)
    assert not (tmp_path / "experiments" / "three.png").exists()


def test_every_experiment_has_its_section_and_is_short():
    page = (ROOT / "docs" / "experiments.md").read_text()
    for name in NAMES:
        assert re.search(rf"<!-- {name} -->\n.+<!-- end of {name} -->", page, re.DOTALL)
        assert len((ROOT / "experiments" / f"{name}.py").read_text().splitlines()) < 150


@pytest.mark.parametrize(("words", "said"), [
    (["nothing"], "invalid choice: 'nothing'"),
    (["patches", "--data_dir", "nowhere"], "there is no folder multi30k in it"),
    (["patches", "--docs", "nowhere.md"], "there is no such page"),
])  # fmt: skip
def test_what_cannot_be_done_is_said_in_a_line(words, said, capsys):
    assert experiment.run(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_runs_in_small(name, tmp_path):
    assert experiment.run([name, "--output_dir", str(tmp_path)]) == 0
    text = (tmp_path / f"{name}.md").read_text()
    assert "| --- |" in text
    assert (tmp_path / f"{name}.png").stat().st_size > 5000
