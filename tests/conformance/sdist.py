"""Builds the library's own `tests` package out of its source distribution, which the installed wheel lacks."""

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

# What the sdist's test files import and the sdist doesn't have. The two mixins are empty: no generate or export test.
STUBS = {
    "__init__.py": "",
    "exporters/__init__.py": "",
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/__init__.py": "",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "utils/__init__.py": "",
    "utils/test_configuration_utils.py": (
        "config_common_kwargs = dict(\n"
        "    output_hidden_states=True, output_attentions=True, return_dict=False, dtype='float16',\n"
        "    chunk_size_feed_forward=5, architectures=['BertModel'], id2label={0: 'label'}, label2id={'label': '0'},\n"
        "    problem_type='regression',\n"
        ")\n"
    ),
    "fixtures/sample_text.txt": "This text stands in for the library's sample.\nIt has two lines.\n",
}


class NoSdist(Exception):
    """The source distribution can't be had; the message says why."""


def library_tests(cache: Path) -> Path:
    """The folder, inside `cache`, that holds `tests` of the installed version; pip downloads it once."""
    version = importlib.metadata.version("transformers")
    folder = cache / f"transformers-{version}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
        command += ["--no-binary", "transformers", "--dest", scratch, f"transformers=={version}"]
        done = subprocess.run(command, capture_output=True, text=True)
        archive = Path(scratch, f"transformers-{version}.tar.gz")
        if done.returncode or not archive.exists():
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
            raise NoSdist(f"no source distribution of transformers {version}: {errors[-1] or 'pip brought no archive'}")
        with tarfile.open(archive) as sdist:
            tests = [member for member in sdist if member.name.startswith(f"transformers-{version}/tests/")]
            safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since Python 3.11.4
            sdist.extractall(scratch, tests, **safely)
        built = Path(scratch, f"transformers-{version}")
        for name, text in STUBS.items():
            path = built / "tests" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        shutil.move(built, folder)
    return folder
