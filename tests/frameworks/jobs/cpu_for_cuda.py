"""The CPU in place of the CUDA device that some frameworks ask torch for without saying so: their code is as it is.

`torch.cuda.is_available()` stays as it is, so nobody else is deceived.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange")


class NoStream:
    """A stream, or an event, of a device on which everything is over at once."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def make_on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the factory with the CPU where it is asked for `cuda`."""

    @functools.wraps(factory)
    def make(*arguments: Any, device: Any = None, **named: Any) -> torch.Tensor:
        return factory(*arguments, device="cpu" if str(device).startswith("cuda") else device, **named)

    return make


def take_cpu() -> None:
    """Let the calls of torch.cuda that these frameworks make mean the CPU."""
    cpu: Any = torch.device("cpu")
    for name, stands_in in {
        "current_device": lambda: cpu,
        "set_device": lambda _: None,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        "manual_seed": torch.manual_seed,
        "current_stream": NoStream,
        "Stream": NoStream,
        "Event": NoStream,
    }.items():
        setattr(torch.cuda, name, stands_in)
        setattr(torch.cuda.random, name, stands_in)
    for name in FACTORIES:
        setattr(torch, name, make_on_cpu(getattr(torch, name)))
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
