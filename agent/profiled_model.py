"""Count the parameters and floating-point operations of a model, and time it, without a training script:
`rankscope.agent.profile_model(model, inputs)`, and on the command line `rankscope profile-model MODULE:FUNCTION`.

The FLOPs are those of `rankscope analyze --flops` (measure/flops.py): of products alone, a multiplication and an
addition are two, so that a MAC is two FLOPs. They are counted in one pass, by the operators that torch dispatches; the
times are of other passes, in which nothing counts.
"""

import argparse
import importlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from itertools import pairwise
from typing import Any, Final, NamedTuple

from rankscope.measure.device_peaks import FP32, GB, TF32, TFLOP, find_peaks, name_number_type
from rankscope.measure.errors import UnavailableError
from rankscope.measure.flops import FORMULAS, NO_FORMULA, Inputs, count_flops, has_no_product
from rankscope.measure.median import find_median
from rankscope.measure.operator_costs import find_cost
from rankscope.measure.output_files import write_output
from rankscope.measure.units import NS_PER_MS, NS_PER_S, format_duration

PASSES: Final = 5
"""Timed passes; the median counts. One more comes before them."""
TOP: Final = 3
PEAKS_UNKNOWN: Final = "the peaks of {!r} are not known; name it as torch does, such as 'NVIDIA H100 80GB HBM3'"
FORWARD, BACKWARD = "forward", "backward"
_TYPES: Final = {
    "float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16", "int64": "long int",
}  # fmt: skip


class ModuleFigures(NamedTuple):
    """One module with all inside of it: `path` is that of its attributes, empty for the model; `depth` counts its dots.
    `parameters` counts each shared one once. FLOPs are of one forward, and of the backward of it; `forward_ns` is the
    time on the host, on a GPU until its work is done, None where it was not called.
    """

    path: str
    kind: str
    depth: int
    parameters: int
    forward_flops: int
    backward_flops: int
    forward_ns: int | None

    @property
    def forward_macs(self) -> int:
        """Multiply-accumulates of the forward."""
        return self.forward_flops // 2


class OperatorBound(NamedTuple):
    """All calls of one operator in one pass with numbers of one type: their FLOPs (0 where none are products), the
    least bytes that they move, and the least time for both on a device, ns, by its peaks: each call takes the longer of
    the two. `memory_ns` of that is of calls that the memory bounds.
    """

    operator: str
    phase: str
    dtype: str
    call_count: int
    flops: int
    bytes: int
    least_ns: float
    memory_ns: float


class ModelFigures(NamedTuple):
    """The model, with its modules in the order of the tree, the model first. Times are medians, None where that pass
    was not asked for. `batch` is the first size of the first tensor among the inputs. `uncounted` are operators of
    which it is not known whether they multiply, with their calls. `dp` and `mp` are the sizes of data and model
    parallelism that the user gives. `bounds` are of the `device` that the user names, empty without one.
    """

    modules: Sequence[ModuleFigures]
    forward_ns: int
    backward_ns: int | None
    step_ns: int | None
    batch: int | None
    uncounted: Mapping[str, int]
    dp: int = 1
    mp: int = 1
    device: str | None = None
    bounds: Sequence[OperatorBound] = ()

    @property
    def whole(self) -> ModuleFigures:
        """The model itself."""
        return self.modules[0]

    @property
    def samples_per_s(self) -> float | None:
        """Samples of all data-parallel replicas per second of the longest pass that was timed, without communication
        between them; None where the batch is not known.
        """
        passes_ns = self.forward_ns + (self.backward_ns or 0) + (self.step_ns or 0)
        return None if self.batch is None or not passes_ns else self.dp * self.batch * NS_PER_S / passes_ns

    def find_top(self, quantity: str, depth: int, count: int = TOP) -> list[ModuleFigures]:
        """Return the modules of a depth with the most of a field of ModuleFigures."""
        mine = [one for one in self.modules if one.depth == depth and one.path]
        return sorted(mine, key=lambda one: -(getattr(one, quantity) or 0))[:count]

    def to_plain(self) -> dict[str, object]:
        """Return all fields as dicts and lists, for JSON."""
        lists = {"modules": [one._asdict() for one in self.modules], "bounds": [one._asdict() for one in self.bounds]}
        return {**self._asdict(), **lists}

    def render(self, depth: int | None = None, top: int = TOP) -> str:
        """Return all as text: the tree down to a depth, None for all of it, and the top modules of each depth."""
        return "\n".join(_render(self, depth, top))


# -- counting ---------------------------------------------------------------------------------------------------------


def profile_model(
    model: Any,
    inputs: Any,
    *,
    loss: Callable[[Any], Any] | None = None,
    backward: bool = True,
    optimizer: Any = None,
    ignore: Sequence[str] = (),
    passes: int = PASSES,
    dp: int = 1,
    mp: int = 1,
    device: str | None = None,
) -> ModelFigures:
    """Return the figures of a model for these inputs: a tensor, or the arguments as a tuple or a mapping of names.

    `loss` makes a scalar of the output; without one it is the sum of its first tensor. Without `backward` only the
    forward runs, without gradients. `optimizer` is stepped and timed too, which changes the model's parameters; without
    one they stay, and their gradients are None afterwards. Modules of whose class or path a name of `ignore` is a part
    are left out, with all inside. `device` is the name of one, as `NVIDIA H100 80GB HBM3`, of which to say what time
    each operator takes at least; it need not be there. Raises what the model raises, and ValueError for numbers below 1
    and a device whose peaks are not known.
    """
    import torch  # noqa: PLC0415 - nothing else here needs it

    if min(passes, dp, mp) < 1:
        raise ValueError(f"passes, dp and mp are {passes}, {dp} and {mp}; each must be 1 or more")
    bounds = _Bounds(torch, device) if device is not None else None
    names = _name_modules(model, ignore)
    call = _make_call(model, inputs)
    run = _Run(torch, model, call, loss, backward=backward, optimizer=optimizer)
    flops, uncounted = _count(torch, model, run, names, bounds)
    module_ns = _time_modules(torch, call, names, passes, backward=backward)
    times = run.time(passes)
    rows = [_build_row(torch, module, path, flops, module_ns) for module, path in names.items()]
    return ModelFigures(
        rows, *times, _find_batch(torch, inputs), uncounted, dp, mp, device, bounds.list_all() if bounds else ()
    )


class _Bounds:
    """The least times of operators on a device, summed by operator, pass and type."""

    def __init__(self, torch: Any, device: str) -> None:
        found = find_peaks(device)
        if found is None:
            raise ValueError(PEAKS_UNKNOWN.format(device))
        self._peaks = found
        self._products_by_tf32 = torch.get_float32_matmul_precision() != "highest"
        self._sums: dict[tuple[str, str, str], list[float]] = {}

    def add(self, name: str, phase: str, inputs: Inputs) -> None:
        """Add a call, if there is a formula for it. Convolutions in fp32 are by TF32, as is torch's default."""
        cost = find_cost(name, inputs)
        if cost.bytes is None or cost.dtype is None:
            return
        by_tf32 = self._products_by_tf32 or "convolution" in name
        number_type = name_number_type(cost.dtype, on_tensor_cores=by_tf32) or cost.dtype
        tflops = self._peaks.tflops.get(number_type) or self._peaks.tflops.get(FP32 if number_type == TF32 else "")
        compute_ns = cost.flops / (tflops * TFLOP / NS_PER_S) if cost.flops and tflops else 0.0
        gbps = self._peaks.memory_gbps
        memory_ns = cost.bytes / (gbps * GB / NS_PER_S) if gbps is not None else 0.0
        one = self._sums.setdefault((name, phase, number_type), [0.0] * 5)
        least_ns, by_memory_ns = max(compute_ns, memory_ns), memory_ns if memory_ns > compute_ns else 0.0
        for place, value in enumerate((1, cost.flops or 0, cost.bytes, least_ns, by_memory_ns)):
            one[place] += value

    def list_all(self) -> list[OperatorBound]:
        """Return the sums, the longest time first."""
        rows = [
            OperatorBound(*key, int(count), int(flops), int(size), least_ns, memory_ns)
            for key, (count, flops, size, least_ns, memory_ns) in self._sums.items()
        ]
        return sorted(rows, key=lambda row: -row.least_ns)


def _name_modules(model: Any, ignore: Sequence[str]) -> dict[Any, str]:
    """Return the path of each module, in the order of the tree; of compiled ones without torch's own prefix."""
    found: dict[Any, str] = {}
    left_out: list[str] = []
    for name, module in model.named_modules():
        path = ".".join(part for part in name.split(".") if part != "_orig_mod")
        is_inside = any(path == other or path.startswith(f"{other}.") for other in left_out)
        if path and (is_inside or any(part in type(module).__name__ or part in path for part in ignore)):
            left_out.append(path)
            continue
        if path or not found:
            found[module] = path
    return found


def _make_call(model: Any, inputs: Any) -> Callable[[], Any]:
    if isinstance(inputs, Mapping):
        return lambda: model(**inputs)
    arguments = inputs if isinstance(inputs, tuple | list) else (inputs,)
    return lambda: model(*arguments)


class _Run:
    """The passes of a model: forward, backward, step."""

    def __init__(
        self, torch: Any, model: Any, call: Callable[[], Any], loss: Any, *, backward: bool, optimizer: Any
    ) -> None:
        self._torch, self._model, self._call = torch, model, call
        self._loss = loss or (lambda output: _first_tensor(torch, output).float().sum())
        self._has_backward = backward or optimizer is not None
        self._optimizer = optimizer

    def forward(self) -> Any:
        """Return the loss, or the output where no backward follows."""
        if not self._has_backward:
            with self._torch.no_grad():
                return self._call()
        return self._loss(self._call())

    def backward(self, found: Any) -> None:
        """Run the backward, if it was asked for."""
        if self._has_backward:
            found.backward()

    def clear(self) -> None:
        """Forget the gradients."""
        if self._has_backward:
            self._model.zero_grad(set_to_none=True)

    def time(self, passes: int) -> tuple[int, int | None, int | None]:
        """Return the median ns of forward, backward and step, without a first pass."""
        lengths: list[list[int]] = []
        for _ in range(passes + 1):
            marks = [_now(self._torch)]
            found = self.forward()
            marks.append(_now(self._torch))
            self.backward(found)
            marks.append(_now(self._torch))
            if self._optimizer is not None:
                self._optimizer.step()
            marks.append(_now(self._torch))
            del found
            self.clear()
            lengths.append([later - earlier for earlier, later in pairwise(marks)])
        forward, backward, step = (round(find_median(of)) for of in zip(*lengths[1:], strict=True))
        return forward, backward if self._has_backward else None, step if self._optimizer is not None else None


def _first_tensor(torch: Any, output: Any) -> Any:
    """Return the first tensor of an output. Raises ValueError without one."""
    if isinstance(output, torch.Tensor):
        return output
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    for part in parts:
        if isinstance(part, torch.Tensor):
            return part
    raise ValueError(f"the output is {type(output).__name__}, without a tensor to sum: give a loss")


def _now(torch: Any) -> int:
    """Return the time in ns, once the GPU has done its work."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter_ns()


def _find_batch(torch: Any, inputs: Any) -> int | None:
    found = (
        inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple | list) else (inputs,)
    )
    sizes = (one.shape for one in found if isinstance(one, torch.Tensor))
    first = next((shape for shape in sizes if len(shape)), None)
    return int(first[0]) if first is not None else None


def _count(
    torch: Any, model: Any, run: _Run, names: Mapping[Any, str], bounds: _Bounds | None
) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Return FLOPs by pass and path, each module's with all inside, and the calls of operators not known."""
    from torch.utils.module_tracker import ModuleTracker  # noqa: PLC0415 - as torch above

    tracker = ModuleTracker()
    root = type(model).__name__
    flops: dict[str, dict[str, int]] = {FORWARD: {}, BACKWARD: {}}
    uncounted: dict[str, int] = {}
    known = set(names.values())

    def add(amount: int) -> None:
        of_pass = flops[BACKWARD if tracker.is_bw else FORWARD]
        paths = {_strip(name, root) for name in tracker.parents if name != "Global"} & known
        for path in paths | {""}:
            of_pass[path] = of_pass.get(path, 0) + amount

    def bound(name: str, inputs: Inputs) -> None:
        if bounds is not None:
            bounds.add(name, BACKWARD if tracker.is_bw else FORWARD, inputs)

    counter = _make_counter(torch, add, bound, uncounted)
    with warnings.catch_warnings(), _without_compiling(torch), tracker, counter:
        warnings.simplefilter("ignore")  # of torch, about the tracker's hooks on compiled modules
        found = run.forward()
        run.backward(found)
    run.clear()
    return flops, uncounted


def _without_compiling(torch: Any) -> AbstractContextManager[Any]:
    """Return a context in which compiled code runs as it was written, so that each operator is seen."""
    stance = getattr(torch.compiler, "set_stance", None)
    found: AbstractContextManager[Any] = stance("force_eager") if stance is not None else nullcontext()
    return found


def _strip(name: str, root: str) -> str:
    """Return the path of a module from torch's name of it, which begins with the class of the model."""
    rest = name.removeprefix(root).removeprefix(".") if name == root or name.startswith(f"{root}.") else name
    return ".".join(part for part in rest.split(".") if part != "_orig_mod")


def _make_counter(
    torch: Any, add: Callable[[int], None], bound: Callable[[str, Inputs], None], uncounted: dict[str, int]
) -> AbstractContextManager[Any]:
    """Return a mode that counts the FLOPs of each operator that torch dispatches, and tells `bound` of each."""
    from torch._subclasses.fake_tensor import FakeTensor  # noqa: PLC0415 - as torch above
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415 - as torch above

    plain = {torch.Tensor, torch.nn.Parameter}

    class OperatorCounter(TorchDispatchMode):
        """Counts, and runs the operator as it is."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            """Leave what other kinds of tensors do to them: the operators inside come here again. With fake ones
            DTensor finds out how an output is divided: nothing is computed.
            """
            if FakeTensor in types:
                return func(*args, **(kwargs or {}))
            if not all(kind in plain for kind in types):
                return NotImplemented
            name = func._schema.name  # noqa: SLF001 - torch's own counter reads it as well
            if name not in FORMULAS and not has_no_product(name):
                decomposed = func.decompose(*args, **(kwargs or {})) if _is_composite(func, torch) else NotImplemented
                if decomposed is not NotImplemented:
                    return decomposed
            inputs = read_inputs(torch, [*args, *(kwargs or {}).values()])
            bound(name, inputs)
            found = count_flops(name, inputs)
            if found.flops is not None:
                add(found.flops)
            elif found.reason != NO_FORMULA or not has_no_product(name):
                uncounted[name] = uncounted.get(name, 0) + 1
            return func(*args, **(kwargs or {}))

    make: Callable[[], AbstractContextManager[Any]] = OperatorCounter
    return make()


def _is_composite(func: Any, torch: Any) -> bool:
    return bool(func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))  # noqa: SLF001


def read_inputs(torch: Any, arguments: Iterable[Any]) -> Inputs:
    """Return the arguments of an operator as a profiler records them."""
    types, shapes, values = [], [], []
    for one in arguments:
        is_list = isinstance(one, tuple | list) and any(isinstance(part, torch.Tensor) for part in one)
        if isinstance(one, torch.Tensor):
            name = str(one.dtype).removeprefix("torch.")
            types.append(_TYPES.get(name, name))
            shapes.append(list(one.shape))
            values.append("")
        else:
            types.append("TensorList" if is_list else "Scalar")
            shapes.append([list(part.shape) for part in one if isinstance(part, torch.Tensor)] if is_list else [])
            values.append("" if is_list or one is None else str(list(one) if isinstance(one, tuple | list) else one))
    return Inputs(types, shapes, values)


# -- timing -----------------------------------------------------------------------------------------------------------


def _time_modules(
    torch: Any, call: Callable[[], Any], names: Mapping[Any, str], passes: int, *, backward: bool
) -> dict[Any, int]:
    """Return the median ns of each module's forward, all its calls of a pass together; without a first pass."""
    open_ns: dict[Any, list[int]] = {}
    compiled = {
        inner for module in names if hasattr(module, "_orig_mod") for inner in module.modules() if inner is not module
    }  # hooks would compile these modules anew
    lengths: dict[Any, list[int]] = {module: [] for module in names if module not in compiled}

    def begin(module: Any, *_: object) -> None:
        open_ns.setdefault(module, []).append(_now(torch))

    def end(module: Any, *_: object) -> None:
        lengths[module][-1] += _now(torch) - open_ns[module].pop()

    handles = [
        handle
        for module in lengths
        for handle in (
            module.register_forward_pre_hook(begin),
            module.register_forward_hook(end),
        )
    ]
    try:
        for _ in range(passes + 1):
            for found in lengths.values():
                found.append(0)
            with torch.set_grad_enabled(backward):
                call()
    finally:
        for handle in handles:
            handle.remove()
    return {module: round(find_median(found[1:])) for module, found in lengths.items() if any(found)}


def _build_row(
    torch: Any, module: Any, path: str, flops: Mapping[str, Mapping[str, int]], module_ns: Mapping[Any, int]
) -> ModuleFigures:
    parameters = {id(one): one for one in module.parameters()}
    is_lazy = torch.nn.parameter.is_lazy
    kind = type(getattr(module, "_orig_mod", module)).__name__
    return ModuleFigures(
        path=path,
        kind=kind,
        depth=path.count(".") + 1 if path else 0,
        parameters=sum(one.numel() for one in parameters.values() if not is_lazy(one)),
        forward_flops=flops[FORWARD].get(path, 0),
        backward_flops=flops[BACKWARD].get(path, 0),
        forward_ns=module_ns.get(module),
    )


# -- text -------------------------------------------------------------------------------------------------------------


def _render(figures: ModelFigures, depth: int | None, top: int) -> list[str]:
    whole = figures.whole
    parts = f"; of all {figures.mp} parts of the model {whole.parameters * figures.mp:,}" if figures.mp > 1 else ""
    forward = f"{whole.forward_macs:,} MACs, {whole.forward_flops:,} FLOPs, {_ms(figures.forward_ns)}"
    lines = [
        f"parameters                   {whole.parameters:,}{parts}",
        f"forward                      {forward}, {_rate(whole.forward_flops, figures.forward_ns)}",
    ]
    if figures.backward_ns is not None:
        lines.append(
            f"backward                     {whole.backward_flops:,} FLOPs, {_ms(figures.backward_ns)}, "
            f"{_rate(whole.backward_flops, figures.backward_ns)}"
        )
    if figures.step_ns is not None:
        lines.append(f"optimizer step               {_ms(figures.step_ns)}")
    if figures.samples_per_s is not None:
        of = f" of {figures.dp} replicas, without communication" if figures.dp > 1 else ""
        lines.append(f"samples per second           {figures.samples_per_s:,.1f}{of}")
    if figures.uncounted:
        shown = ", ".join(f"{name} ({count:,} calls)" for name, count in sorted(figures.uncounted.items()))
        lines.append(f"not counted                  {shown}")
    lines += _render_bounds(figures, top)
    lines += ["", "module, parameters and share, forward MACs and share, backward FLOPs, forward time and share"]
    lines += [_render_row(one, whole) for one in figures.modules if depth is None or one.depth <= depth]
    deepest = max(one.depth for one in figures.modules)
    for level in range(1, min(deepest, depth if depth is not None else deepest) + 1):
        lines.append("")
        for quantity, what in (("forward_flops", "MACs"), ("parameters", "parameters"), ("forward_ns", "time")):
            most = ", ".join(one.path for one in figures.find_top(quantity, level, top))
            lines.append(f"depth {level}, most {what}: {most}")
    return lines


def _render_bounds(figures: ModelFigures, top: int) -> list[str]:
    """Return the least times on the device that the user names, and the operators with the most."""
    if figures.device is None:
        return []
    sums = {phase: sum(one.least_ns for one in figures.bounds if one.phase == phase) for phase in (FORWARD, BACKWARD)}
    passes = ", ".join(f"{phase} {format_duration(ns)}" for phase, ns in sums.items() if ns)
    lines = [
        f"least time by the peaks of {figures.device}: {passes or 'no operator has a formula'}",
        "    each operator by itself, those with a formula; caches and masks may spare some of it",
    ]
    for one in figures.bounds[:top]:
        by = f"{100 * one.memory_ns / one.least_ns:.0f} % of it bound by memory" if one.least_ns else "no peak is known"
        calls = f"{one.call_count:,} call{'s' if one.call_count > 1 else ''}"
        lines.append(f"    {one.operator} {one.dtype}, {one.phase}: {format_duration(one.least_ns)} in {calls}, {by}")
    return lines


def _render_row(one: ModuleFigures, whole: ModuleFigures) -> str:
    name = f"{'  ' * one.depth}{one.path.rpartition('.')[2] or 'model'} ({one.kind})"
    return (
        f"{name:<44}{one.parameters:>14,}{_share(one.parameters, whole.parameters):>8}{one.forward_macs:>18,}"
        f"{_share(one.forward_flops, whole.forward_flops):>8}{one.backward_flops:>18,}{_ms(one.forward_ns):>12}"
        f"{_share(one.forward_ns, whole.forward_ns):>8}"
    )


def _share(part: float | None, whole: float | None) -> str:
    return f"{100 * part / whole:.1f} %" if part is not None and whole else "-"


def _ms(ns: float | None) -> str:
    return f"{ns / NS_PER_MS:,.3f} ms" if ns is not None else "-"


def _rate(flops: int, ns: int | None) -> str:
    return f"{flops / ns:,.2f} GFLOP/s" if ns else "- GFLOP/s"


# -- command ----------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Profile what `MODULE:FUNCTION` returns, a model and its inputs, and print it; return 0, or 2 for a mistake."""
    parser = argparse.ArgumentParser(prog="rankscope profile-model")
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="returns a model and its inputs")
    parser.add_argument("--forward-only", action="store_true", help="without the backward")
    parser.add_argument("--depth", type=int, default=None, metavar="N", help="deepest modules that are shown [all]")
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"top modules of each depth [{TOP}]")
    parser.add_argument("--ignore", action="append", default=[], metavar="NAME", help="leave out modules so named")
    parser.add_argument("--passes", type=int, default=PASSES, metavar="N", help=f"timed passes [{PASSES}]")
    parser.add_argument("--dp", type=int, default=1, metavar="N", help="replicas of data parallelism [1]")
    parser.add_argument("--mp", type=int, default=1, metavar="N", help="parts of model parallelism [1]")
    parser.add_argument("--device", default=None, metavar="NAME", help="least times on this device, by its peaks")
    parser.add_argument("--json", action="store_true", help="print every module as JSON instead of the text")
    parser.add_argument("--json-file", default="", metavar="FILE", help="write the JSON to this file, besides")
    options = parser.parse_args(arguments)
    if options.device is not None and find_peaks(options.device) is None:
        parser.error(PEAKS_UNKNOWN.format(options.device))
    module, colon, name = options.function.partition(":")
    if not colon:
        parser.error(f"{options.function!r} is no MODULE:FUNCTION")
    sys.path.insert(0, "")
    with redirect_stdout(sys.stderr if options.json else sys.stdout):  # what the model prints is no JSON
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            parser.error(f"{options.function!r} cannot be imported: {error}")
        model, inputs = function()
        found = profile_model(
            model, inputs, backward=not options.forward_only, ignore=options.ignore, passes=options.passes,
            dp=options.dp, mp=options.mp, device=options.device,
        )  # fmt: skip
    content = f"{json.dumps(found.to_plain(), indent=2)}\n"
    if options.json_file:
        try:
            write_output(options.json_file, "--json-file", content.encode())
        except UnavailableError as error:
            parser.error(str(error))
    sys.stdout.write(content if options.json else f"{found.render(options.depth, options.top)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
