"""What systemd does to containers: at a reload, and when the host shuts down.

It writes anew which devices they may use at a reload, as upgrades and our own roles make one, and when a property of
their unit is changed: why agents name GPUs' nodes. Systemd 257 leaves them alone at a reload.
"""

import json

import pytest

from tests.lab.lab import Lab

RELOADS = 100
# By systemd's version, how many reloads a device outlives that comes from a hook alone.
OUTLIVED = {252: 0, 257: RELOADS}
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
for unit in hook known; do systemctl set-property --runtime muster-$unit.service CPUWeight=50; done
changed="[$(opens hook), $(opens known)]"
version=$(systemctl --version | sed -n 's/^systemd \([0-9]*\).*/\1/p')
echo "{\"before\": $before, \"opened\": [$hook, $known], \"changed\": $changed, \"version\": $version}"
"""
# A kernel's slice, as systemd makes one for the engine: of no file.
SLICE = "muster-none_5e55_1_main1.slice"
KERNELS_SLICE = f"""
systemctl start {SLICE}
trap 'systemctl stop muster.slice' EXIT
systemctl show --property=Conflicts,Before --value {SLICE} muster.slice
"""

pytestmark = pytest.mark.timeout(900)


def test_a_device_of_which_the_engine_knows_outlives_what_takes_one_from_a_hook_alone(lab: Lab) -> None:
    found = json.loads(lab.run(lab.hosts[0].name, "sh", stdin=PROBE.replace("RELOADS", str(RELOADS))).out)
    by_hook, known = found["opened"]
    assert (found["before"], known, found["changed"]) == ([True, True], RELOADS, [False, True])
    assert by_hook == OUTLIVED.get(found["version"], by_hook)


def test_systemd_leaves_kernels_to_the_engine_at_a_shutdown(lab: Lab) -> None:
    """What runs in a slice ends with it, and slices go first: before the engine, and before the network."""
    said = lab.run(lab.hosts[0].name, "sh", stdin=KERNELS_SLICE).out
    assert "shutdown.target" not in said
