#!/usr/bin/env bash
# promtool of Prometheus, which checks and tests alert rules: promtool.sh ARGUMENT...
#
# Without it, the Debian package is installed, as root; no service is started. Ends with 69 where that can't be.
set -euo pipefail

die() { echo "promtool: $*" >&2; exit 69; }

. "$(dirname "${BASH_SOURCE[0]}")/servers/apt.sh"

command -v promtool >/dev/null || apt_install prometheus >&2 || die "cannot be installed"
exec promtool "$@"
