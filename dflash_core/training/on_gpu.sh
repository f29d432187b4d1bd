#!/usr/bin/env bash
# A draft for the embedded target in ten minutes on one large GPU: `dflash_core/training/on_gpu.sh DIRECTORY [PYTHON]`.
# Data, training and a first evaluation, each with a limit; what is finished stays, and the same command goes on from it.
set -euo pipefail
out=${1:?usage: on_gpu.sh DIRECTORY [PYTHON]}
python=${2:-python3}
cd "$(dirname "$0")/../.."

within() { # SECONDS COMMAND…: running out of time is no failure
  local status=0
  timeout "$@" || status=$?
  [ "$status" -eq 0 ] || [ "$status" -eq 124 ]
}

within 200 "$python" -m dflash_core.training.synthesise --device cuda --out "$out/data" --tokens 1000000000 \
  --rows 768 --prompts 1024 --held-out assets/evaluation_prompts.json
within 270 "$python" -m dflash_core.training.train --device cuda --data "$out/data" --out "$out/run" --taps 1 14 27 \
  --conversations 64 --steps 8000 --words 49152 --learning-rate 1.5e-3 --mix 0.25 0.75 0.25 --save-every 40 --evaluate-every 1000
within 100 "$python" -m dflash_core.training.evaluate --device cuda --draft "$out/run/draft" --out "$out/evaluation" \
  --temperatures 0 1 --rules speculative --block-sizes 4 8 16
cat "$out/evaluation/evaluation.md"
