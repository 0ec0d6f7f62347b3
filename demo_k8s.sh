#!/usr/bin/env bash
# The same job on an emulated Kubernetes cluster: one JobSet, a pod for each of the slice's four hosts.
# Usage: demo_k8s.sh BIN   (the folder that holds the bastion command)
set -eu
bin=${1:?usage: demo_k8s.sh BIN}

work=$(mktemp -d)
export BASTION_HOME=$work/home
end() {
  { set +x; } 2> /dev/null
  "$bin/bastion" local down || true
  rm -rf "$work"
}
trap end EXIT

set -x
"$bin/bastion" local up --kubernetes --pool=v4-32=1
"$bin/bastion" launch --name=demo --instance_type=tpu-v4-32 --bundle=none --wait -- \
  python3 -c 'import jax; print(jax.process_index(), jax.devices())'
"$bin/bastion" history demo
