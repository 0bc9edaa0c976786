#!/bin/sh
# Runs a test executable (or, with --world, any program) in its own network and mount namespaces, so
# that it can listen on ClusterIPs, assign addresses to pods and define host names, without root and
# without changes to the host. Cargo runs every program through this script, see
# .cargo/config.toml.
#
#   10.96.0.0/16    ClusterIPs: the whole range is local
#   10.123.0.1      the node
#   10.124.0.0/16   pods, each in a network namespace below this one
#
# Where namespaces are not allowed, the program runs without them, and PINNIPED_WORLD_MISSING
# contains the reason. Tests that need them are skipped and report the reason.
set -eu

case $1 in
  --world) shift ;;
  */deps/*) ;;
  *) exec "$@" ;;
esac
# Tests of the real node create namespaces themselves as the machine's root user, or are skipped.
[ "${CARGO_PKG_NAME:-}" != pinniped-node-tests ] || exec "$@"
# Programs inside the namespace that run cargo stay in the same network.
[ -z "${PINNIPED_WORLD:-}" ] || exec "$@"

# A control plane that `cargo xtask world` has started in advance, in namespaces of its own. Each is
# used by one test executable.
prepared=
case ${CARGO_PKG_NAME:-}:$1 in
  pinniped-concierge-controllers:*/deps/it-* | pinniped-gateway-controller:*/deps/it-* | \
    pinniped-server:*/deps/it-* | pinniped-e2e:*/deps/it-* | pinniped-e2e:*/deps/upstream-*)
    prepared=${PINNIPED_PREPARED_WORLDS:-}
    ;;
esac
if [ -n "$prepared" ]; then
  for ready in "$prepared"/*.ready; do
    owner=${ready##*/}
    owner=${owner%.ready}
    mv "$ready" "$prepared/$owner.claimed-$$" 2>/dev/null || continue
    user='--user --preserve-credentials'
    [ "$(readlink /proc/self/ns/user)" != "$(readlink "/proc/$owner/ns/user")" ] || user=
    # shellcheck disable=SC2086 # two options, or none
    exec nsenter --target "$owner" $user --net --mount env -C "$PWD" PINNIPED_WORLD=namespace \
      PINNIPED_PREPARED_WORLD="$(cat "$prepared/$owner.claimed-$$")" "$@"
  done
fi

# The last line forwards packets between pods, for a gateway and its backends. The file is not
# writable on every machine; tests that need forwarding check it.
inside='
ip link set lo up &&
ip addr add 10.123.0.1/32 dev lo &&
ip route add local 10.96.0.0/16 dev lo &&
{ echo 1 >/proc/sys/net/ipv4/ip_forward || true; } 2>/dev/null'
# The additional operations of pods.
probe="$inside && ip link add probe0 type veth peer name probe1"

# Tries everything first, because tests would fail in an incomplete namespace instead of being
# skipped.
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
