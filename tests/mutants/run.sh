#!/usr/bin/env bash
# Plants known bugs one at a time and demands that a test sees each.
#
#   tests/mutants/run.sh         all mutants
#   tests/mutants/run.sh core    those whose test is in tidegate-core
#   tests/mutants/run.sh rest    the others
#   tests/mutants/run.sh 07      one
#
# A mutant is NN_name.patch in this folder. Before its diff stand three lines:
#
#   # Breaks: what is wrong with it, in a sentence
#   # Rule: R5
#   # Test: -p tidegate-core --lib queue::tests::name
#
# `Test` holds arguments of `cargo test`. On the clean tree they must run a test and pass; with the mutant they must
# build and fail. All happens in a copy under target/mutants/, so the work tree may change meanwhile; a second run in the
# same work tree is refused while one goes on.
set -euo pipefail
cd "$(dirname "$0")/../.."

limit=180 # seconds for one run of a test; a mutant that hangs is seen, too
out=$PWD/target/mutants
tree=$out/tree
logs=$out/logs
export CARGO_TARGET_DIR=$out/target CARGO_INCREMENTAL=1 CARGO_TERM_COLOR=never

mkdir -p "$out"
exec 9>"$out/lock"
flock --nonblock 9 || { echo "another run of the mutants goes on in this work tree ($out/lock)" >&2; exit 1; }

# --- The copy -------------------------------------------------------------------------------------------------------

# A git index of our own keeps the snapshot. Unlike a plain copy it can put back exactly the files that differ, with a
# new mtime: cargo then rebuilds those and no others, and never takes a mutant's build for a clean one.
copy() { git -C "$tree" --git-dir="$out/git" --work-tree="$tree" "$@"; }

snapshot() {
  rm -rf "$logs" "$out/git/index"
  mkdir -p "$tree" "$logs"
  git init --quiet --bare "$out/git"
  git ls-files -z --cached --others --exclude-standard |
    git --git-dir="$out/git" --work-tree="$PWD" update-index --add --remove -z --stdin
}

# Also removes what a failing test left, such as a new seed in proptest-regressions.
restore() {
  copy update-index -q --refresh >/dev/null || true
  copy checkout-index --force --all
  copy clean --quiet --force -d -x
}

# --- One mutant -----------------------------------------------------------------------------------------------------

header() { sed -n "/^--- /q; /^# $1: */{s///p;q}" "$2"; }

# build LOG ARG...: whether a test builds. Tests over the wire build the server when they run; one that does not compile
# would look like a test that fails, so it is built here as well. (9 is the lock: no child may keep it.)
build() {
  local log=$1 && shift
  if [[ " $* " == *' -p tidegate-tests '* ]]; then
    cargo build -p tidegate-server </dev/null >>"$log" 2>&1 9>&- || return 1
  fi
  cargo test --no-run "$@" </dev/null >>"$log" 2>&1 9>&-
}

# run_test LOG ARG...: 0 passed, 124 out of time, else failed. In the background, so that Ctrl-C ends it.
run_test() {
  local log=$1 && shift
  timeout --kill-after=5 "$limit" cargo test "$@" </dev/null >>"$log" 2>&1 9>&- &
  wait $!
}

# Sets `clean[test]` to what is wrong with a test without any mutant: empty, if nothing.
check_clean() {
  local test=$1 log=$logs/clean_$((${#clean[@]} + 1)).log args
  read -ra args <<<"$test"
  if ! build "$log" "${args[@]}"; then
    clean[$test]="the clean tree does not build: $log"
  elif ! run_test "$log" "${args[@]}"; then
    clean[$test]="its test fails without it: $log"
  elif ! grep -q '^test result: ok\. [1-9]' "$log"; then
    clean[$test]="its test line runs no test: $log"
  else
    clean[$test]=
  fi
}

# Sets `verdict`, and `problem` if the verdict is bad.
try() {
  local patch=$1 test=$2 log args status=0
  log=$logs/$(basename "$patch" .patch).log
  read -ra args <<<"$test"
  verdict=ERROR problem=${clean[$test]}
  [[ -z $problem ]] || return 0

  # git apply takes moved lines, but no fuzz.
  if ! copy apply --whitespace=nowarn "$patch" >"$log" 2>&1; then
    problem="does not apply: $log"
    return
  fi
  if ! build "$log" "${args[@]}"; then
    problem="does not compile: $log"
  else
    run_test "$log" "${args[@]}" || status=$?
    if ((status == 0)); then
      verdict=SURVIVED problem="its test passes: $log"
    elif ((status == 124 || status == 137)); then
      verdict='killed (time)'
    elif grep -q '^running [1-9]' "$log"; then
      verdict=killed
    else
      problem="cargo failed before its test ran: $log"
    fi
  fi
  restore
}

# --- All of them ----------------------------------------------------------------------------------------------------

shopt -s nullglob
patches=()
name_width=4 breaks_width=6
for patch in "$PWD"/tests/mutants/[0-9]*_*.patch; do
  name=$(basename "$patch" .patch) test=$(header Test "$patch") breaks=$(header Breaks "$patch")
  if [[ -z $test || -z $breaks || -z $(header Rule "$patch") ]]; then
    echo "$name.patch lacks a line Breaks, Rule or Test: see the top of run.sh" >&2
    exit 1
  fi
  case ${1-all} in
    all) ;;
    core) [[ $test == '-p tidegate-core '* ]] || continue ;;
    rest) [[ $test != '-p tidegate-core '* ]] || continue ;;
    *) [[ $name == "$1"_* ]] || continue ;;
  esac
  patches+=("$patch")
  ((${#name} - 3 <= name_width)) || name_width=$((${#name} - 3))
  ((${#breaks} <= breaks_width)) || breaks_width=${#breaks}
done
if ((${#patches[@]} == 0)); then
  echo "no mutant for '${1-all}' in tests/mutants: that proves nothing" >&2
  exit 1
fi

trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM
snapshot
cd "$tree"
restore

declare -A clean=()
for patch in "${patches[@]}"; do
  test=$(header Test "$patch")
  [[ -v clean[$test] ]] || check_clean "$test"
done
echo "${#clean[@]} tests tried on the clean tree; now with ${#patches[@]} mutants, one at a time."

row() { printf "%-3s %-${name_width}s %-6s %-${breaks_width}s %-13s %s\n" "$@"; }
row No name rule breaks verdict test
killed=0 problems=()
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch) test=$(header Test "$patch")
  try "$patch" "$test"
  row "${name%%_*}" "${name#*_}" "$(header Rule "$patch")" "$(header Breaks "$patch")" "$verdict" "$test"
  if [[ $verdict == killed* ]]; then
    killed=$((killed + 1))
  else
    problems+=("${name%%_*} $verdict: ${problem/"$out"/target/mutants}")
  fi
done

echo "$killed of ${#patches[@]} killed."
((${#problems[@]} == 0)) || { printf '%s\n' "${problems[@]}"; exit 1; }
