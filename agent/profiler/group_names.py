"""Name process groups after the dimension of parallelism that they are for, whoever has made them.

DeviceMesh describes them by it (`mesh_dp`), Megatron-core at length (`TENSOR_MODEL_PARALLEL_GROUP`); DeepSpeed has no
descriptions and keeps groups in variables of one module, those of its pipelines in an object of that module. A group is
in its variable before the first collective in it.
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
GRID: Final = "mpu"
"""DeepSpeed's variable for the grid of a pipeline, or for a Megatron that it was given, whose groups are described."""
OF_GRID: Final[Mapping[str, str]] = {
    "dp_proc_group": "dp",
    "pp_proc_group": "pp",
    "slice_proc_group": "tp",
    "ds_model_proc_group": "tp_pp",
}

MEGATRON: Final[Mapping[str, str]] = {
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp_cp_part",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "MODEL_PARALLEL_GROUP": "tp_pp",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp_dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp_dp_cp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp_cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "etp_ep",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "etp_ep_pp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "EMBEDDING_GROUP": "embedding",
    "POSITION_EMBEDDING_GROUP": "position_embedding",
}
"""Megatron-core's descriptions (parallel_state.py), without what follows where it makes a second group of them."""
SECOND: Final[Mapping[str, str]] = {"_GLOO": "_gloo", "_AG": "_ag"}
"""Ends of the descriptions of second groups: one over gloo, one for all-gathers."""


def shorten_description(description: str) -> str:
    """Return the dimensions of a group that Megatron-core has described; any other description as it is.

    >>> shorten_description("TENSOR_MODEL_PARALLEL_GROUP"), shorten_description("DATA_PARALLEL_GROUP_WITH_CP_GLOO")
    ('tp', 'dp_cp_gloo')
    >>> shorten_description("mesh_dp")
    'mesh_dp'
    """
    for end, short_end in SECOND.items():
        first = MEGATRON.get(description.removesuffix(end))
        if first is not None:
            return first + short_end * description.endswith(end)
    return description


def find_dimension(group: Any) -> str:
    """Return `dp`, `tp`, ... for torch's object of a process group; empty where no variable has it. Imports nothing."""
    keeper = getattr(sys.modules.get(KEEPER), "__dict__", {})
    grid = getattr(keeper.get(GRID), "__dict__", {})
    for variables, dimensions in ((keeper, DIMENSIONS), (grid, OF_GRID)):
        for variable, dimension in dimensions.items():
            kept = variables.get(variable)
            if kept is group or (isinstance(kept, dict) and any(one is group for one in list(kept.values()))):
                return dimension
    return ""
