#!/bin/sh
# Runs a test executable (or, with --world, any program) in a network and mount namespace of its own, so that
# it can listen on ClusterIPs, give pods addresses and have names of its own, without root and without
# touching the host. Cargo calls it for everything it runs, see .cargo/config.toml.
#
#   10.96.0.0/16    ClusterIPs: the whole range is local
#   10.123.0.1      the node
#   10.124.0.0/16   pods, each in a network namespace below this one
#
# Where namespaces are not allowed the program runs as it is, with the reason in PINNIPED_WORLD_MISSING; what
# cannot work then says so.
set -eu

case $1 in
  --world) shift ;;
  */deps/*) ;;
  *) exec "$@" ;;
esac
# Tests of the real node make namespaces themselves, as root of the machine, or are skipped.
[ "${CARGO_PKG_NAME:-}" != pinniped-node-tests ] || exec "$@"
# Only once: a program inside that runs cargo stays in the same network.
[ -z "${PINNIPED_WORLD:-}" ] || exec "$@"

# Last: pods reach pods by way of this network, like a gateway its backends. Not writable everywhere; who needs it looks.
inside='
ip link set lo up &&
ip addr add 10.123.0.1/32 dev lo &&
ip route add local 10.96.0.0/16 dev lo &&
{ echo 1 >/proc/sys/net/ipv4/ip_forward || true; } 2>/dev/null'
# What pods need beside that.
probe="$inside && ip link add probe0 type veth peer name probe1"

# A world that lacks a part is worse than none: try it first.
try() {
  why=$(unshare "$@" --net --mount sh -c "$probe" 2>&1)
}

if ! command -v unshare >/dev/null || ! command -v ip >/dev/null; then
  why='the programs unshare and ip are needed (packages util-linux and iproute2)'
elif try --user --map-root-user; then
  exec unshare --user --map-root-user --net --mount sh -c "$inside && exec \"\$@\"" \
    sh env PINNIPED_WORLD=namespace "$@"
elif [ "$(id -u)" = 0 ] && try; then
  exec unshare --net --mount sh -c "$inside && exec \"\$@\"" sh env PINNIPED_WORLD=namespace "$@"
fi
if [ "${PINNIPED_REQUIRE_ALL:-}" = 1 ]; then
  echo "test-runner: no network namespace of our own: $why" >&2
  exit 1
fi
exec env PINNIPED_WORLD_MISSING="$why" "$@"
