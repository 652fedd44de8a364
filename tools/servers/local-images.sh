#!/usr/bin/env bash
# Containers on a machine that reaches no image registry: packs Redis, PostgreSQL, etcd and DynamoDB Local, as they are installed here,
# into images of the publishers' names, and runs a command beside a Podman that has them. What the command then finds is a container, but not
# the publisher's.
#
#   local-images.sh run COMMAND...   install Podman and the servers if needed, pack, serve Docker's API, run COMMAND, end the service
#   local-images.sh purge            remove the images and all other traces
#
# Debian, as root. An existing Podman is used with a configuration and a storage of its own; nothing of its set-up is touched.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DLOCK_TEST_CACHE:-$HOME/.cache/dlock-servers}
state=$cache/containers
patience_s=30
export CONTAINERS_CONF=$state/containers.conf CONTAINERS_STORAGE_CONF=$state/storage.conf CONTAINERS_REGISTRIES_CONF=$state/registries.conf

die() { echo "local-images: $*" >&2; exit 1; }

. "$here/apt.sh"

install() {
    command -v podman >/dev/null && command -v runc >/dev/null && return
    apt_install podman runc netavark aardvark-dns catatonit iptables
}

configure() { # configure STORAGE-DRIVER
    local files processes
    files=$(ulimit -Hn) processes=$(ulimit -Hu)
    [[ $files != unlimited ]] && ((files < 16384)) || files=16384
    [[ $processes != unlimited ]] && ((processes < 16384)) || processes=16384
    mkdir -p "$state"
    # crun refuses the hybrid cgroups of small virtual machines; a limit can't be raised where the capability is missing, and Podman 4
    # mixes soft and hard ones up, so both are what is allowed here.
    cat >"$CONTAINERS_CONF" <<END
[containers]
default_ulimits = ["nofile=$files:$files", "nproc=$processes:$processes"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
compat_api_enforce_docker_hub = false
END
    printf '[storage]\ndriver = "%s"\ngraphroot = "%s/storage"\nrunroot = "%s/run"\n' "$1" "$state" "$state" >"$CONTAINERS_STORAGE_CONF"
    printf 'unqualified-search-registries = ["localhost"]\nshort-name-mode = "disabled"\n' >"$CONTAINERS_REGISTRIES_CONF"
}

keep() { # keep FILE...: each goes into the image under its own path, with the libraries that it loads
    local file
    for file in "$@"; do
        cp -L --parents "$file" "$root"
        { ldd "$file" 2>/dev/null | grep -o '/[^ ]*' || true; } | while read -r library; do cp -L --parents "$library" "$root"; done
    done
}

pack() { # pack NAME PREPARE CHANGE...: what the function PREPARE puts into $root becomes the image NAME
    local name=$1 prepare=$2 changes=() change; shift 2
    ! podman image exists "localhost/$name" || return 0
    for change in "$@"; do changes+=(--change "$change"); done
    root=$(mktemp -d "$state/root.XXXXXX")
    mkdir -p "$root"/{tmp,data,proc,sys,dev,etc,bin}
    "$prepare"
    tar -C "$root" -c . | podman import --quiet "${changes[@]}" - "localhost/$name" >/dev/null
    rm -rf "$root"
}

prepare_redis() {
    "$here/redis.sh" install
    keep "$(command -v redis-server)" /bin/sh
    # As the publisher's image: reachable from outside of the container.
    printf '#!/bin/sh\nexec "$@" --protected-mode no\n' >"$root/entry"
    chmod 755 "$root/entry"
}

prepare_postgres() {
    local bin home library
    bin=$("$here/postgres.sh" install postgres)
    home=$(dirname "$bin")
    mkdir -p "$root/usr/share/postgresql" "$root$home"
    cp -r "/usr/share/postgresql/$(basename "$home")" "$root/usr/share/postgresql/"
    cp -r "$home/lib" "$root$home/"
    rm -rf "$root$home"/lib/{bitcode,llvmjit*} # to compile statements takes 100 MB more
    for library in "$root$home"/lib/*.so; do keep "$home/lib/$(basename "$library")"; done
    keep "$bin"/{postgres,initdb} /bin/sh /usr/share/zoneinfo/UTC
    echo 'postgres:x:70:70::/data:/bin/sh' >"$root/etc/passwd"
    chown 70:70 "$root/data"
    # As the publisher's image with POSTGRES_HOST_AUTH_METHOD=trust; arguments after the first go to the server.
    cat >"$root/entry" <<END
#!/bin/sh
set -e
if [ ! -f /data/PG_VERSION ]; then
    $bin/initdb -D /data -U postgres -A trust -E UTF8 --locale=C --no-sync
    echo 'host all all all trust' >>/data/pg_hba.conf
fi
shift
exec $bin/postgres -D /data -h '*' -k '' "\$@"
END
    chmod 755 "$root/entry"
}

prepare_etcd() {
    "$here/etcd.sh" install
    keep "$(command -v etcd)"
}

prepare_dynamodb() {
    local jars home file
    "$here/dynamodb-local.sh" install
    jars=$(find "$cache" -maxdepth 1 -name 'dynamodb-local-*' -type d | head -n 1)
    cp -r "$jars" "$root/jars"
    home=$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")
    mkdir -p "$root$(dirname "$home")"
    cp -a "$home" "$root$(dirname "$home")/"
    cp -a /etc/java-* "$root/etc/" # what links from there lead to
    find "$home" -type f \( -name '*.so' -o -path '*/bin/*' \) | while read -r file; do keep "$file"; done
    printf '#!%s\n' /bin/sh >"$root/entry"
    printf 'exec %s/bin/java -XX:+UseSerialGC -Djava.library.path=/jars -cp "/jars/*" ' "$home" >>"$root/entry"
    printf 'software.amazon.dynamodb.services.local.main.ServerRunner -inMemory -sharedDb -disableTelemetry\n' >>"$root/entry"
    keep /bin/sh
    chmod 755 "$root/entry"
}

images() {
    pack redis prepare_redis 'ENTRYPOINT ["/entry"]' 'CMD ["/usr/bin/redis-server"]' 'ENV PATH=/usr/bin:/bin' 'WORKDIR /data' 'EXPOSE 6379'
    podman tag localhost/redis localhost/redis:7
    pack postgres prepare_postgres 'ENTRYPOINT ["/entry"]' 'CMD ["postgres"]' 'USER postgres' 'ENV TZ=UTC' 'WORKDIR /data' 'EXPOSE 5432' 'STOPSIGNAL SIGINT'
    podman tag localhost/postgres "localhost/postgres:$(basename "$(dirname "$("$here/postgres.sh" install postgres)")")"
    # The publisher's image has no entry point either.
    pack etcd prepare_etcd 'CMD ["/usr/bin/etcd"]' 'ENV PATH=/usr/bin' 'WORKDIR /data' 'EXPOSE 2379'
    podman tag localhost/etcd quay.io/coreos/etcd:v3.5.15
    pack amazon/dynamodb-local prepare_dynamodb 'ENTRYPOINT ["/entry"]' 'WORKDIR /data' 'EXPOSE 8000'
}

run() {
    [[ $(id -u) == 0 ]] || die "needs root"
    local socket=$state/podman.sock status=0 until
    install
    configure overlay
    podman info >/dev/null 2>&1 || { rm -rf "$state/storage" "$state/run"; configure vfs; } # no overlay upon an overlay
    podman info >/dev/null || die "Podman does not work here; its message is above"
    images
    rm -f "$socket"
    podman system service --time=0 "unix://$socket" >"$state/log" 2>&1 </dev/null &
    service=$!
    trap 'kill "$service" 2>/dev/null; podman rm --all --force --time 0 >/dev/null 2>&1' EXIT
    until=$((SECONDS + patience_s))
    until [[ -S $socket ]]; do
        kill -0 "$service" 2>/dev/null && ((SECONDS < until)) || { cat "$state/log" >&2; die "the service did not start"; }
        sleep 0.05
    done
    DOCKER_HOST=unix://$socket TESTCONTAINERS_RYUK_DISABLED=true TESTCONTAINERS_CONNECTION_MODE=docker_host "$@" || status=$?
    return "$status"
}

purge() {
    [[ ! -f $CONTAINERS_CONF ]] || podman system reset --force >/dev/null 2>&1 || true
    rm -rf "$state"
}

case ${1:-help} in
    run) shift; (($#)) || die "usage: local-images.sh run COMMAND..."; run "$@" ;;
    purge) purge ;;
    *) sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 64 ;;
esac
