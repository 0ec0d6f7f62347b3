#!/usr/bin/env bash
# Run a job on an emulated v4-32 slice: four hosts, each of which sees the slice's 16 devices.
# Usage: demo.sh BIN   (the folder that holds the bastion command)
set -u
bin=${1:?usage: demo.sh BIN}

if "$bin/bastion" local status >/dev/null 2>&1; then was_up=yes; else was_up=no; fi
end() {
  { set +x; } 2>/dev/null
  [ "$was_up" = yes ] || "$bin/bastion" local down
}
trap end EXIT

set -x
"$bin/bastion" launch --instance_type=tpu-v4-32 --bundle=none --wait -- \
  python3 -c 'import jax; print(jax.process_index(), jax.devices())'
