"""The package as it is installed: the wheel's contents, and the layers of its imports."""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODEL = [path for path in (ROOT / "modeling_vanilla").glob("*.py") if path.name != "__init__.py"]
# From bottom to top; a layer imports from those before it only. decoding and evaluation don't know each other.
LAYERS = [
    "model", "data", "decoding", "evaluation", "model_card", "interop", "training", "experiments", "scripts",
]  # fmt: skip


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that no build folder is left in the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()
    for name in filter(lambda name: (ROOT / name).is_file(), names):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(out), "."]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return next(out.glob("*.whl"))


def test_wheel_has_what_a_clone_has(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("modeling_vanilla", "configuration", "scripts", "model_card", "experiments"):
        for path in (ROOT / folder).rglob("*"):
            aside = {"__pycache__", "examples"} & set(path.parts)
            if path.suffix in (".py", ".yaml", ".json", ".md", ".typed") and not aside:
                inside = path.relative_to(ROOT).as_posix()
                inside = inside if folder == "modeling_vanilla" else f"modeling_vanilla/{inside}"
                assert inside in names, f"{inside} is not in the wheel"


def test_wheel_works_away_from_the_clone(wheel, tmp_path):
    """Installed alone into a new folder: the command, a recipe and a preset by name, the card's template."""
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)], check=True
    )
    code = f"""
import modeling_vanilla, importlib.resources
assert modeling_vanilla.__file__.startswith({str(site)!r}), modeling_vanilla.__file__
from modeling_vanilla.training import load_recipe
assert load_recipe("multi30k_en_de").vanilla_config(vocab_size=100).d_model == 128
assert "Limits" in (importlib.resources.files("modeling_vanilla.model_card") / "template.md").read_text()
"""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    output = subprocess.run(
        [sys.executable, site / "bin" / "vanilla", "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "translate" in output.stdout


def imported(path: Path) -> list[tuple[int, str]]:
    """Level and name of everything that a file imports from a module."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [
        (getattr(node, "level", 0), name)
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    ]


@pytest.mark.parametrize("path", MODEL, ids=lambda path: path.name)
def test_model_modules_import_only_each_other(path):
    """`from .name import X` is the only form that the library copies to a Hub repository."""
    names = {path.stem for path in MODEL}
    for level, name in imported(path):
        assert level == 0 or (level == 1 and name in names), f"{path.name} imports {'.' * level}{name}"
        assert not name.startswith("modeling_vanilla.")


@pytest.mark.parametrize("layer", LAYERS[1:])
def test_imports_point_downward(layer):
    folder = ROOT / "modeling_vanilla" / layer if (ROOT / "modeling_vanilla" / layer).is_dir() else ROOT / layer
    allowed = {*LAYERS[: LAYERS.index(layer) + 1], "configuration"} - ({"decoding"} if layer == "evaluation" else set())
    for path in folder.rglob("*.py"):
        for level, name in imported(path):
            assert level == 0, f"{path.name} has a relative import"
            head, _, rest = name.partition(".")
            if head == "modeling_vanilla" and rest:
                part = rest.split(".")[0]
                part = part if part in LAYERS else "model"
                assert part in allowed, f"{layer}/{path.name} imports {name}"


def test_version_is_said_once_everywhere():
    import modeling_vanilla

    version = modeling_vanilla.__version__
    assert f'version="{version}"' in (ROOT / "setup.py").read_text(encoding="utf-8")
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
