"""The trace page as text, without a browser."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec

from rankscope.collector.reports.trace_page import render_page
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.reports.trace_timelines import TIMELINES_SHOWN_MAX, as_json, choose_steps
from rankscope.collector.traces.report import (
    Abstention,
    CrossRank,
    KernelRow,
    RankReport,
    RankWait,
    SharedClock,
    Signs,
    StepTimeline,
    Timeline,
    TraceReport,
)

HOSTILE = "</script><script>alert(1)</script><img src=x onerror='x'> & \x1b[2J \x00"
TABLES = ("steps", "devices", "event_types", "model", "collectives", "operators", "kernels", "copies", "user_ranges")


def rank_of(rank: int | None, bins: int = 4, **known: Any) -> RankReport:
    fields: dict[str, Any] = dict.fromkeys((*TABLES, "synchronizations", "memory", "warnings"), ())
    for name in ("window", "compute", "communication", "overlap", "exposed_communication", "copy", "idle", "start"):
        fields[f"{name}_ns"] = 0
    fields |= {
        "busy_ratio": None, "overlap_ratio": None, "rank": rank, "file": "a.json", "device": None, "world_size": None,
        "backend": None, "host": None, "kernel_count": 0, "event_count": 1, "signs": Signs(),
        "timeline": Timeline(start_ns=5, bin_ns=10, compute=[1] * bins, overlap=[2] * bins, communication=[3] * bins,
                             copy=[4] * bins),
    }  # fmt: skip
    return RankReport(**fields | known)


def report_of(*ranks: RankReport) -> TraceReport:
    return TraceReport(ranks=list(ranks), cross_rank=None, advice=[], abstained=[], errors=[])


def hostile_report(name: str = HOSTILE) -> TraceReport:
    kernel = KernelRow(
        name=name, count=1, total_ns=1, mean_ns=1, min_ns=1, max_ns=1, pct=100.0, is_communication=False,
        uses_tensor_cores=False,
    )  # fmt: skip
    return report_of(rank_of(None, kernels=[kernel], file=name, warnings=[name], device=name))


class Elements(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def timelines_of(page: str) -> Any:
    block = re.search(r'<script type="application/json" id="timeline-bins">(.*?)</script>', page, re.DOTALL)
    assert block is not None
    return json.loads(block[1])


def test_names_from_traces_create_no_elements() -> None:
    elements = Elements(render_page(hostile_report()))
    assert (len(elements.of("script")), elements.of("img")) == (2, [])


def test_names_from_traces_bring_no_control_characters() -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", render_page(hostile_report()))


def test_no_element_has_a_handler_or_a_style_of_its_own() -> None:
    names = {name for _, attributes in Elements(render_page(hostile_report())).found for name in attributes}
    assert not [name for name in names if name.startswith("on") or name == "style"]


def test_nothing_in_the_page_points_outside_of_it() -> None:
    found = Elements(render_page(hostile_report())).found
    targets = [attributes.get("href") or attributes.get("src") for _, attributes in found]
    assert all(target.startswith("#") for target in targets if target is not None)


def test_policy_allows_only_hashed_style_and_script() -> None:
    page = render_page(report_of(rank_of(0)))
    policy = next(one for one in Elements(page).of("meta") if one.get("http-equiv") == "Content-Security-Policy")
    hashes = [
        "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for text in re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
        + re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    ]
    assert policy["content"] == (
        f"default-src 'none'; style-src {hashes[0]}; script-src {hashes[1]}; base-uri 'none'; form-action 'none'"
    )


def test_contents_lead_to_every_section() -> None:
    elements = Elements(render_page(report_of(rank_of(0))))
    sections = [f"#{one['id']}" for one in elements.of("section")]
    assert [one["href"] for one in elements.of("a")][1:] == sections


def test_every_section_of_the_model_is_there() -> None:
    ids = {one["id"] for one in Elements(render_page(report_of())).of("section")}
    assert {one.key for one in build_sections(report_of(), top=5)} < ids


def test_every_table_has_a_caption_and_heads_with_a_scope() -> None:
    elements = Elements(render_page(hostile_report()))
    assert len(elements.of("caption")) == len(elements.of("table")) > 0
    assert {one.get("scope") for one in elements.of("th")} == {"col"}


def test_numbers_carry_what_they_are_sorted_by() -> None:
    report = report_of(rank_of(0, window_ns=1_500_000_000))
    assert '<td class="right" data-sort="1500000000">1,500.000</td>' in render_page(report)


def test_abstentions_are_folded_without_empty_columns() -> None:
    report = msgspec.structs.replace(report_of(rank_of(0)), abstained=[Abstention(key="memory", reason="no events")])
    folded = re.search(r"<details>(.*?)</details>", render_page(report), re.DOTALL)
    assert folded is not None
    assert folded[1].count("<th ") == 3
    assert "<summary>1 rule could not judge, and why</summary>" in folded[1]


def test_sentence_carries_the_head_of_its_column() -> None:
    report = msgspec.structs.replace(report_of(rank_of(0)), abstained=[Abstention(key="memory", reason="no events")])
    assert '<td role="cell" class="left" data-head="finding">no events</td>' in render_page(report)


def across(**known: Any) -> CrossRank:
    fields: dict[str, Any] = {
        "collectives": [], "wait_ns": None, "transfer_ns": None, "findings": [], "lower_bound": False, "refused": None,
        "end_disagreement_ns": None,
    }  # fmt: skip
    return CrossRank(**fields | known)


def step_of(number: int, start_ns: int, window_ns: int = 40) -> StepTimeline:
    return StepTimeline(
        step=number, start_ns=start_ns, window_ns=window_ns, bin_ns=10, compute=[9] * 4, overlap=[0] * 4,
        communication=[0] * 4, copy=[0] * 4, host=[1] * 4,
    )  # fmt: skip


def two_ranks(clock: SharedClock, **known: Any) -> TraceReport:
    ranks = rank_of(0, step_timelines=[step_of(7, 100)]), rank_of(1, step_timelines=[step_of(7, 50)])
    return msgspec.structs.replace(report_of(*ranks), cross_rank=across(clock=clock, **known))


def test_timeline_of_the_page_is_the_one_of_the_report() -> None:
    view = timelines_of(render_page(report_of(rank_of(0))))["lanes"][0]["views"][0]
    assert (view["start_ns"], view["bin_ns"]) == (5, 10)
    assert (view["count"], view["parts"]) == (4, [[1] * 4, [2] * 4, [3] * 4, [4] * 4, []])


def test_lines_of_aligned_ranks_begin_on_one_axis() -> None:
    page = render_page(two_ranks(SharedClock(starts_ns={"0": 0, "1": 1_000}, how="one host: one clock", refused=None)))
    first, second = timelines_of(page)["lanes"]
    assert [view["start_ns"] for view in first["views"]] == [5, 100]
    assert [view["start_ns"] for view in second["views"]] == [1_005, 1_050]
    assert second["marks"] == [[7, 1_050]]
    assert "All ranks are on one clock (all are on one host), from" in page


def test_ranks_that_are_not_aligned_begin_together_and_say_why() -> None:
    wait = RankWait(rank=0, late_rank=1, step=7, op="all_reduce", group="0", start_ns=3, wait_ns=60, late_start_ns=9)
    page = render_page(two_ranks(SharedClock(starts_ns={}, how=None, refused="the steps differ"), waits=[wait]))
    content = timelines_of(page)
    assert [[view["start_ns"] for view in lane["views"]] for lane in content["lanes"]] == [[5, 0], [5, 0]]
    assert content["waits"] == []
    assert "Each rank is on its own clock" in page
    assert "no waiting is drawn: the steps differ." in page


def test_arrow_leads_from_the_wait_to_the_late_rank() -> None:
    wait = RankWait(rank=0, late_rank=1, step=7, op="all_reduce", group="0", start_ns=3, wait_ns=60, late_start_ns=9)
    clock = SharedClock(starts_ns={"0": 10, "1": 0}, how="ends of matched collectives", refused=None, error_bound_ns=2)
    page = render_page(two_ranks(clock, waits=[wait]))
    # On the axis rank 0's trace begins at 10 ns and rank 1's at 0.
    assert timelines_of(page)["waits"] == [
        {"rank": 0, "late": 1, "start_ns": 13, "late_ns": 9, "wait_ns": 60, "op": "all_reduce"}
    ]
    assert "on one clock (by ends of matched collectives)" in page
    assert (
        "In 90 % or more of the collectives that ranks leave together, they end within 2 ns of each other. An" in page
    )


def test_slowest_step_of_any_rank_is_drawn_first() -> None:
    first, second = [step_of(1, 0), step_of(2, 40, 50)], [step_of(1, 0, 90), step_of(2, 90)]
    report = report_of(rank_of(0, step_timelines=first), rank_of(1, step_timelines=second))
    assert choose_steps(report.ranks) == {1: 90, 2: 50}
    assert '<option value="1" selected>step 1, 90 ns (the slowest)</option>' in render_page(report)


def test_report_without_work_has_reason_for_no_timeline() -> None:
    assert "No timeline: no trace shows any work." in render_page(report_of(rank_of(0, timeline=None)))


def test_page_of_a_thousand_ranks_draws_some_of_them() -> None:
    page = render_page(report_of(*(rank_of(rank, bins=1_000) for rank in range(1_000))))
    # 1,000 ranks of 1,000 bins, of which 100,000 may stand in the page: ten are drawn as one.
    note = "64 of 1000 ranks are drawn, at most 64 at once. To limit the size of the page, 10 bins are drawn as one."
    assert note in page
    assert timelines_of(page)["lanes"][999]["views"][0]["parts"][0] == [10] * 100
    assert len(page) < 10_000_000


def test_ranks_drawn_first_are_as_many_as_fit() -> None:
    page = render_page(report_of(*map(rank_of, range(TIMELINES_SHOWN_MAX + 4))))
    assert timelines_of(page)["first"] == f"0-{TIMELINES_SHOWN_MAX - 1}"


def test_json_in_the_page_cannot_end_its_block() -> None:
    assert "<" not in as_json({"name": "</script><!--"})
