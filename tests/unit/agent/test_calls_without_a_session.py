"""The calls for a script in a process that is not measured: each is there, light, and raises nothing."""

import subprocess
import sys

import rankscope.agent as rankscope
from rankscope.measure import __version__


class Hostile:
    """An object that fails whatever it is asked."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__
    __int__ = __index__ = __float__ = __bool__ = __eq__ = __hash__ = __str__  # type: ignore[assignment]


def test_no_call_raises_whatever_it_is_given() -> None:
    for value in (None, -1, "many", float("nan"), Hostile()):
        rankscope.step(samples=value, tokens=value)  # type: ignore[arg-type]
        rankscope.batch(samples=value, tokens=value)  # type: ignore[arg-type]
        rankscope.model_flops(per_step=value, per_token=value, dtype=value)  # type: ignore[arg-type]
        assert rankscope.throughput(value) is None  # type: ignore[arg-type]
        assert rankscope.capture(value) is False  # type: ignore[arg-type]
        with rankscope.phase(value), rankscope.evaluation(), rankscope.scope(value):  # type: ignore[arg-type]
            pass
    assert rankscope.status()["age_s"] is None
    rankscope.stop()


def test_start_is_a_context_manager_that_is_true_where_it_measures() -> None:
    assert rankscope.Started(is_measured=True)
    with rankscope.Started(is_measured=False) as started:
        assert not started


def test_version_is_there_and_not_loaded_before() -> None:
    loaded = "'rankscope.measure' in sys.modules, 'torch' in sys.modules"
    script = f"import sys, rankscope.agent as r; print({loaded}, r.__version__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=500)
    assert done.stdout == f"False False {__version__}\n"
