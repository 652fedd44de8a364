#!/usr/bin/env bash
# Redis, as a throw-away server on a loopback port, without containers.
#
#   redis.sh install        the Debian package, as root, if no redis-server is there; its service is not started
#   redis.sh start PORT     install, start, wait until it answers, print its URL
#   redis.sh pid PORT       print the pid of the server that was started on PORT, or fail
#   redis.sh crash PORT     kill it and keep its data: start brings it back
#   redis.sh stop PORT      end it and remove its data
#
# Every write is synced before it is answered (appendfsync always), so that a crash loses nothing that was acknowledged.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DLOCK_TEST_CACHE:-$HOME/.cache/dlock-servers}
verb=${1:-help} port=${2:-}
run=$cache/run/redis-$port
patience_s=30

die() { echo "redis: $*" >&2; exit 1; }

. "$here/apt.sh"
. "$here/process.sh"

install() {
    command -v redis-server >/dev/null || apt_install redis-server
}

answers() {
    local reply=
    { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
    printf 'PING\r\n' >&3
    IFS= read -r -t 2 -n 5 -u 3 reply || true
    exec 3>&-
    [[ $reply == +PONG ]]
}

pid() { # only a process that this script has started
    [[ -f $run.pid ]] && grep -qs redis-server "/proc/$(<"$run.pid")/comm" && cat "$run.pid"
}

start() {
    pid >/dev/null && answers && return
    ! answers || die "port $port is taken by a server that this script did not start"
    install
    mkdir -p "$run.data"
    setsid redis-server --port "$port" --bind 127.0.0.1 --dir "$run.data" --save '' \
        --appendonly yes --appendfsync always --maxmemory-policy noeviction >>"$run.log" 2>&1 </dev/null &
    launched $!
}

case $verb in
    install) install ;;
    start | pid | crash | stop)
        [[ $port =~ ^[0-9]+$ ]] || die "usage: redis.sh $verb PORT"
        "$verb"
        [[ $verb != start ]] || echo "redis://127.0.0.1:$port/0" ;;
    *) sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac
