#!/usr/bin/env bash
# MariaDB, as a throw-away server on a loopback port, without containers.
#
#   mariadb.sh install        the Debian package, as root, if no mariadbd is there; its service is not started
#   mariadb.sh start PORT     install, start, wait until it answers, print its URL; the words after PORT are options of mariadbd
#   mariadb.sh pid PORT       print the pid of the server that was started on PORT, or fail
#   mariadb.sh crash PORT     kill it and keep its data: start brings it back
#   mariadb.sh stop PORT      end it and remove its data
#
# The user is root without a password, the database is called locks. Every commit is synced before it is answered, as by default.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Not the home directory: the account mysql must be able to enter it.
cache=${DLOCK_MARIADB_CACHE:-/var/tmp/dlock-servers}
verb=${1:-help} port=${2:-}
run=$cache/run/mariadb-$port
patience_s=60

die() { echo "mariadb: $*" >&2; exit 1; }

. "$here/apt.sh"
. "$here/process.sh"

install() {
    command -v mariadbd >/dev/null || apt_install mariadb-server
}

answers() { # the greeting, or an error, has the sequence number 0 in its fourth byte; bash drops that, so any byte counts
    local reply=
    { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
    IFS= read -r -t 2 -n 1 -u 3 reply 2>/dev/null || true
    exec 3>&-
    [[ -n $reply ]]
}

pid() { # only a process that this script has started
    [[ -f $run.pid ]] && grep -qs mariadbd "/proc/$(<"$run.pid")/comm" && cat "$run.pid"
}

start() {
    local user=()
    pid >/dev/null && answers && return
    ! answers || die "port $port is taken by a server that this script did not start"
    install
    [[ $(id -u) != 0 ]] || user=(--user=mysql)
    mkdir -p "$run.tmp"
    chmod 1777 "$run.tmp"
    export TMPDIR=$run.tmp # a server that starts deletes the temporary tables there, also those of one beside it
    if [[ ! -d $run.data ]]; then
        mariadb-install-db --no-defaults "${user[@]}" --datadir="$run.data" \
            --auth-root-authentication-method=normal --skip-test-db >"$run.log" 2>&1 || { cat "$run.log" >&2; die "the data cannot be made"; }
    fi
    echo 'CREATE DATABASE IF NOT EXISTS locks;' >"$run.sql"
    setsid mariadbd --no-defaults "${user[@]}" --datadir="$run.data" --port="$port" --bind-address=127.0.0.1 \
        --socket="$run.data/socket" --pid-file="$run.data/pid" --init-file="$run.sql" --skip-name-resolve --innodb-buffer-pool-size=16M \
        --innodb-log-file-size=16M "$@" >>"$run.log" 2>&1 </dev/null &
    launched $!
}

case $verb in
    install) install ;;
    start | pid | crash | stop)
        [[ $port =~ ^[0-9]+$ ]] || die "usage: mariadb.sh $verb PORT"
        "$verb" "${@:3}"
        [[ $verb != start ]] || echo "mysql://root@127.0.0.1:$port/locks" ;;
    *) sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac
