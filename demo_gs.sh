#!/usr/bin/env bash
# The same job with its bucket behind Cloud Storage's API: a storage endpoint, a daemon, and a slice of four hosts, all on
# this machine. With your own bucket and without STORAGE_EMULATOR_HOST, the same commands work in the cloud.
# Usage: demo_gs.sh BIN   (the folder that holds the bastion command)
set -eu
bin=${1:?usage: demo_gs.sh BIN}

work=$(mktemp -d)
export BASTION_HOME=$work/home BASTION_ROOT=gs://demo/demo-bastion
mkdir "$BASTION_HOME"
end() {
  { set +x; } 2> /dev/null
  # The daemon first: it releases its lease in the bucket when it ends.
  for process in ${daemon:-} ${endpoint:-}; do
    kill "$process" 2> /dev/null && wait "$process" || true
  done
  "$bin/bastion" local down > /dev/null 2>&1 || true
  rm -rf "$work"
}
trap end EXIT

cat > "$work/quota.toml" << 'QUOTA'
[toml-schema]
version = "1"
[total_resources]
v4 = 64
[project_membership]
default = [".*"]
[project_resources.default]
v4 = 1.0
QUOTA

"$bin/bastion" emulator gcs --dir="$work/buckets" --bucket=demo > "$work/endpoint" &
endpoint=$!
until grep -q STORAGE_EMULATOR_HOST "$work/endpoint"; do
  kill -0 "$endpoint" 2> /dev/null || exit 1
  sleep 0.1
done
eval "$(grep '^export STORAGE_EMULATOR_HOST=' "$work/endpoint")"

set -x
"$bin/bastion" quota upload "$work/quota.toml"
"$bin/bastion" daemon run 2> "$work/daemon.log" &
daemon=$!
"$bin/bastion" launch --name=demo --instance_type=tpu-v4-32 --bundle=none --wait -- \
  python3 -c 'import jax; print(jax.process_index(), jax.devices())'
"$bin/bastion" history demo
