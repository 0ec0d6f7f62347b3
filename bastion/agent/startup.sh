#!/bin/bash
# Startup script of every host of a slice: root on a TPU VM, the user on an emulated one. It fetches the agent that the
# node's metadata name, makes an environment for it and runs it, and tries for ever: giving a node up is the daemon's
# business. It needs bash, a Python of 3.10 or later without any package, and the metadata and storage servers; no way
# out to the internet, no HOME, no PATH.
#
# Constant text: what differs from node to node is read from the metadata server, is checked, and never becomes code.
set -u

instance="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance"
# One environment for each agent, complete or not there. Hosts that share a machine share it.
agents="${BASTION_AGENT_DIR:-/opt/bastion/agents}"
# Exists where systemd runs; units in it last until the next boot, which runs this script again.
units="${BASTION_UNIT_DIR:-/run/systemd/system}"
unset BASTION_AGENT_DIR BASTION_UNIT_DIR

for folder in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
  case ":${PATH:-}:" in
    *":$folder:"*) ;;
    *) PATH="${PATH:+$PATH:}$folder" ;;
  esac
done
export PATH

# Header lines come on stdin.
get_program='
import sys, urllib.request
headers = dict(line.rstrip("\n").split(": ", 1) for line in sys.stdin)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
with opener.open(urllib.request.Request(sys.argv[1], headers=headers), timeout=60) as answer:
    out = sys.stdout.buffer if sys.argv[2] == "-" else open(sys.argv[2], "wb")
    for piece in iter(lambda: answer.read(1 << 20), b""):
        out.write(piece)
    out.flush()
'

# From the arguments on stdin: the digest of the agent, and the path or URL of its file.
source_program='
import json, os, re, sys, urllib.parse
try:
    arguments = json.load(sys.stdin)
    sha256, root = str(arguments["agent"]), str(arguments["root"])
except (ValueError, KeyError, TypeError) as error:
    sys.exit("bastion: the attribute bastion-agent of this node is not what a bastion writes: %r" % error)
if not re.fullmatch("[0-9a-f]{64}", sha256):
    sys.exit("bastion: the attribute bastion-agent names no agent: %.80r is not a SHA-256" % sha256)
path = "%s/agents/%s/agent.tar" % (root, sha256)
match = re.fullmatch("gs://([a-z0-9][a-z0-9._-]*[a-z0-9])/(.+)", path)
if match:
    storage = os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com"
    if "://" not in storage:
        storage = "http://" + storage
    name = urllib.parse.quote(match.group(2), safe="")
    path = "%s/storage/v1/b/%s/o/%s?alt=media" % (storage.rstrip("/"), match.group(1), name)
elif not root.startswith("/"):
    sys.exit("bastion: the attribute bastion-agent names no bucket: %.80r" % root)
if any(character < " " for character in path):
    sys.exit("bastion: the attribute bastion-agent names a place that cannot be: %.80r" % root)
print(sha256, path, sep="\n")
'

# Verifies the file, and lets what came in it do the rest (bastion/agent/bootstrap.py).
install_program='
import errno, hashlib, os, sys, tarfile, tempfile
archive, sha256, folder = sys.argv[1:4]
if sys.version_info < (3, 10):
    sys.exit(1)
digest = hashlib.sha256()
with open(archive, "rb") as stream:
    for piece in iter(lambda: stream.read(1 << 20), b""):
        digest.update(piece)
if digest.hexdigest() != sha256:
    print("bastion: %s is not the file with the SHA-256 %s but %s" % (archive, sha256, digest.hexdigest()), file=sys.stderr)
    sys.exit(4)
try:
    work = tempfile.TemporaryDirectory(prefix=".new-", dir=folder)
    wheel = os.path.join(work.name, "bastion.whl")
    with tarfile.open(archive) as tar, open(wheel, "wb") as out:
        (member,) = [member for member in tar if member.name.startswith("wheels/bastion-")]
        out.write(tar.extractfile(member).read())
except OSError as error:
    if error.errno != errno.ENOSPC:
        raise
    print("bastion: no space left on device: unpacking the agent in %s" % folder, file=sys.stderr)
    sys.exit(5)
with work:
    sys.path.insert(0, wheel)
    from bastion.agent.bootstrap import main
    sys.exit(main(sys.argv[1:]))
'

say() { printf 'bastion: %s\n' "$*" >&2; }

# find_pythons: sets `pythons`, the newest first, each interpreter once; and `python`, the first that is good for us.
# What is on PATH under such a name may be something else, or broken.
find_pythons() {
  local name folder other folders
  pythons=()
  IFS=: read -r -a folders <<< "$PATH"
  for name in python3.14 python3.13 python3.12 python3.11 python3.10 python3; do
    for folder in "${folders[@]}"; do
      python="$folder/$name"
      [ -f "$python" ] && [ -x "$python" ] || continue
      for other in ${pythons[@]+"${pythons[@]}"}; do
        [ "$python" -ef "$other" ] && continue 2
      done
      pythons+=("$python")
    done
  done
  for python in ${pythons[@]+"${pythons[@]}"}; do
    "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2> /dev/null && return 0
  done
  return 1
}

# get URL FILE SECONDS: what lies there; FILE may be -. Header lines come on stdin.
get() {
  if command -v curl > /dev/null 2>&1; then
    curl --silent --show-error --fail --noproxy '*' --connect-timeout 10 --max-time "$3" --header @- --output "$2" "$1"
  else
    "$python" -I -S -c "$get_program" "$1" "$2"
  fi
}

# get_metadata PATH: of this instance.
get_metadata() { printf 'Metadata-Flavor: Google\n' | get "$instance/$1" - 10; }

# download URL FILE: an object of Cloud Storage, with the identity of this VM.
download() {
  local answer
  answer="$(get_metadata service-accounts/default/token)" || return 1
  if ! [[ "$answer" =~ \"access_token\"[[:space:]]*:[[:space:]]*\"([^\"]+)\" ]]; then
    say 'this VM has no access token; it needs a service account and the scope cloud-platform'
    return 1
  fi
  # The token goes through a pipe: arguments can be read by everyone on the machine.
  printf 'Authorization: Bearer %s\n' "${BASH_REMATCH[1]}" | get "$1" "$2" 600
  case $? in
    0) return 0 ;;
    # curl, which could not write.
    23) say "no space left on device: storing the agent in $agents" ;;
    *) say "$1 cannot be read; this VM's service account needs storage.objects.get on it" ;;
  esac
  return 1
}

# install_agent: makes "$agents/$sha256". In a subshell, which holds the lock and nothing after it does.
install_agent() (
  exec 9> "$agents/$sha256.lock" || exit 1
  if command -v flock > /dev/null 2>&1; then flock 9; fi
  if [ -x "$agents/$sha256/bin/python" ]; then exit 0; fi
  archive="$source"
  modules=()
  if [[ "$source" != /* ]]; then
    work="$(mktemp -d "$agents/.new-XXXXXX")" || exit 1
    trap 'rm -rf -- "$work"' EXIT
    archive="$work/agent.tar"
    modules=(bastion.adapters.gcs.store)
    download "$source" "$archive" || exit 1
  fi
  for python in "${pythons[@]}"; do
    "$python" -I -S -c "$install_program" "$archive" "$sha256" "$agents" ${modules[@]+"${modules[@]}"} 9>&-
    code=$?
    if [ "$code" -eq 0 ]; then exit 0; fi
    # 4, 5: no other could do better. Else this one is not served, or broken; perhaps another is not.
    if [ "$code" -eq 4 ] || [ "$code" -eq 5 ]; then exit 1; fi
  done
  say 'no Python of this VM can run the agent; the daemon must be given wheels for one of them'
  exit 1
)

# prepare: one try to have the agent, whose Python is then `agent`.
prepare() {
  local arguments found
  if ! find_pythons; then
    say 'this VM has no Python of 3.10 or later; the agent needs one'
    return 1
  fi
  if ! arguments="$(get_metadata attributes/bastion-agent)"; then
    say 'waiting for the metadata server'
    return 1
  fi
  found="$(printf '%s' "$arguments" | "$python" -I -S -c "$source_program")" || return 1
  sha256="${found%%$'\n'*}"
  source="${found#*$'\n'}"
  agent="$agents/$sha256/bin/python"
  if ! [ -x "$agent" ]; then
    mkdir -p "$agents" && install_agent || return 1
  fi
  touch -c "$agents/$sha256" # what is not used for long is removed
}

child=''
stopping=''
# The agent ends the command and reports; this script only waits for it.
trap 'stopping=1; if [ -n "$child" ]; then kill -TERM "$child" 2> /dev/null; fi' TERM INT

# pause SECONDS: and a part of a second, since the hosts of a slice boot together. In the background, because a signal
# ends `wait` and not a foreground `sleep`.
pause() {
  sleep "$1.$((RANDOM % 10))" &
  wait "$!"
}

prepare_for_ever() {
  local seconds=1
  until prepare; do
    if [ -n "$stopping" ]; then exit 143; fi
    pause "$seconds"
    if [ -n "$stopping" ]; then exit 143; fi
    seconds=$((seconds < 16 ? seconds * 2 : 30))
  done
}

# start_unit: the agent under systemd, which starts it again if it ends.
#
# KillMode: at a shutdown the agent is told first, and the command by it; a second signal would end what the command does
# at the first. OOMPolicy: a command that eats the memory dies alone. Limits: what TPU programs need.
start_unit() {
  cat > "$units/bastion-agent.service" << UNIT && systemctl daemon-reload && systemctl start bastion-agent.service
[Unit]
Description=Bastion worker agent
After=network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart=$agent -I -m bastion.wiring.agent --metadata
Environment=HOME=/root
WorkingDirectory=/root
Restart=always
RestartSec=2
KillMode=mixed
TimeoutStopSec=60
OOMPolicy=continue
LimitNOFILE=1048576
LimitMEMLOCK=infinity
TasksMax=infinity
StandardOutput=journal+console
StandardError=inherit
UNIT
}

prepare_for_ever
if [ -d "$units" ] && [ "${BASTION_EMULATED_TPU:-}" != 1 ]; then
  until start_unit; do
    if [ -n "$stopping" ]; then exit 143; fi
    say 'the agent could not be started; trying again'
    pause 2
  done
  exit 0
fi

# An agent that crashed is started again: what it must not do twice, it has noted on disk.
while [ -z "$stopping" ]; do
  if ! [ -x "$agent" ]; then prepare_for_ever; fi
  say 'starting the agent'
  "$agent" -I -m bastion.wiring.agent --metadata &
  child=$!
  # A trapped signal ends `wait` early; the agent is waited for until it has really ended.
  while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2> /dev/null || break
  done
  if [ "$code" -eq 0 ] || [ -n "$stopping" ]; then exit "$code"; fi
  say "the agent exited with code $code; restarting it"
  pause 2
done
exit 143
