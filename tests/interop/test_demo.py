"""The page to try a model on: what its functions do, and that it serves them (test_demo_browser.py looks at it)."""

import base64
import re
import socket
import sys
import warnings
import xml.etree.ElementTree as ET

import pytest

from modeling_vanilla.decoding import Translator
from modeling_vanilla.decoding.engines import OTHER_ENGINES
from modeling_vanilla.interop import demo
from modeling_vanilla.scripts.main import main
from tests.fixtures import corpus

SOURCES = [source for source, _ in corpus(5, 2700, 450)]


@pytest.fixture(scope="module")
def translator(trained):
    return Translator.from_pretrained(trained)


def svg(image: str) -> ET.Element:
    return ET.fromstring(base64.b64decode(re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', image).group(1)))


def texts(image: str) -> list[str]:
    return ["".join(element.itertext()) for element in svg(image).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_lines_are_translated_by_themselves_and_empty_ones_stay(translator, line_end):
    text, sentences = demo.translate(translator, line_end.join([SOURCES[0], "", " ", SOURCES[1], ""]), 4)
    expected = translator.translate(SOURCES[:2], num_beams=4, n_best=4)
    assert text.split("\n") == [expected[0].text, "", "", expected[1].text, ""]
    assert [sentence.source for sentence in sentences] == SOURCES[:2]
    assert [sentence.n_best for sentence in sentences] == [translation.n_best for translation in expected]


@pytest.mark.parametrize("text", ["", " ", "\n\n"])
def test_nothing_is_translated_to_nothing(translator, text):
    translated, sentences = demo.translate(translator, text, 4)
    assert (translated.strip(), sentences, demo.alternatives(sentences)) == ("", [], [])


def test_a_line_too_long_for_the_model_is_translated_in_parts(translator, monkeypatch):
    monkeypatch.setattr(translator.tokenizer, "model_max_length", 30)
    line = " ".join(SOURCES)
    text, sentences = demo.translate(translator, line, 1)
    assert text == translator.translate([line], num_beams=1)[0].text
    assert len(sentences) > 1
    assert " ".join(sentence.source for sentence in sentences) == line


def test_a_text_too_long_for_the_page_is_refused(translator):
    with pytest.raises(ValueError, match=r"10,001 characters, and this page takes 10,000: shorten it"):
        demo.translate(translator, "a" * 10_001, 1)


def test_alternatives_are_numbered_with_their_scores(translator):
    _, sentences = demo.translate(translator, "\n".join(SOURCES[:2]), 3)
    rows = demo.alternatives(sentences)
    assert [row[:2] for row in rows] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    found = [pair for t in translator.translate(SOURCES[:2], num_beams=3, n_best=3) for pair in t.n_best]
    assert [(row[3], float(row[2])) for row in rows] == [(text, pytest.approx(s, abs=6e-4)) for text, s in found]


def test_picture_is_of_the_layer_and_head_asked_for(translator):
    pytest.importorskip("matplotlib")
    _, (sentence,) = demo.translate(translator, SOURCES[0], 1)
    heads = translator.model.config.decoder_attention_heads
    images = [demo.attention(translator, sentence, 0, head) for head in ("mean", *range(heads))]
    assert len(set(images)) == heads + 1
    assert demo.attention(translator, sentence, 0, "mean") == images[0]
    assert "decoder layer 0, mean of the heads" in texts(images[0])
    assert f"decoder layer 0, head {heads - 1}" in texts(images[-1])


def test_tokens_are_drawn_as_they_are(translator, monkeypatch):
    """Neither as HTML nor as a formula, and without a word about letters that the drawing's font hasn't got."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(translator.tokenizer, "convert_ids_to_tokens", lambda ids: ["$x$ <b>漢&"] * len(ids))
    sentence = demo.Sentence('<b onload="x">', (('"><script>', 0.0),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = demo.attention(translator, sentence, 0, 0)
    assert "<script" not in image
    assert "<b" not in image
    assert texts(image).count("$x$␣<b>漢&") >= 4


def test_what_is_too_wide_to_read_is_not_drawn(translator):
    sentence = demo.Sentence(" ".join(SOURCES * 2), (("Der Hund.", 0.0),))
    assert "up to 80 are drawn" in demo.attention(translator, sentence, 0, 0)


def test_a_converted_model_is_refused(tmp_path):
    (tmp_path / OTHER_ENGINES["ctranslate2"]).touch()
    with pytest.raises(ValueError, match="was converted"):
        demo.build(tmp_path)


@pytest.mark.parametrize("missing", ["gradio", "matplotlib"])
def test_without_what_it_needs_it_says_how_to_get_it(trained, monkeypatch, capsys, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["demo", str(trained)]) == 2
    assert 'pip install "vanilla-transformer[demo]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"), [(["--port", "0"], "must be from 1 to 65535"), (["--share", "maybe"], "invalid choice")]
)
def test_mistakes_are_one_line(trained, capsys, words, message):
    assert main(["demo", str(trained), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


# Served -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(trained):
    pytest.importorskip("gradio")
    page = demo.build(trained)
    page.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", max_file_size=demo.UPLOAD)
    yield page
    page.close()


def test_page_translates(page, translator):
    from gradio_client import Client

    client = Client(page.local_url, verbose=False)
    text, rows, _ = client.predict(SOURCES[0], 4, api_name="/translate")
    expected = translator.translate(SOURCES[:1], num_beams=4, n_best=4)[0]
    assert text == expected.text
    assert [row[3] for row in rows["data"]] == [text for text, _ in expected.n_best]
    with pytest.raises(Exception, match="this page takes 10,000"):
        client.predict("a" * 10_001, 4, api_name="/translate")


def test_page_tells_nobody(page):
    assert page.analytics_enabled is False
    assert "https://fonts" not in page.theme_css


def test_page_takes_no_files(page):
    import httpx

    answer = httpx.post(f"{page.local_url}gradio_api/upload", files={"files": ("a.txt", b"aa")})
    assert (answer.status_code, "maximum allowed size of 1 bytes" in answer.text) == (413, True)


def test_the_command_takes_no_files(trained, monkeypatch):
    asked = {}

    class Page:
        def launch(self, **settings):
            asked.update(settings)
            return None, "http://127.0.0.1", None

        def block_thread(self):
            pass

    monkeypatch.setattr(demo, "build", lambda *_: Page())
    assert main(["demo", str(trained)]) == 0
    assert asked["max_file_size"] == demo.UPLOAD


def test_a_port_that_is_taken_is_named(trained, capsys):
    pytest.importorskip("gradio")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["demo", str(trained), "--port", port]) == 2
    assert f"--port {port}: " in capsys.readouterr().err
