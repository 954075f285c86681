"""The calls for a training script. All are optional, and none but profile_model raises, whatever value it is given:

    import rankscope

    rankscope.start()                      # not needed under `-m rankscope.agent` or RANKSCOPE=1
    rankscope.batch(samples=32)            # size of the batch; otherwise read from what data loaders return
    rankscope.model_flops(per_step=6e15)   # FLOPs of a step of this rank, for MFU
    with rankscope.phase("checkpoint"):    # time inside is charged to this phase of the step
        save(model)
    with rankscope.evaluation():           # time inside belongs to no step; otherwise evaluations are detected
        evaluate(model)
    with rankscope.profile("traces/"):     # a trace of what runs inside, written at its end; also a decorator
        attend(queries)
    with rankscope.scope("attention"):     # a range in captures, beside operators; also a decorator
        attend(queries)
    rankscope.profile_model(model, inputs) # parameters, MACs, FLOPs and time by module, without training
    rankscope.step()                       # end of a step; otherwise steps are detected
    rankscope.throughput()                 # steps, samples and tokens per second of this rank
    rankscope.status()                     # on rank 0 what the collector has found: slowdown, goodput, MFU, findings
    rankscope.capture(steps=3)             # a trace of the next steps of this rank, into capture_folder
    rankscope.stop()                       # not needed: runs at the end of the process, or of `with rankscope.start():`

`rankscope.agent.integrations` has callbacks for PyTorch Lightning and Transformers that make these calls, and logs for
W&B, MLflow and TensorBoard.
The calls are those of `rankscope.agent`, which is imported when the first of them is used: this file imports nothing.
Nothing imports torch until `start()` is called.
"""

TYPE_CHECKING = False
"""As in `typing`, which is not imported: every program of the package comes by here, and `import torch` as well."""

if TYPE_CHECKING:
    from rankscope.agent import (
        batch,
        capture,
        evaluation,
        model_flops,
        phase,
        profile,
        profile_model,
        scope,
        start,
        status,
        step,
        stop,
        throughput,
    )
    from rankscope.measure import __version__

__all__ = [
    "__version__", "batch", "capture", "evaluation", "model_flops", "phase", "profile", "profile_model", "scope",
    "start", "status", "step", "stop", "throughput",
]  # fmt: skip


def __dir__() -> list[str]:
    """Return all names, also those that are imported when they are first used."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Return what is public when it is first used. The collector, which comes by here too, imports no agent."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        from rankscope.measure import __version__ as found  # noqa: PLC0415
    else:
        from rankscope import agent  # noqa: PLC0415

        found = getattr(agent, name)
    globals()[name] = found
    return found
