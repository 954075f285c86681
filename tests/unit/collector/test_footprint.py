"""What the collector's process asks of Python and of the kernel."""

import gc
import subprocess
import sys
import threading
from pathlib import Path

from rankscope.collector.footprint import GC_OBJECTS_MIN, THREAD_NAME_BYTES_MAX, name_this_thread


def test_a_thread_has_the_name_that_the_kernel_shows_cut_to_what_it_takes() -> None:
    shown: list[str] = []

    def work() -> None:
        for name in ("receive", "a-name-that-is-too-long"):
            name_this_thread(name)
            shown.append(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().rstrip("\n"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert shown == ["receive", "a-name-that-is-too-long"[:THREAD_NAME_BYTES_MAX]]


def test_the_garbage_collector_looks_seldom_and_never_again_at_what_was_there_at_the_start() -> None:
    """In a process of its own: these settings are of the whole process."""
    program = (
        "import gc; from rankscope.collector.footprint import keep_one_heap, spare_the_garbage_collector as spare\n"
        "keep_one_heap(); spare(); print(gc.get_threshold()[0], gc.get_freeze_count() > 1000)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(GC_OBJECTS_MIN), "True"]
    assert gc.isenabled()
