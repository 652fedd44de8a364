#!/usr/bin/env bash
# etcd, as a throw-away cluster of one member on a loopback port, without containers.
#
#   etcd.sh install        the Debian package, as root, if no etcd is there; its service is not started
#   etcd.sh start PORT     install, start, wait until it answers, print its URL
#   etcd.sh pid PORT       print the pid of the server that was started on PORT, or fail
#   etcd.sh crash PORT     kill it and keep its data: start brings it back
#   etcd.sh stop PORT      end it and remove its data
#
# DLOCK_ETCD names another binary, DLOCK_ETCD_URL lets it listen there as well, DLOCK_ETCD_ARGS gives it more options. Each write is synced before it is answered, as always with etcd.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DLOCK_TEST_CACHE:-$HOME/.cache/dlock-servers}
verb=${1:-help} port=${2:-}
run=$cache/run/etcd-$port
patience_s=30

die() { echo "etcd: $*" >&2; exit 1; }

. "$here/apt.sh"
. "$here/process.sh"

program() { command -v "${DLOCK_ETCD:-etcd}"; }

install() { program >/dev/null || apt_install etcd-server; }

answers() {
    local reply=
    { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
    printf 'GET /health HTTP/1.0\r\n\r\n' >&3
    reply=$(timeout 2 cat <&3) || true
    exec 3>&-
    [[ $reply =~ \"health\"\ *:\ *\"true\" ]]
}

pid() { # only a process that this script has started
    [[ -f $run.pid ]] && grep -qs etcd "/proc/$(<"$run.pid")/comm" && cat "$run.pid"
}

start() {
    pid >/dev/null && answers && return
    ! answers || die "port $port is taken by a server that this script did not start"
    install
    mkdir -p -m 700 "$run.data"
    # The port of the peers is any free one: a member alone speaks to no other.
    setsid "$(program)" --data-dir "$run.data" --logger zap --log-level warn \
        --listen-client-urls "http://127.0.0.1:$port${DLOCK_ETCD_URL:+,$DLOCK_ETCD_URL}" --advertise-client-urls "http://127.0.0.1:$port" \
        --listen-peer-urls http://127.0.0.1:0 ${DLOCK_ETCD_ARGS:-} >>"$run.log" 2>&1 </dev/null &
    launched $!
}

case $verb in
    install) install ;;
    start | pid | crash | stop)
        [[ $port =~ ^[0-9]+$ ]] || die "usage: etcd.sh $verb PORT"
        "$verb"
        [[ $verb != start ]] || echo "etcd://127.0.0.1:$port" ;;
    *) sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac
