"""`vanilla doctor RECIPE.yaml [--any_argument value ...]`: what can be known of a run before it takes a night."""

import sys
from collections.abc import Sequence

from modeling_vanilla.scripts.common import hide_progress_bars, run_verb

USAGE = """usage: vanilla doctor RECIPE.yaml [--any_argument value ...]

Takes what `vanilla train` takes, and trains nothing: checks the corpus, shows a batch as the model sees it, proves the
masks, learns a batch by heart, tries the learning rate, and estimates time and memory. Ends with status 1 where the run
can't succeed.
"""


def main(argv: Sequence[str]) -> int:
    if not argv or {"-h", "--help"} & set(argv):
        print(USAGE)
        return 0 if argv else 2

    from modeling_vanilla.training.doctor import diagnose
    from modeling_vanilla.training.recipe import load_recipe

    name, rest = (None, argv) if argv[0].startswith("--") else (argv[0], argv[1:])
    recipe = load_recipe(name, list(rest))
    hide_progress_bars()
    findings = diagnose(recipe)
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    print(f"\n{errors} errors, {warnings} warnings" + ("; this run can't succeed" if errors else ""))
    return 1 if errors else 0


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("doctor", main, argv)


if __name__ == "__main__":
    sys.exit(run())
