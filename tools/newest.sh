#!/usr/bin/env bash
# The newest Python and servers that Debian has, in folders apart: what passes on those of a stable release need not pass on them.
#
#   newest.sh pytest ARGUMENTS...   make the folders, install this commit there, and run pytest there
#   newest.sh mysql ARGUMENTS...    the same with MySQL in the place of MariaDB, which cannot be installed beside it
#   newest.sh purge                 remove the folders; the next run has the newest of its day
#
# Debian or Ubuntu, as root; some 3 GB. What is mounted is seen by these processes alone, and goes with them.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(dirname "$here")
cache=${DLOCK_TEST_CACHE:-$HOME/.cache/dlock-servers}/newest
mirror=${DLOCK_DEBIAN_MIRROR:-http://deb.debian.org/debian}
root=$cache/root mysql=$cache/mysql
patience_s=60
packages=ca-certificates,default-jre-headless,etcd-server,git,mariadb-server,openssl,postgresql,procps,redis-server,zookeeper

die() { echo "newest: $*" >&2; exit 1; }

. "$here/servers/apt.sh"

folder() { # folder NAME PACKAGES: a Debian of its own, whole or not there at all
    [[ ! -d $1 ]] || return 0
    command -v debootstrap >/dev/null || apt_install debootstrap
    mkdir -p "$cache"
    rm -rf "$1.part"
    # Bootstrapped without the packages, whose scripts may need each other; services are not started.
    debootstrap --variant=minbase sid "$1.part" "$mirror" >&2
    printf '#!/bin/sh\nexit 101\n' >"$1.part/usr/sbin/policy-rc.d"
    chmod 755 "$1.part/usr/sbin/policy-rc.d"
    inside "$1.part" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends ${2//,/ } >&2
    cp -L /etc/ssl/certs/ca-certificates.crt "$1.part/etc/ssl/certs/" 2>/dev/null || true
    mv "$1.part" "$1"
}

inside() { # inside FOLDER COMMAND...
    # shellcheck disable=SC2016
    unshare --mount sh -euc '
        mount --rbind "$1" "$1"  # tests that mount something need a root that is mounted itself
        cp -L /etc/resolv.conf "$1/etc/"
        mount --rbind /dev "$1/dev"
        mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"
        mount --bind "$1/dev/pts/ptmx" "$1/dev/ptmx"
        mount -t tmpfs tmpfs "$1/dev/shm"
        mount -t proc proc "$1/proc"
        folder=$1; shift
        exec chroot "$folder" "$@"' sh "$@"
}

installed() {
    folder "$root" "$packages"
    rm -rf "$root/project"
    git clone --quiet --depth 1 "file://$project" "$root/project"
    [[ -x $root/venv/bin/pip ]] || new_python
    inside "$root" /venv/bin/pip install --quiet --editable '/project[all,frameworks,conformance]' --group /project/pyproject.toml:dev
}

new_python() { # Debian has the newest Python for a year before its own programs run on it
    inside "$root" sh -euc '
        newest=$(apt-cache search --names-only "^python3[.][0-9]+-venv\$" | cut -d" " -f1 | sort --version-sort | tail -n 1)
        DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends "$newest" >&2
        "${newest%-venv}" -m venv /venv'
}

run_pytest() {
    mkdir -p -m 1777 "$root/var/tmp/dlock"
    inside "$root" env -C /project HOME=/root PATH=/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin DLOCK_TEST_DATA=/var/tmp/dlock \
        /venv/bin/python -m pytest -p no:cacheprovider "$@"
}

run_mysql() {
    local port=${DLOCK_NEWEST_MYSQL_PORT:-33306} until=$((SECONDS + patience_s)) data=/var/lib/mysql
    folder "$mysql" mysql-server-core
    rm -rf "$mysql$data"
    mkdir -p "$mysql$data" "$mysql/var/lib/mysql-files"
    inside "$mysql" sh -ec "mysqld --no-defaults --initialize-insecure --user=root --datadir=$data
        printf '%s;\\n' 'RENAME USER root@localhost TO root' 'CREATE DATABASE locks' >/init.sql
        exec mysqld --no-defaults --user=root --datadir=$data --port=$port --bind-address=127.0.0.1 --init-file=/init.sql --mysqlx=0 \
            --socket=$data/socket --skip-name-resolve" >"$cache/mysql.log" 2>&1 &
    server=$!
    trap 'pkill -P "$server"; wait "$server" || true' EXIT  # the server is the child of a shell
    until grep -q "ready for connections.*port: $port " "$cache/mysql.log"; do
        kill -0 "$server" 2>/dev/null && ((SECONDS < until)) || { cat "$cache/mysql.log" >&2; die "MySQL did not start"; }
        sleep 0.1
    done
    export DLOCK_TEST_SERVERS=url DLOCK_TEST_MYSQL_URL=mysql://root@127.0.0.1:$port/locks
    run_pytest "$@"
}

[[ $(id -u) == 0 ]] || die "needs root"
case ${1:-help} in
    pytest) shift; installed; run_pytest "$@" ;;
    mysql) shift; installed; run_mysql "$@" ;;
    purge) rm -rf --one-file-system "$cache" ;;
    *) sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac
