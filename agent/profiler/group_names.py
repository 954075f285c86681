"""Name the process groups whose maker has not described them after the dimension of parallelism that they are for.

DeviceMesh and Megatron-core describe theirs (`mesh_dp`, `TENSOR_MODEL_PARALLEL_GROUP`); DeepSpeed describes none and
keeps them in variables of one module. A group is in its variable before the first collective in it.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final

KEEPER: Final = "deepspeed.utils.groups"
DIMENSIONS: Final[Mapping[str, str]] = {
    "_DATA_PARALLEL_GROUP": "dp",
    "_TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "_MODEL_PARALLEL_GROUP": "mp",
    "_EXPERT_PARALLEL_GROUP": "ep",
    "_EXPERT_DATA_PARALLEL_GROUP": "edp",
    "_ZERO_PARAM_INTRA_PARALLEL_GROUP": "zero_params",
    "_WORLD_GROUP": "dp",
}
"""DeepSpeed's variables, the narrower meaning first. Its clone of the world is there when all ranks are one data
parallel group; groups of experts are in a dict by the size of the group.
"""


def find_dimension(group: Any) -> str:
    """Return `dp`, `tp`, ... for torch's object of a process group; empty where no variable has it. Imports nothing."""
    keeper = sys.modules.get(KEEPER)
    for variable, dimension in DIMENSIONS.items() if keeper is not None else ():
        kept = getattr(keeper, variable, None)
        if kept is group or (isinstance(kept, dict) and any(one is group for one in list(kept.values()))):
            return dimension
    return ""
