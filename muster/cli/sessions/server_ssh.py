"""ssh with a user's own key to kernels that the server alone reaches."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from muster.core.launch.manifest import LaunchPolicy
from muster.core.values.errors import MusterError
from muster.service.reach.views import SshAccessView
from muster.whole_files import write_whole

_BUSYBOX = f"{LaunchPolicy().runtime_path}/bin/busybox"


def written_config(access: SshAccessView, server_options: Sequence[str]) -> Path:
    """Write a configuration file in which each kernel of the session is a host, and return its path.

    A connection is a program in the kernel that speaks to its sshd, so it goes wherever `muster exec` does. Raises
    MusterError.
    """
    try:
        directory = _cache() / "muster" / "ssh" / access.session_id
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise MusterError(f"the ssh configuration cannot be written: {error}; set XDG_CACHE_HOME") from None
    known_hosts = directory / "known_hosts"
    lines = []
    for kernel in access.kernels:
        lines += [f"Host {kernel.name}", f"  ProxyCommand {proxy_command(access, kernel.name, server_options)}"]
    lines += [
        "Host *",
        f"  User {access.user}",
        f"  HostKeyAlias {access.host_key_alias}",
        f'  UserKnownHostsFile "{str(known_hosts).replace("%", "%%")}"',
        "  StrictHostKeyChecking yes",
        "  LogLevel ERROR",
    ]
    write_whole(known_hosts, f"{access.host_key_alias} {access.host_key}\n".encode())
    config = directory / "config"
    write_whole(config, ("\n".join(lines) + "\n").encode())
    return config


def lacks_key() -> bool:
    """Return whether ssh has no key to offer: no file of a usual name, no agent, and nothing else that may name one."""
    try:
        directory = Path.home() / ".ssh"
        may_have_one = any(directory.glob("id_*")) or (directory / "config").exists()
    except (OSError, RuntimeError):
        return False
    return not may_have_one and "SSH_AUTH_SOCK" not in os.environ


def proxy_command(access: SshAccessView, kernel: str, server_options: Sequence[str]) -> str:
    """Return a line for ssh that connects to the sshd of a kernel as `muster exec` does."""
    nc = [_BUSYBOX, "nc", "127.0.0.1", str(access.port)]
    words = [_program(), *server_options, "exec", f"{access.session_id}:{kernel}", "--", *nc]
    return shlex.join(words).replace("%", "%%")


def _cache() -> Path:
    """Raises RuntimeError for a user without a home directory."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named) if named.startswith("/") else Path.home() / ".cache"


def _program() -> str:
    return shutil.which("muster") or str(Path(sys.executable).with_name("muster"))
