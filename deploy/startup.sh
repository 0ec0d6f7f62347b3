#!/bin/bash
# Sets up a bastion on a Debian VM (12 or later): the VM's startup script, run as root at every boot. It can run any number
# of times, and does only what is missing.
#
# The VM's metadata say what to install. Each value is checked before use, and none is run as code:
#
#   bastion-root            gs://BUCKET/NAME-bastion
#   bastion-package         gs://BUCKET/PATH/NAME.whl, or git+https://HOST/PATH@COMMIT with all 40 digits of the commit.
#                           All else that is installed is named in its lock files, by SHA-256.
#   bastion-package-sha256  of the wheel; needed for gs://
#   bastion-quota-root      optional: gs://PRIVATE-BUCKET/NAME-bastion
#   bastion-slices          optional: cloud, to create TPU slices as ROOT/config/daemon.toml says; else none
#   bastion-extras          optional: kubernetes, to create slices in clusters
#   bastion-kubeconfig      optional: the text of /etc/bastion/kubeconfig
#   bastion-unit            the text of bastion.service
#   bastion-firewall        the text of close-metadata.sh
#
# It creates:
#
#   /opt/bastion/releases/ID/   a virtual environment; ID is the wheel's SHA-256 or the commit
#   /opt/bastion/current        a link to one of them. Programs use the path of their release, so jobs that run while the
#                               link moves keep the code that they started with.
#   /opt/bastion/close-metadata closes the metadata server for jobs
#   /etc/bastion/daemon.env     the daemon's settings
#   /etc/bastion/kubeconfig     how the daemon reaches a cluster
#   /etc/systemd/system/bastion.service
#   /var/lib/bastion            home of the user bastion; no other VM needs anything in it
#   the users bastion and bastion-job-00 to bastion-job-47: each job without a slice runs as one of its own
#
# With --prefix=DIR, anyone can run it: it creates everything below DIR, and changes no package, user or service of this
# machine. GCE_METADATA_HOST and STORAGE_EMULATOR_HOST name servers to use instead of Google's.
set -euo pipefail
umask 022

prefix=""
metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance"
storage="${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}"
scratch=""
changed=false

say() { printf 'bastion startup: %s\n' "$*" >&2; }

fail() {
  say "$*"
  exit 1
}

# attribute NAME: its value, or nothing if the VM has no such attribute. For $(...): whoever calls checks the status.
attribute() {
  local code
  code="$(curl --silent --show-error --retry 5 --retry-connrefused --max-time 20 --header 'Metadata-Flavor: Google' \
    --output "$scratch/attribute" --write-out '%{http_code}' "$metadata/attributes/$1")" ||
    fail "the metadata server does not answer"
  case "$code" in
    200) cat "$scratch/attribute" ;;
    404) ;;
    *) fail "the metadata server answers $code when asked for $1" ;;
  esac
}

# check NAME VALUE PATTERN FORM: ends the script unless the whole value fits.
check() {
  [[ "$2" =~ ^($3)$ ]] || fail "the attribute $1 is '${2:0:200}'; it must look like $4"
}

read_settings() {
  local place='gs://[a-z0-9][a-z0-9._-]*[a-z0-9](/[A-Za-z0-9._-]+)*'
  root="$(attribute bastion-root)"
  check bastion-root "$root" "$place/[A-Za-z0-9._-]+-bastion" gs://BUCKET/NAME-bastion
  quota_root="$(attribute bastion-quota-root)"
  [[ -z "$quota_root" ]] ||
    check bastion-quota-root "$quota_root" "$place/[A-Za-z0-9._-]+-bastion" gs://BUCKET/NAME-bastion
  slices="$(attribute bastion-slices)"
  [[ -z "$slices" ]] || check bastion-slices "$slices" 'cloud|none' 'cloud or none'
  extras="$(attribute bastion-extras)"
  [[ -z "$extras" ]] || check bastion-extras "$extras" kubernetes kubernetes
  package="$(attribute bastion-package)"
  sha256="$(attribute bastion-package-sha256)"
  case "$package" in
    gs://*)
      check bastion-package "$package" "$place/[A-Za-z0-9._+-]+[.]whl" gs://BUCKET/PATH/NAME.whl
      check bastion-package-sha256 "$sha256" '[0-9a-f]{64}' "64 hexadecimal digits: sha256sum NAME.whl"
      release="$sha256"
      ;;
    *)
      check bastion-package "$package" 'git\+https://[A-Za-z0-9.-]+(/[A-Za-z0-9._-]+)+@[0-9a-f]{40}' \
        'gs://BUCKET/PATH/NAME.whl or git+https://HOST/PATH@COMMIT'
      release="${package##*@}"
      ;;
  esac
  release+="${extras:+-$extras}"
  attribute bastion-kubeconfig >"$scratch/kubeconfig"
  attribute bastion-unit >"$scratch/unit"
  grep --quiet '^ExecStart=' "$scratch/unit" || fail "the attribute bastion-unit must hold the text of bastion.service"
  attribute bastion-firewall >"$scratch/firewall"
  grep --quiet '^#!/bin/bash' "$scratch/firewall" ||
    fail "the attribute bastion-firewall must hold the text of close-metadata.sh"
}

# install_packages: install what Debian's image may lack.
install_packages() {
  local missing=()
  python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  if [[ "$package" == git+* ]] && ! command -v git >/dev/null; then
    missing+=(git)
  fi
  if ! command -v nft >/dev/null && ! command -v iptables >/dev/null; then
    missing+=(nftables)
  fi
  ((${#missing[@]} == 0)) && return
  say "installing ${missing[*]}"
  apt-get update --quiet --quiet
  DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends "${missing[@]}"
}

create_users() {
  id --user bastion >/dev/null 2>&1 ||
    useradd --system --user-group --home-dir /var/lib/bastion --shell /usr/sbin/nologin bastion
  printf 'u bastion-job-%02d - "A job of the bastion" / /usr/sbin/nologin\n' {0..47} | systemd-sysusers -
}

# download URL FILE: download an object of Cloud Storage with the VM's own identity.
download() {
  local path="${1#gs://}" token name
  local bucket="${path%%/*}"
  name="$(python3 -c 'import sys, urllib.parse; print(urllib.parse.quote(sys.argv[1], safe=""))' "${path#*/}")"
  token="$(curl --silent --show-error --fail --retry 5 --max-time 20 --header 'Metadata-Flavor: Google' \
    "$metadata/service-accounts/default/token" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["access_token"])')" ||
    fail "the VM has no access token; it needs a service account and the scope cloud-platform"
  # The token goes through a pipe, because everyone on the machine can read arguments.
  printf 'Authorization: Bearer %s\n' "$token" |
    curl --silent --show-error --fail --retry 5 --header @- --output "$2" \
      "$storage/storage/v1/b/$bucket/o/$name?alt=media" ||
    fail "$1 cannot be read; the VM's service account needs storage.objects.get on it"
}

# pip VENV ARGUMENT...: pip of a virtual environment. `locked` lets it install only wheels whose hashes it is given.
pip() { "$1/bin/python" -m pip --quiet --disable-pip-version-check "${@:2}"; }
locked=(install --require-hashes --only-binary=:all:)

# fetch: bring what bastion-package names to `wheel`, or its sources to `sources`; `locks` is the folder of its lock files.
fetch() {
  if [[ "$package" == gs://* ]]; then
    wheel="$scratch/${package##*/}"
    download "$package" "$wheel"
    printf '%s  %s\n' "$sha256" "$wheel" | sha256sum --check --quiet --strict ||
      fail "$package is not the file with the SHA-256 $sha256"
    python3 -m zipfile --extract "$wheel" "$scratch/wheel"
    locks="$scratch/wheel/bastion/requirements"
  else
    sources="$scratch/sources"
    local url="${package#git+}"
    git clone --quiet --no-checkout -- "${url%@*}" "$sources" || fail "${url%@*} cannot be cloned"
    git -C "$sources" checkout --quiet --detach "${url##*@}" || fail "${url%@*} has no commit ${url##*@}"
    locks="$sources/bastion/requirements"
  fi
}

# build_wheel VENV: build `wheel` from `sources`.
build_wheel() {
  pip "$1" "${locked[@]}" --target="$scratch/tools" --requirement="$locks/build.lock" ||
    fail "what builds $package cannot be installed, or is not what its lock file names"
  PYTHONPATH="$scratch/tools" pip "$1" wheel --no-index --no-deps --no-build-isolation --wheel-dir="$scratch/built" \
    "$sources"
  wheel="$(echo "$scratch"/built/*.whl)"
}

# install_release: create a virtual environment, complete or not at all.
install_release() {
  local folder="$prefix/opt/bastion/releases/$release" wheel="" sources="" locks name requirements=()
  if [[ ! -e "$folder/.complete" ]]; then
    say "installing $package"
    fetch
    for name in base daemon $extras; do
      # Older packages have it all in base.
      [[ "$name" != daemon || -e "$locks/daemon.lock" ]] || continue
      [[ -e "$locks/$name.lock" ]] || fail "$package has no lock file for $name; build it from a newer commit"
      requirements+=("--requirement=$locks/$name.lock")
    done
    rm -rf -- "$folder"
    mkdir -p -- "${folder%/*}"
    python3 -m venv "$folder"
    [[ -n "$wheel" ]] || build_wheel "$folder"
    pip "$folder" "${locked[@]}" "${requirements[@]}" ||
      fail "the packages of $package cannot be installed, or are not those of its lock files"
    pip "$folder" install --no-index --no-deps "$wheel"
    "$folder/bin/bastion" daemon agent-wheels --python=3.10 ||
      say "there are no wheels for Python 3.10, so slices cannot be used; run $folder/bin/bastion daemon agent-wheels"
    touch "$folder/.complete"
  fi
  if [[ "$(readlink "$prefix/opt/bastion/current" || true)" != "releases/$release" ]]; then
    ln --symbolic --force --no-dereference "releases/$release" "$prefix/opt/bastion/current.new"
    mv --no-target-directory -- "$prefix/opt/bastion/current.new" "$prefix/opt/bastion/current"
    changed=true
  fi
}

# put FILE [INSTALL'S OPTIONS]: install stdin as the file if it differs.
put() {
  local file="$1"
  shift
  cat >"$scratch/new"
  cmp --silent "$scratch/new" "$file" && return
  install -D --mode=0644 "$@" "$scratch/new" "$file"
  changed=true
}

configure() {
  {
    printf 'BASTION_ROOT=%s\n' "$root"
    printf 'BASTION_DAEMON_FLAGS=%s\n' "${quota_root:+--quota_root=$quota_root}${slices:+ --slices=$slices}"
  } | put "$prefix/etc/bastion/daemon.env"
  # The daemon's, not its jobs'.
  local owner=()
  [[ -n "$prefix" ]] || owner=(--owner=bastion)
  [[ ! -s "$scratch/kubeconfig" ]] ||
    put "$prefix/etc/bastion/kubeconfig" --mode=0400 "${owner[@]}" <"$scratch/kubeconfig"
  put "$prefix/opt/bastion/close-metadata" --mode=0755 <"$scratch/firewall"
  put "$prefix/etc/systemd/system/bastion.service" <"$scratch/unit"
}

start_service() {
  systemctl daemon-reload
  systemctl enable --quiet bastion.service
  if "$changed"; then
    systemctl restart bastion.service
  else
    systemctl start bastion.service
  fi
}

main() {
  case "${1:-}" in
    "") ;;
    --prefix=/*) prefix="${1#--prefix=}" ;;
    *) fail "usage: startup.sh [--prefix=/ABSOLUTE/FOLDER]" ;;
  esac
  scratch="$(mktemp --directory)"
  trap 'rm -rf -- "$scratch"' EXIT
  read_settings
  [[ -n "$prefix" ]] || install_packages
  [[ -n "$prefix" ]] || create_users
  install_release
  configure
  [[ -n "$prefix" ]] || start_service
  say "release $release serves $root"
}

main "$@"
