"""When the engine is to limit a container's own layer, and what is done where it does not."""

import pytest

from tests.modules.agent_code import engine_api, layer_limit

OVERLAY_REFUSAL = "--storage-opt is supported only for overlay over xfs with 'pquota' mount option"


def info(driver, **status):
    return {"Driver": driver, "DriverStatus": [[name.replace("_", " "), value] for name, value in status.items()]}


XFS = info("overlay2", Backing_Filesystem="xfs", Supports_d_type="true")


class _Said:
    """An engine of which only what it says of itself is read."""

    def __init__(self, said):
        self._said = said

    def facts(self):
        return self._said


@pytest.mark.parametrize(
    ("said", "driver"),
    [
        (XFS, "overlay2"),
        (info("overlay2", Backing_Filesystem="extfs"), ""),
        (info("btrfs", Btrfs=""), "btrfs"),
        (info("zfs", Zpool="tank"), "zfs"),
        (info("fuse-overlayfs"), ""),
        ({"Driver": "vfs", "DriverStatus": None}, ""),
        # Containerd's image store takes the option, and limits nothing.
        ({"Driver": "btrfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}, ""),
        ({"Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}, ""),
    ],
)
def test_the_storage_driver_says_whether_it_may_limit(said, driver):
    assert layer_limit.limiting_driver(said) == driver


def test_a_limit_is_given_to_an_engine_that_may_keep_it():
    assert layer_limit.LayerLimits(_Said(XFS)).options(1 << 30, 5) == {"size": str(1 << 30)}
    assert layer_limit.LayerLimits(_Said(XFS)).options(None, 5) == {}
    assert layer_limit.LayerLimits(_Said(info("overlay2", Backing_Filesystem="extfs"))).options(1 << 30, 5) == {}


def test_on_btrfs_the_image_counts_as_well():
    assert layer_limit.LayerLimits(_Said(info("btrfs"))).options(1 << 30, 5) == {"size": str((1 << 30) + 5)}


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        (OVERLAY_REFUSAL, True),
        ("--storage-opt is not supported for fuse-overlayfs", True),
        ("btrfs: storage size cannot be less than 10GB", True),
        ("failed to enable btrfs quota: operation not permitted", True),
        ("Conflict. The container name is already in use", False),
        ("No such image: x", False),
    ],
)
def test_an_engine_that_refuses_one_limit_is_asked_for_no_other(message, refused):
    limits = layer_limit.LayerLimits(_Said(XFS))
    assert limits.options(1 << 30, 0)
    assert limits.are_refused_by(engine_api.EngineError(500, message)) == refused
    assert bool(limits.options(1 << 30, 0)) != refused
