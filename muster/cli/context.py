"""What the commands share: the settings, the store, who is asking."""

import getpass
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from muster.service.sessions import Sessions
from muster.settings import load_settings
from muster.store.store import Store


@contextmanager
def sessions() -> Iterator[Sessions]:
    settings = load_settings()
    store = Store(settings.database_url)
    try:
        yield Sessions(store, settings)
    finally:
        store.close()


def current_user() -> str:
    """The person, where root was reached by sudo."""
    return os.environ.get("SUDO_USER") or getpass.getuser()


def split_kernel(reference: str) -> tuple[str, str | None]:
    """`train:sub1` as session and kernel name."""
    session, _, kernel = reference.partition(":")
    return session, kernel or None


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def complete_session(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    try:
        with sessions() as service:
            return [session.name for session in service.store.search() if session.name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a shell's completion has nowhere to show an error
        return []
