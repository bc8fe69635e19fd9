"""
Tells PEFT which layers to adapt where its user names none: those that it adapts in the library's BART, for ours have
the same names. PEFT keeps that in tables by model type, and asks nothing of a model; to import it takes seconds, so the
tables are filled in when somebody else does.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

TABLES = "peft.utils.constants"
MODEL_TYPE, SAME_NAMES = "vanilla", "bart"


def fill_in(constants: ModuleType) -> None:
    """Adds our model to every table that BART is in."""
    for name, table in vars(constants).items():
        if name.startswith("TRANSFORMERS_MODELS_TO_") and SAME_NAMES in table:
            table.setdefault(MODEL_TYPE, table[SAME_NAMES])


class WhenImported(MetaPathFinder):
    """Finds the tables' module once, by the others' help, and fills it in as soon as it has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TABLES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec and (loader := spec.loader):
            run = loader.exec_module

            def run_and_fill_in(module: ModuleType) -> None:
                run(module)
                fill_in(module)

            setattr(loader, "exec_module", run_and_fill_in)  # noqa: B010
        return spec


def default_targets() -> None:
    """Makes our layers known to PEFT: now, where it is imported, or else when it is."""
    if TABLES in sys.modules:
        fill_in(sys.modules[TABLES])
    else:
        sys.meta_path.insert(0, WhenImported())


__all__ = ["default_targets"]
