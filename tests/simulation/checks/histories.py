"""The promises that what the store tells of a session is true: its story (docs/states.md), and its usage."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from muster.core.lifecycle.transitions import TRANSITIONS
from muster.core.model.session import Session, SessionState, StoryLine
from muster.core.usage.kernel import KernelUsage
from tests.simulation.checks.truths import Truth

_ROUNDING_S = 0.001


def broken_story(session: Session, story: Sequence[StoryLine]) -> str:
    """Return where the story of a session is none that may be; empty where it is whole."""
    if not story or (story[0].from_state, story[0].to_state) != (None, SessionState.PENDING):
        return f"the story of {session.name} does not begin with its submission"
    for before, after in pairwise(story):
        if after.from_state != before.to_state or after.to_state not in TRANSITIONS[SessionState(before.to_state)]:
            return f"the story of {session.name} breaks at {after}"
    return (
        "" if story[-1].to_state == session.state else f"{session.name} is {session.state}, its story ends {story[-1]}"
    )


def untrue_usage(session: Session, truth: Truth, recorded: Sequence[KernelUsage], logged: Mapping[str, int]) -> str:
    """Return what is untrue of a session's recorded usage; empty where nothing is.

    `logged` are the launches of which the store holds kernels' logs, by name: it has their last words.
    """
    names = {kernel.id: kernel.name for kernel in session.possible_kernels}
    if "restored" in truth.harms:
        # Its agents may tell of a launch that the database does not know any more.
        return ""
    for use in recorded:
        name = names.get(use.kernel_id)
        if name is None:
            # It was updated since a launch that failed, and is smaller.
            continue
        really = truth.used_s(name, use.generation)
        is_last = use.generation == session.generation == logged.get(name)
        claim = f"of {session.name}/{name} (launch {use.generation}) the store holds {use.cpu_seconds} s"
        if (use.cpu_seconds or 0.0) > really + _ROUNDING_S:
            return f"{claim}, and it used {really} s"
        if is_last and session.state is SessionState.TERMINATED and (use.cpu_seconds or 0.0) < really - _ROUNDING_S:
            return f"{claim} of {really} s, and its last words"
    return ""
