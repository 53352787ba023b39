#!/usr/bin/env bash
# All stages of a config, in the order of pipelines/stages.py; what is valid already is reused.
#
#   bash pipelines/full_run.sh configs/demo.yaml [--set key=value ...]
#
# The same as `medclip run`, with paths from the root of the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" -m pipelines run "${@:?usage: full_run.sh CONFIG [--set key=value ...]}"
