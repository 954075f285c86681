"""Tests of the stacks of real threads, and of the activity derived from frames."""

import gc
import linecache
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from rankscope import agent
from rankscope.agent.captures.stacks import (
    FRAMES_MAX,
    capture_stacks,
    find_activity,
    find_raised_line,
    find_torch_folder,
    read_frames,
    shorten_frame,
)
from rankscope.measure.stalls import ACTIVITIES, StackFrame, ThreadStack

SITE = "/env/lib/python3.11/site-packages"


def dive(depth: int, at_the_bottom: Callable[[], None]) -> None:
    if depth:
        dive(depth - 1, at_the_bottom)
    else:
        at_the_bottom()


@pytest.fixture
def hang() -> Iterator[Callable[[str, int], None]]:
    """Start a thread of that name that waits at a depth until the test is over."""
    release = threading.Event()
    threads: list[threading.Thread] = []

    def start(name: str, depth: int) -> None:
        reached = threading.Event()

        def wait_there() -> None:
            for call in (reached.set, release.wait):
                call()  # one line, whichever of the two the thread is in

        threads.append(threading.Thread(target=dive, args=(depth, wait_there), name=name))
        threads[-1].start()
        assert reached.wait(60)

    yield start
    release.set()
    for thread in threads:
        thread.join()


def stack_of(name: str) -> ThreadStack | None:
    return next((stack for stack in capture_stacks().threads if stack.name == name), None)


def test_the_stack_names_the_line_that_the_thread_is_in(hang: Callable[[str, int], None]) -> None:
    hang("loader", 0)
    stack = stack_of("loader")
    assert stack is not None
    here = [frame for frame in stack.frames if frame.function == "wait_there"]
    assert [frame.file for frame in here] == [__file__[-160:]]
    assert linecache.getline(__file__, here[0].line).strip().startswith("call()")


def test_the_main_thread_comes_first_and_is_the_one_that_acts() -> None:
    stacks = capture_stacks()
    assert stacks.threads[0].name == threading.main_thread().name
    # Its innermost frame is that of `capture_stacks`, which is ours and left out.
    assert stacks.threads[0].frames[0].function == "test_the_main_thread_comes_first_and_is_the_one_that_acts"
    assert stacks.activity == "other"


def test_agent_threads_are_omitted(hang: Callable[[str, int], None]) -> None:
    hang("rankscope-agent", 0)
    assert stack_of("rankscope-agent") is None


def test_deep_stack_keeps_the_innermost_frames(
    hang: Callable[[str, int], None],
) -> None:
    hang("deep", FRAMES_MAX + 10)
    stack = stack_of("deep")
    assert stack is not None
    assert len(stack.frames) == FRAMES_MAX
    # Besides the dives at least wait_there, and `run` and `_bootstrap` of the thread.
    assert stack.frames_left_out >= 10 + 1 + 2
    assert stack.frames[-1].function == "dive"


@pytest.mark.parametrize(
    ("frames", "activity"),
    [
        ([("torch/distributed/distributed_c10d.py", "all_reduce"), ("train.py", "main")], "collective"),
        ([("torch/distributed/_functional_collectives.py", "wait_tensor")], "collective"),
        ([("torch/distributed/distributed_c10d.py", "new_group")], "process_group"),
        ([("torch/distributed/rendezvous.py", "_create_c10d_store")], "process_group"),
        ([("torch/autograd/graph.py", "_engine_run_backward"), ("torch/_tensor.py", "backward")], "backward"),
        ([("torch/optim/adam.py", "_multi_tensor_adam")], "optimizer"),
        ([("queue.py", "get"), ("torch/utils/data/dataloader.py", "_try_get_data")], "data"),
        ([("collate.py", "pad"), ("torch/utils/data/_utils/fetch.py", "fetch")], "data"),
        ([("torch/_inductor/codecache.py", "load"), ("torch/_dynamo/convert_frame.py", "_compile")], "compile"),
        ([("torch/nn/modules/linear.py", "forward"), ("torch/_dynamo/eval_frame.py", "compile_wrapper")], "other"),
        ([("torch/serialization.py", "_save"), ("train.py", "save")], "checkpoint"),
        ([("torch/distributed/checkpoint/filesystem.py", "write_data")], "checkpoint"),
        ([("torch/cuda/__init__.py", "synchronize")], "synchronize"),
        ([("<frozen importlib._bootstrap>", "_find_and_load")], "import"),
        ([("train.py", "main"), ("torch/distributed/run.py", "run")], "other"),
        ([("train.py", "main")], "other"),
        ([], "other"),
    ],
)
def test_activity_is_from_the_innermost_known_frame(frames: list[tuple[str, str]], activity: str) -> None:
    found = find_activity([StackFrame(f"{SITE}/{file}", 1, function) for file, function in frames])
    assert found == activity
    assert found in ACTIVITIES


IMPORTS = StackFrame("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed")


@pytest.mark.parametrize(
    ("frames", "activity"),
    [
        # A class of a module of torch.distributed is being defined.
        (
            [(f"{SITE}/torch/distributed/store.py", "Store"), (f"{SITE}/torch/distributed/store.py", "<module>")],
            "import",
        ),
        # The module calls a function of another one.
        ([(f"{SITE}/torch/distributed/tensor.py", "register"), (f"{SITE}/torch/nested.py", "<module>")], "import"),
        # The script is a module that is imported, and trains then.
        ([(f"{SITE}/torch/distributed/c10d.py", "all_reduce"), ("/home/me/train.py", "<module>")], "collective"),
    ],
)
def test_importing_torch_distributed_is_no_collective(frames: list[tuple[str, str]], activity: str) -> None:
    assert find_activity([*(StackFrame(file, 1, function) for file, function in frames), IMPORTS]) == activity


def raise_from(source: str, file: str) -> BaseException:
    """Run a source text as that file; returns what it raises, with its traceback."""
    with pytest.raises(ArithmeticError) as caught:
        exec(compile(source, file, "exec"), {})  # noqa: S102 - a frame of another file is made so
    return caught.value


def test_raised_line_is_the_innermost_of_the_scripts_own() -> None:
    error = raise_from("def main():\n    1 / 0\nmain()\n", "/me/train.py")
    assert find_raised_line(error) == "train.py:2 (main)"


def test_raised_line_of_a_library_error_is_its_call() -> None:
    library = f"{SITE}/torch/nn/functional.py"
    source = f"def main():\n    x = 1\n    exec(compile('1 / 0', {library!r}, 'exec'))\nmain()\n"
    assert find_raised_line(raise_from(source, "/me/train.py")) == "train.py:3 (main)"


def test_raised_line_is_empty_without_a_line_of_the_script() -> None:
    assert find_raised_line(ValueError("never raised")) == ""


def test_raised_line_of_the_agents_own_frames_is_empty() -> None:
    error = raise_from("1 / 0", f"{agent.__path__[0]}/launch.py")
    assert error.__traceback__ is not None
    assert find_raised_line(error.with_traceback(error.__traceback__.tb_next)) == ""  # without this test's own frame


@pytest.fixture
def own_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that was built from its sources and is used from there."""
    module = types.ModuleType("torch")
    module.__file__ = "/me/pytorch/torch/__init__.py"
    monkeypatch.setitem(sys.modules, "torch", module)


@pytest.mark.usefixtures("own_torch")
def test_torch_that_was_built_from_its_sources_is_a_library() -> None:
    source = "def main():\n    exec(compile('1 / 0', '/me/pytorch/torch/nn/functional.py', 'exec'))\nmain()\n"
    assert find_raised_line(raise_from(source, "/me/train.py")) == "train.py:2 (main)"
    assert find_torch_folder() == "/me/pytorch/torch/"
    sent = shorten_frame(StackFrame("/me/pytorch/torch/nn/functional.py", 7, "linear"), find_torch_folder())
    assert sent == StackFrame("torch/nn/functional.py", 7, "linear")


def test_script_in_a_folder_named_torch_is_the_users_own() -> None:
    error = raise_from("def main():\n    1 / 0\nmain()\n", "/me/torch/train.py")
    assert find_raised_line(error) == "train.py:2 (main)"


def test_folder_of_torch_is_found_where_it_is_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemError('imported')\n")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert find_torch_folder() == f"{tmp_path}/torch/"
    monkeypatch.setattr(sys, "path", [])
    assert find_torch_folder() == ""


def test_names_that_are_not_unicode_can_be_sent(hang: Callable[[str, int], None]) -> None:
    sent = shorten_frame(StackFrame("/me/\udcff.py", 1, "\ud800"), "")
    assert sent == StackFrame("/me/?.py", 1, "?")
    hang("loader \udcff", 0)
    stack = stack_of("loader ?")
    assert stack is not None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stack), type=ThreadStack) == stack


@pytest.mark.parametrize("is_on", [True, False])
def test_frames_are_read_without_gc_and_leave_its_state(is_on: bool) -> None:
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        frames = read_frames()
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if was_on else gc.disable)()
    assert frames[threading.get_ident()].f_code.co_name == "read_frames"
