"""The columns of this package's arrays."""

from typing import Final

# Columns of `fixed`; then, for each GPU that the largest agent has, four blocks.
MOST_CPU: Final = 0
GPUS: Final = 1
UNIT: Final = 2
OVERLAY: Final = 3
CPU_CAPACITY: Final = 4
MEM_CAPACITY: Final = 5
ALIKE: Final = 6
CHOICE: Final = 7
HEAD: Final = 8
CAPACITY: Final = 0
CUT: Final = 1
NUMA: Final = 2
MODEL: Final = 3
NO_NODE: Final = -1

# What `CUT` says of a GPU: handed over whole only; in shares; itself a part, which one kernel takes whole.
UNCUT: Final = 0
SHARED: Final = 1
EXCLUSIVE: Final = 2
# The `UNIT` of an agent whose GPUs are exclusive: however much a kernel asks for, it gets one of them.
NO_UNIT: Final = 1 << 40

# The GPU of an agent for a share: by the policy, the fullest, the emptiest, or the least fragmenting one.
POLICY: Final = 0
FILL: Final = 1
SPREAD: Final = 2
LEAST_FRAGMENTING: Final = 3

# Columns of `free`; a GPU's free amount follows for each.
CPU: Final = 0
MEM: Final = 1
KERNELS: Final = 2
FIRST_GPU: Final = 3

# Columns of a request.
REQUEST_CPU: Final = 0
REQUEST_MEM: Final = 1
REQUEST_FGPU: Final = 2
REQUEST_GPU: Final = 3
RANK: Final = 4
LIKE_LAST: Final = 5

# Columns of a typical request, then one for each GPU model: whether it serves.
WEIGHT: Final = 4
FIRST_MODEL: Final = 5

# Places of `weights`, then each GPU model's scarcity.
FRAGMENTATION: Final = 0
STARVATION: Final = 1
IMBALANCE: Final = 2
SCARCITY: Final = 3
LEFT_OVER: Final = 4
TURN: Final = 5
STEPS: Final = 6
FIRST_SCARCITY: Final = 7

# Columns of a kernel's place: agent, GPU that it has a part of, the part, number of whole GPUs, those GPUs.
AGENT: Final = 0
PART_OF: Final = 1
PART: Final = 2
WHOLES: Final = 3
FIRST_WHOLE: Final = 4
NO_GPU: Final = -1
NOWHERE: Final = -1
NO_ROOM: Final = -1.0
