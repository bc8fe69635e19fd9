"""Puts the library's `tests` on the path before the test files import it, and counts what became of its tests."""

import gc
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["RUN_SLOW"] = "1"  # our models are small

import pytest
from sdist import NoSdist, library_tests

CACHE = Path(os.environ.get("VANILLA_CONFORMANCE_CACHE", Path(__file__).parents[2] / "build" / "conformance"))
# class -> outcome -> number of tests, and reason of a skip -> number of tests
counts: dict[str, Counter] = defaultdict(Counter)
reasons: Counter = Counter()


def pytest_sessionstart() -> None:
    try:
        sys.path.insert(0, str(library_tests(CACHE)))
    except NoSdist as error:
        pytest.exit(f"skipped, {error}", returncode=0)


def pytest_collection_finish() -> None:
    gc.freeze()  # the tests collect garbage before and after each: not among all that the imports made


def pytest_runtest_logreport(report) -> None:
    with open("/tmp/reports.txt","a") as f: f.write(f"{report.nodeid}\t{report.when}\t{report.outcome}\t{type(report).__name__}\t{report.longrepr if report.skipped else ''}\t{report.duration:.2f}\n")
