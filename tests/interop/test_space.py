"""The files of a Space."""

import re
from pathlib import Path

import pytest
from huggingface_hub import SpaceCard

from modeling_vanilla import __version__
from modeling_vanilla.interop import demo
from modeling_vanilla.interop.space import GRADIO, space_files

ROOT = Path(__file__).parents[2]


def test_space_names_its_model_and_what_runs_it(tmp_path):
    files = space_files("me/en-de", tmp_path / "space")
    assert sorted(tmp_path.rglob("*.*")) == sorted(files)
    assert {file.name for file in files} == {"app.py", "requirements.txt", "README.md"}
    card = SpaceCard.load(tmp_path / "space" / "README.md")
    assert (card.data.sdk, card.data.sdk_version, card.data.app_file) == ("gradio", GRADIO, "app.py")
    assert (card.data.title, card.data.models) == ("en-de", ["me/en-de"])
    assert (tmp_path / "space" / "requirements.txt").read_text() == f"vanilla-transformer[demo]=={__version__}\n"


def test_space_runs_the_version_that_the_page_was_tried_with():
    assert f"\ngradio=={GRADIO}\n" in (ROOT / "constraints.txt").read_text()


def test_space_opens_the_models_page(tmp_path, monkeypatch):
    calls = []

    class Page:
        def launch(self, max_file_size):
            calls.append(max_file_size)

    monkeypatch.setattr(demo, "build", lambda model: calls.append(model) or Page())
    app = next(file for file in space_files("me/en-de", tmp_path) if file.name == "app.py")
    exec(compile(app.read_text(), str(app), "exec"), {})
    assert calls == ["me/en-de", demo.UPLOAD]


@pytest.mark.parametrize("repo_id", ["a b", "a/b/c", 'x")\nprint("y', "../x"])
def test_what_is_no_repositorys_id_is_refused(tmp_path, repo_id):
    with pytest.raises(ValueError, match=re.escape(repo_id)):
        space_files(repo_id, tmp_path / "space")
    assert not (tmp_path / "space").exists()
