"""The preparation of IWSLT 2014 from an archive of its form."""

import bz2
import gzip
import io
import lzma
import random
import tarfile

import pytest

from modeling_vanilla.data.iwslt14 import TEST_SETS, prepare_iwslt14
from modeling_vanilla.scripts.main import main

HEAD = "<url>http://x</url>\n<keywords>a, b</keywords>\n<speaker>S</speaker>\n<talkid>1</talkid>\n"


def archive(path, train: int = 46, without: str = "", more: str = ""):
    with tarfile.open(path, "w:gz") as tar:
        for lang in ("de", "en"):
            lines = [f"<title>Titel {lang}, eins</title>", "<description>TED: Ja.</description>"]
            lines += [f"Satz {number} ist gut." for number in range(train)]
            lines += ["kurz" if lang == "de" else "very very long", " ".join(["w"] * 176)]
            files = {f"train.tags.de-en.{lang}": HEAD + "\n".join(lines) + "\n" + (more if lang == "en" else "")}
            for name in TEST_SETS:
                segments = "".join(f'<seg id="{n}"> {name} It\u2019s {n}. </seg>\n' for n in (1, 2))
                files[f"IWSLT14.{name}.de-en.{lang}.xml"] = f"<doc><talkid>2</talkid>\n{segments}</doc>"
            for name, text in files.items():
                if name != without:
                    info = tarfile.TarInfo(f"de-en/{name}")
                    info.size = len(text.encode())
                    tar.addfile(info, io.BytesIO(text.encode()))
    return path


def test_writes_what_fairseqs_script_does(tmp_path):
    counts = prepare_iwslt14(archive(tmp_path / "de-en.tgz"), tmp_path / "out")
    assert counts == {"train": 46, "val": 2, "test": 10}  # 48 pairs: two heads and 46; the last two are dropped
    train = (tmp_path / "out" / "train.de").read_text().splitlines()
    assert train[:3] == ["titel de , eins", "ted : ja .", "satz 0 ist gut ."]
    assert "satz 20 ist gut ." not in train
    assert (tmp_path / "out" / "val.en").read_text().splitlines()[0] == "satz 20 ist gut ."  # the 23rd
    test = (tmp_path / "out" / "test.en").read_text().splitlines()
    assert test[0] == "ted.dev2010 it &apos;s 1 ."
    assert [line.split()[0] for line in test[::2]] == [name.lower() for name in TEST_SETS]


def test_a_blank_line_on_one_side_does_not_shift_the_pairs_after_it(tmp_path):
    texts = {"de": ["Eins", "", "Drei", "Vier"], "en": ["One", "Two", "Three", ""]}
    archive(tmp_path / "de-en.tgz", train=0)
    with tarfile.open(tmp_path / "new.tgz", "w:gz") as new, tarfile.open(tmp_path / "de-en.tgz") as old:
        for member in old.getmembers():
            content = old.extractfile(member).read()
            if "train" in member.name:
                content = (HEAD + "\n".join(texts[member.name[-2:]] * 12) + "\n").encode()
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    prepare_iwslt14(tmp_path / "new.tgz", tmp_path / "out")
    de, en = ((tmp_path / "out" / f"train.{lang}").read_text().split() for lang in texts)
    assert set(zip(de, en, strict=True)) == {("eins", "one"), ("drei", "three")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"without": "train.tags.de-en.en"}, "has no train.tags.de-en.en"),
        ({"without": f"IWSLT14.{TEST_SETS[3]}.de-en.de.xml"}, "tst2011"),
        ({"more": "One more.\n"}, "50 German and 51 English"),
    ],
)
def test_an_archive_that_is_not_it_is_refused(tmp_path, capsys, arguments, message):
    file = archive(tmp_path / "de-en.tgz", **arguments)
    assert main(["prepare", "iwslt14", str(file), str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"\x1f\x8b\x08\x00"])
def test_a_broken_archive_is_refused(tmp_path, capsys, content):
    file = tmp_path / "de-en.tgz"
    if content is not None:
        file.write_bytes(content)
    assert main(["prepare", "iwslt14", str(file), str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "can't be read" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("place", ["the middle", "the check sum"])
@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_a_damaged_archive_is_refused(tmp_path, capsys, compress, place):
    file = archive(tmp_path / "de-en.tgz", train=3_000)
    data = bytearray(compress(gzip.decompress(file.read_bytes())))
    start, length = (len(data) // 2, len(data) // 4) if place == "the middle" else (len(data) - 8, 4)
    data[start : start + length] = random.Random(0).randbytes(length)
    file.write_bytes(data)
    assert main(["prepare", "iwslt14", str(file), str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "can't be read as an archive" in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()
