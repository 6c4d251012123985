#!/usr/bin/env bash
# Brings what tests and lints need besides Rust. Everything but system packages lands in .tools/, which git ignores.
# Stamps tell what is done, so a second run is quick.
#
#   scripts/tools.sh          system packages where missing, .tools/venv, .tools/stubs
#   scripts/tools.sh stubs    the same, with the Python stubs made anew
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.tools/venv
stubs=.tools/stubs
protos=(proto/tidegate/*/*.proto)

say() { echo "tools: $*" >&2; }
die() { say "$*"; exit 1; }
stamped() { [[ $(cat "$1/stamp" 2>/dev/null) == "$2" ]]; }

command -v cargo >/dev/null || die "cargo is missing: install Rust (rust-version in Cargo.toml, or later), e.g. with rustup"

packages=()
command -v cc >/dev/null || packages+=(gcc libc6-dev)
command -v git >/dev/null || packages+=(git)
command -v python3 >/dev/null || packages+=(python3)
python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
if ((${#packages[@]})); then
  command -v apt-get >/dev/null || die "missing, and no apt-get to install them: ${packages[*]}"
  say "installing ${packages[*]}"
  root=()
  [[ $(id -u) == 0 ]] || root=(sudo)
  install=(env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${packages[@]}")
  if ! { "${root[@]}" apt-get update -q && "${root[@]}" "${install[@]}"; }; then
    die "could not install ${packages[*]}: install them by hand"
  fi
fi

# A venv holds absolute paths and one Python: it's stale once the folder moves or Python changes.
want=$({ pwd; python3 --version; cat tests/requirements.txt; } | git hash-object --stdin)
if ! stamped "$venv" "$want"; then
  say "installing tests/requirements.txt into $venv"
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement tests/requirements.txt
  echo "$want" >"$venv/stamp"
fi

want=$({ echo "$want"; cat "${protos[@]}"; } | git hash-object --stdin)
if [[ ${1-} == stubs ]] || ! stamped "$stubs" "$want"; then
  say "generating Python stubs into $stubs"
  rm -rf "$stubs"
  mkdir -p "$stubs"
  "$venv/bin/python" -m grpc_tools.protoc -I proto --python_out="$stubs" --grpc_python_out="$stubs" "${protos[@]}"
  echo "$want" >"$stubs/stamp"
fi
