#!/usr/bin/env bash
# PgBouncer, as a throw-away pooler on a loopback port before a PostgreSQL on another.
#
#   pgbouncer.sh install        the Debian package, as root, if there is no PgBouncer; no service is started
#   pgbouncer.sh start PORT     install, start, wait until it answers, print its URL
#   pgbouncer.sh pid PORT       print the pid of the pooler that was started on PORT, or fail
#   pgbouncer.sh crash PORT     kill it: start brings it back
#   pgbouncer.sh stop PORT      end it and remove its files
#
# DLOCK_PGBOUNCER_TO is the port of the PostgreSQL, DLOCK_PGBOUNCER_MODE is session, transaction or statement. Each user passes without a
# password, and becomes postgres. Root cannot run PgBouncer: then the account postgres or nobody does.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Where other accounts can go, too.
shared=${TMPDIR:-/tmp}/dlock-pgbouncer-$(id -u)
verb=${1:-help} port=${2:-}
run=$shared/pgbouncer-$port
patience_s=20

die() { echo "pgbouncer: $*" >&2; exit 1; }

. "$here/apt.sh"
. "$here/process.sh"

as_server=()
if [[ $(id -u) == 0 ]]; then
    account=postgres
    id -u postgres >/dev/null 2>&1 || account=nobody
    as_server=(setpriv "--reuid=$account" "--regid=$(id -g "$account")" --clear-groups)
fi

install() {
    command -v pgbouncer >/dev/null || apt_install pgbouncer
}

answers() {
    { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
    exec 3>&-
}

pid() { # only a process that this script has started
    [[ -f $run.pid ]] && grep -qs pgbouncer "/proc/$(<"$run.pid")/comm" && cat "$run.pid"
}

start() {
    pid >/dev/null && answers && return
    ! answers || die "port $port is taken by a server that this script did not start"
    install
    mkdir -p "$shared"
    chmod 711 "$shared"
    cat >"$run.ini" <<END
[databases]
* = host=127.0.0.1 port=${DLOCK_PGBOUNCER_TO:?names the port of the PostgreSQL} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = any
pool_mode = ${DLOCK_PGBOUNCER_MODE:-transaction}
default_pool_size = 2
END
    setsid "${as_server[@]}" pgbouncer "$run.ini" >>"$run.log" 2>&1 </dev/null &
    launched $!
}

case $verb in
    install) install ;;
    start | pid | crash | stop)
        [[ $port =~ ^[0-9]+$ ]] || die "usage: pgbouncer.sh $verb PORT"
        "$verb"
        if [[ $verb == stop ]]; then rm -f "$run.ini"; fi
        [[ $verb != start ]] || echo "postgresql://postgres@127.0.0.1:$port/postgres" ;;
    *) sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac
