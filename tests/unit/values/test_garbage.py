"""What a process that has loaded its code looks for garbage among."""

import subprocess
import sys

# In a process of its own: this one has been told to keep what it has loaded.
PROGRAM = """
import gc, weakref
from muster.core.values.garbage import keep_what_is_loaded

class Value:
    pass

def circle():
    value = Value()
    value.itself = value
    return value

loaded, garbage = circle(), weakref.ref(circle())
keep_what_is_loaded()
later = weakref.ref(circle())
print(any(value is loaded for value in gc.get_objects()), garbage() is None)
gc.collect()
print(later() is None)
"""


def test_what_is_loaded_is_left_out_of_searches_and_later_garbage_is_found():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]
