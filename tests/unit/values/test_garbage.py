"""What a process looks for garbage among."""

import subprocess
import sys

CIRCLES = """
import gc, weakref

class Value:
    pass

def circle():
    value = Value()
    value.itself = value
    return value
"""

KEPT = """
from muster.core.values.garbage import keep_what_is_loaded

loaded, garbage = circle(), weakref.ref(circle())
keep_what_is_loaded()
later = weakref.ref(circle())
print(any(value is loaded for value in gc.get_objects()), garbage() is None)
gc.collect()
print(later() is None)
"""

RARELY_SEARCHED = """
from muster.core.values.garbage import RareSearches

now = [0.0]
searches = RareSearches(lambda: now[0])
held = [circle()]
searches.make_if_due()
# Python's own full search, after which this is old as well.
held.append(circle())
gc.collect()
young, old = weakref.ref(circle()), [weakref.ref(value) for value in held]
held.clear()
gc.collect()
print(young() is None, *(value() is None for value in old))
for now[0] in (3599.0, 3600.0):
    searches.make_if_due()
    print(*(value() is None for value in old))
"""


def said_by(program: str) -> list[str]:
    # In a process of its own: this one has been told to keep what it has loaded.
    done = subprocess.run([sys.executable, "-c", CIRCLES + program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_what_is_loaded_is_left_out_of_searches_and_later_garbage_is_found():
    assert said_by(KEPT) == ["False", "True", "True"]


def test_what_is_old_is_searched_once_an_hour_and_what_is_newer_always():
    assert said_by(RARELY_SEARCHED) == ["True", *["False"] * 4, "True", "True"]
