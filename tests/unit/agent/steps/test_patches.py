"""Patch: wrappers are installed and removed, and those of other tools stay."""

from collections.abc import Callable
from typing import Any

from rankscope.agent.steps.patches import Patch


class Torch:
    """The owner of a patched function."""

    def greet(self) -> str:
        return "torch"


def with_name(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: f"{name}({original(*args)})"

    return wrap


def make() -> tuple[type[Torch], Patch]:
    owner = type("Owner", (Torch,), {"greet": Torch.greet})
    return owner, Patch(owner, "greet", with_name("ours"))


def test_a_function_is_wrapped_while_the_patch_is_on() -> None:
    owner, patch = make()
    for _ in range(2):
        patch.apply()
        patch.apply()
        assert owner().greet() == "ours(torch)"
        patch.revert()
        patch.revert()
        assert owner().greet() == "torch"


def test_wrapper_of_another_tool_stays_and_is_not_wrapped_again() -> None:
    owner, patch = make()
    patch.apply()
    setattr(owner, "greet", with_name("theirs")(owner.greet))  # noqa: B010 - the class is made at run time
    patch.revert()
    patch.apply()
    assert owner().greet() == "theirs(ours(torch))"


def test_replacement_by_another_tool_is_wrapped_and_restored() -> None:
    owner, patch = make()
    patch.apply()
    patch.revert()
    setattr(owner, "greet", with_name("theirs")(owner.greet))  # noqa: B010 - as above
    patch.apply()
    assert owner().greet() == "ours(theirs(torch))"
    patch.revert()
    assert owner().greet() == "theirs(torch)"
