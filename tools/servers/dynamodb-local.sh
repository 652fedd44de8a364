#!/usr/bin/env bash
# Amazon DynamoDB Local as a throw-away server on a loopback port, without containers.
#
#   dynamodb-local.sh install        fetch Java (apt, as root) and the server (Maven) if they are missing; may run in parallel
#   dynamodb-local.sh start PORT     install, start, wait until it answers, print its URL
#   dynamodb-local.sh pid PORT       print the pid of the server that was started on PORT, or fail
#   dynamodb-local.sh stop PORT      end it
#
# Jars: ${DLOCK_TEST_CACHE:-~/.cache/dlock-servers}. Data are in memory; DLOCK_DDB_DIR=DIR keeps them in DIR through a restart.
# The server has one database whatever the region and the credentials, and listens on all interfaces: it has no option for that.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pom=$here/dynamodb-local.pom.xml
cache=${DLOCK_TEST_CACHE:-$HOME/.cache/dlock-servers}
jars=$cache/dynamodb-local-$(cksum <"$pom" | cut -d' ' -f1)
verb=${1:-help} port=${2:-}
run=$cache/run/dynamodb-local-$port
patience_s=60

die() { echo "dynamodb-local: $*" >&2; exit 1; }

. "$here/apt.sh"

install() {
    command -v java >/dev/null || apt_install default-jre-headless
    [[ -d $jars ]] && return
    command -v mvn >/dev/null || apt_install maven
    mkdir -p "$cache"
    local new; new=$(mktemp -d "$cache/fetch.XXXXXX")
    mvn -q -B -f "$pom" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$new" >&2 \
        || { rm -rf "$new"; die "Maven could not fetch the server; its messages are above"; }
    # Whoever comes first wins: a rename is atomic, and both have fetched the same.
    mv -T "$new" "$jars" 2>/dev/null || { rm -rf "$new"; [[ -d $jars ]] || die "cannot write $jars"; }
}

answers() { # any HTTP status line will do
    local line=
    { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
    printf 'GET / HTTP/1.0\r\n\r\n' >&3
    read -r -t 2 -u 3 line 2>/dev/null || true
    exec 3>&-
    [[ $line == HTTP/* ]]
}

pid() { # only a process that this script has started
    [[ -f $run.pid ]] && grep -qsz ServerRunner "/proc/$(<"$run.pid")/cmdline" && cat "$run.pid"
}

start() {
    pid >/dev/null && answers && return
    ! answers || die "port $port is taken by a server that this script did not start"
    install
    mkdir -p "$cache/run"
    local storage=(-inMemory) server
    [[ -z ${DLOCK_DDB_DIR:-} ]] || { mkdir -p "$DLOCK_DDB_DIR"; storage=(-dbPath "$DLOCK_DDB_DIR"); }
    setsid java -XX:+UseSerialGC -Xmx1g -Djava.library.path="$jars" -cp "$jars/*" \
        software.amazon.dynamodb.services.local.main.ServerRunner \
        "${storage[@]}" -sharedDb -disableTelemetry -port "$port" >"$run.log" 2>&1 </dev/null &
    server=$!
    echo "$server" >"$run.pid"
    local until=$((SECONDS + patience_s))
    until answers; do
        kill -0 "$server" 2>/dev/null && ((SECONDS < until)) || { tail -n 20 "$run.log" >&2; stop; die "no answer; the end of its log is above"; }
        sleep 0.1
    done
}

stop() {
    local server
    if server=$(pid); then
        kill -CONT "$server"
        kill "$server"
        for _ in {1..50}; do kill -0 "$server" 2>/dev/null || break; sleep 0.1; done
        ! kill -0 "$server" 2>/dev/null || kill -KILL "$server"
    fi
    rm -f "$run.pid"
}

case $verb in
    install) install ;;
    start | pid | stop)
        [[ $port =~ ^[0-9]+$ ]] || die "usage: dynamodb-local.sh $verb PORT"
        "$verb"
        [[ $verb != start ]] || echo "http://127.0.0.1:$port" ;;
    *) sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac
