"""Devices of containers when systemd is reloaded, as upgrades and our own roles do: why agents name GPUs' nodes."""

import json

import pytest

from tests.lab.lab import Lab

RELOADS = 100
# A scope as runc asks systemd for one: `hook` gets a device from outside, as by the toolkit's hook; `known` by its unit
# too. The device is a dummy: any character device of which nothing else on the host makes use.
PROBE = r"""
set -e
node=/dev/muster-dummy
number=10:229
group=/sys/fs/cgroup/devices/system.slice
mkdir -p /dev/char
mknod $node c 10 229
trap 'systemctl stop muster-hook muster-known; rm -f $node /dev/char/$number; rmdir /dev/char 2>/dev/null || true' EXIT
opens() {
  sh -c "echo \$\$ >$group/muster-$1.service/cgroup.procs; exec 3<>$node" 2>/dev/null && echo true || echo false
}
ln -s ../muster-dummy /dev/char/$number
systemd-run --quiet --collect --unit=muster-hook -p DevicePolicy=closed sleep infinity
systemd-run --quiet --collect --unit=muster-known -p DevicePolicy=closed -p "DeviceAllow=/dev/char/$number rwm" \
  sleep infinity
echo "c $number rwm" >$group/muster-hook.service/devices.allow
before="[$(opens hook), $(opens known)]"
hook=0 known=0
for reload in $(seq RELOADS); do
  systemctl daemon-reload
  [ "$(opens hook)" = false ] || hook=$((hook + 1))
  [ "$(opens known)" = false ] || known=$((known + 1))
done
echo "{\"before\": $before, \"opened\": [$hook, $known]}"
"""

pytestmark = pytest.mark.timeout(900)


def test_a_device_of_which_the_engine_knows_outlives_reloads_and_one_from_a_hook_alone_does_not(lab: Lab) -> None:
    done = lab.run(lab.hosts[0].name, "sh", stdin=PROBE.replace("RELOADS", str(RELOADS)))
    assert json.loads(done.out) == {"before": [True, True], "opened": [0, RELOADS]}
