#!/usr/bin/env bash
# From a fresh installation to an own step that is planned, explained, steered, saved and run, in eight commands.
# Run it from the root of a checkout; PYTHON names the interpreter that has jaxplan, and files go to the folder OUT.
set -euo pipefail
PYTHON="${PYTHON:-python}"
OUT="${OUT:-.}"
STEP="examples/own_step.py:train_step"
ARGS="examples/own_step.py:make_args"
export XLA_FLAGS="${XLA_FLAGS:---xla_force_host_platform_device_count=8}" # eight virtual devices where there is one

"$PYTHON" -m jaxplan doctor
"$PYTHON" -m jaxplan plan "$STEP" --args "$ARGS" --topology h100:8 --save "$OUT/frontier.json"
"$PYTHON" -m jaxplan show "$OUT/frontier.json" --choose knee --explain
"$PYTHON" -m jaxplan explain "$OUT/frontier.json" up --step "$STEP" --args "$ARGS"
"$PYTHON" -m jaxplan diff "$OUT/frontier.json" --choose fastest data --step "$STEP" --args "$ARGS"
"$PYTHON" -m jaxplan plan "$STEP" --args "$ARGS" --topology h100:8 --options examples/own_step.py:pins
"$PYTHON" -m jaxplan plan "$STEP" --args "$ARGS" --topology cpu:8 --plan "$OUT/plan.json"
"$PYTHON" examples/own_step.py --plan "$OUT/plan.json"
