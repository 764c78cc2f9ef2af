"""What a user chooses from to fill in a session's spec."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from muster.core.agents.agent import Agent
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.written import written
from muster.core.values.slots import Slots
from muster.service.images.known import known_images
from muster.service.secrets.secrets import Secrets
from muster.settings import Settings
from muster.store.store import Store


@dataclass(frozen=True, slots=True)
class GroupRoom:
    """A resource group: what its agents have together, and the most that one of them has."""

    agents: int
    total: Slots
    largest: Slots


@dataclass(frozen=True, slots=True)
class Preset:
    """A spec to begin from, which the site offers or the user has saved; `values` are what it says."""

    name: str
    description: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LaunchChoices:
    """The choices of the launch form. `images` are the catalog's words with descriptions, `folders` as `ada/data`."""

    images: Mapping[str, str]
    default_image: str
    folders: tuple[str, ...]
    secrets: tuple[str, ...]
    apps: tuple[str, ...]
    groups: Mapping[str, GroupRoom]
    gpu_models: tuple[str, ...]
    units_per_gpu: int
    agents: tuple[str, ...]
    presets: tuple[Preset, ...]
    own_presets: tuple[Preset, ...]


def launch_choices(store: Store, settings: Settings, secrets: Secrets, user: str) -> LaunchChoices:
    """Return what this user may choose from."""
    agents = store.agents.all()
    gpus = [gpu for agent in agents for gpu in agent.gpus]
    images = {}
    for image in known_images(store, settings, user):
        version = image.version
        held = f"on {len(image.held_by)} agents" if image.held_by else "pulled when it is first used"
        images[version.words[0]] = ", ".join(part for part in (version.description, held) if part)
    return LaunchChoices(
        images=images,
        default_image=settings.default_image,
        folders=tuple(
            folder.name if folder.owner == user else f"{folder.owner}/{folder.name}"
            for folder in store.folders.mountable(user, SessionSpec().project)
            if not (folder.in_every_session and folder.owner == user)
        ),
        secrets=tuple(secret.name for secret in secrets.of(user)),
        apps=tuple(settings.app_kinds()),
        groups=_groups(agents),
        gpu_models=tuple(sorted({gpu.model for gpu in gpus})),
        units_per_gpu=max((gpu.units for gpu in gpus), default=0),
        agents=tuple(sorted(agent.id for agent in agents)),
        presets=tuple(
            Preset(name, preset.description, written(preset.spec)) for name, preset in settings.presets.items()
        ),
        own_presets=tuple(Preset(preset.name, "", preset.spec) for preset in store.presets.of(user)),
    )


def _groups(agents: Iterable[Agent]) -> dict[str, GroupRoom]:
    groups: dict[str, GroupRoom] = {}
    for agent in sorted(agents, key=lambda agent: agent.resource_group):
        before = groups.get(agent.resource_group, GroupRoom(0, Slots(), Slots()))
        has, most = agent.capacity, before.largest
        largest = Slots(
            max(has.cpu, most.cpu), max(has.mem, most.mem), max(has.fgpu, most.fgpu), max(has.gpu, most.gpu)
        )
        groups[agent.resource_group] = GroupRoom(before.agents + 1, before.total + has, largest)
    return groups
