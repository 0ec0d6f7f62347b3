#!/usr/bin/env bash
# The same job with its bucket on S3: a real S3 server (SeaweedFS), a daemon, and an emulated Kubernetes cluster whose pods
# are the hosts of the slice, all on this machine. With your own bucket and cluster, and without AWS_ENDPOINT_URL, the
# same commands work on Amazon's.
# Usage: demo_s3.sh BIN   (the folder that holds the bastion command)
set -eu
bin=${1:?usage: demo_s3.sh BIN}

work=$(mktemp -d)
export BASTION_HOME=$work/home BASTION_ROOT=s3://demo/demo-bastion
mkdir "$BASTION_HOME"
end() {
  { set +x; } 2> /dev/null
  # The daemon first: it releases its lease in the bucket when it ends.
  for process in ${daemon:-} ${cluster:-} ${server:-}; do
    kill "$process" 2> /dev/null && wait "$process" || true
  done
  rm -rf "$work"
}
trap end EXIT

# await FILE TEXT PROCESS: wait until the process has written it.
await() {
  until grep -q "$2" "$1" 2> /dev/null; do
    kill -0 "$3" 2> /dev/null || { cat "$1" >&2; exit 1; }
    sleep 0.1
  done
}

"$bin/python" -m tests.support.s3_server --dir="$work/s3" --bucket=demo > "$work/server" &
server=$!
await "$work/server" AWS_EC2_METADATA_DISABLED $server
eval "$(grep '^export ' "$work/server")"

# Pods get the address of the server and its keys from the emulator's environment; real ones have a role.
"$bin/bastion" emulator kubernetes --state_dir="$work/cluster" --pool=v4-32=1 > "$work/pods" 2>&1 &
cluster=$!
await "$work/cluster/kubeconfig" server $cluster

uid=$("$bin/python" -c 'import sys; from kubernetes import client, config; config.load_kube_config(sys.argv[1])
print(client.CoreV1Api().read_namespace("kube-system").metadata.uid)' "$work/cluster/kubeconfig")
cat > "$work/daemon.toml" << SETTINGS
[clusters.demo]
kubeconfig = "$work/cluster/kubeconfig"
uid = "$uid"
agent_image = "this-machine"
[defaults]
zones = ["k8s:demo"]
[defaults.pod]
image = "this-machine"
[types.v4]
[[tiers]]
model = "on-demand"
SETTINGS
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

set -x
"$bin/bastion" quota upload "$work/quota.toml"
"$bin/bastion" daemon check-config "$work/daemon.toml" --root="$BASTION_ROOT"
"$bin/python" -c 'import boto3, sys; boto3.client("s3").upload_file(*sys.argv[1:])' \
  "$work/daemon.toml" demo demo-bastion/config/daemon.toml
"$bin/bastion" daemon run --slices=cloud 2> "$work/daemon.log" &
daemon=$!
"$bin/bastion" launch --name=demo --instance_type=tpu-v4-32 --bundle=none --wait -- \
  python3 -c 'import jax; print(jax.process_index(), jax.devices())'
"$bin/bastion" history demo
