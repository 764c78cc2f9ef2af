"""A session's apps for its agent: entries of main1 in the manifest, and the files that start them."""

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from muster.contract.manifest import AppEntry, FileEntry
from muster.core.model.apps import app_token, apps_of
from muster.core.model.session import Kernel, Session

Render = Callable[[str, Mapping[str, Any]], str]


def manifest_apps(session: Session, kernel: Kernel) -> tuple[AppEntry, ...]:
    """Return main1's apps with what its agent needs to probe them. No other kernel has any."""
    if kernel.rank != 0:
        return ()
    return tuple(
        AppEntry(name=app.name, port=app.port, health=app.health or None, starts=app.command is not None)
        for app in apps_of(session.spec)
    )


def app_files(
    session: Session, kernel: Kernel, private_key: str, runtime_path: str, render: Render
) -> dict[str, FileEntry]:
    """Return main1's files for apps: `apps` starts them, `app-NAME` is a command, `app-NAME.token` its token."""
    started = [app for app in apps_of(session.spec) if app.command is not None and kernel.rank == 0]
    if not started:
        return {}
    words = [shlex.join([app.name, str(app.port)]) for app in started]
    script = render("apps", {"apps": words, "runtime_path": runtime_path})
    files = {"apps": FileEntry(content=script, mode="0444")}
    for app in started:
        files[f"app-{app.name}"] = FileEntry(content=f"{app.command}\n", mode="0400")
        if app.token:
            files[f"app-{app.name}.token"] = FileEntry(content=app_token(private_key, app.name), mode="0400")
    return files
