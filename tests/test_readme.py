"""The README's Python, run as it stands."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_python_examples_run(trained, tmp_path, monkeypatch, capsys):
    """In order and in one process, as a reader would paste them, with a trained model in the place of `my_model`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model").symlink_to(trained)
    namespace: dict[str, object] = {}
    without_hub = re.sub(r"\n## Share\n.*?\n## ", "\n## ", README, flags=re.DOTALL)  # run by tests/hub/test_loading.py
    blocks = re.findall(r"```python\n(.*?)```", without_hub, flags=re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(block, namespace)
    assert namespace["trainer"].state.global_step == 3


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", README))))
def test_links_lead_somewhere(link):
    assert (Path(__file__).parents[1] / link).exists()


def test_commands_are_those_that_exist():
    from modeling_vanilla.scripts.main import VERBS

    verbs = set(re.findall(r"vanilla (train|translate|evaluate|tokenizer|[a-z]+) [a-zA-Z-]", README))
    assert verbs <= set(VERBS)
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile
