"""A small disk for what the engine of a host keeps of its containers, which can be filled and outlives a loss of power.

The engine's whole directory lies on this machine's disk, which no test may fill.
"""

from tests.lab.lab import Lab

_DIRECTORY = "/var/lib/docker/containers"
# A host has no /dev/loop*: it is a container.
_GIVE = f"""
cat >/etc/systemd/system/engine-disk.service <<'TEXT'
[Unit]
Before=docker.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/engine-disk
[Install]
RequiredBy=docker.service
TEXT
cat >/usr/local/sbin/engine-disk <<'TEXT'
#!/bin/sh -e
[ -e /dev/loop-control ] || mknod -m 600 /dev/loop-control c 10 237
for number in $(seq 0 31); do
  [ -e /dev/loop$number ] || mknod -m 600 /dev/loop$number b 7 $number
done
mountpoint -q {_DIRECTORY} || mount -o loop /var/lib/engine-disk.img {_DIRECTORY}
TEXT
chmod +x /usr/local/sbin/engine-disk
systemctl stop docker.socket docker.service
truncate --size 64M /var/lib/engine-disk.img
mkfs.ext4 -q -F -m 0 /var/lib/engine-disk.img
systemctl daemon-reload
systemctl enable --quiet engine-disk.service
systemctl start docker.socket docker.service
"""
# Where a test was short, systemd counts the engine's starts and refuses one more.
_TAKE = f"""
[ -e /var/lib/engine-disk.img ] || exit 0
systemctl stop docker.socket docker.service engine-disk.service
umount {_DIRECTORY}
systemctl disable --quiet engine-disk.service
rm -f /var/lib/engine-disk.img /usr/local/sbin/engine-disk /etc/systemd/system/engine-disk.service
systemctl daemon-reload
systemctl reset-failed docker.service
systemctl start docker.socket docker.service
"""
_FILL = f"""
mountpoint -q {_DIRECTORY} || exit 1
# Of large pieces some room remains, in which a container's few files would lie.
for size in 1M 4K 16; do dd if=/dev/zero bs=$size >>{_DIRECTORY}/filler; done
[ "$(df --output=avail -B1 {_DIRECTORY} | tail -n 1)" -lt 65536 ]
"""


def give_engine_a_small_disk(lab: Lab, host: str) -> None:
    """Put what the engine keeps of containers on a disk of its own. No container may be there."""
    lab.run(host, "sh", "-ec", _GIVE)


def take_engine_disk(lab: Lab, host: str) -> None:
    lab.run(host, "sh", "-ec", _TAKE)


def fill_engine_disk(lab: Lab, host: str) -> None:
    lab.run(host, "sh", "-c", _FILL)


def free_engine_disk(lab: Lab, host: str) -> None:
    lab.run(host, "rm", "--force", f"{_DIRECTORY}/filler")
