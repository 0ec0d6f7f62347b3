#!/usr/bin/env bash
# Build a Kubernetes API server and etcd into a cache folder, from Debian sid's packages and the Go files beside this
# script. About 411 MB of downloads, 3 GB of disk while it builds, three minutes of two cores.
#
# Usage: build.sh            builds what is missing or out of date, and prints the folder of the two programs
#   BASTION_KUBE_CACHE       where everything goes; default ${XDG_CACHE_HOME:-~/.cache}/bastion-kube
#   BASTION_KUBE_MIRROR      a Debian mirror's URL; default: the one that this machine's apt uses
#   BASTION_KUBE_KEEP=1      keep the unpacked packages and Go's build cache: the next build takes a minute
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${BASTION_KUBE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bastion-kube}
go_release=1.26
packages=(
  golang-k8s-apiextensions-apiserver-dev golang-k8s-apiserver-dev
  "golang-$go_release-go" "golang-$go_release-src" etcd-server
)
# The types whose OpenAPI schemas the server serves and checks fields by.
schemas=(
  k8s.io/api/{core,batch,coordination,scheduling,events,autoscaling,policy,authentication}/v1
  k8s.io/apimachinery/pkg/{apis/meta/v1,api/resource,runtime,version,util/intstr}
  k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1
)

say() { printf 'kube: %s\n' "$*" >&2; }
fail() { # fail WHAT WHY REMEDY
  printf 'kube: error: %s: %s. %s\n' "$1" "$2" "$3" >&2
  exit 1
}

mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
exec 9>"$cache/lock"
flock 9
recipe=$(cat "$here"/build.sh "$here"/*.go | sha256sum | cut -d' ' -f1)
if [[ -x $cache/bin/kube-apiserver && -x $cache/bin/etcd && $(cat "$cache/bin/recipe" 2>/dev/null) == "$recipe" ]]; then
  say "up to date: $cache/bin"
  echo "$cache/bin"
  exit 0
fi

for program in apt-get apt-cache dpkg; do
  command -v "$program" >/dev/null || fail "no $program" "the sources come as Debian packages" \
    "Run this on Debian or Ubuntu, or copy kube-apiserver, etcd and recipe from another machine's cache to $cache/bin."
done

# apt of its own: nothing of this machine's package lists, cache or installed packages is read or changed.
isolate_apt() {
  local mirror=${BASTION_KUBE_MIRROR:-} keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  if [[ -z $mirror ]]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL)' 'Created-By: Packages' 2>/dev/null |
      awk '$2 == "Debian" { print $1; exit }') || true
  fi
  [[ -n $mirror ]] || fail "no Debian mirror" "apt on this machine names none (or was never updated)" \
    "Run apt-get update, or set BASTION_KUBE_MIRROR to a mirror's URL."
  [[ -r $keyring ]] || fail "no $keyring" "the packages' signatures are checked with it" \
    "Install debian-archive-keyring."
  mkdir -p "$cache/apt"/{lists/partial,archives/partial,parts}
  : >"$cache/apt/status"
  echo "deb [signed-by=$keyring] $mirror sid main" >"$cache/apt/sources.list"
  cat >"$cache/apt/apt.conf" <<CONF
Dir::Etc::SourceList "$cache/apt/sources.list";
Dir::Etc::SourceParts "$cache/apt/parts";
Dir::State::Lists "$cache/apt/lists";
Dir::State::Status "$cache/apt/status";
Dir::Cache "$cache/apt";
Dir::Cache::Archives "$cache/apt/archives";
Dir::Log "$cache/apt";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
CONF
  export APT_CONFIG=$cache/apt/apt.conf
}

download() {
  say "downloading from Debian sid (about 411 MB the first time)"
  apt-get -qq update >&2 || fail "cannot read Debian sid's package lists" "see apt's message above" \
    "Check the network and BASTION_KUBE_MIRROR."
  local package
  for package in "${packages[@]}"; do
    apt-cache show "$package" >/dev/null 2>&1 || fail "Debian sid has no package $package" "sid has moved on" \
      "Adapt the versions at the top of $here/build.sh."
  done
  apt-get -qq -y install --download-only --no-install-recommends "${packages[@]}" >&2 ||
    fail "cannot download the packages" "see apt's message above" \
      "Run it again: what has arrived is kept. A broken dependency in sid mends within days."
}

unpack() {
  rm -rf "$cache/root"
  mkdir -p "$cache/root"
  local archive
  for archive in "$cache"/apt/archives/{golang-,etcd}*.deb; do
    dpkg -x "$archive" "$cache/root"
  done
}

isolate_apt
download
wanted=$(cd "$cache/apt/archives" && ls golang-*.deb etcd*.deb | sha256sum | cut -d' ' -f1)
if [[ $(cat "$cache/root/unpacked" 2>/dev/null) != "$wanted" ]]; then
  say "unpacking"
  unpack
  echo "$wanted" >"$cache/root/unpacked"
fi

# Debian's libraries are built in GOPATH mode, without modules.
mkdir -p "$cache/gopath" "$cache/own/src/bastion.test/apiserver" "$cache/bin"
ln -sfn "$cache/root/usr/share/gocode/src" "$cache/gopath/src"
export GOROOT=$cache/root/usr/lib/go-$go_release GOPATH=$cache/own:$cache/gopath GO111MODULE=off GOTOOLCHAIN=local
export GOCACHE=$cache/gocache GOFLAGS=-buildvcs=false CGO_ENABLED=0
go() { nice -n 10 "$GOROOT/bin/go" "$@"; }

library=$(cd "$cache/apt/archives" && ls golang-k8s-apiserver-dev_*.deb | sed -E 's/.*_0\.([0-9.]+)-.*/\1/')
say "building a Kubernetes 1.$library API server (about three minutes)"
moved="Compare tests/kube/apiserver/*.go with the libraries in $cache/root/usr/share/gocode/src/k8s.io and adapt them."
: >"$cache/own/header.txt"
go build -o "$cache/own/openapi-gen" k8s.io/kube-openapi/cmd/openapi-gen ||
  fail "openapi-gen does not build" "sid's packages do not fit each other" "Try again in a few days."
cp "$here"/*.go "$cache/own/src/bastion.test/apiserver/"
(cd "$cache/own/src/bastion.test" && PATH=$GOROOT/bin:$PATH nice -n 10 "$cache/own/openapi-gen" \
  --output-dir openapi --output-pkg bastion.test/openapi -r "$cache/own/violations.txt" \
  --go-header-file "$cache/own/header.txt" "${schemas[@]}") ||
  fail "cannot generate the OpenAPI schemas" "sid has moved on" "$moved"
go build -o "$cache/bin/kube-apiserver.new" \
  -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v1.$library -X main.release=1.$library" \
  bastion.test/apiserver || fail "the server does not build" "sid's libraries have changed" "$moved"
cp "$cache/root/usr/bin/etcd" "$cache/bin/etcd"
mv "$cache/bin/kube-apiserver.new" "$cache/bin/kube-apiserver"
echo "$recipe" >"$cache/bin/recipe"
if [[ -z ${BASTION_KUBE_KEEP:-} ]]; then
  rm -rf "$cache/root" "$cache/gocache" "$cache/own"
fi
say "built: $cache/bin"
echo "$cache/bin"
