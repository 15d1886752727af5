#!/bin/sh
# `make test-compose`: the compose files for real, in a Docker engine that is there or is made.
#   REAL=1  vLLM on the CPU in place of the simulated engine: 4 GB more, some minutes more
set -eu
cd "$(dirname "$0")/../../.."
if [ -n "${REAL:-}" ] && ! ls compose/wheels/torch-*.whl >/dev/null 2>&1; then
    # The torch that this machine's pip would take: its settings may lead to the CPU build.
    .venv/bin/python -m pip download -q --no-deps -d compose/wheels torch==2.13.0
fi
status=0
tests/deploy/compose/engine.sh .venv/bin/python -m pytest tests/deploy/compose/scenario.py -v -s -rs \
    --durations=0 --durations-min=0.5 -p no:cacheprovider "$@" || status=$?
[ "$status" = 77 ] && exit 0
exit "$status"
