#!/usr/bin/env bash
# Runs the tests with the lowest and the newest transformers that setup.py admits, each in a virtual environment of its
# own: `make test-matrix`. Where pip finds one version for both, it runs once and says so.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
range=$(sed -n 's/^ *"transformers\(>=[^"]*\)",$/\1/p' setup.py)
lowest=$(sed 's/^>=\([0-9.]*\).*/==\1/' <<< "$range")
others=$(mktemp)
trap 'rm -f "$others"' EXIT
grep -viE '^(transformers|tokenizers|huggingface.hub|safetensors)==' constraints.txt > "$others"

tested=""
for wanted in "$lowest" "$range"; do
    venv=.venv-matrix
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/pip" install --quiet torch==2.13.0
    "$venv/bin/pip" install --quiet --constraint "$others" "transformers$wanted" --editable ".[test,tensorboard,zstd]"
    version=$("$venv/bin/python" -c "import transformers; print(transformers.__version__)")
    if [ "$version" = "$tested" ]; then
        echo "transformers$wanted: $version again, the newest that pip finds is the lowest that setup.py admits"
    else
        echo "transformers$wanted: $version"
        "$venv/bin/python" -m pytest -m "not slow and not browser" -n auto --dist loadfile
        tested=$version
    fi
    rm -rf "$venv"
done
