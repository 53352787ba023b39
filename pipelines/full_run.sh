#!/usr/bin/env bash
# The whole story of a recipe, in order; what is valid already is reused.
#
#   bash pipelines/full_run.sh configs/demo.yaml [--set key=value ...]
#
# A recipe may name fewer jobs (its `jobs` field): text alone, for example.
set -euo pipefail
cd "$(dirname "$0")/.."
recipe=${1:?usage: full_run.sh RECIPE [--set key=value ...]}
shift
python=${PYTHON:-python3}
# A waiting thread spins for a millisecond, then gives its core away: on a shared machine endless
# spinning costs several times the work, and never spinning costs a third of the speed.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-300000}
job() { "$python" -m "pipelines.$1" --config "$recipe" "${@:2}"; }
wanted() { [[ " $jobs " == *" $1 "* ]]; }
jobs=$("$python" -m pipelines.story --config "$recipe" "$@")

# Studies with known truth, in MIMIC-CXR's own shape: only for the demo.
if wanted generate_studies; then job generate_studies "$@"; fi
# Raw studies -> one row per usable frontal image, split by patient; what is left out is named.
if wanted build_manifest; then job build_manifest "$@"; fi
# DICOM or JPEG -> square 8-bit images, each decoded in a process that may die.
if wanted prepare_images; then job prepare_images "$@"; fi
# Reports -> sentences.
if wanted split_sentences; then job split_sentences "$@"; fi
# Sentences -> which of the 14 findings they assert, negate or hedge.
if wanted read_claims; then job read_claims "$@"; fi
# The corpus -> a masked language model, CXR-BERT's or a small one of its own.
if wanted fit_language_model; then job fit_language_model "$@"; fi
# Every distinct sentence -> its pseudo-log-likelihood: done once.
if wanted score_sentences; then job score_sentences "$@"; fi
# Likelihood -> eta = min(a * p**k, eta_max): seconds.
if wanted build_eta_cache; then job build_eta_cache "$@"; fi
# The image-only experiment: labelled images, some classes made rare.
if wanted prepare_image_set; then job prepare_image_set "$@"; fi
# Images, sentences and eta, or images alone -> a model. Accelerate starts one process or many.
if wanted train; then
  "$python" -m accelerate.commands.launch --num_cpu_threads_per_process 1 \
    --config_file "${ACCELERATE_CONFIG:-configs/accelerate/cpu.yaml}" \
    -m pipelines.train --config "$recipe" "$@"
fi
# Scores -> probabilities, by the validation images whose truth is known.
if wanted calibrate_scores; then job calibrate_scores "$@"; fi
# What images alone have taught: linear probes and a map.
if wanted probe_images; then job probe_images "$@"; fi
# The papers' questions: zero-shot findings, grounding, retrieval.
if wanted evaluate; then job evaluate "$@"; fi
# What the model is for, cannot do, and reached: without it a model is not published.
if wanted write_cards; then job write_cards "$@"; fi
# Vectors of all images and sentences, bound to the model.
if wanted build_index; then job build_index "$@"; fi
# The service, started for real, answers three requests over HTTP.
if wanted ask_service; then job ask_service "$@"; fi
# One page to look at.
if wanted write_report; then job write_report "$@"; fi
