"""Programs of every shape, with the monitor and without: the same status, output and losses. Writes the table of
docs/program-shapes.md:

    python -m tests.integration.program_shapes [--repeats 5] [--workers 2] [--only SHAPE ...]
"""

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from tests.integration.torchrun import ALONE, CHECKOUT, OFTEN, ROOT, Ended, name_job, python, run, torchrun

PAGE = ROOT / "docs" / "program-shapes.md"
BEGIN, END = "<!-- the table of tests/integration/program_shapes.py -->", "<!-- its end -->"
SCRIPT = "program_shapes.py"
PACKAGES = str(Path(str(find_spec("torch") and torch.__file__)).parents[1])
DEADLINE_S = 400.0
MONITOR = {"RANKSCOPE": "1", **OFTEN, "RANKSCOPE_EMBEDDED_METRICS_PORT": "0"}
CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T_]\d\d:\d\d:\d\d\S*|\b[WEI]\d{4} \d\d:\d\d:\d\d\.\d+ \d+"), "TIME"),
    (re.compile(r"0x[0-9a-f]{6,}|(?<=pid: )\d+|(?<=_)[0-9a-z_]{8}(?=/)"), "NUMBER"),
)
"""What differs between two runs of any program."""
KINETO = re.compile(r"[A-Z]+:TIME \d+:\d+ \w+\.cpp:\d+\] ")
"""The begin of a line of Kineto's own log, which says on stderr when each session begins and ends. Windows would fill
stderr with these: the agent switches that log off, for the script's sessions, too."""


@dataclass(frozen=True)
class Shape:
    """A program of one shape. `options` are the interpreter's; `needs` a module that has to be installed. `is_core`:
    run in the ordinary suite. `says`: what the monitor has to say of it.
    """

    name: str
    words: tuple[str, ...] = ()
    what: str = ""
    options: tuple[str, ...] = ()
    needs: str = ""
    is_core: bool = False
    is_torchrun: bool = False
    says: str = ""
    compares_stderr: bool = True
    without_kineto: bool = False

    @property
    def command(self) -> list[str]:
        """As a user starts it."""
        words = self.words or (SCRIPT, self.name)
        return torchrun(1, *words, options=self.options) if self.is_torchrun else python(*self.options, *words)


MAIN = (SCRIPT, "main")
SHAPES = (
    Shape("main", what="main thread", is_core=True),
    Shape("thread", what="`threading.Thread`"),
    Shape("worker", what="the worker of a `ThreadPoolExecutor(1)`"),
    Shape("pool", what="each step on another thread of a pool", says="goes from thread to thread"),
    Shape("asyncio", what="`asyncio.to_thread`"),
    Shape("trio", what="trio, and a thread of it", needs="trio"),
    Shape("spawn", what="a `multiprocessing` child, `spawn`"),
    Shape("fork-server", what="a `multiprocessing` child, `forkserver`"),
    Shape("process-pool", what="the worker of a `ProcessPoolExecutor`"),
    Shape("fork", what="`os.fork` after the start"),
    Shape("daemon", what="a daemon that forks after the start, closes all files and exits"),
    Shape("spawned-child", what="a spawned child beside it"),
    Shape("subprocess", what="a subprocess that imports torch"),
    Shape("os-exit", what="ends by `os._exit(3)`", is_core=True),
    Shape("handler", what="ends by `sys.exit(4)` in a signal handler", is_core=True),
    Shape("error", what="ends by an uncaught exception", is_core=True),
    Shape("own-hook", what="the same, shown by a `sys.excepthook` of the script"),
    Shape("ctrl-c", what="ends by KeyboardInterrupt"),
    Shape("twice", what="two trainings, one after the other"),
    Shape("profiler", what="a `torch.profiler` of the script around it all", without_kineto=True),
    Shape("traced", what="`sys.settrace`"),
    Shape("faulthandler", MAIN, "`-X faulthandler`", ("-X", "faulthandler")),
    Shape("dev", MAIN, "`-X dev`", ("-X", "dev"), compares_stderr=False),
    Shape("O", MAIN, "`-O`", ("-O",)),
    Shape("OO", MAIN, "`-OO`", ("-OO",)),
    Shape("warnings", what='`warnings.simplefilter("error")`'),
    Shape("I", MAIN, "`-I`", ("-I",)),
    Shape("S", MAIN, "`-S`, with the packages on PYTHONPATH", ("-S",)),
    Shape("coverage", ("run", *MAIN), "`coverage run`", ("-m", "coverage"), "coverage"),
    Shape("gevent", what="gevent, patched before torch", needs="gevent", says="gevent has patched", is_core=True),
    Shape("eventlet", what="eventlet, patched before torch", needs="eventlet", says="eventlet has patched",
          compares_stderr=False),
    Shape("gevent-late", what="gevent, patched amid training", needs="gevent", says="is measured no further",
          is_core=True, compares_stderr=False),
    Shape("eventlet-late", what="eventlet, patched amid training", needs="eventlet", says="is measured no further",
          compares_stderr=False),
    Shape("notebook", ("notebook_kernel.py",), "an ipykernel, by its client", needs="ipykernel"),
    Shape("ray", what="Ray Train's local mode (no workers)", needs="ray"),
    Shape("launcher", ("-m", "rankscope.agent", *MAIN), "`-m rankscope.agent`"),
    Shape("restart", (SCRIPT, "restart"), "a restart by torchrun", ("--max-restarts", "1"), is_torchrun=True,
          compares_stderr=False),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What one run of a shape did: how it ended, what it printed besides the monitor, and how long it took."""

    exit_code: int
    stdout: str
    stderr: str
    said: tuple[str, ...]
    at_end: tuple[str, ...]
    took_s: float

    def differs_from(self, plain: "Outcome", shape: Shape) -> str:
        """Say what is not as in the run without the monitor; empty for nothing."""
        if self.exit_code != plain.exit_code:
            return f"status {self.exit_code}, not {plain.exit_code}"
        if self.stdout != plain.stdout:
            return "another output"
        if shape.compares_stderr and self.compared(shape) != plain.compared(shape):
            return "another stderr"
        if shape.says and not any(shape.says in line for line in self.said):
            return f"does not say that it {shape.says}"
        return ""

    def compared(self, shape: Shape) -> list[str]:
        """Return the lines on stderr that are to be the same."""
        return [line for line in self.stderr.splitlines() if not (shape.without_kineto and KINETO.match(line))]


def run_shape(shape: Shape, *, watched: bool) -> Outcome:
    """Run it once."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        environment = {
            "PYTHONPATH": f"{CHECKOUT}:{PACKAGES}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "COVERAGE_FILE": str(Path(folder) / "coverage"),
        }
        if not shape.is_torchrun:
            environment |= ALONE
        if watched:
            environment |= {**MONITOR, "RANKSCOPE_RUN": name_job(), "SHAPE_NOTES": str(notes)}
        else:
            environment |= {"RANKSCOPE_ENABLED": "false"}
        begin_s = time.monotonic()
        ended = run(shape.command, environment, deadline_s=DEADLINE_S)
        took_s = time.monotonic() - begin_s
        at_end = tuple(notes.read_text().split()) if notes.exists() else ()
    assert ended.left == ()
    return build_outcome(ended, at_end, took_s)


def build_outcome(ended: Ended, at_end: tuple[str, ...], took_s: float) -> Outcome:
    """Separate what the monitor said from what the program printed."""
    lines = ended.stderr.splitlines()
    said = tuple(line for line in lines if line.startswith("rankscope: "))
    # The summary of the collector that rank 0 starts is a block of lines; all begin with the name or are indented.
    rest = "\n".join(line for line in lines if line not in said)
    for pattern, word in CHANGING:
        rest = pattern.sub(word, rest)
    return Outcome(ended.exit_code, ended.stdout, rest, said, at_end, took_s)


def is_possible(shape: Shape) -> bool:
    """Return whether the module that it needs is installed."""
    return not shape.needs or find_spec(shape.needs) is not None


@dataclass
class Row:
    """The runs of a shape: those without the monitor, and those with it."""

    shape: Shape
    plain: list[Outcome]
    watched: list[Outcome]

    @property
    def differences(self) -> list[str]:
        """What was different in each run that was."""
        return [text for one in self.watched if (text := one.differs_from(self.plain[0], self.shape))]

    def render(self) -> str:
        """Return the row of the table."""
        count, same = len(self.watched), len(self.watched) - len(self.differences)
        open_at_end = sum("open" in one.at_end for one in self.watched)
        found = ", ".join(sorted(set(self.differences))) or ""
        took = [statistics.median(one.took_s for one in runs) for runs in (self.plain, self.watched)]
        status = self.plain[0].exit_code
        said = self.shape.says or ("compared without Kineto's own log" if self.shape.without_kineto else "")
        return (
            f"| {self.shape.what} | {status} | {same} of {count} | {open_at_end} of {count} | "
            f"{took[0]:.0f}; {took[1]:.0f} | {found or said} |"
        )


def measure(shapes: Sequence[Shape], repeats: int, workers: int) -> list[Row]:
    """Run all shapes: without the monitor once, with it `repeats` times. Print each row when it is complete."""
    rows = []
    with ThreadPoolExecutor(workers) as pool:
        runs = {
            shape: [pool.submit(run_shape, shape, watched=number > 0) for number in range(1 + repeats)]
            for shape in shapes
        }
        for shape, (plain, *watched) in runs.items():
            row = Row(shape, [plain.result()], [one.result() for one in watched])
            rows.append(row)
            print(row.render(), flush=True)  # noqa: T201 - progress
            for one in row.watched:
                if one.differs_from(row.plain[0], shape):
                    print(f"  plain {row.plain[0]}\n  watched {one}", flush=True)  # noqa: T201 - as above
    return rows


def render(rows: Sequence[Row], missing: Sequence[Shape]) -> str:
    """Return the table."""
    head = (
        "| the training runs in | exit status | as without the monitor | a window open at its end | s without; s with,"
        " which trains on until a window opens (no measure of cost) | said or different |\n|---|---|---|---|---|---|"
    )
    left_out = [f"| {shape.what} | not run: {shape.needs} is not installed | | | | |" for shape in missing]
    return "\n".join([head, *(row.render() for row in rows), *left_out])


def main() -> None:
    """Run the shapes and write the table, if all of them were run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    wanted = [shape for shape in SHAPES if not options.only or shape.name in options.only]
    possible = [shape for shape in wanted if is_possible(shape)]
    table = render(measure(possible, options.repeats, options.workers), [one for one in wanted if one not in possible])
    print(table)  # noqa: T201 - a program's result
    if not options.only:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
