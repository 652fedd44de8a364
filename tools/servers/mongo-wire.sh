#!/usr/bin/env bash
# A throw-away server on a loopback port that speaks MongoDB's wire protocol, where no mongod can be had.
# It is SecantusDB, over WiredTiger, and NOT MongoDB: a stand-in. With Docker at hand prefer mongo:7 as a replica set of one.
#
#   mongo-wire.sh install        fetch the server (a wheel, from PyPI) if it is missing; may run in parallel
#   mongo-wire.sh start PORT     install, start, wait until it answers, print its URL
#   mongo-wire.sh pid PORT       print the pid of the server that was started on PORT, or fail
#   mongo-wire.sh crash PORT     kill it and keep its data: start brings it back
#   mongo-wire.sh stop PORT      end it and remove its data
#
# Kept in ${DLOCK_TEST_CACHE:-~/.cache/dlock-servers}. DLOCK_PYTHON names another python3.
# Each commit is synced: without it a crash loses acknowledged writes, which a mongod never does.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=0.7.0b3
python=${DLOCK_PYTHON:-python3}
cache=${DLOCK_TEST_CACHE:-$HOME/.cache/dlock-servers}
verb=${1:-help} port=${2:-}
run=$cache/run/mongo-wire-$port
patience_s=60

die() { echo "mongo-wire: $*" >&2; exit 1; }

. "$here/process.sh"

wheel=$cache/secantusdb-$version-$("$python" -c 'import sys; print(sys.implementation.cache_tag)')

install() {
    [[ -d $wheel ]] && return
    mkdir -p "$cache"
    local new; new=$(mktemp -d "$cache/fetch.XXXXXX")
    "$python" -m pip install --quiet --disable-pip-version-check --root-user-action ignore --only-binary :all: --no-compile \
        --target "$new" "secantusdb==$version" >&2 || { rm -rf "$new"; die "pip could not fetch secantusdb==$version; its messages are above"; }
    # Whoever comes first wins: a rename is atomic, and both have fetched the same.
    mv -T "$new" "$wheel" 2>/dev/null || { rm -rf "$new"; [[ -d $wheel ]] || die "cannot write $wheel"; }
}

answers() { # OP_MSG {ping: 1, $db: "admin"}; any reply will do
    local LC_ALL=C reply=
    { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
    printf '%b' '\x33\0\0\0\x01\0\0\0\0\0\0\0\xdd\x07\0\0\0\0\0\0\0\x1e\0\0\0\x10ping\0\x01\0\0\0\x02$db\0\x06\0\0\0admin\0\0' >&3
    IFS= read -r -t 2 -d '' -n 1 -u 3 reply || true
    exec 3>&-
    [[ -n $reply ]]
}

pid() { # only a process that this script has started
    [[ -f $run.pid ]] && grep -qsz "$run.data" "/proc/$(<"$run.pid")/cmdline" && cat "$run.pid"
}

start() {
    pid >/dev/null && answers && return
    ! answers || die "port $port is taken by a server that this script did not start"
    install
    mkdir -p "$run.data"
    PYTHONPATH=$wheel setsid "$python" -c 'from secantus.cli import main; raise SystemExit(main())' \
        --host 127.0.0.1 --port "$port" --storage-path "$run.data" --cache-size 256M --sync-on-commit \
        --enable-test-commands --log-level WARNING >>"$run.log" 2>&1 </dev/null &
    launched $!
}

case $verb in
    install) install ;;
    start | pid | crash | stop)
        [[ $port =~ ^[0-9]+$ ]] || die "usage: mongo-wire.sh $verb PORT"
        "$verb"
        [[ $verb != start ]] || echo "mongodb://127.0.0.1:$port/?replicaSet=secantus" ;;
    *) sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac
