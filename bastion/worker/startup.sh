#!/bin/bash
# Startup script of every host of a slice: root on a TPU VM, the user on an emulated one. Constant text: what differs
# from node to node is read from the metadata server and never becomes code.
set -u

metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/attributes/bastion-agent"

fetch_arguments() {
  if command -v curl > /dev/null 2>&1; then
    curl --silent --fail --noproxy '*' --max-time 10 -H 'Metadata-Flavor: Google' "$metadata"
  else
    python3 - "$metadata" << 'PYTHON'
import sys
import urllib.request

request = urllib.request.Request(sys.argv[1], headers={"Metadata-Flavor": "Google"})
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
sys.stdout.write(opener.open(request, timeout=10).read().decode())
PYTHON
  fi
}

agent=''
stopping=''
# The agent ends the command and reports; this script only waits for it.
trap 'stopping=1; if [ -n "$agent" ]; then kill -TERM "$agent" 2> /dev/null; fi' TERM INT

# In the background, because a signal ends `wait` and not a foreground `sleep`.
pause() {
  sleep 2 &
  wait "$!"
}

until arguments="$(fetch_arguments)" && [ -n "$arguments" ]; do
  if [ -n "$stopping" ]; then exit 143; fi
  echo 'bastion: waiting for the metadata server' >&2
  pause
done

interpreter="$(printf '%s' "$arguments" | python3 -c '
import json, sys
value = json.load(sys.stdin).get("interpreter", "")
sys.stdout.write(value if isinstance(value, str) else "")
')" || interpreter=''

if [ -z "$interpreter" ]; then
  echo 'bastion: this node has no interpreter with bastion installed, and fetching the agent from the bucket (agents/)' \
    'is not available in this version; set the interpreter in the daemon settings' >&2
  exit 1
fi

# An agent that crashed is started again: what it must not do twice, it has noted on disk.
while [ -z "$stopping" ]; do
  "$interpreter" -m bastion.agent --metadata &
  agent=$!
  # A trapped signal ends `wait` early; the agent is waited for until it has really ended.
  while :; do
    wait "$agent"
    code=$?
    kill -0 "$agent" 2> /dev/null || break
  done
  if [ "$code" -eq 0 ] || [ -n "$stopping" ]; then exit "$code"; fi
  echo "bastion: the agent ended with $code; starting it again" >&2
  pause
done
exit 143
