"""The tiers of `./dev test`: what each runs, and which run at the same time.

Lanes of one stage run beside each other, the tiers of one lane one after another. Both lanes of a stage should take
about as long. What computes (unit tests, faults, modules) runs beside what for the most part waits for hosts and
containers (the lab, a fresh machine), so that no processor is idle.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tier:
    """A part of the tests, as arguments of `./dev`.

    `on_engine` marks what needs root and a provisioned Docker engine; `is_gate`, what nothing runs after when it fails.
    """

    name: str
    command: tuple[str, ...]
    on_engine: bool = True
    is_gate: bool = False


Lane = tuple[Tier, ...]
Stage = tuple[Lane, ...]

PREPARE = Tier("compiling", ("prepare",), on_engine=False)
LINT = Tier("lint", ("lint",), on_engine=False, is_gate=True)
PROVISION = Tier("provisioning", ("provision",))
UNIT = Tier("unit and contract", ("unit", "--cov=muster", "--cov-report=term:skip-covered"), on_engine=False)
SIMULATION = Tier("simulated faults", ("simulation",), on_engine=False)
NATIVE = Tier("native libraries", ("native",), on_engine=False)
MODULES = Tier(
    "modules on a real engine",
    ("engine", "--numprocesses=2", "--dist=loadfile", "tests/modules", "tests/security/engine"),
)
# Their image is made from those that the end-to-end tests make, so they come before these.
TOOLS = Tier(
    "recipes for MPI and parallel shells, and apps for a browser",
    ("engine", "tests/frameworks/test_tools.py", "tests/frameworks/test_apps.py"),
)
END_TO_END = Tier("end to end", ("engine", "--numprocesses=2", "--dist=loadfile", "tests/e2e"))
ROLES = Tier("roles, by molecule", ("molecule",))
FRESH_MACHINE = Tier("a fresh machine", ("engine", "tests/fresh_machine"))
LAB = Tier("the lab of three hosts", ("engine", "tests/lab"))
GPU = Tier("a host with a GPU", ("engine", "tests/gpu"))

PLAN: tuple[Stage, ...] = (
    ((LINT,), (PREPARE, PROVISION)),
    ((UNIT, SIMULATION, NATIVE, MODULES, TOOLS, END_TO_END, ROLES), (LAB, FRESH_MACHINE, GPU)),
)
