# One server on one port, for the scripts that source this. They have functions die, answers and pid, and the variables run, port and patience_s.
# DLOCK_TEST_DATA is the folder of the data, such as one in memory: a disk that others keep busy may take seconds for one fsync.
if [[ -n ${DLOCK_TEST_DATA:-} ]]; then
    mkdir -p "$DLOCK_TEST_DATA"
    run=$DLOCK_TEST_DATA/${run##*/}
fi

launched() { # PID: keep it, and wait until the server answers
    local server=$1 until=$((SECONDS + patience_s))
    echo "$server" >"$run.pid"
    until answers; do
        kill -0 "$server" 2>/dev/null && ((SECONDS < until)) || { tail -n 20 "$run.log" >&2; stop; die "no answer; the end of its log is above"; }
        sleep 0.05
    done
}

crash() {
    local server
    server=$(pid) || die "nothing of ours runs on port $port"
    kill -KILL "$server"
    for _ in {1..100}; do pid >/dev/null || return 0; sleep 0.05; done
    die "pid $server survived"
}

stop() {
    local server
    if server=$(pid); then
        kill -CONT "$server"
        kill "$server"
        for _ in {1..100}; do pid >/dev/null || break; sleep 0.05; done
        ! pid >/dev/null || crash
    fi
    rm -rf "$run.pid" "$run.data" "$run.log" "$run.sql" "$run.tmp"
}
