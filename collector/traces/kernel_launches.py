"""Sum the kernels by the operator that launched them and by how they were launched: grid, block, registers, shared
memory.
"""

import numpy as np

from rankscope.collector.traces.report import KernelLaunchRow
from rankscope.collector.traces.tables import by_name, weigh
from rankscope.measure.flops import FORMULAS
from rankscope.measure.kineto import NONE, LaunchShape
from rankscope.measure.rank_view import RankView
from rankscope.measure.tensor_cores import uses_tensor_cores

_NOT_RECORDED = LaunchShape(None, None, None, None)


def sum_launches(view: RankView) -> list[KernelLaunchRow]:
    """Return the kernels, the longest in total first. The trace was read with its launches."""
    work, found, names = view.work, view.trace.device_work, view.trace.names
    kernels = np.flatnonzero(work.is_kernel)
    callers = view.host.find_callers(view.launch[kernels])
    operators = np.where(callers == NONE, NONE, view.events.name[callers])
    shapes = [view.trace.launch_shapes.get(row, _NOT_RECORDED) for row in work.row[kernels].tolist()]
    keys: dict[tuple[int, int, LaunchShape], int] = {}
    codes = np.array(
        [
            keys.setdefault(key, len(keys))
            for key in zip(work.name[kernels].tolist(), operators.tolist(), shapes, strict=True)
        ],
        dtype=np.int32,
    )
    of_code = list(keys)
    length_ns = (work.end_ns - work.start_ns)[kernels]
    whole_ns = int(length_ns.sum())
    rows = []
    for code, mine in by_name(codes):
        name, operator, shape = of_code[code]
        mine_ns, total_ns = length_ns[mine], int(length_ns[mine].sum())
        rows.append(
            KernelLaunchRow(
                name=names[name],
                operator=names[operator] if operator != NONE else None,
                **shape._asdict(),
                count=len(mine),
                total_ns=total_ns,
                mean_ns=round(total_ns / len(mine)),
                min_ns=int(mine_ns.min()),
                max_ns=int(mine_ns.max()),
                pct=100 * total_ns / whole_ns if whole_ns else 0.0,
                uses_tensor_cores=uses_tensor_cores(names[name]),
                may_use_tensor_cores=operator != NONE and names[operator] in FORMULAS,
                blocks_per_sm=weigh(found.blocks_per_sm[kernels[mine]], mine_ns),
                occupancy_ratio=weigh(found.occupancy_percent[kernels[mine]] / 100, mine_ns),
            )
        )
    return sorted(rows, key=lambda row: (-row.total_ns, row.name, row.operator or "", row.grid or "", row.block or ""))
