"""Sessions that are submitted together."""

import random

from muster.core.model.policy import QueueView, by_arrival
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.slots import Slots
from muster.service.specs.new_sessions import new_sessions


def test_sessions_of_one_submission_queue_by_their_number():
    made = new_sessions(SessionSpec(name="s", image="busybox"), "ada", 40, 0.0)
    shuffled = random.Random(1).sample(made, len(made))
    queue = by_arrival(shuffled, QueueView(0.0, Slots(cpu=0, mem=0, fgpu=0, gpu=0), {}))
    assert [session.name for session in queue] == [f"s-{number}" for number in range(1, 41)]
