"""The calls for a script in a process that is not measured: each is there, light, and raises nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

import rankscope
from rankscope import agent
from rankscope.agent import Started
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


def test_start_is_a_context_manager_true_where_it_measures() -> None:
    assert Started(is_measured=True)
    with Started(is_measured=False) as started:
        assert not started


def test_import_of_rankscope_loads_one_file_and_has_every_call() -> None:
    script = (
        "import sys; before = set(sys.modules); import rankscope; print(*sorted(set(sys.modules) - before));"
        "print(rankscope.__version__, 'rankscope.agent' in sys.modules);"
        "print(*(name for name in rankscope.__all__ if not callable(getattr(rankscope, name))));"
        "print(*{'numpy', 'torch'} & set(sys.modules))"
    )
    # Without `site`, whose .pth files import what they like.
    package = Path(rankscope.__file__).parents[1]
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {[str(package), *sys.path]}; {script}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    assert done.stdout == f"rankscope\n{__version__} False\n__version__\n\n"


def test_all_calls_of_the_agent_are_those_of_rankscope() -> None:
    assert set(rankscope.__all__) == {*agent.__all__, "__version__"} <= set(dir(rankscope))
    assert all(getattr(rankscope, name) is getattr(agent, name) for name in agent.__all__)
    with pytest.raises(AttributeError, match=r"^module 'rankscope' has no attribute 'steps'$"):
        _ = rankscope.steps
