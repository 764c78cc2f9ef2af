"""The site's settings: one YAML file, checked as a whole."""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from muster import places, yaml_text
from muster.core.launch.manifest import LaunchPolicy
from muster.core.model.apps import KINDS, AppDefinition
from muster.core.model.policy import EACH
from muster.core.model.projects import Projects
from muster.core.notify.callback_hosts import CallbackHosts
from muster.core.spec.apps import checked_health, checked_name, checked_url
from muster.core.spec.errors import checked
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.values import Bytes, Seconds, SecondsOrZero, invalid
from muster.core.values.errors import FieldError, SettingsError
from muster.core.values.units import exact_duration
from muster.idle_settings import Idle
from muster.limits_settings import LimitsSettings
from muster.scheduling_settings import GroupScheduling, Scheduling
from muster.settings_section import MOST_COUNT, MOST_SECONDS, AbsolutePath, Amount, Interval, Section, Span, Weight
from muster.shipped_files import scheduler_plugin, scheduler_plugin_names
from muster.unix_accounts import is_in_group
from muster.web_settings import WebSettings

_SQLITE, _SQLITE_FILE = re.compile(r"sqlite\b"), re.compile(r"sqlite:////[^?]")
DEFAULT_PATH = Path(places.SETTINGS)
_LAUNCH = LaunchPolicy()
# Cron runs a pass every minute, and the first decision after an upgrade compiles the placement for two.
_UNWORKED_LIMIT_S = 180.0
_USUAL_PRIORITY = 50
_MOST_UID = (1 << 32) - 2
_MOST_PORT = 65535
# The most that Linux counts: PID_MAX_LIMIT.
_MOST_PIDS = 1 << 22


class LogFormat(StrEnum):
    """The form of what the daemon and the server log."""

    TEXT = "text"
    JSON = "json"


class OwnerUid(StrEnum):
    """Whose uid kernels have: one that the site gives, or their owner's on the control node."""

    GIVEN = "given"
    UNIX = "unix"


class AppSettings(Section):
    """An app that the site defines, or overrides for the built-in app of the same name."""

    command: str | None = Field(default=None, min_length=1)
    port: int | None = Field(default=None, ge=1, le=65535)
    health: Annotated[str | None, AfterValidator(checked_health)] = None
    url: Annotated[str | None, AfterValidator(checked_url)] = None
    token: bool | None = None

    def kind(self, built_in: AppDefinition | None) -> AppDefinition:
        given = self.model_dump(exclude_none=True)
        return replace(built_in, **given) if built_in else AppDefinition(**given)


class PresetSettings(Section):
    """A spec that users may begin from on the launch page, and a line about it."""

    description: str = Field(default="", max_length=200)
    spec: SessionSpec = SessionSpec()


class Settings(BaseModel):
    """The settings in `muster.yml`. Each key may be missing."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    DOCUMENTED_IN: ClassVar[str] = "the table of settings in docs/operations.md"

    cluster: str = Field(
        default=_LAUNCH.cluster, pattern=r"^[a-z0-9][a-z0-9-]{0,30}$", description="name of this cluster on its hosts"
    )
    state_dir: AbsolutePath = Field(
        default=Path("/var/lib/muster/control"), description="what the control node keeps, mode 0700"
    )
    database: str | None = Field(default=None, description="SQLAlchemy URL; muster.db in state_dir by default")
    inventory: AbsolutePath = Field(
        default=Path("/etc/muster/inventory"), description="Ansible inventory with the group agents"
    )
    vault_password_files: tuple[AbsolutePath, ...] = Field(
        default=(), description="files or programs with the passwords of what Ansible Vault encrypted in the inventory"
    )
    catalog: AbsolutePath = Field(default=Path("/etc/muster/images.yml"), description="image catalog")
    templates: AbsolutePath | None = Field(
        default=None, description="directory whose files replace those of muster/templates"
    )
    default_image: str = Field(default="muster/default:latest", description="image of sessions that name none")
    foreign_images: bool = Field(
        default=True, description="whether sessions may name images of registries that the catalog does not have"
    )
    commit_max_size: Bytes = Field(
        default=20 << 30, description="bytes of an image that `muster commit` may make, its parent's included"
    )
    disk_limit: Bytes | None = Field(
        default=None, ge=1 << 20, description="bytes that a kernel may write outside its mounts; none: any number"
    )
    image_max_size: Bytes = Field(default=100 << 30, description="bytes of an image that one agent may give to another")
    image_keep_s: Span | None = Field(
        default=None, description="seconds that agents keep a pulled image which nobody needs; none: for good"
    )
    image_min_free: Bytes = Field(
        default=20 << 30, description="bytes free on an agent's disk below which such images are removed"
    )
    folders_root: AbsolutePath = Field(default=Path(_LAUNCH.folders_root), description="data root on the agents")
    observe_interval_s: Interval = Field(
        default=30.0, description="seconds between two full observations by the daemon"
    )
    lost_after_s: Span = Field(
        default=300.0, description="seconds without an answer until an agent is LOST and its sessions end"
    )
    slow_after_s: Interval = Field(
        default=15.0,
        description="seconds a visit may last before its agent gets no new sessions until it answers",
    )
    suspect_after: int = Field(
        default=3,
        ge=2,
        le=MOST_COUNT,
        description="sessions whose launches fail in a row on an agent until it is SUSPECT",
    )
    suspect_for_s: Interval = Field(
        default=600.0, description="seconds that a SUSPECT agent gets no new sessions; then one launch tries it"
    )
    log_format: LogFormat = Field(
        default=LogFormat.TEXT, description="what the daemon and the server log: lines of text, or of JSON"
    )
    unworked_after_s: Interval | None = Field(
        default=None,
        description="seconds without a pass until everybody is warned that nobody works the queue; by default four"
        " observe_interval_s, and 180 at the least",
    )
    ssh_port_range: str = Field(
        default=_LAUNCH.ssh_port_range,
        pattern=r"^[0-9]{1,5}-[0-9]{1,5}$",
        description="ports of an agent on which main1's sshd is published",
    )
    master_port: int = Field(default=_LAUNCH.master_port, ge=1, le=65535, description="MASTER_PORT of every session")
    work_uid: int = Field(default=_LAUNCH.work_uid, ge=1, le=_MOST_UID, description="uid of the kernels' processes")
    owner_uids: dict[str, Annotated[int, Field(ge=1, le=_MOST_UID)]] = Field(
        default_factory=dict, description="uid by owner, where it differs from work_uid"
    )
    owner_uid_range: str | None = Field(
        default=None,
        pattern=r"^[0-9]{1,10}-[0-9]{1,10}$",
        description="uids of which every owner gets one of their own that owner_uids does not name; none: work_uid",
    )
    owner_uid: OwnerUid = Field(
        default=OwnerUid.GIVEN,
        description="unix: kernels of a user of the control node have their uid and gid; needs owner_uid_range",
    )
    start_timeout_s: int = Field(
        default=_LAUNCH.start_timeout_s,
        ge=1,
        le=MOST_SECONDS,
        description="seconds in which a kernel's sshd must answer",
    )
    stop_grace_s: int = Field(
        default=_LAUNCH.stop_grace_s, ge=0, le=MOST_SECONDS, description="seconds between SIGTERM and SIGKILL"
    )
    log_max_bytes: Amount = Field(default=_LAUNCH.log_max_bytes, description="kept of each ended kernel's log")
    pids: int = Field(
        default=_LAUNCH.pids, ge=64, le=_MOST_PIDS, description="processes and threads in a kernel at the most"
    )
    scheduling: Scheduling = Field(default=Scheduling(), description="how queues are worked")
    resource_groups: dict[str, GroupScheduling] = Field(
        default={}, description="by name, where a group's queue differs"
    )
    limits: LimitsSettings = Field(
        default=LimitsSettings(), description="what users, projects and resource groups may have running and pending"
    )
    projects: dict[str, tuple[str, ...]] = Field(
        default={},
        description="members of each project: users, %GROUP for a Unix group's, * for everybody; without any, all"
        " projects are open to all",
    )
    admin_group: str | None = Field(
        default=None, min_length=1, description="Unix group of the control node whose members are administrators"
    )
    max_priority: dict[str, Annotated[int, Field(ge=0, le=100)]] = Field(
        default={}, description="highest priority of a user's sessions; * for all that are not named, 50 by default"
    )
    apps: dict[str, AppSettings] = Field(
        default={}, description="programs that `--app NAME` starts: the site's own, and changes of the built-in ones"
    )
    presets: dict[Annotated[str, Field(min_length=1, max_length=60)], PresetSettings] = Field(
        default={}, description="specs to begin from on the launch page, by name: {description: ..., spec: {...}}"
    )
    cancel_impossible: bool = Field(
        default=True,
        description="cancel a session whose --after-ok names one that failed; false: it waits to be cancelled",
    )
    shares: dict[str, Weight] = Field(
        default={}, description="by owner, how much they are entitled to; 1 for owners who are not named"
    )
    extend_most: SecondsOrZero = Field(
        default=86400,
        description="how much time users may add to a session's limit in all, 0 for none; administrators any",
    )
    signal_most: Seconds = Field(
        default=600,
        description="how long before its end a session may ask for a signal (`--signal`); what ends it waits for that",
    )
    usage_half_life_s: Interval = Field(
        default=604800.0, description="seconds after which use counts half in fair_share"
    )
    hold_repaired_s: Span = Field(
        default=600.0,
        description="seconds for which room is kept for a gang that lost an agent, in case the agent comes back",
    )
    idle: Idle = Field(default=Idle(), description="when sessions end for not being used, and how long one may live")
    web: WebSettings = Field(default=WebSettings(), description="who reads the metrics, and limits for each user")
    hooks_dir: AbsolutePath = Field(
        default=Path("/etc/muster/hooks"), description="directory of programs that run for each change of a session"
    )
    callback_hosts: tuple[str, ...] = Field(
        default=(), description="hosts, such as *.example.org, and networks that callbacks may be posted to"
    )
    scheduler_plugins: AbsolutePath = Field(
        default=Path("/etc/muster/scheduler"), description="directory of the site's own orders and placement policies"
    )

    @field_validator("ssh_port_range")
    @classmethod
    def _ports(cls, value: str) -> str:
        first, last = map(int, value.split("-"))
        if not 1 <= first <= last <= _MOST_PORT:
            raise invalid(f"{value!r} is no range of ports", "write 30000-32767, for example")
        return value

    @field_validator("database")
    @classmethod
    def _lasting(cls, value: str | None) -> str | None:
        # Each command would have a database of its own, and nobody would see what it has queued.
        if value is not None and _SQLITE.match(value) and not _SQLITE_FILE.match(value):
            raise invalid(f"{value!r} names no file by an absolute path", "write one such as sqlite:////PATH")
        return value

    @field_validator("callback_hosts")
    @classmethod
    def _hosts(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        try:
            CallbackHosts.of(entries)
        except ValueError as error:
            raise invalid(str(error), "write hosts such as *.example.org, or networks such as 10.1.0.0/16") from None
        return entries

    @model_validator(mode="after")
    def _uids_are_one_owners(self) -> Self:
        uids = self.uids_for_owners()
        if uids is None and self.owner_uid is OwnerUid.UNIX:
            raise invalid(
                "owner_uid: unix needs owner_uid_range, for owners who are no Unix users",
                "write owner_uid_range: 100000-165535, for example",
            )
        if uids is None:
            return self
        if not uids or uids[0] < 1 or uids[-1] > _MOST_UID:
            raise invalid(
                f"owner_uid_range {self.owner_uid_range} is no range of uids", "write 100000-165535, for example"
            )
        if self.work_uid in uids:
            raise invalid(f"owner_uid_range holds work_uid, {self.work_uid}", "choose a range without it")
        return self

    @model_validator(mode="after")
    def _default_time_limits_are_allowed(self) -> Self:
        for group in ("", *self.resource_groups, *self.idle.resource_groups):
            usual, longest = self.scheduling_of(group).default_time_limit, self.idle.of(group).max_lifetime
            if usual is not None and longest is not None and usual > longest:
                where = f"resource group {group}" if group else "scheduling"
                problem = f"default_time_limit of {where} is longer than max_lifetime, {exact_duration(longest)}"
                raise invalid(problem, f"write {exact_duration(longest)} or less")
        return self

    def scheduling_of(self, resource_group: str) -> Scheduling:
        """Return how the group's queue is worked."""
        return self.scheduling.of(self.resource_groups.get(resource_group, GroupScheduling()))

    def uids_for_owners(self) -> range | None:
        """Return the uids of which each owner gets one, or None where they share work_uid."""
        if self.owner_uid_range is None:
            return None
        first, last = map(int, self.owner_uid_range.split("-"))
        return range(first, last + 1)

    @field_validator("apps")
    @classmethod
    def _startable(cls, apps: dict[str, AppSettings]) -> dict[str, AppSettings]:
        for name, app in apps.items():
            checked_name(name)
            if name not in KINDS and (app.command is None or app.port is None):
                raise invalid(f"{name} has no command or no port", "give it both: only built-in apps have their own")
        return apps

    def app_kinds(self) -> dict[str, AppDefinition]:
        """Return what `--app` may name."""
        return {**KINDS, **{name: app.kind(KINDS.get(name)) for name, app in self.apps.items()}}

    @property
    def members(self) -> Projects:
        return Projects(self.projects, is_in_group)

    def most_priority_of(self, user: str) -> int:
        return self.max_priority.get(user, self.max_priority.get(EACH, _USUAL_PRIORITY))

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.state_dir / 'muster.db'}"

    @property
    def unworked_limit_s(self) -> float:
        """Return the most seconds between two passes, for which also an agent's last report is trusted."""
        if self.unworked_after_s is not None:
            return self.unworked_after_s
        return max(_UNWORKED_LIMIT_S, 4 * self.observe_interval_s)

    @property
    def seal_key(self) -> Path:
        """Return the file of the key that seals secrets. All control nodes of one database must have the same."""
        return self.state_dir / "secrets.key"

    @property
    def allowed_callbacks(self) -> CallbackHosts:
        return CallbackHosts.of(self.callback_hosts)

    @property
    def wake_socket(self) -> Path:
        return self.state_dir / "wake.sock"

    def launch_policy(self) -> LaunchPolicy:
        return LaunchPolicy(
            cluster=self.cluster,
            folders_root=str(self.folders_root),
            master_port=self.master_port,
            ssh_port_range=self.ssh_port_range,
            lost_after_s=self.lost_after_s,
            start_timeout_s=self.start_timeout_s,
            stop_grace_s=self.stop_grace_s,
            log_max_bytes=self.log_max_bytes,
            pids=self.pids,
            work_uid=self.work_uid,
            owner_uids=self.owner_uids,
            owner_uid_range=self.uids_for_owners(),
            unix_owners=self.owner_uid is OwnerUid.UNIX,
        )


def settings_path() -> Path:
    return Path(os.environ.get("MUSTER_CONFIG", DEFAULT_PATH))


def load_settings(path: Path | None = None) -> Settings:
    """Raises SettingsError that names the file, and every wrong field in it."""
    path = path or settings_path()
    try:
        repeated, content = _read(path.read_text(encoding="utf-8"))
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
    settings, found = _settings_of(content)
    errors = [*repeated, *found]
    if errors or settings is None:
        raise SettingsError("\n".join(f"{path}: {item}" for item in errors))
    return settings


def settings_errors(text: str, plugins: Collection[str]) -> list[FieldError]:
    """Return the errors of a settings file before it is written. Raises yaml.YAMLError.

    `plugins` are scheduler plugins of the site that its machine has, or is given before the file.
    """
    repeated, content = _read(text)
    return [*repeated, *_settings_of(content, plugins)[1]]


def _settings_of(content: Mapping[str, Any], plugins: Collection[str] = ()) -> tuple[Settings | None, list[FieldError]]:
    found = checked(Settings, content)
    wrong_plugins = () if found.part is None else _plugin_errors(found.part, plugins)
    return found.part, [*found.errors, *wrong_plugins]


def _plugin_errors(settings: Settings, plugins: Collection[str]) -> Iterator[FieldError]:
    """Yield an error for each queue order and placement policy that is none of `plugins` and that no file defines."""
    site = settings.scheduler_plugins
    groups: dict[str, GroupScheduling] = {
        f"resource_groups.{name}": own for name, own in settings.resource_groups.items()
    }
    for where, chosen in {"scheduling": settings.scheduling, **groups}.items():
        for field in ("order", "placement"):
            name: str | None = getattr(chosen, field)
            if name is not None and name not in plugins and scheduler_plugin(name, site) is None:
                names = ", ".join(scheduler_plugin_names(site))
                problem = f"there is no scheduler plugin {name!r}"
                yield FieldError(f"{where}.{field}", problem, f"write one of {names}, or {site}/{name}.py")


def _read(text: str) -> tuple[list[FieldError], Any]:
    """Return the content of a settings file, and an error for each key that is given twice: YAML takes the last."""
    repeated: list[FieldError] = []

    class Loader(yaml_text.Loader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                name = str(key.value)
                if name in seen:
                    line = f"it is given twice, again in line {key.start_mark.line + 1}"
                    repeated.append(FieldError(name, line, "give it once"))
                seen.add(name)
            return super().construct_mapping(node, deep=deep)

    return repeated, yaml_text.yaml_content(text, Loader) or {}
