"""The tiers of `./dev test`: what each runs, and which run at the same time.

Lanes of one stage run beside each other, the tiers of one lane one after another. What waits for hosts and containers
now and then (the lab, the end-to-end tests, roles) comes first, in as many lanes as leave no processor idle. What
computes in several processes (unit tests, faults) comes last: it takes what the other lanes leave, whichever of them
ends early. All give way to the lab, the longest tier, whose tests are about agents that answer late.

Tiers that use this machine's engine share one lane: some of them change what others would look at.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tier:
    """A part of the tests, as arguments of `./dev`.

    `on_engine` marks what needs root and a provisioned Docker engine; `is_gate`, what nothing runs after when it fails;
    `niceness` says how far it gives way to tiers that run beside it: each point costs it a fifth of its weight.
    """

    name: str
    command: tuple[str, ...]
    on_engine: bool = True
    is_gate: bool = False
    niceness: int = 0


# The lab has none. A thread of a test that computes is not to wait for long either.
USES_ENGINE, COMPUTES = 3, 5

Lane = tuple[Tier, ...]
Stage = tuple[Lane, ...]

PREPARE = Tier("compiling", ("prepare",), on_engine=False)
LINT = Tier("lint", ("lint",), on_engine=False, is_gate=True)
PROVISION = Tier("provisioning", ("provision",))
UNIT = Tier("unit and contract", ("unit", "-p", "tests.running.reached_lines"), on_engine=False, niceness=COMPUTES)
SIMULATION = Tier("simulated faults", ("simulation",), on_engine=False, niceness=COMPUTES)
NATIVE = Tier("native libraries", ("native",), on_engine=False, niceness=COMPUTES)
MODULES = Tier(
    "modules on a real engine",
    ("engine", "--numprocesses=2", "--dist=loadfile", "tests/modules", "tests/security/engine"),
    niceness=USES_ENGINE,
)
# Their image is made from those that the end-to-end tests make, so they come before these.
TOOLS = Tier(
    "recipes for MPI and parallel shells, and apps for a browser",
    ("engine", "tests/frameworks/test_tools.py", "tests/frameworks/test_apps.py"),
    niceness=USES_ENGINE,
)
END_TO_END = Tier("end to end", ("engine", "--numprocesses=2", "--dist=loadfile", "tests/e2e"), niceness=USES_ENGINE)
ROLES = Tier("roles, by molecule", ("molecule",), niceness=USES_ENGINE)
FRESH_MACHINE = Tier("a fresh machine", ("engine", "tests/fresh_machine"), niceness=USES_ENGINE)
LAB = Tier("the lab of three hosts", ("engine", "tests/lab"))
GPU = Tier("a host with a GPU", ("engine", "tests/gpu"))

PLAN: tuple[Stage, ...] = (
    ((LINT,), (PREPARE, PROVISION)),
    ((ROLES, FRESH_MACHINE, UNIT, SIMULATION, NATIVE), (LAB, GPU), (MODULES, TOOLS, END_TO_END)),
)
