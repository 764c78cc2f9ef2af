"""Check the files that roles/control_node is to write, by the rules of the commands and the daemon that read them."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

_SCHEDULE = re.compile(r"@[a-z]+|([0-9A-Za-z*,/-]+[ \t]+){4}[0-9A-Za-z*,/-]+")


def _settings_errors(text: str, further: Mapping[str, object], plugins: Collection[str]) -> list[str]:
    # Each task whose templates have any filter loads all filters anew, and this takes longer than most tasks.
    from muster.settings import settings_errors  # noqa: PLC0415

    return [_of_variable(str(item), further) for item in settings_errors(text, plugins)]


def _of_variable(error: str, further: Mapping[str, object]) -> str:
    """Return an error with the role's variable in place of the file's key; fields that disagree are of no one key."""
    key = re.split(r"[.:\[]", error, maxsplit=1)[0]
    if key == "spec":
        return f"control_node_settings{error.removeprefix(key)}"
    return f"control_node_settings.{error}" if key in further else f"control_node_{error}"


def _catalog_errors(text: str, variable: str) -> list[str]:
    from muster.service.images.catalog import catalog_errors  # noqa: PLC0415 - as above

    return [f"{variable}{str(item).removeprefix('images')}" for item in catalog_errors(text)]


def _argument_errors(arguments: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the role's arguments that are in no file of settings, and with the database's URL."""
    errors = [
        f"{name}: {arguments[name]!r} is not a list; write a list, even of one"
        for name in ("control_node_scheduler_plugins", "control_node_web_arguments")
        if not isinstance(arguments[name], list)
    ]
    schedule, socket = str(arguments["control_node_cron_schedule"]), str(arguments["control_node_socket"])
    if not _SCHEDULE.fullmatch(schedule.strip()):
        errors.append(f"control_node_cron_schedule: {schedule!r} is no time of cron; write one such as */5 * * * *")
    if socket and not socket.startswith("/"):
        errors.append(f"control_node_socket: {socket!r} is not an absolute path; write one that begins with /")
    if arguments["control_node_database"]:
        errors += _database_errors(str(arguments["control_node_database"]))
    return errors


def _database_errors(url: str) -> list[str]:
    from muster.core.values.errors import SettingsError  # noqa: PLC0415 - as above
    from muster.store.database.connection import parsed_url  # noqa: PLC0415 - as above

    try:
        parsed_url(url)
    except SettingsError as error:
        return [f"control_node_{error}"]
    return []


class FilterModule:
    """`text | muster_settings_errors(further, plugins)`: a line for each error of a settings file.

    A line names the role's variable: `control_node_settings` for the keys of `further`, which come from it.
    `plugins` are the scheduler plugins that the control node has beside Muster's own.

    `arguments | muster_control_node_errors`: a line for each argument of the role that cannot be.

    `text | muster_catalog_errors(variable)`: the same of an image catalog, which comes from `variable`.
    """

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {
            "muster_settings_errors": _settings_errors,
            "muster_control_node_errors": _argument_errors,
            "muster_catalog_errors": _catalog_errors,
        }
