#!/bin/sh
# check.sh COMMIT: judges what lies here against that commit. Exit 0 pass, 1 regression, 2 inconclusive.
set -eu
out="${OUT:-.hyperopt}"
mkdir -p "$out"
base="$(mktemp -d)"
git worktree add --quiet --detach "$base/tree" "$1"
trap 'git worktree remove --force "$base/tree"; rmdir "$base"' EXIT

# One thread and processor time: a shared runner's clock says more about its neighbours.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

python "$base/tree/train.py" --profile "$out/base.json"
python train.py --profile "$out/candidate.json"
hyperopt interleave --baseline "python $base/tree/train.py" --candidate "python train.py" \
    --pairs "${PAIRS:-10}" --warmup-steps 1 -o "$out/samples.json"
hyperopt check --baseline "$out/base.json" --candidate "$out/candidate.json" --samples "$out/samples.json" \
    --memory-threshold 1% --tolerance-percent 25 \
    --junit "$out/junit.xml" --markdown "$out/comment.md" -o "$out/check.json"
