"""The tiers of `./dev test`: what each runs, and which run at the same time.

Lanes of one stage run beside each other, the tiers of one lane one after another. All lanes of a stage should take
about as long. What waits for hosts and containers for the most part (the lab, the end-to-end tests) leaves processors
idle, which what computes (unit tests, faults) then has. It gives way to the others, so that these wait for no processor
too, and the longest lane is no longer than it need be.

Tiers that use this machine's engine share one lane: some of them change what others would look at.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tier:
    """A part of the tests, as arguments of `./dev`.

    `on_engine` marks what needs root and a provisioned Docker engine; `is_gate`, what nothing runs after when it fails;
    `gives_way`, what takes only a small part of a processor that another tier wants.
    """

    name: str
    command: tuple[str, ...]
    on_engine: bool = True
    is_gate: bool = False
    gives_way: bool = False


Lane = tuple[Tier, ...]
Stage = tuple[Lane, ...]

PREPARE = Tier("compiling", ("prepare",), on_engine=False)
LINT = Tier("lint", ("lint",), on_engine=False, is_gate=True)
PROVISION = Tier("provisioning", ("provision",))
UNIT = Tier(
    "unit and contract", ("unit", "--cov=muster", "--cov-report=term:skip-covered"), on_engine=False, gives_way=True
)
SIMULATION = Tier("simulated faults", ("simulation",), on_engine=False, gives_way=True)
NATIVE = Tier("native libraries", ("native",), on_engine=False, gives_way=True)
MODULES = Tier(
    "modules on a real engine",
    ("engine", "--numprocesses=2", "--dist=loadfile", "tests/modules", "tests/security/engine"),
)
# Their image is made from those that the end-to-end tests make, so they come before these.
TOOLS = Tier("recipes for MPI and parallel shells", ("engine", "tests/frameworks/test_tools.py"))
END_TO_END = Tier("end to end", ("engine", "--numprocesses=2", "--dist=loadfile", "tests/e2e"))
ROLES = Tier("roles, by molecule", ("molecule",))
FRESH_MACHINE = Tier("a fresh machine", ("engine", "tests/fresh_machine"))
LAB = Tier("the lab of three hosts", ("engine", "tests/lab"))
GPU = Tier("a host with a GPU", ("engine", "tests/gpu"))

PLAN: tuple[Stage, ...] = (
    ((LINT,), (PREPARE, PROVISION)),
    ((UNIT, SIMULATION, NATIVE, FRESH_MACHINE, ROLES), (LAB, GPU), (MODULES, TOOLS, END_TO_END)),
)
