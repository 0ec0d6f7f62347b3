#!/usr/bin/env bash
# Two slices of two hosts, which start together or not at all (multislice).
exec bastion launch --instance_type=tpu-v4-16 --num_replicas=2 --image="${IMAGE:-this-machine}" \
  --bundle="$(dirname "$0")" --setup= --wait -- python3 devices.py
