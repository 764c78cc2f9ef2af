"""Programs that run together."""

import subprocess

from tests.waiting import PATIENCE_S


def outputs(commands: list[list[str]]) -> list[str]:
    """Return what programs that run at the same time write; all of them must end well."""
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    written = [process.communicate(timeout=PATIENCE_S)[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(running)
    return written
