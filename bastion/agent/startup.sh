#!/bin/bash
# Startup script of every host of a slice; runs as root on a TPU VM, as the user on an emulated one, in the user's image
# in a pod. It fetches the agent that the node's metadata or the pod's BASTION_AGENT names, makes an environment for it
# and runs it. It retries forever: the daemon decides when to give a node up. Only what can never work in a pod ends it,
# with code 64 and a termination message. It needs bash, Python 3.10 or later, and the metadata and storage servers (in a
# pod with BASTION_AGENT_FILE neither); no internet, HOME or PATH.
#
# The text is constant: what differs between hosts comes from outside, is checked, and is never executed.
set -u

instance="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance"
# One environment per agent, complete or absent; shared by hosts on one machine.
agents="${BASTION_AGENT_DIR:-/opt/bastion/agents}"
# Exists with systemd; units in it last until the next boot, which runs this script again.
units="${BASTION_UNIT_DIR:-/run/systemd/system}"
# In a pod; there an init container may have brought the agent's file.
pod="${BASTION_AGENT+1}"
file="${pod:+${BASTION_AGENT_FILE:-}}"
unset BASTION_AGENT_DIR BASTION_UNIT_DIR BASTION_AGENT_FILE
if [ -n "$pod" ]; then
  host='this pod' on='in this image' identity=--pod
else
  host='this VM' on='on this VM' identity=--metadata
fi

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

# From the arguments on stdin: the digest of the agent, and the path or URL of its file; or, with exit code 1, why not.
source_program='
import json, os, re, sys, urllib.parse
def refuse(text):
    print(sys.argv[1], text)
    sys.exit(1)
try:
    arguments = json.load(sys.stdin)
    sha256, root = str(arguments["agent"]), str(arguments["root"])
except (ValueError, KeyError, TypeError) as error:
    refuse("is malformed: %r" % error)
if not re.fullmatch("[0-9a-f]{64}", sha256):
    refuse("names no agent: %.80r is not a SHA-256" % sha256)
path = "%s/agents/%s/agent.tar" % (root, sha256)
match = re.fullmatch("gs://([a-z0-9][a-z0-9._-]*[a-z0-9])/(.+)", path)
if match:
    storage = os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com"
    if "://" not in storage:
        storage = "http://" + storage
    name = urllib.parse.quote(match.group(2), safe="")
    path = "%s/storage/v1/b/%s/o/%s?alt=media" % (storage.rstrip("/"), match.group(1), name)
elif root.startswith("s3://"):
    # There the file comes from an init container.
    if len(sys.argv) < 3:
        refuse("has a ROOT on S3, which this host cannot read: %.80r; in a pod set agent_image for the cluster" % root)
elif not root.startswith("/"):
    refuse("names no bucket: %.80r" % root)
if any(character < " " for character in path):
    refuse("names an invalid path: %.80r" % root)
print(sha256, path, sep="\n")
'

# Verify the file, then run bastion/agent/bootstrap.py from it.
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
    print("bastion: %s has a wrong SHA-256: expected %s, got %s" % (archive, sha256, digest.hexdigest()), file=sys.stderr)
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

# hopeless MESSAGE: say it and return 1. In a pod nothing about it changes: leave it for the pod's status, return 64.
hopeless() {
  say "$1"
  if [ -z "$pod" ]; then return 1; fi
  if [ -n "${BASTION_TERMINATION_LOG:-}" ]; then printf '%.4096s' "$1" > "$BASTION_TERMINATION_LOG"; fi
  return 64
}

# find_pythons: set `pythons` to all interpreters, newest first, and `python` to the first usable one. A file with such
# a name may be something else, or broken.
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

# get URL FILE SECONDS: download; FILE may be -. Header lines come on stdin.
get() {
  if command -v curl > /dev/null 2>&1; then
    curl --silent --show-error --fail --noproxy '*' --connect-timeout 10 --max-time "$3" --header @- --output "$2" "$1"
  else
    "$python" -I -S -c "$get_program" "$1" "$2"
  fi
}

# get_metadata PATH: print metadata of this instance.
get_metadata() { printf 'Metadata-Flavor: Google\n' | get "$instance/$1" - 10; }

# download URL FILE: download an object of Cloud Storage with the identity of this host.
download() {
  local answer
  answer="$(get_metadata service-accounts/default/token)" || return 1
  if ! [[ "$answer" =~ \"access_token\"[[:space:]]*:[[:space:]]*\"([^\"]+)\" ]]; then
    say "$host has no access token; it needs a service account and the scope cloud-platform"
    return 1
  fi
  # Pass the token through a pipe: everyone on the machine can read arguments.
  printf 'Authorization: Bearer %s\n' "${BASH_REMATCH[1]}" | get "$1" "$2" 600
  case $? in
    0) return 0 ;;
    # curl could not write.
    23) say "no space left on device: storing the agent in $agents" ;;
    *) say "cannot read $1; $host's service account needs storage.objects.get on it" ;;
  esac
  return 1
}

# install_agent: create "$agents/$sha256". Runs in a subshell, so that the lock ends with it.
install_agent() (
  exec 9> "$agents/$sha256.lock" || exit 1
  if command -v flock > /dev/null 2>&1; then flock 9; fi
  if [ -x "$agents/$sha256/bin/python" ]; then exit 0; fi
  archive="$source"
  modules=()
  case "$source" in
    /*) ;;
    s3:*) modules=(bastion.adapters.s3.store) ;;
    *) modules=(bastion.adapters.gcs.store) ;;
  esac
  if [ -n "$file" ]; then
    archive="$file"
  elif [[ "$source" != /* ]]; then
    work="$(mktemp -d "$agents/.new-XXXXXX")" || exit 1
    trap 'rm -rf -- "$work"' EXIT
    archive="$work/agent.tar"
    download "$source" "$archive" || exit 1
  fi
  if ! [ -r "$archive" ]; then
    say "cannot read $archive"
    if [ -z "$file" ]; then exit 1; fi
    hopeless "the pod's init container did not bring the agent: there is no $file"
    exit
  fi
  killed=''
  why=''
  for python in "${pythons[@]}"; do
    said="$("$python" -I -S -c "$install_program" "$archive" "$sha256" "$agents" \
      ${modules[@]+"${modules[@]}"} 9>&- 2>&1)"
    code=$?
    if [ "$code:${file:+pod}" = 4:pod ]; then
      hopeless "${said#bastion: }"
      exit
    fi
    if [ -n "$said" ]; then printf '%s\n' "$said" >&2; fi
    case "$code" in
      0) exit 0 ;;
      1) said="${said##*$'\n'}" why="$why${said:+: ${said#bastion: }}" ;; # unsupported or broken; try the next
      4 | 5) exit 1 ;; # no other Python would do better
      *) killed=1 ;;
    esac
  done
  message="no Python $on can run the agent; give the daemon wheels for one of them"
  if [ -z "$killed" ]; then
    hopeless "$message$why"
    exit
  fi
  say "$message"
  exit 1
)

# prepare: try once to install the agent; sets `agent` to its Python.
prepare() {
  local arguments found from='the attribute bastion-agent'
  if ! find_pythons; then
    hopeless "there is no Python 3.10 or later $on; the agent needs one"
    return
  fi
  if [ -n "$pod" ]; then
    arguments="$BASTION_AGENT" from=BASTION_AGENT
  elif ! arguments="$(get_metadata attributes/bastion-agent)"; then
    say 'waiting for the metadata server'
    return 1
  fi
  if ! found="$(printf '%s' "$arguments" | "$python" -I -S -c "$source_program" "$from" ${file:+"$file"})"; then
    hopeless "${found:-$python cannot read $from}"
    return
  fi
  sha256="${found%%$'\n'*}"
  source="${found#*$'\n'}"
  agent="$agents/$sha256/bin/python"
  if ! [ -x "$agent" ]; then
    mkdir -p "$agents" && install_agent || return
  fi
  touch -c "$agents/$sha256" # unused ones are removed later
}

child=''
stopping=''
# The agent ends the command and reports; this script only waits for it.
trap 'stopping=1; if [ -n "$child" ]; then kill -TERM "$child" 2> /dev/null; fi' TERM INT

# pause SECONDS: sleep, plus a random part of a second, since the hosts of a slice boot together. Sleeps in the background:
# a signal ends `wait`, but not a foreground `sleep`.
pause() {
  sleep "$1.$((RANDOM % 10))" &
  wait "$!"
}

prepare_for_ever() {
  local seconds=1
  while :; do
    prepare && return
    if [ "$?" -eq 64 ]; then exit 64; fi
    if [ -n "$stopping" ]; then exit 143; fi
    pause "$seconds"
    if [ -n "$stopping" ]; then exit 143; fi
    seconds=$((seconds < 16 ? seconds * 2 : 30))
  done
}

# make_job_user: create the user that commands run as. The agent finds out that it is not there, and says so.
make_job_user() {
  id -u bastion-job > /dev/null 2>&1 && return
  useradd --system --user-group --create-home --home-dir /var/lib/bastion-job --shell /bin/bash bastion-job ||
    say 'the user bastion-job could not be created'
}

# start_unit: run the agent under systemd, which restarts it.
#
# KillMode: at shutdown only the agent is signaled, and it signals the command; a second signal would interrupt the
# command's save. OOMPolicy: a command that runs out of memory dies alone. Limits: what TPU programs need.
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

if [ -n "$pod" ] && [ -n "${HOME:-}" ]; then mkdir -p "$HOME"; fi
prepare_for_ever
if [ -z "$pod" ] && [ "${BASTION_EMULATED_TPU:-}" != 1 ]; then make_job_user; fi
if [ -z "$pod" ] && [ -d "$units" ] && [ "${BASTION_EMULATED_TPU:-}" != 1 ]; then
  until start_unit; do
    if [ -n "$stopping" ]; then exit 143; fi
    say 'the agent could not be started; retrying'
    pause 2
  done
  exit 0
fi

# Restart a crashed agent: it has recorded on disk what it must not do twice.
while [ -z "$stopping" ]; do
  if ! [ -x "$agent" ]; then prepare_for_ever; fi
  say 'starting the agent'
  "$agent" -I -m bastion.wiring.agent "$identity" &
  child=$!
  # A trapped signal ends `wait` early; keep waiting until the agent has ended.
  while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2> /dev/null || break
  done
  if [ "$code" -eq 0 ] || [ -n "$stopping" ]; then exit "$code"; fi
  # In a pod the agent leaves by itself: 64, it can never work; 75, nobody needs it, and its report could not be stored.
  if [ "${pod:+$code}" = 64 ] || [ "${pod:+$code}" = 75 ]; then exit "$code"; fi
  say "the agent exited with code $code; restarting it"
  pause 2
done
exit 143
