"""`vanilla translate`, `score`, `attention` and `evaluate` beyond the plain cases."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from modeling_vanilla.decoding import Glossary, Translator
from modeling_vanilla.scripts import attention, card, evaluate, score, translate

from .test_command_line import REFERENCES, SOURCES, one_line_error


@pytest.fixture
def files(tmp_path):
    for name, texts in (("test.en", SOURCES), ("test.de", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return tmp_path / "test.en", tmp_path / "test.de"


def lines(capfd) -> list[str]:
    return capfd.readouterr().out.splitlines()


def test_translates_as_told(trained, files, capfd):
    options = {"num_beams": 3, "length_penalty": 0.6, "length_penalty_type": "paper", "max_len_a": 0.5, "max_len_b": 3}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    assert translate.run([str(trained), str(files[0]), *words, "--early_stopping", "never", "--scores"]) == 0
    expected = Translator.from_pretrained(trained).translate(SOURCES, **options, early_stopping="never")
    assert lines(capfd) == [f"{t.score:.4f}\t{t.text}" for t in expected]


def test_an_ensemble_from_the_command_line(trained, files, capfd, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    assert translate.run([str(trained), str(files[0]), "--ensemble", str(copy), str(copy)]) == 0
    assert lines(capfd) == (trained / "translations" / "test.txt").read_text().splitlines()
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "another tokenizer" in one_line_error(capfd, translate.run, trained, files[0], "--ensemble", copy)


def test_prefixes_and_a_glossary_from_files(trained, files, tmp_path, capfd):
    prefixes, glossary = tmp_path / "prefixes", tmp_path / "terms.tsv"
    prefixes.write_text("\n".join(["Der alte", *[""] * (len(SOURCES) - 1)]) + "\n", encoding="utf-8")
    glossary.write_text("ball\tTisch\n", encoding="utf-8")
    words = ["--prefixes", str(prefixes), "--glossary", str(glossary), "--buffer", "4"]
    assert translate.run([str(trained), str(files[0]), *words]) == 0
    found = lines(capfd)
    assert found[0].startswith("Der alte")
    for source, translation in zip(SOURCES, found, strict=True):
        assert ("ball" not in source) or ("Tisch" in translation)
    for count, message in ((3, "fewer lines"), (20, "more lines")):
        prefixes.write_text("\n" * count, encoding="utf-8")
        assert translate.run([str(trained), str(files[0]), *words]) == 2
        assert message in capfd.readouterr().err


def test_alignments_beside_the_translations(trained, files, tmp_path, capfd):
    file = tmp_path / "alignments"
    assert translate.run([str(trained), str(files[0]), "--alignments", str(file), "--buffer", "4"]) == 0
    translations, alignments = lines(capfd), file.read_text().splitlines()
    for source, translation, alignment in zip(SOURCES, translations, alignments, strict=True):
        pairs = [tuple(map(int, pair.split("-"))) for pair in alignment.split()]
        assert sorted(t for _, t in pairs) == list(range(len(translation.split())))
        assert all(s < len(source.split()) for s, _ in pairs)


def test_scores_are_the_translators(trained, files, capfd):
    words = [str(trained), "--source", str(files[0]), "--target", str(files[1])]
    expected = Translator.from_pretrained(trained).score(SOURCES, REFERENCES)
    assert score.run([*words, "--buffer", "4"]) == 0
    assert [float(line) for line in lines(capfd)] == pytest.approx([s.total for s in expected], abs=1e-3)
    assert score.run([*words, "--tokens", "--normalize"]) == 0
    for line, scored in zip(lines(capfd), expected, strict=True):
        record = json.loads(line)
        assert record["log_prob"] == pytest.approx(scored.total / len(scored.tokens), abs=1e-4)
        assert [token for token, _ in record["tokens"]] == [token for token, _ in scored.tokens]


def test_scores_need_a_batch_of_some_tokens(trained, files, capfd):
    error = one_line_error(capfd, score.run, trained, "--source", files[0], "--target", files[1], "--max_tokens", -3)
    assert "max_tokens=-3" in error


def test_a_line_too_long_is_refused_by_its_number_in_the_file(trained, tmp_path, capfd):
    (tmp_path / "some.en").write_text("a\n\na\n" + "word " * 3000 + "\na\n")
    words = [str(trained), str(tmp_path / "some.en"), "--buffer", "2", "--on_too_long", "refuse"]
    assert translate.run(words) == 2
    (error,) = capfd.readouterr().err.splitlines()
    assert "some.en, line 4: has " in error
    assert "use --on_too_long split" in error


def test_scores_of_unequal_files_are_refused(trained, files, capfd):
    with files[1].open("a") as file:
        file.write("One more.\n")
    error = one_line_error(capfd, score.run, trained, "--source", files[0], "--target", files[1], "--buffer", 100)
    assert "16" in error


@pytest.mark.parametrize("head", [[], ["--head", "1"]])
def test_attention_is_drawn(trained, tmp_path, head):
    file = tmp_path / "a.png"
    assert attention.run([str(trained), "--source", "The big dog costs 5$.", "--output", str(file), *head]) == 0
    with Image.open(file) as image:
        assert image.width > 300
        assert len(image.convert("L").getcolors()) > 3  # the shades of weights, not a blank page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layer", "7"], "layer=7"),
        (["--head", "9"], "head=9"),
        (["--output", "a.xyz"], "a.xyz: can't be written"),
        (["--output", "a"], "a: must be a file's name that says its format"),
    ],
)
def test_what_cannot_be_drawn_is_named(trained, capfd, words, message):
    assert message in one_line_error(capfd, attention.run, trained, "--source", "The dog.", *words)


@pytest.mark.parametrize(("source", "target"), [("", None), (" \u3000", None), ("The dog.", "")])
def test_an_empty_sentence_is_not_drawn(trained, tmp_path, capfd, source, target):
    words = ["--source", source, *(["--target", target] if target is not None else [])]
    error = one_line_error(capfd, attention.run, trained, *words, "--output", tmp_path / "a.png")
    assert "is empty, so there is nothing to draw" in error
    assert not (tmp_path / "a.png").exists()


def test_drawing_without_matplotlib_names_the_extra(trained, capfd, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert "vanilla-transformer[plots]" in one_line_error(capfd, attention.run, trained, "--source", "The dog.")


def test_what_is_read_is_not_written_over(trained, files, tmp_path, capfd):
    source, target = files
    (tmp_path / "link").symlink_to(target)
    (tmp_path / f"{trained.name}.txt").write_bytes(target.read_bytes())  # what this system would be called
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    data = ["--source", source, "--target", target]
    for verb, words, message in (
        (translate, [source, "--alignments", source], f"--alignments {source}: would overwrite {source}"),
        (translate, [source, "--prefixes", target, "--alignments", tmp_path / "link"], f"would overwrite {target}"),
        (translate, [source, "--alignments", tmp_path / "a.gz"], "is written as plain text: leave out .gz"),
        (evaluate, [*data, "--output", target], f"--output {target}: would overwrite {target}"),
        (evaluate, [tmp_path / f"{trained.name}.txt", *data, "--output", tmp_path], "would overwrite"),
    ):
        assert message in one_line_error(capfd, verb.run, trained, *words)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_after_an_ensemble_is_no_model(trained, files, capfd):
    words = ["--ensemble", trained, files[0]]
    assert "give files before --ensemble" in one_line_error(capfd, translate.run, trained, *words)


def test_systems_are_compared(trained, files, tmp_path, capsys):
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text("".join(f"{text}\n" for text in REFERENCES), encoding="utf-8")
    bad.write_text("".join(f"x {text[4:]}\n" for text in REFERENCES), encoding="utf-8")
    words = [str(good), str(bad), str(trained), "--source", str(files[0]), "--target", str(files[1])]
    words += ["--bootstrap", "200", "--trials", "200", "--measures", "bleu", "ter"]
    assert evaluate.run(words) == 0
    table = capsys.readouterr().out
    assert table.count("good.txt") == table.count("bad.txt") == 2
    assert "100.00 ± 0.00" in table
    assert "tok:13a" in table
    assert "tok:tercom" in table
    assert evaluate.run([*words, "--json", "--output", str(tmp_path / "out")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["comparisons"]) == 6
    assert report["comparisons"][1]["p_randomization"] < 0.05
    assert (tmp_path / "out" / f"{trained.name}.txt").read_text() == (trained / "translations" / "test.txt").read_text()


@pytest.mark.parametrize(
    ("systems", "names"),
    [
        (["x/m", "y/n"], ["m", "n"]),
        (["x/m", "y/m"], ["x_m", "y_m"]),
        (["x/m", "y/m", "x_m"], ["1_x_m", "2_y_m", "3_x_m"]),
    ],
)
def test_systems_are_told_apart_by_their_names(systems, names):
    assert evaluate.system_names(systems) == names


def test_a_measure_that_is_named_twice_is_printed_once(files, capsys):
    words = [str(files[1]), "--source", str(files[0]), "--target", str(files[1]), "--bootstrap", "0"]
    assert evaluate.run([*words, "--measures", "bleu", "bleu"]) == 0
    assert capsys.readouterr().out.count("BLEU") == 1


def test_a_file_of_another_length_is_no_system(trained, files, tmp_path, capsys):
    short = tmp_path / "short.txt"
    short.write_text("a\n")
    error = one_line_error(capsys, evaluate.run, trained, short, "--source", files[0], "--target", files[1])
    assert "short.txt: has 1 lines" in error


def test_an_unknown_measure_is_refused_at_once(files, capsys):
    words = ["--source", files[0], "--target", files[1], "--measures", "rouge"]
    assert "'rouge' is unknown" in one_line_error(capsys, evaluate.run, Path("nowhere"), *words)


def test_figures_are_saved_with_the_model(trained, files, tmp_path, capsys):
    model = tmp_path / "model"
    shutil.copytree(trained, model)
    before = json.loads((model / "results.json").read_text())["results"]
    words = [str(model), "--source", str(files[0]), "--target", str(files[1]), "--save"]
    assert evaluate.run([*words, "--measures", "ter", "bleu"]) == 0
    results = json.loads((model / "results.json").read_text())["results"]
    assert {(r["dataset"], r["name"]) for r in results} == {(r["dataset"], r["name"]) for r in before} | {
        ("test", "TER")
    }
    assert "TER" in (model / "README.md").read_text()
    (model / "results.json").write_text("[]")
    assert evaluate.run(words) == 2
    assert "not what `vanilla train` wrote" in capsys.readouterr().err


def test_a_card_that_somebody_wrote_into_stays(trained, files, tmp_path, capsys, caplog):
    model, card_file = tmp_path / "model", tmp_path / "model" / "README.md"
    shutil.copytree(trained, model)
    assert card.run([str(model), "--author", "A"]) == 0  # our own is written anew
    assert "trained by A" in card_file.read_text()
    assert card.run([str(model), "--author", ""]) == 0
    assert "trained by" not in card_file.read_text()
    card_file.write_text(f"{card_file.read_text()}\nOf our own.\n")
    assert evaluate.run([str(model), "--source", str(files[0]), "--target", str(files[1]), "--save"]) == 0
    assert "it stays as it is" in caplog.text
    results = (model / "results.json").read_text()
    (tmp_path / "README.md").write_text("# Another project")
    for words in ([model], [model, "--output", tmp_path]):
        capsys.readouterr()
        assert "move it away" in one_line_error(capsys, card.run, *words, "--license", "mit")
    assert card_file.read_text().endswith("Of our own.\n")
    assert (tmp_path / "README.md").read_text() == "# Another project"
    assert (model / "results.json").read_text() == results
    (tmp_path / "README.md").unlink()
    for license in ("mit", "mit"):  # the second time over its own
        assert card.run([str(model), "--license", license, "--output", str(tmp_path)]) == 0


def test_a_figure_that_is_replaced_is_named(trained, files, tmp_path, caplog):
    model = tmp_path / "model"
    shutil.copytree(trained, model)
    files[1].write_text("".join(f"x {text}\n" for text in REFERENCES), encoding="utf-8")
    assert evaluate.run([str(model), "--source", str(files[0]), "--target", str(files[1]), "--save"]) == 0
    assert "BLEU of test is replaced: " in caplog.text


def test_what_a_comparison_or_saving_lacks_is_known_before_translating(trained, files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("modeling_vanilla.decoding.translator.Translator.from_pretrained", None)
    data = ["--source", files[0], "--target", files[1]]
    for words, message in (
        ([trained, files[1], *data, "--bootstrap", 1], "a comparison needs"),
        ([trained, files[1], *data, "--trials", 0], "--trials 0: a comparison needs at least 1"),
        ([files[1], *data, "--trials", -7], "--trials -7: a comparison needs at least 1"),
        ([files[1], *data, "--save"], "results.json"),
        ([trained, *data, "--output", tmp_path], "is a folder"),
        ([trained, *data, "--bootstrap", 1], "at least 2 resamplings"),
        ([trained, *data, "--save", "--ensemble", trained], "leave out --ensemble"),
        ([trained, *data, "--save", "--num_beams", 1, "--lowercase"], "leave out --num_beams, --lowercase"),
        ([trained, *data, "--save", "--tokenize", "none"], "leave out --tokenize"),
        ([files[1], *data, "--num_beams", 8], "--num_beams: the systems are finished translations"),
    ):
        assert message in one_line_error(capsys, evaluate.run, *words)


def test_a_figure_is_saved_under_the_name_that_training_gives_the_file():
    assert evaluate.data_set_name("x/test_2016.lc.norm.tok.en.gz") == "test_2016.lc.norm.tok"
    assert evaluate.data_set_name("test.en") == "test"


def test_a_compressed_file_is_translated_as_it_is_plain(trained, files, tmp_path, capfd):
    with gzip.open(tmp_path / "some.en.gz", "wb") as file:
        file.write(Path(files[0]).read_bytes())
    assert translate.run([str(trained), str(files[0])]) == 0
    plain = lines(capfd)
    assert translate.run([str(trained), str(tmp_path / "some.en.gz"), "--buffer", "3"]) == 0
    assert lines(capfd) == plain


def test_a_glossary_comes_through_a_pipe_and_is_never_empty(trained, tmp_path, capfd):
    (tmp_path / "none.tsv").write_text("")
    with os.fdopen(pipe_of(b"dog\tStuhl\n")) as pipe:
        assert Glossary.read(f"/dev/fd/{pipe.fileno()}").terms == {"dog": "Stuhl"}
    assert translate.run([str(trained), str(tmp_path / "none.tsv"), "--glossary", str(tmp_path / "none.tsv")]) == 2
    assert "has no terms" in capfd.readouterr().err


def pipe_of(data: bytes) -> int:
    read, write = os.pipe()
    with os.fdopen(write, "wb") as file:
        file.write(data)
    return read


def test_a_line_too_long_for_the_table_has_no_alignment_and_the_rest_goes_on(trained, caplog):
    translator = Translator.from_pretrained(trained)
    short, long = SOURCES[0], " ".join(["dog"] * 60)
    expected = translator.align([short], [short])

    def align(sources, targets, max_tokens):
        if long in sources:
            raise ValueError("300 positions are more than 64")
        return Translator.align(translator, sources, targets, max_tokens=max_tokens)

    translator.align = align
    assert translate.aligned(translator, [short, long, short], [short] * 3, 100) == [expected[0], (), expected[0]]
    assert "no alignment of 'dog dog" in caplog.text


def test_a_pair_too_long_for_the_table_is_named_by_its_line(trained, tiny_model, files, tmp_path, capfd):
    size = {"vocab_size": 340, "position_encoding": "learned", "max_position_embeddings": 40}
    tiny_model(**size).save_pretrained(tmp_path / "model")
    Translator.from_pretrained(trained).tokenizer.save_pretrained(tmp_path / "model")
    for file in files:
        file.write_text("dog\n" * 3 + "dog " * 60 + "\n", encoding="utf-8")
    words = [tmp_path / "model", "--source", files[0], "--target", files[1], "--buffer", "2"]
    assert score.run(list(map(str, words))) == 2
    error = capfd.readouterr().err
    assert "test.en, line 4: has 62 tokens a side, but the model has learned positions for 40: shorten it" in error


def test_as_many_hypotheses_for_every_line(trained, tmp_path, capfd):
    (tmp_path / "some.en").write_text(f"{SOURCES[0]}\n\n{SOURCES[1]}\n \n", encoding="utf-8")
    assert translate.run([str(trained), str(tmp_path / "some.en"), "--n_best", "3"]) == 0
    rows = lines(capfd)
    assert len(rows) == 12
    assert rows[3:6] == ["0.0000\t"] * 3


def test_a_full_disk_is_one_line(trained, files):
    words = [sys.executable, "-m", "modeling_vanilla.scripts.main", "translate", str(trained), str(files[0])]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["vanilla translate: error: [Errno 28] No space left on device"]
