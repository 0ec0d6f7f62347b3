#!/usr/bin/env bash
# A transformer on tpu-v4-32, whose checkpoints the storage proxy encrypts. BUCKET and KEY are yours.
exec bastion launch --instance_type=tpu-v4-32 --image="${IMAGE:-this-machine}" --proxy="${BUCKET:?}:${KEY:?}" \
  --bundle="$(dirname "$0")/../encrypted" --setup= \
  ${GCS_PROXY_KEYRING:+--env=GCS_PROXY_KEYRING="$GCS_PROXY_KEYRING"} --wait -- \
  python3 fuji.py --checkpoints="gs://$BUCKET/fuji" --steps="${STEPS:-400}" --save_every="${SAVE_EVERY:-100}" \
  --width="${WIDTH:-256}" --layers="${LAYERS:-4}"
