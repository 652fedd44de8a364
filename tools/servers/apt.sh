# Debian packages, for the scripts that source this and have a function die.

apt_install() { # PACKAGE..., as root; the first is named where that can't be. No service is started.
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || die "$1 is not installed; as root: apt-get install $*"
    local apt=(env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
    "${apt[@]}" install -y --no-install-recommends "$@" >&2 && return
    "${apt[@]}" update >&2 && "${apt[@]}" install -y --no-install-recommends "$@" >&2
}
