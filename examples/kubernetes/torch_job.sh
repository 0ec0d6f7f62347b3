#!/usr/bin/env bash
# PyTorch on one host with GPUs, four by default. What the command writes to `out` is stored while it runs, and
# restored in the next attempt.
exec bastion launch --instance_type="${TYPE:-gpu-a100-4}" --image="${IMAGE:-this-machine}" \
  --bundle="$(dirname "$0")/../gpu" --setup="${SETUP-}" --output_dir=out --wait -- torchrun ddp_train.py
