"""The run of the library's common tests (`make conformance`) where the library's source distribution can't be had."""

import os
import subprocess
import sys
from pathlib import Path


def test_conformance_skips_with_the_reason_without_the_source_distribution(tmp_path):
    command = [sys.executable, "-m", "pytest", str(Path(__file__).parent / "conformance")]
    nowhere = {"VANILLA_CONFORMANCE_CACHE": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    done = subprocess.run(command, env=os.environ | nowhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped: no source distribution of transformers" in done.stdout + done.stderr
    assert "No matching distribution found" in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())
