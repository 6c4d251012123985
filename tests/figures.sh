#!/usr/bin/env bash
# The figures of the server's own cost, then those under load. Each is measured in turn with what it is compared with, RUNS
# times; the median and the range are printed. The first are CPU time, not seconds: the machine may be busy with other
# things. So those under load run with real-time priority where that is allowed.
set -euo pipefail
cd "$(dirname "$0")/.."

RUNS=${RUNS:-7} CALLS=${CALLS:-200000}
work=$(mktemp -d)
servers=()
trap 'kill "${servers[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

command -v h2load >/dev/null || { echo 'h2load is missing: install the package nghttp2-client'; exit 1; }
cargo build --quiet --release -p tidegate-server --bins --examples -p tidegate-tests
target=${CARGO_TARGET_DIR:-target}/release

cat >"$work/config.toml" <<'TOML'
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
ops_listen = "127.0.0.1:0"
[[bulkhead]]
name = "orders-db"
limit = 1000000000
lease_ttl = "2s"
TOML
# AcquireRequest { bulkhead: "orders-db", holder: "figures" } in a gRPC frame.
printf '\x00\x00\x00\x00\x14\x0a\x09orders-db\x4a\x07figures' >"$work/acquire"

# start NAME COMMAND...: runs it on processor 0; its address goes to the variable NAME.
start() {
  local name=$1 log=$work/$1.log
  shift
  taskset -c 0 "$@" 2>"$log" &
  servers+=($!)
  declare -g "${name}_pid=$!"
  until grep -q 'serving admission=' "$log"; do sleep 0.05; done
  declare -g "$name=$(sed -n 's/.*serving admission=\([0-9.:]*\).*/\1/p' "$log")"
}

ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }

# cost PID ADDRESS: microseconds of processor time of that server for each call.
cost() {
  local before after
  before=$(ticks "$1")
  taskset -c 1 h2load -n "$CALLS" -c 1 -m 64 -d "$work/acquire" -H 'content-type: application/grpc' -H 'te: trailers' \
    "http://$2/tidegate.v1.AdmissionService/Acquire" >"$work/h2load.log"
  grep -q "$CALLS succeeded, 0 failed" "$work/h2load.log" || { cat "$work/h2load.log"; exit 1; }
  after=$(ticks "$1")
  awk -v ticks=$((after - before)) -v hz="$(getconf CLK_TCK)" -v calls="$CALLS" \
    'BEGIN { printf "%.3f\n", ticks * 1e6 / hz / calls }'
}

median() { sort -n | awk '{ all[NR] = $1 } END { printf "%s (%s to %s)", all[int((NR + 1) / 2)], all[1], all[NR] }'; }

start server "$target/tidegate-server" serve --config "$work/config.toml"
start echo "$target/examples/echo"
cost "$server_pid" "$server" >/dev/null
cost "$echo_pid" "$echo" >/dev/null
for ((run = 0; run < RUNS; run++)); do
  ours=$(cost "$server_pid" "$server") bare=$(cost "$echo_pid" "$echo")
  echo "$ours" >>"$work/ours"
  echo "$bare" >>"$work/bare"
  awk -v ours="$ours" -v bare="$bare" 'BEGIN { printf "%.3f\n", ours / bare }' >>"$work/ratio"
done
echo "processor time of the server for an Acquire, us: $(median <"$work/ours"), $RUNS runs of $CALLS calls, 64 in flight"
echo "the same of a bare tonic echo, us:               $(median <"$work/bare")"
echo "ratio in pairs:                                  $(median <"$work/ratio")"

first=()
! chrt --rr 10 true 2>/dev/null || first=(chrt --rr 10)
export TIDEGATE_SERVER=$target/tidegate-server
"${first[@]}" "$target/figures" handover raise operator storm
# Takes minutes, and its figure is no time.
"$target/figures" cancels

cargo bench --quiet -p tidegate-core --bench figures

# What the Rust client costs its application.
"$target/client-figures"
