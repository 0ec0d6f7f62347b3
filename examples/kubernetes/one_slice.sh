#!/usr/bin/env bash
# One slice of two hosts: each sees the devices of both.
exec bastion launch --instance_type=tpu-v4-16 --image="${IMAGE:-this-machine}" \
  --bundle="$(dirname "$0")" --setup= --wait -- python3 devices.py
