"""Fuzz the targets of targets.py, guided by coverage: python -m tests.fuzz --minutes 10 [--target codec] [--out FILE]

It needs atheris (libFuzzer for Python), a tool of development only: `pip install atheris` into any folder, and that
folder on PYTHONPATH. Each target runs in a process of its own, one after the other, the minutes shared among them; an
input that fails is kept under `--findings` and named in the result. libFuzzer sees the branches of our Python code
(codec, messages, table, admission) and not those of msgspec, which is C.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.targets import TARGETS

INPUT_BYTES_MAX = 8192
"""The longest golden frame has 2 KiB; libFuzzer finds more in short inputs."""
RSS_MB_MAX = 1024
"""An input for which a target needs more is a finding: the largest frame is 8 MiB."""
INPUT_S_MAX = 5
"""Longest time for one input; a slower one is a finding. The slowest honest frame needs milliseconds."""
GRACE_S = 60
INSTRUMENTED = ("rankscope.measure", "rankscope.collector.ingest")

_STATUS = re.compile(r"^#(\d+)\s.*?cov: (\d+) ft: (\d+)", re.MULTILINE)


class Outcome(NamedTuple):
    """Result of one target. `branches` and `features` are libFuzzer's counts at the end; `findings` are file names."""

    target: str
    executions: int
    branches: int
    features: int
    exit_status: int
    findings: list[str]


def main() -> None:
    """Fuzz, write the result; the exit status is 1 when anything was found."""
    parser = argparse.ArgumentParser(description="Fuzz what reads bytes from strangers.")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together [10]")
    parser.add_argument("--target", choices=list(TARGETS), action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=1, help="of libFuzzer's chance [1]")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="folder for inputs that fail")
    parser.add_argument("--out", type=Path, default=None, help="write the result there, as Markdown")
    parser.add_argument("--inside", choices=list(TARGETS), default=None, help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        _fuzz_inside(options.inside, options.arguments)
    names = options.target or list(TARGETS)
    seconds = max(1, round(60 * options.minutes / len(names)))
    head = _describe(options.minutes, options.seed)
    outcomes = [run_target(name, seconds, options.seed, options.findings) for name in names]
    text = render(head, outcomes, seconds)
    print(text)
    if options.out is not None:
        options.out.write_text(text)
    raise SystemExit(any(outcome.exit_status or outcome.findings for outcome in outcomes))


def run_target(name: str, seconds: int, seed: int, findings: Path) -> Outcome:
    """Fuzz one target for `seconds`, in a process of its own, and return its outcome."""
    findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for number, data in enumerate(TARGETS[name][1]()):
            (Path(corpus) / f"first-{number}").write_bytes(data)
        command = [
            sys.executable, "-m", "tests.fuzz", "--inside", name, "--",
            corpus, f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={INPUT_BYTES_MAX}",
            f"-rss_limit_mb={RSS_MB_MAX}", f"-timeout={INPUT_S_MAX}", f"-artifact_prefix={findings}/{name}-",
        ]  # fmt: skip
        ended = subprocess.run(
            command, stderr=subprocess.PIPE, text=True, errors="replace", check=False, timeout=seconds + GRACE_S
        )
    statuses = _STATUS.findall(ended.stderr)
    if not statuses:
        raise SystemExit(f"{name} did not run: {ended.stderr[-2000:]}")
    executions, branches, features = (max(int(status[place]) for status in statuses) for place in range(3))
    if ended.returncode:
        print(ended.stderr[-4000:], file=sys.stderr)
    found = sorted(file.name for file in findings.glob(f"{name}-*"))
    return Outcome(name, executions, branches, features, ended.returncode, found)


def render(head: str, outcomes: list[Outcome], seconds: int) -> str:
    """Return the result as Markdown."""
    lines = [
        "| target | seconds | executions | branches seen | features | findings |",
        "|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        findings = ", ".join(one.findings) or ("none" if not one.exit_status else f"exit status {one.exit_status}")
        lines.append(
            f"| {one.target} | {seconds} | {one.executions:,} | {one.branches:,} | {one.features:,} | {findings} |"
        )
    explanation = (__doc__ or "").partition("\n\n")[2].strip()
    return "\n\n".join(["# Fuzzing of what reads bytes from strangers", head, explanation, "\n".join(lines)]) + "\n"


def _describe(minutes: float, seed: int) -> str:
    from bench.machine import describe_run  # noqa: PLC0415 - it imports torch, which no target needs

    return describe_run(f"python -m tests.fuzz --minutes {minutes:g} --seed {seed}")


def _fuzz_inside(name: str, arguments: list[str]) -> None:
    """Run libFuzzer in the child process. Never returns: libFuzzer ends the process."""
    import atheris  # noqa: PLC0415 - only the child has to have it

    for module in [one for one in list(sys.modules) if one.startswith(("rankscope", "tests.fuzz.targets"))]:
        del sys.modules[module]  # they were imported without instrumentation
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        from tests.fuzz.targets import TARGETS as INSTRUMENTED_TARGETS  # noqa: PLC0415

    atheris.Setup([f"fuzz-{name}", *arguments], INSTRUMENTED_TARGETS[name][0])
    atheris.Fuzz()
    os._exit(0)


if __name__ == "__main__":
    main()
