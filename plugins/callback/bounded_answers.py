"""Whatever playbook runs: what a host answers to one task has bounds."""

from typing import Any

from ansible.plugins.callback import CallbackBase
from ansible.utils.display import Display

from muster.ansible_gateway.bounded_programs import bounded_pipes

DOCUMENTATION = r"""
name: bounded_answers
type: aggregate
short_description: Bound what a host answers to one task
description:
  - Ends a connection whose program prints more than 16 MiB for one task. Ansible would keep all of it in memory.
  - Muster's own modules have bounds of their own.
author:
  - The Muster authors
"""

_MOST_BYTES = 16 << 20


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """A callback that does nothing but be loaded, before the processes that run tasks are forked off this one."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "bounded_answers"

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as in the base class
        super().__init__(*arguments, **options)
        self._bounds = bounded_pipes(_MOST_BYTES, _warn)
        self._bounds.__enter__()


def _warn() -> None:
    Display().warning(f"a host's answer is longer than {_MOST_BYTES >> 20} MiB, and was broken off")
