"""The session runtime's tree can be used by every user of a container, whatever the umask of the host's root is."""

import os

import pytest

from tests.shipped_program import as_shipped

BINARIES = ("bin/busybox", "sbin/sshd", "libexec/sftp-server")
SCRIPTS = dict.fromkeys(("bin/entrypoint", "bin/muster-run", "libexec/slurm/scontrol"), "#!@RUNTIME@/bin/busybox sh\n")


@pytest.fixture
def builder():
    """Return the builder's functions, with packages in the place of a distribution's."""

    def copied(_root, tree):
        for name in BINARIES:
            (tree / name).write_bytes(b"program")
            (tree / name).chmod(0o755)
        return [tree / name for name in BINARIES]

    def copied_libraries(_patchelf, _root, tree, _binaries):
        loader = tree / "lib/ld-linux-x86-64.so.2"
        loader.write_bytes(b"loader")
        loader.chmod(0o755)
        return [loader]

    functions: dict[str, object] = {"__name__": "build_runtime"}
    exec(as_shipped("roles/session_runtime/files/build_runtime.py"), functions)
    functions |= {
        "packages_with_libraries": lambda: {"openssh-server": "1:9.2p1-2"},
        "unpack": lambda _packages, work: work,
        "output_of": lambda *command, **_: "sh ls" if command[-1] == "--list" else "amd64",
        "needed_by": lambda *_: [],
        "copy_binaries": copied,
        "copy_libraries": copied_libraries,
    }
    return functions


@pytest.fixture(autouse=True)
def _strict_umask():
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_tree_is_open_to_all_users_under_a_strict_umask(builder, tmp_path):
    tree = builder["build"](tmp_path / "runtime", SCRIPTS, "builder")
    modes = {str(path.relative_to(tree)): path.stat().st_mode & 0o777 for path in tree.rglob("*")}
    assert (modes.pop("VERSION"), tree.stat().st_mode & 0o777) == (0o644, 0o755)
    assert {name: oct(mode) for name, mode in modes.items() if mode != 0o755} == {}
    assert {*BINARIES, *SCRIPTS, "bin/ls", "libexec/slurm/srun"} <= modes.keys()
