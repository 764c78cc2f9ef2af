"""The site's settings: one YAML file, checked as a whole."""

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from muster.core.errors import SettingsError, SpecError
from muster.core.manifest import LaunchPolicy
from muster.core.spec_errors import validated

DEFAULT_PATH = Path("/etc/muster/muster.yml")


class Settings(BaseModel):
    """What `muster.yml` may say; each key may be left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: str = Field(
        default="muster", pattern=r"^[a-z0-9][a-z0-9-]{0,30}$", description="name of this cluster on its hosts"
    )
    state_dir: Path = Field(
        default=Path("/var/lib/muster/control"), description="what the control node keeps, mode 0700"
    )
    database: str | None = Field(default=None, description="SQLAlchemy URL; muster.db in state_dir by default")
    inventory: Path = Field(
        default=Path("/etc/muster/inventory"), description="Ansible inventory with the group agents"
    )
    catalog: Path = Field(default=Path("/etc/muster/images.yml"), description="image catalog")
    templates: Path | None = Field(default=None, description="directory whose files replace those of muster/templates")
    default_image: str = Field(default="muster/default:latest", description="image of sessions that name none")
    folders_root: Path = Field(default=Path("/srv/muster/folders"), description="data root on the agents")
    observe_interval_s: float = Field(
        default=30.0, gt=0, description="seconds between two full observations by the daemon"
    )
    master_port: int = Field(default=12345, ge=1, le=65535, description="MASTER_PORT of every session")
    work_uid: int = Field(default=1000, ge=1, description="uid of the kernels' processes")
    owner_uids: dict[str, int] = Field(default_factory=dict, description="uid by owner, where it differs from work_uid")
    start_timeout_s: int = Field(default=60, ge=1, description="seconds in which a kernel's sshd must answer")
    stop_grace_s: int = Field(default=10, ge=0, description="seconds between SIGTERM and SIGKILL")
    log_max_bytes: int = Field(default=1 << 20, ge=0, description="kept of each ended kernel's log")
    pids: int = Field(default=4096, ge=64, description="processes and threads in a kernel at the most")

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.state_dir / 'muster.db'}"

    @property
    def wake_socket(self) -> Path:
        return self.state_dir / "wake.sock"

    @property
    def log_dir(self) -> Path:
        return self.state_dir / "logs"

    def launch_policy(self) -> LaunchPolicy:
        return LaunchPolicy(
            cluster=self.cluster,
            folders_root=str(self.folders_root),
            master_port=self.master_port,
            start_timeout_s=self.start_timeout_s,
            stop_grace_s=self.stop_grace_s,
            log_max_bytes=self.log_max_bytes,
            pids=self.pids,
            work_uid=self.work_uid,
            owner_uids=self.owner_uids,
        )


def settings_path() -> Path:
    return Path(os.environ.get("MUSTER_CONFIG", DEFAULT_PATH))


def load_settings(path: Path | None = None) -> Settings:
    """Raises SettingsError that names the file, and every wrong field in it."""
    path = path or settings_path()
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise SettingsError(
            f"{path} does not exist; run playbooks/site.yml, or name another with MUSTER_CONFIG"
        ) from None
    except PermissionError:
        raise SettingsError(f"{path} may not be read; run muster as the user that owns the control node") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path} holds no mapping; write lines such as cluster: muster")
    try:
        return validated(Settings, content)
    except SpecError as error:
        raise SettingsError("\n".join(f"{path}: {item}" for item in error.errors)) from None
