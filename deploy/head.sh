#!/bin/sh
# A head node with Sluice on it: starts Ray's head, then Sluice inside it, and ends when Ray's head ends.
# The environment says the rest: RAY_AUTH_TOKEN_PATH, SLUICE_* (see `sluice config show`), and boto3's own variables.
set -eu

: "${RAY_AUTH_TOKEN_PATH:?name the file with the token of the cluster}"
port=${SLUICE_INTERNAL_RAY_PORT:-6379}

ray start --head --block --port="$port" --metrics-export-port=8080 --include-dashboard=false --disable-usage-stats &
head=$!
trap 'kill "$head" 2>/dev/null; wait "$head"' INT TERM

until ray health-check --address "127.0.0.1:$port" >/dev/null 2>&1; do
    kill -0 "$head" 2>/dev/null || { echo "sluice-head: Ray's head ended before it was ready" >&2; exit 1; }
    sleep 1
done
own=$(hostname -i | cut -d ' ' -f 1)
sluice up --address "$own:$port"
wait "$head"
