"""How many examples a property is tried with: by what an example costs, and by the profile.

`ci` repeats the same examples in every run, so that a green run stays green. `thorough` (`./dev thorough`) takes fresh
ones, many times as many.
"""

import os
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis.internal import entropy
from hypothesis.internal.conjecture import providers

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
_THOROUGH_EXAMPLES = 1500
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}

# Around each example Hypothesis would seed NumPy's global random numbers and put back their state: a quarter of the CPU
# of a small one. Nothing here draws from them (ruff's NPY002), so let Hypothesis take them for managed already.
entropy.NP_RANDOM = Random()

if PROFILE == "ci":
    # Hypothesis tries constants of all of our modules that are loaded by then, so that examples would depend on which
    # tests ran before in the same process: a green run would not stay green.
    _NO_CONSTANTS = providers._local_constants
    providers._get_local_constants = lambda: _NO_CONSTANTS

settings.register_profile(
    "ci", max_examples=15, stateful_step_count=25, print_blob=True, derandomize=True, database=None, **_COMMON
)
settings.register_profile(
    "thorough", max_examples=_THOROUGH_EXAMPLES, stateful_step_count=60, print_blob=True, **_COMMON
)
settings.load_profile(PROFILE)


def examples(count: int) -> settings:
    """Return the settings of a property that is tried with that many examples in `ci`."""
    return settings(max_examples=_THOROUGH_EXAMPLES if PROFILE == "thorough" else count)


cheap = examples(300)
"""For a property whose examples take a millisecond or so."""

dear = examples(100)
"""For one whose examples take three milliseconds or more."""
