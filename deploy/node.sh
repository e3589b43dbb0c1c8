#!/bin/sh
# A further node: joins the head named by RAY_HEAD (HOST:PORT); Sluice places bookies and topics on it by itself.
set -eu

: "${RAY_HEAD:?name the head as HOST:PORT}"
: "${RAY_AUTH_TOKEN_PATH:?name the file with the token of the cluster}"

until ray health-check --address "$RAY_HEAD" >/dev/null 2>&1; do
    echo "sluice-node: waiting for $RAY_HEAD" >&2
    sleep 2
done
exec ray start --address="$RAY_HEAD" --block --metrics-export-port=8080 --disable-usage-stats
