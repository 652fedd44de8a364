#!/usr/bin/env bash
# ZooKeeper, as a throw-away server that stands alone on a loopback port, without containers.
#
#   zookeeper.sh install        the Debian package, as root, if no ZooKeeper is there
#   zookeeper.sh start PORT     install, start, wait until it answers, print its URL
#   zookeeper.sh pid PORT       print the pid of the server that was started on PORT, or fail
#   zookeeper.sh crash PORT     kill it and keep its data: start brings it back
#   zookeeper.sh stop PORT      end it and remove its data
#
# DLOCK_ZOOKEEPER_CLASSPATH names the jars of another version, DLOCK_ZOOKEEPER_CONFIG gives lines of its configuration.
# DLOCK_ZOOKEEPER_ID is its number in an ensemble that the configuration names: then it may answer that it has no majority.
# Each write is synced before it is answered, as by default.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DLOCK_TEST_CACHE:-$HOME/.cache/dlock-servers}
verb=${1:-help} port=${2:-}
run=$cache/run/zookeeper-$port
patience_s=60
jars=/usr/share/java
# With what TLS needs of Netty, which Debian's ZooKeeper does not name.
classpath=${DLOCK_ZOOKEEPER_CLASSPATH:-$jars/zookeeper.jar:$jars/netty-codec.jar:$jars/netty-resolver.jar}

die() { echo "zookeeper: $*" >&2; exit 1; }

. "$here/apt.sh"
. "$here/process.sh"

install() {
    command -v java >/dev/null || apt_install default-jre-headless
    [[ -n ${DLOCK_ZOOKEEPER_CLASSPATH:-} || -e $jars/zookeeper.jar ]] || apt_install zookeeper
}

answers() {
    local reply=
    { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
    printf srvr >&3
    reply=$(timeout 2 cat <&3 2>/dev/null) || true
    exec 3>&-
    [[ $reply == *Mode:* || (-n ${DLOCK_ZOOKEEPER_ID:-} && -n $reply) ]]
}

pid() { # only a process that this script has started
    [[ -f $run.pid ]] && grep -qs java "/proc/$(<"$run.pid")/comm" && cat "$run.pid"
}

start() {
    pid >/dev/null && answers && return
    ! answers || die "port $port is taken by a server that this script did not start"
    install
    mkdir -p -m 700 "$run.data"
    # Without its admin server, which has a port of its own.
    printf '%s\n' tickTime=2000 "dataDir=$run.data" "clientPort=$port" clientPortAddress=127.0.0.1 maxClientCnxns=0 admin.enableServer=false \
        "${DLOCK_ZOOKEEPER_CONFIG:-}" >"$run.data/zoo.cfg"
    echo "${DLOCK_ZOOKEEPER_ID:-1}" >"$run.data/myid"
    setsid java -Xmx256m -XX:TieredStopAtLevel=1 -cp "$classpath" org.apache.zookeeper.server.quorum.QuorumPeerMain "$run.data/zoo.cfg" \
        >>"$run.log" 2>&1 </dev/null &
    launched $!
}

case $verb in
    install) install ;;
    start | pid | crash | stop)
        [[ $port =~ ^[0-9]+$ ]] || die "usage: zookeeper.sh $verb PORT"
        "$verb"
        [[ $verb != start ]] || echo "zookeeper://127.0.0.1:$port" ;;
    *) sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac
