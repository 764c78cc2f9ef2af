"""Answers about sessions and the queue as plain data: what `--json` prints and the API answers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from muster.core.model.session import Session
from muster.core.values.moment import timestamp
from muster.core.whatif.counterfactual import Answer
from muster.core.whatif.hypothesis import Suggestion
from muster.service.agents.gpu_map import HeldShare, held_json
from muster.service.questions.details import Details
from muster.service.questions.what_if import Queued
from muster.service.questions.why import Why
from muster.service.reach.apps import app_json
from muster.service.sessions.views import session_json, story_json, wait_json


def details_json(details: Details) -> dict[str, Any]:
    return {
        **_session_with_shares_json(details.session, details.shares),
        "apps": [app_json(view) for view in details.apps],
        "use": list(details.uses),
        "story": [story_json(line) for line in details.story],
    }


def _session_with_shares_json(session: Session, shares: Mapping[str, Sequence[HeldShare]]) -> dict[str, Any]:
    """Return the session as plain data, with what each share is in bytes and thousandths of the GPU."""
    shown = session_json(session)
    for kernel in shown["kernels"]:
        if kernel["id"] in shares:
            kernel["gpus"] = [held_json(held) for held in shares[kernel["id"]]]
    return shown


def suggestion_json(suggestion: Suggestion) -> dict[str, Any]:
    return {
        "text": suggestion.text,
        "flags": list(suggestion.flags),
        "effort": round(suggestion.effort, 4),
        "starts_at": timestamp(suggestion.starts_at),
    }


def why_json(why: Why) -> dict[str, Any]:
    session, suggestions = why.session, why.suggestions
    return {
        "id": session.id,
        "name": session.name,
        "state": session.state,
        "reason": session.reason,
        "wait": wait_json(why.wait, why.position) if why.wait else None,
        **({} if suggestions is None else {"suggestions": [suggestion_json(s) for s in suggestions]}),
    }


def queued_json(queued: Queued) -> dict[str, Any]:
    session = queued.session
    return {
        "id": session.id,
        "name": session.name,
        "owner": session.owner,
        "resource_group": session.spec.resource_group,
        "priority": session.spec.priority,
        "cluster_size": len(session.kernels),
        "slots": {name: getattr(session.slots, name) for name in ("cpu", "mem", "fgpu", "gpu")},
        "submitted_at": timestamp(session.submitted_at),
        "position": queued.wait.position if queued.wait else None,
        "wait": wait_json(queued.wait, queued.wait.position) if queued.wait else None,
    }


def answer_json(answer: Answer) -> dict[str, Any]:
    placement = answer.placement
    return {
        "name": answer.session.name,
        "starts_now": placement is not None,
        "mode": placement.mode if placement else None,
        "kernels": [
            {
                "name": kernel.name,
                "agent": placement.allocations[kernel.id].agent_id,
                "gpus": [asdict(share) for share in placement.allocations[kernel.id].gpus],
            }
            for kernel in answer.session.kernels
        ]
        if placement
        else [],
        "wait": wait_json(answer.wait, answer.wait.position) if answer.wait else None,
        "suggestions": [suggestion_json(suggestion) for suggestion in answer.suggestions],
    }
