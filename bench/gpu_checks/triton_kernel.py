"""A kernel of Triton, which reads its source from a file and its names from a module."""

import triton
import triton.language as tl

BLOCK = 1024
ROUNDS = 1000


# Triton would take annotations for types of its own.
@triton.jit  # type: ignore[untyped-decorator]
def wander(out, rounds, block: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    at = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(out + at).to(tl.float32)
    for _ in range(rounds):
        value = value * 0.999 + 1.0
    tl.store(out + at, value.to(tl.bfloat16))
