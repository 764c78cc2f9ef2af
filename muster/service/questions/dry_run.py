"""What would become of new sessions, as somebody is told who may see only some of those that they would wait for."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from muster.core.model.session import Session
from muster.core.whatif.counterfactual import Answer
from muster.core.whatif.discretion import discreet
from muster.service.questions.why import seen_suggestions
from muster.service.sessions.sessions import Sessions


def seen_answers(service: Sessions, answers: Sequence[Answer], sees: Callable[[Session], bool]) -> tuple[Answer, ...]:
    waited_for = {key for answer in answers if answer.wait for key in answer.wait.waits_for}
    others = service.store.get(sorted(waited_for))
    hidden = {key for key, other in others.items() if not sees(other)}
    return tuple(_seen(service, answer, hidden, sees) for answer in answers)


def _seen(service: Sessions, answer: Answer, hidden: Collection[str], sees: Callable[[Session], bool]) -> Answer:
    if answer.wait is None:
        return answer
    suggestions = seen_suggestions(service, answer.suggestions, sees) if answer.suggestions else ()
    return replace(answer, wait=discreet(answer.wait, hidden), suggestions=suggestions)
