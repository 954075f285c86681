"""Score what is found in the worlds of the second table (docs/second-table.md).

    python -m tests.second_table.score                        both halves; writes results/second_table.md
    python -m tests.second_table.score --half tuning          only worlds to tune on, and only print
    python -m tests.second_table.score --family turns --show  what was found in each of these worlds
    python -m tests.second_table.score --draw 1 --show        other worlds of the same families, only printed
    python -m tests.second_table.score --part 1/2 --save a.json, --join a.json b.json
    python -m tests.second_table.score --quick                every fourth world of the tuning half, in two minutes
    python -m tests.second_table.score --real                 real gloo jobs (real_jobs.py)

The held-out half is for the end: who looks at its worlds one by one tunes on them. So `--show` refuses it.
"""

import argparse
import multiprocessing
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.machine import describe_run
from tests.second_table.families import worlds
from tests.second_table.judging import LOST_MIN, Judged, Row, judge_world, summarize
from tests.second_table.worlds import World
from tests.simulation.scoring import bound_count

RESULTS: Final = Path(__file__).parent / "results"
HALVES: Final = ("tuning", "held-out")
QUICK_EVERY: Final = 4
SMALL_WORK: Final = 3.0
"""Worlds that take about so many seconds or less are judged first."""
WANTED: Final = {"named": 0.95, "begin": 0.95, "cause": 0.90, "lost": 0.95}
"""What is wanted of the held-out half."""
SHOWN_MAX: Final = 200


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    if options.real:
        from tests.second_table.real_jobs import run_jobs  # noqa: PLC0415 - needs torch

        text = run_jobs(options.times)
        (RESULTS / "real_jobs.md").write_text(text, encoding="utf-8")
        print(text)
        return
    head = describe_run("python -m tests.second_table.score")
    if options.join:
        judged = [one for path in options.join for one in read_judged(path)]
    else:
        chosen = select(options.half, options.family, quick=options.quick, draw=options.draw)
        judged = carry_out(chosen[options.part[0] - 1 :: options.part[1]], options)
    if options.save is not None:
        return
    text = write_report(judged, head)
    if options.half is None and options.family is None and not options.quick and not options.draw:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "second_table.md").write_text(text, encoding="utf-8")
    print(text)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--draw", type=int, default=0, metavar="N", help="0: the worlds of the table")
    parser.add_argument("--family", nargs="+", metavar="FAMILY")
    parser.add_argument("--part", type=_read_part, default=(1, 1), metavar="K/N")
    parser.add_argument("--save", type=Path, metavar="FILE")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--show", action="store_true", help="print each world as it is judged")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--real", action="store_true", help="real jobs instead, with gloo on this machine")
    parser.add_argument("--times", type=int, default=5, help="how often each real job runs")
    options = parser.parse_args(arguments)
    if options.show and options.half != "tuning" and not options.draw:
        parser.error("--show needs --half tuning or --draw: the held-out worlds are not looked at one by one")
    if options.part != (1, 1) and options.save is None:
        parser.error("--part needs --save FILE: a report is of all parts")
    return options


def _read_part(text: str) -> tuple[int, int]:
    number, count = (int(one) for one in text.split("/"))
    if not 1 <= number <= count:
        raise argparse.ArgumentTypeError(f"part {number} of {count}")
    return number, count


def select(half: str | None, families: Sequence[str] | None, *, quick: bool = False, draw: int = 0) -> list[World]:
    """Return the worlds asked for. Raises SystemExit with the families there are for an unknown one."""
    every = list(worlds(draw))
    known = list(dict.fromkeys(world.family for world in every))
    if unknown := sorted(set(families or ()) - set(known)):
        raise SystemExit(f"--family has {', '.join(unknown)}; known are {', '.join(known)}")
    wanted = [world for world in every if families is None or world.family in families]
    if quick:
        small = [world for world in wanted if _work(world) <= SMALL_WORK]
        return [world for world in small if world.half == "tuning"][::QUICK_EVERY]
    return [world for world in wanted if half is None or world.half == half]


def read_judged(path: Path) -> list[Judged]:
    """Return the worlds that were saved, one a line."""
    return [msgspec.json.decode(line, type=Judged) for line in path.read_bytes().splitlines()]


def carry_out(chosen: Sequence[World], options: argparse.Namespace) -> list[Judged]:
    """Judge worlds in several processes, small ones of each family first, without those that are saved already."""
    save: Path | None = options.save
    known = {one.seed for one in read_judged(save)} if save is not None and save.exists() else set[int]()
    chosen = [world for world in chosen if world.seed not in known]
    ordered = sorted(chosen, key=lambda world: (_work(world) > SMALL_WORK, _place(world), _work(world)))
    judged: list[Judged] = []
    with multiprocessing.Pool(options.workers, maxtasksperchild=20) as pool:
        for one in pool.imap_unordered(judge_safely, ordered):
            judged.append(one)
            if save is not None:
                with save.open("ab") as file:
                    file.write(msgspec.json.encode(one, enc_hook=float) + b"\n")
            if options.show:
                print("\n".join(_show(one)), flush=True)
            elif len(judged) % 20 == 0:
                sys.stderr.write(f"{len(judged)} of {len(ordered)}\n")
    return sorted(judged, key=lambda one: one.seed)


def _work(world: World) -> float:
    """Return about how long a world takes to be judged, in s of a core: its steps, reports and passes."""
    seconds = world.steps * world.model.step_ms / 1e3
    ranks = world.layout.world
    return world.steps * (1.1e-3 + 1e-5 * ranks) + seconds * (0.045 / world.pass_s + 4e-4 * ranks)


def _place(world: World) -> int:
    """Return the place of a world among those of its family and half: some of each are judged early."""
    return world.seed % 10_000 // 2


def judge_safely(world: World) -> Judged:
    """Judge a world; a collector that raises has found nothing in it, and says how it ended."""
    began_s = time.process_time()
    try:
        judged = judge_world(world)
    except Exception:  # noqa: BLE001 - the other worlds are to be judged, too
        error = traceback.format_exc(limit=-2)
        judged = Judged(world.family, world.about, world.seed, (), None, (), (), 0, error=error)
    return judged._replace(took_s=time.process_time() - began_s)


def _show(one: Judged) -> Iterable[str]:
    yield f"{one.family}: {one.about} (seed {one.seed}, {one.took_s:.1f} s)"
    for truth in one.truths:
        right = [name for name in ("named", "begin", "cause", "cost") if getattr(truth, name)]
        passes = f"{truth.passes[0]} of {truth.passes[1]} passes"
        yield f"    lost {truth.share:.3f}: {', '.join(right) or 'nothing'} right, {passes}; {truth.said}"
    if one.lost is not None:
        yield f"    account: stated {one.lost[0]:.3f}, true {one.lost[1]:.3f}"
    yield from (f"    FALSE: {text}" for text in one.false_findings)
    yield from (f"    {wrong.kind.upper()}: {wrong.text}" for wrong in one.wrongs)
    if one.error:
        yield f"    {one.error}"


COLUMNS: Final = (
    "worlds", "asked", "set named", "passes", "begin", "cause", "cost", "account", "delay, s", "false", "untrue",
    "contradictions",
)  # fmt: skip


def write_report(judged: Sequence[Judged], head: str) -> str:
    """Return the page of results."""
    cpu_s = sum(one.took_s for one in judged)
    steps, total = sum(one.rank_steps for one in judged), sum(1 for _ in worlds())
    about = (
        f"{len(judged)} of {total} worlds, {cpu_s:.0f} s of CPU time, {steps:,} steps of ranks. What the columns mean "
        "is in tests/second_table/judging.py, how the worlds are made in docs/second-table.md. *asked* are the truths "
        f"that cost {LOST_MIN:.0%} of the time or more; all shares but *account* are of these. *untrue* counts "
        "sentences that are not so (innocent ranks named, nobody slower, numbers out of bounds), *contradictions* "
        "also begins that move."
    )
    lines = ["# The second table", "", head, "", about, ""]
    for half in HALVES:
        mine = [one for one in judged if HALVES[one.seed % 2] == half]
        if mine:
            lines += [f"## {half.capitalize()} half", "", *_table(mine), "", *_describe_healthy(mine), ""]
    lines += ["## What was wrong in the tuning half", "", *_list_wrong(judged)]
    errors = [one for one in judged if one.error]
    if errors:
        lines += ["", "## Worlds that ended with an error", ""]
        lines += [f"- {one.family}, seed {one.seed}: `{one.error.strip().splitlines()[-1]}`" for one in errors]
    return "\n".join(lines) + "\n"


def _table(judged: Sequence[Judged]) -> list[str]:
    families = list(dict.fromkeys(one.family for one in judged))
    lines = [f"| family | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * len(COLUMNS)}"]
    lines += [_line(name, summarize([one for one in judged if one.family == name])) for name in families]
    lines.append(_line("**all**", summarize(judged)))
    wanted = ["", "", WANTED["named"], "", WANTED["begin"], WANTED["cause"], "", WANTED["lost"], "", "", 0, 0]
    return [*lines, f"| wanted | {' | '.join(str(one) for one in wanted)} |"]


def _line(name: str, row: Row) -> str:
    untrue = sum(row.wrongs.get(kind, 0) for kind in ("untrue", "innocent", "bounds"))
    contradictions = sum(row.wrongs.get(kind, 0) for kind in ("contradiction", "moved"))
    ratios = row.named, row.passes, row.begin, row.cause, row.cost, row.lost
    cells = [
        f"{row.worlds}", f"{row.asked}", *map(_ratio, ratios),
        "" if row.delay_s is None else f"{row.delay_s:.0f}", f"{row.false_findings}", f"{untrue}", f"{contradictions}",
    ]  # fmt: skip
    return f"| {name} | {' | '.join(cells)} |"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _describe_healthy(judged: Sequence[Judged]) -> list[str]:
    healthy = [one for one in judged if not one.truths]
    steps, count = sum(one.rank_steps for one in healthy), sum(len(one.false_findings) for one in healthy)
    if not steps:
        return []
    rate, bound = 1e7 * count / steps, 1e7 * bound_count(count) / steps
    text = (
        f"Worlds in which nobody is slow: {count} false findings in {steps:,} steps of ranks, {rate:.1f} in 10 "
        f"million (upper 95 % bound {bound:.1f}); wanted is less than 1."
    )
    return [text]


def _list_wrong(judged: Sequence[Judged]) -> list[str]:
    lines = ["| world | true loss | said | wrong |", "|---|---:|---|---|"]
    for one in judged:
        if one.seed % 2:
            continue
        texts = [f"{text.kind}: {text.text}" for text in one.wrongs] + [f"false: {text}" for text in one.false_findings]
        asked = [truth for truth in one.truths if truth.share >= LOST_MIN or truth.level == "run"]
        for truth in asked:
            missed = [name for name in ("named", "begin", "cause", "cost") if not getattr(truth, name)]
            texts += missed if truth.named else ["named"]
        if one.lost_is_right is False and one.lost is not None:
            texts.append(f"account: stated {one.lost[0]:.2f}, true {one.lost[1]:.2f}")
        if texts:
            share = max((truth.share for truth in asked), default=0.0)
            said = _cut(asked[0].said if asked else "")
            lines.append(f"| {one.family}: {one.about} | {share:.2f} | {said} | {_cut('; '.join(texts))} |")
    return lines


def _cut(text: str) -> str:
    text = text.replace("|", "/").replace("\n", " ")
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


if __name__ == "__main__":
    main()
