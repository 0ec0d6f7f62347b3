#!/usr/bin/env bash
# Run examples/benchmark on a local bastion, with the frameworks that are installed beside it, and fetch its report.
# Usage: benchmark_example.sh BIN [DIR]   (the folder that holds the bastion command; where the report goes)
set -eu
bin=${1:?usage: benchmark_example.sh BIN [DIR]}
report=${2:-build/benchmark-example}

if "$bin/bastion" local status >/dev/null 2>&1; then was_up=yes; else was_up=no; fi
folder=$(mktemp -d)
end() {
  { set +x; } 2>/dev/null
  rm -rf "$folder"
  [ "$was_up" = yes ] || "$bin/bastion" local down
}
trap end EXIT

cp examples/benchmark/*.py "$folder"
"$bin/python" examples/benchmark/installed.py >"$folder/bench.toml"

set -x
"$bin/bastion" benchmark run --wait "$folder/bench.toml" || { code=$?; [ $code = 5 ] || exit $code; }
"$bin/bastion" benchmark report frameworks --dir="$report"
