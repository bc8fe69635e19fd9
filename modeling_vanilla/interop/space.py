"""The files of a Space: `demo`'s page of a model, on the Hub."""

from pathlib import Path

from huggingface_hub import SpaceCardData
from huggingface_hub.utils import validate_repo_id

import modeling_vanilla

GRADIO = "6.31.0"  # what the page was tried with (constraints.txt)


def space_files(repo_id: str, folder: str | Path) -> list[Path]:
    """
    Writes what a Space on the Hub needs to show the page of a model there: `app.py`, `requirements.txt`, `README.md`.

    Args:
        repo_id: the model's repository. If it is private, the Space needs a secret `HF_TOKEN` that may read it.

    Raises:
        ValueError: for what can't be a repository's id.
    """
    validate_repo_id(repo_id)
    title = repo_id.rpartition("/")[2]
    data = SpaceCardData(
        title=title, sdk="gradio", sdk_version=GRADIO, python_version="3.11", app_file="app.py", models=[repo_id]
    )
    app = (
        f'from modeling_vanilla.interop.demo import UPLOAD, build\n\nbuild("{repo_id}").launch(max_file_size=UPLOAD)\n'
    )
    readme = (
        f"---\n{data.to_yaml()}\n---\n\nTranslate with [{repo_id}](https://huggingface.co/{repo_id}) in the browser.\n"
    )
    files = {
        "app.py": app,
        "requirements.txt": f"vanilla-transformer[demo]=={modeling_vanilla.__version__}\n",
        "README.md": readme,
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in files]


__all__ = ["space_files"]
