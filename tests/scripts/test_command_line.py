"""`vanilla` as its user meets it: output, messages, exit statuses."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from modeling_vanilla.decoding.engines import target_language
from modeling_vanilla.scripts import convert, evaluate, main, tokenizer, train, translate
from modeling_vanilla.scripts.common import run_verb
from tests.fixtures import corpus, train_words, write_corpus

SOURCES, REFERENCES = zip(*corpus(2, 2700, 182), strict=True)
VANILLA = [sys.executable, "-m", "modeling_vanilla.scripts.main"]


def one_line_error(capsys, run, *words):
    """Runs a verb that must end with status 2 and one line on standard error; returns the line."""
    assert run([str(word) for word in words]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line]
    assert len(lines) == 1, captured.err
    assert captured.out == ""
    return lines[0]


def test_help_lists_the_verbs(capsys):
    assert main.main(["--help"]) == 0
    output = capsys.readouterr().out
    for verb in main.VERBS:
        assert f"\n  {verb} " in output


def test_an_unknown_verb_is_corrected(capsys):
    assert "did you mean 'translate'" in one_line_error(capsys, main.main, "transalte")


def test_version(capsys):
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out.count(".") == 2


@pytest.mark.parametrize("verb", main.VERBS)
def test_every_verb_has_help(capsys, verb):
    try:
        status = main.main([verb, "--help"])
    except SystemExit as stop:
        status = stop.code
    assert not status
    assert f"vanilla {verb}" in capsys.readouterr().out


# translate ----------------------------------------------------------------------------------------------------------


def test_translates_a_file_line_by_line(trained, tmp_path, capfd):
    file = tmp_path / "source.txt"
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([SOURCES[0], "", SOURCES[1]]).encode())
    assert translate.run([str(trained), str(file)]) == 0
    lines = capfd.readouterr().out.split("\n")
    expected = (trained / "translations" / "test.txt").read_text().splitlines()
    assert lines == [expected[0], "", expected[1], ""]


def test_translates_a_pipe_as_lines_come(trained):
    """The second line is sent only after the first one's translation is there."""
    process = subprocess.Popen(
        [*VANILLA, "translate", str(trained)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    expected = (trained / "translations" / "test.txt").read_text().splitlines()
    for source, translation in zip(SOURCES[:2], expected, strict=False):
        process.stdin.write(source.encode() + b"\n")
        assert process.stdout.readline().decode().rstrip("\n") == translation
    process.stdin.close()
    assert process.wait(timeout=30) == 0


def test_a_line_separator_inside_a_sentence_is_not_a_line_end(trained, tmp_path, capfd):
    file = tmp_path / "source.txt"
    file.write_text("The big\u2028dog.\x0bThe\x85 man.\n", encoding="utf-8")
    assert translate.run([str(trained), str(file)]) == 0
    assert capfd.readouterr().out.count("\n") == 1


def test_a_small_buffer_changes_nothing(trained, tmp_path, capfd):
    file = tmp_path / "source.txt"
    file.write_text("\n".join(SOURCES), encoding="utf-8")
    outputs = []
    for buffer in ("2000", "1", "4"):
        assert translate.run([str(trained), str(file), "--buffer", buffer]) == 0
        outputs.append(capfd.readouterr().out)
    assert len(set(outputs)) == 1
    assert outputs[0] == (trained / "translations" / "test.txt").read_text()


def test_n_best_has_scores(trained, tmp_path, capfd):
    file = tmp_path / "source.txt"
    file.write_text(SOURCES[0] + "\n", encoding="utf-8")
    assert translate.run([str(trained), str(file), "--n_best", "3"]) == 0
    rows = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert len(rows) == 3
    assert all(float(score) <= 0 and text for score, text in rows)


def test_a_reader_that_stops_early_is_no_error(trained, tmp_path):
    file = tmp_path / "source.txt"
    file.write_text("\n".join(SOURCES * 3), encoding="utf-8")
    command = f"{sys.executable} -m modeling_vanilla.scripts.main translate {trained} {file} --buffer 1 | head -n 1"
    output = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert output.returncode == 0
    assert "Error" not in output.stderr


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (None, [], r"can't be read: No such file"),
        (b"ok\n\xff\xfe\n", [], "line 2: not UTF-8"),
        (b"ok\n", ["--n_best", "9"], "n_best=9"),
        (b"ok\n", ["--buffer", "0"], "--buffer 0"),
        (b"ok\n", ["--num_beam", "2"], "--num_beam"),
        (b"ok\n", ["--num_beams", "two"], "invalid int value"),
        (b"word " * 3000, ["--on_too_long", "refuse"], "line 1: has .* tokens"),
        (b"ok\n", ["--dtype", "float99"], "dtype"),
        (b"ok\n", ["--device", "gpu"], "device='gpu'"),
    ],
)
def test_mistakes_in_translating(trained, tmp_path, capsys, content, words, message):
    import re

    file = tmp_path / "source.txt"
    if content is not None:
        file.write_bytes(content)
    assert translate.run([str(trained), str(file), *words]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert re.search(message, error[0])


def test_a_model_that_is_not_there(tmp_path, capsys):
    file = tmp_path / "a.txt"
    file.write_text("a\n")
    assert "nowhere" in one_line_error(capsys, translate.run, tmp_path / "nowhere", file)


# evaluate -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def test_files(tmp_path):
    for name, texts in (("test.en", SOURCES), ("test.de", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return tmp_path / "test.en", tmp_path / "test.de"


def test_evaluates_as_training_did(trained, test_files, capsys):
    source, target = map(str, test_files)
    assert evaluate.run([str(trained), "--source", source, "--target", target, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    recorded = json.loads((trained / "results.json").read_text())["results"]
    assert report["sentences"] == len(SOURCES)
    assert [(r["name"], r["value"], r["signature"]) for r in report["results"]] == [
        (r["name"], r["value"], r["signature"]) for r in recorded
    ]


def test_a_model_trained_in_bf16_is_scored_as_it_was_saved(tmp_path, test_files, capsys):
    words = train_words(write_corpus(tmp_path / "data"), tmp_path / "out", bf16="true", max_steps=40)
    assert train.run(words) == 0
    capsys.readouterr()
    source, target = map(str, test_files)
    assert evaluate.run([str(tmp_path / "out"), "--source", source, "--target", target, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    recorded = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    assert [r["value"] for r in report["results"]] == [r["value"] for r in recorded]


def test_translations_are_not_made_for_a_place_that_cannot_be_written(trained, test_files, tmp_path, capsys):
    source, target = test_files
    (tmp_path / "file").write_text("")
    words = ["--source", source, "--target", target, "--output", tmp_path / "file" / "out.txt"]
    assert "can't be written" in one_line_error(capsys, evaluate.run, trained, *words)


def test_the_target_language_decides_on_sacrebleus_tokenizer(trained, test_files, capsys, tmp_path):
    """As in training: or the figures beside a Chinese model would not be those that `--save` adds."""
    source, target = map(str, test_files)
    shutil.copytree(trained, tmp_path / "model")
    facts = json.loads((trained / "results.json").read_text())
    (tmp_path / "model" / "results.json").write_text(json.dumps(facts | {"target_lang": "zh_CN"}))
    words = ["--source", source, "--target", target, "--json", "--measures", "bleu"]
    for given, expected in ([], "tok:zh"), (["--tokenize", "intl"], "tok:intl"):
        assert evaluate.run([str(tmp_path / "model"), *words, *given]) == 0
        assert expected in json.loads(capsys.readouterr().out)["results"][0]["signature"]


def test_the_target_language_goes_with_the_tokenizer(trained, tmp_path):
    """Where there is no results.json: in a checkpoint, or on the Hub."""
    shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("results.json"))
    assert target_language(tmp_path / "model") == "de"


def test_evaluates_as_text(trained, test_files, capsys, tmp_path):
    source, target = map(str, test_files)
    words = ["--source", source, "--target", target, "--output", str(tmp_path / "out.txt")]
    assert evaluate.run([str(trained), *words]) == 0
    bleu, chrf = capsys.readouterr().out.splitlines()
    assert bleu.startswith("BLEU ")
    assert " ± " in bleu
    assert chrf.startswith("chrF ")
    assert (tmp_path / "out.txt").read_text() == (trained / "translations" / "test.txt").read_text()


def test_files_of_different_length_are_refused(trained, test_files, capsys):
    source, target = test_files
    with target.open("a") as file:
        file.write("One more.\n")
    error = one_line_error(capsys, evaluate.run, trained, "--source", source, "--target", target)
    assert "15" in error
    assert "16" in error


# tokenizer ----------------------------------------------------------------------------------------------------------


def test_trains_a_tokenizer(test_files, tmp_path, capsys):
    from transformers import AutoTokenizer

    assert tokenizer.run(["--vocab_size", "300", "--output", str(tmp_path / "tok"), *map(str, test_files)]) == 0
    loaded = AutoTokenizer.from_pretrained(tmp_path / "tok")
    assert len(loaded) == 300
    assert loaded.decode(loaded(SOURCES[0]).input_ids, skip_special_tokens=True) == SOURCES[0]


def test_trains_a_tokenizer_from_a_pipe(tmp_path):
    reading, writing = os.pipe()
    os.write(writing, "\n".join(SOURCES).encode())
    os.close(writing)
    words = ["--vocab_size", "300", "--output", str(tmp_path / "tok"), f"/dev/fd/{reading}"]
    assert tokenizer.run(words) == 0
    os.close(reading)


def test_a_tokenizer_for_a_place_that_cannot_be_written_is_refused(test_files, capsys):
    words = ["--vocab_size", "300", "--output", test_files[0], *test_files]
    assert "can't be written" in one_line_error(capsys, tokenizer.run, *words)


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors", "checkpoint-5"])
def test_a_models_own_tokenizer_is_not_replaced(test_files, tmp_path, capsys, name):
    """Its weights would fit the new one no longer."""
    (tmp_path / "model" / name).mkdir(parents=True)
    (tmp_path / "model" / "tokenizer.json").write_text("its own")
    words = ["--vocab_size", "300", "--output", tmp_path / "model", *test_files]
    assert f"holds a model ({name}), " in one_line_error(capsys, tokenizer.run, *words)
    assert (tmp_path / "model" / "tokenizer.json").read_text() == "its own"


def test_a_tokenizer_alone_is_trained_again(test_files, tmp_path):
    from transformers import AutoTokenizer

    for size in (300, 310):
        assert tokenizer.run(["--vocab_size", str(size), "--output", str(tmp_path / "tok"), *map(str, test_files)]) == 0
    assert len(AutoTokenizer.from_pretrained(tmp_path / "tok")) == 310


@pytest.mark.parametrize("vocab_size", ["100", "100000"])
def test_a_vocabulary_of_an_impossible_size_is_refused(test_files, tmp_path, capsys, vocab_size):
    words = ["--vocab_size", vocab_size, "--output", tmp_path / "tok", *test_files]
    assert f"{int(vocab_size):,}" in one_line_error(capsys, tokenizer.run, *words).replace(
        vocab_size, f"{int(vocab_size):,}"
    )


# train --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rte": 1}, "did you mean 'learning_rate'"),
        ({"data_dir": "nowhere"}, "nowhere"),
        ({"target_lang": "fr"}, "no train.fr"),
        ({"vocab_size": 100_000}, "vocab_size=100,000 is above"),
        ({"encoder_attention_heads": 5}, "encoder_attention_heads=5"),
        ({"model": "huge"}, "huge"),
        ({"position_encoding": "rotary", "d_k": 3}, "d_k=3 is odd"),
        ({"norm_position": "sideways"}, "sideways"),
        ({"max_tokens": 3}, "max_tokens=3"),
        ({"dropout": 1.5}, "dropout=1.5"),
    ],
)
def test_mistakes_in_training(tmp_path, capsys, changes, message):
    words = train_words(write_corpus(tmp_path / "data"), tmp_path / "out", **changes)
    assert train.run(words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1
    assert message in lines[0]


def test_an_empty_training_set_is_refused(tmp_path, capsys):
    data = write_corpus(tmp_path / "data")
    for lang in ("en", "de"):
        (data / f"train.{lang}").write_text("")
    assert train.run(train_words(data, tmp_path / "out")) == 2
    assert "the train split has no pairs" in capsys.readouterr().err.splitlines()[-1]


def test_an_output_folder_with_another_model_is_refused(trained, tmp_path, capsys):
    words = train_words(write_corpus(tmp_path / "data"), trained)
    assert "holds a finished model" in one_line_error(capsys, train.run, *words)


def test_a_mistake_costs_nothing_that_would_have_been_overwritten(tmp_path, capsys):
    data, out = write_corpus(tmp_path / "data"), tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors").write_text("weights")
    words = train_words(data, out, vocab_size=100_000, overwrite_output_dir=True)
    assert train.run(words) == 2
    assert "is above" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["model.safetensors"]
    assert (out / "model.safetensors").read_text() == "weights"


def test_a_run_that_is_refused_leaves_nothing_behind(tmp_path, capsys):
    data, out = write_corpus(tmp_path / "data"), tmp_path / "out"
    words = train_words(data, out, optim="lomo")  # which is known when training begins
    assert train.run(words) == 2
    assert "optim=lomo" in capsys.readouterr().err
    assert list(out.iterdir()) == []


def test_weights_are_readable_by_whom_the_config_is(trained, tmp_path):
    assert convert.run([str(trained), str(tmp_path / "int8"), "--to", "int8"]) == 0
    for folder in (trained, tmp_path / "int8"):
        modes = {(folder / name).stat().st_mode & 0o777 for name in ("config.json", "model.safetensors")}
        assert len(modes) == 1


def test_an_interruption_without_a_word_says_that_it_was_one(capsys):
    def interrupted(argv):
        raise KeyboardInterrupt

    assert run_verb("train", interrupted, []) == 130
    assert capsys.readouterr().err == "vanilla train: interrupted\n"


def test_a_test_set_of_one_sentence_has_scores_without_an_interval(tmp_path, capsys):
    words = train_words(write_corpus(tmp_path / "data"), tmp_path / "out", max_steps=2, max_eval_samples=1)
    assert train.run(words) == 0
    output = capsys.readouterr().out
    assert "test: BLEU" in output
    assert "±" not in output


def test_training_ends_with_scores_samples_and_the_lines_that_load(tmp_path, capsys):
    words = train_words(write_corpus(tmp_path / "data"), tmp_path / "out", max_steps=2)
    assert train.run(words) == 0
    output = capsys.readouterr().out
    assert "test: BLEU" in output
    assert output.count("  translation  ") == 10
    assert output.rstrip().endswith("(AutoModelForSeq2SeqLM, AutoTokenizer))")
    lines = [line.strip() for line in output.splitlines() if line.strip()][-2:]
    names: dict = {}
    exec("\n".join(lines), names)
    assert names["model"].config.model_type == "vanilla"
