#!/usr/bin/env bash
# The lock clients of other languages, for the tests that share locks with them.
#
#   interop.sh java     fetch the Java client (Maven) and compile its driver, if that was not done; print the class path
#   interop.sh node     fetch the Node client (npm ci, from the committed lock file), if that was not done; print its node_modules
#
# All goes into ${DLOCK_TEST_CACHE:-~/.cache/dlock-servers}; may run in parallel. Ends with 3 where the language itself is missing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${DLOCK_TEST_CACHE:-$HOME/.cache/dlock-servers}

die() { echo "interop: $1" >&2; exit "${2:-1}"; }

need() { command -v "$1" >/dev/null || die "there is no $1 on this machine" 3; }

. "$root/tools/servers/apt.sh"

digest() { cat "$@" | cksum | cut -d' ' -f1; }

keep() { # what is made under $1 becomes $2; whoever comes first wins: a rename is atomic, and all have made the same
    mv -T "$1" "$2" 2>/dev/null || { rm -rf "$1"; [[ -d $2 ]] || die "cannot write $2"; }
}

java_client() {
    local from=$root/tests/interop/java new jars made
    need java; need javac
    command -v mvn >/dev/null || apt_install maven
    jars=$cache/interop-java-$(digest "$from/pom.xml")
    if [[ ! -d $jars ]]; then
        mkdir -p "$cache"
        new=$(mktemp -d "$cache/fetch.XXXXXX")
        mvn -q -B -f "$from/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$new" >&2 \
            || { rm -rf "$new"; die "Maven could not fetch the Java client; its messages are above"; }
        keep "$new" "$jars"
    fi
    made=$cache/interop-java-driver-$(digest "$from/pom.xml" "$from/Locks.java")
    if [[ ! -d $made ]]; then
        new=$(mktemp -d "$cache/fetch.XXXXXX")
        javac -nowarn -cp "$jars/*" -d "$new" "$from/Locks.java" >&2 || { rm -rf "$new"; die "the driver does not compile"; }
        keep "$new" "$made"
    fi
    echo "$made:$jars/*"
}

node_client() {
    local from=$root/tests/interop/node new made
    need node; need npm
    made=$cache/interop-node-$(digest "$from/package.json" "$from/package-lock.json")
    if [[ ! -d $made ]]; then
        mkdir -p "$cache"
        new=$(mktemp -d "$cache/fetch.XXXXXX")
        cp "$from/package.json" "$from/package-lock.json" "$new"
        (cd "$new" && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error >&2) \
            || { rm -rf "$new"; die "npm could not fetch the Node client; its messages are above"; }
        keep "$new" "$made"
    fi
    echo "$made/node_modules"
}

case ${1:-} in
    java | node) # one process at a time: neither apt nor Maven takes two
        mkdir -p "$cache"
        (flock 8; "$1_client") 8>"$cache/install.lock" ;;
    *) sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac
