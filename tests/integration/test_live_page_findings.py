"""What the live page shows about findings and what leads from one to everything about it, in a real browser."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest
from selenium import webdriver

from rankscope.collector.captures.capture import Capture, RankCapture
from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.sampled_lines import LineCost, SampledLines
from rankscope.collector.incidents.incident import resolve
from rankscope.collector.publish.routes import PageSettings
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.nccl_bandwidths import NcclBandwidth, NcclBandwidths
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.steps.collective_totals import CollectiveTotals
from rankscope.measure.records import DeviceSample, NodeSample, PortSample
from tests.integration.chromium import find, prefer, wait_until
from tests.integration.live_pages import BELOW, LEFT, LivePage, is_near
from tests.integration.live_worlds import BEGIN_WALL_S, STEPS, LiveWorld, finding_of, huge_run, incident_of
from tests.unit.collector.runs.run_snapshots import rank_of

DASHBOARDS = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"
RANKS, SLOW_RANK, SINCE_STEP = 256, 77, 32
PHONE_PX = 390
LETTERS_IN_COLUMNS = """
const found = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const node = texts.currentNode;
  const range = document.createRange();
  range.selectNodeContents(node);
  const lines = new Set([...range.getClientRects()].map(({ bottom }) => Math.round(bottom)));
  const isSeen = node.parentElement.closest("table")?.checkVisibility();
  if (isSeen && lines.size > node.textContent.trim().split(/[\\s-]+/).length) found.push(node.textContent);
}
return found;
"""


@pytest.fixture
def world() -> LiveWorld:
    return LiveWorld()


@pytest.fixture
def page(browser: webdriver.Chrome, world: LiveWorld) -> Iterator[LivePage]:
    prefer(browser, color_scheme="light")
    with world.serve() as server:
        yield LivePage(browser, server)
        browser.get("about:blank")


@contextmanager
def serving(browser: webdriver.Chrome, world: LiveWorld, settings: PageSettings) -> Iterator[LivePage]:
    """The page of a collector with these settings."""
    with world.serve(settings=settings) as server:
        yield LivePage(browser, server)
        browser.get("about:blank")


@contextmanager
def as_wide_as(browser: webdriver.Chrome, width: int) -> Iterator[None]:
    """A window of this width."""
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def straggler(number: int, *ranks: int, since_step: int = SINCE_STEP) -> Finding:
    """A finding about these ranks."""
    said = f"Ranks {ranks} are slow."
    return finding_of(number, said, ranks=ranks, since_step=since_step, slowdown_ratio=1.31)


def show(page: LivePage, world: LiveWorld, *findings: Finding, ranks: int = RANKS) -> None:
    """A run with these open findings, and its page."""
    run, picture = huge_run("gpt", ranks, SLOW_RANK)
    run = msgspec.structs.replace(run, open_findings=findings, findings=findings)
    world.show(run, steps={"gpt": picture})
    page.open("#run=gpt")
    page.wait_for_map(STEPS, ranks)
    page.wait_for_label("#heat", "Outlined")


def find_marked(page: LivePage, column: int, columns: int = STEPS) -> list[int]:
    """The rows of pixels in the middle of a column that have the color of outlines."""
    width, height = page.size("#heat")
    mark, x = page.color("mark"), LEFT + (column + 0.5) / columns * (width - LEFT)
    pixels = page.pixels("#heat", x)[: round(height - BELOW)]
    return [y for y, color in enumerate(pixels) if is_near(color, mark, 40)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_found_rank_is_outlined_from_its_first_step(page: LivePage, world: LiveWorld, scheme: str) -> None:
    prefer(page.browser, color_scheme=scheme)
    show(page, world, straggler(1, SLOW_RANK))
    middle = (SLOW_RANK + 0.5) / RANKS * (page.size("#heat")[1] - BELOW)
    upper, lower = find_marked(page, SINCE_STEP + 4)[0], find_marked(page, SINCE_STEP + 4)[-1]
    assert middle - 9 < upper < middle < lower < middle + 9
    assert find_marked(page, SINCE_STEP - 2) == [], "before the step with which it began there is no outline"


def test_found_rank_is_named_beside_its_row_and_leads_to_it(page: LivePage, world: LiveWorld) -> None:
    show(page, world, straggler(1, SLOW_RANK))
    link = find(page.browser, "#heat-found a")
    assert link.text == "rank 77 1.31x"
    top = page.run("return arguments[0].offsetTop", find(page.browser, "#heat-found li"))
    middle = (SLOW_RANK + 0.5) / RANKS * (page.size("#heat")[1] - BELOW)
    assert abs(top + 11 - middle) < 2
    link.click()
    page.wait_for_text("#rank-said", "Rank 77 on node-9")


def test_ranks_of_a_node_share_an_outline_and_a_name(page: LivePage, world: LiveWorld) -> None:
    show(page, world, straggler(1, *range(64, 72)))
    assert page.text("#heat-found") == "ranks 64-71 1.31x"
    height = page.size("#heat")[1] - BELOW
    marked = find_marked(page, STEPS - 8)
    assert (marked[0], marked[-1]) == pytest.approx((64 / RANKS * height, 72 / RANKS * height), abs=4)


def test_names_of_found_ranks_do_not_cover_each_other(page: LivePage, world: LiveWorld) -> None:
    show(page, world, *[straggler(number, 200 + number) for number in range(1, 6)])
    tops = page.run("return [...document.querySelectorAll('#heat-found li')].map(({ offsetTop }) => offsetTop)")
    assert len(tops) == 5
    assert all(after - before >= 22 for before, after in itertools.pairwise(tops))


def test_finding_about_all_ranks_outlines_none_of_them(page: LivePage, world: LiveWorld) -> None:
    run, picture = huge_run("gpt", 8, 3)
    world.show(msgspec.structs.replace(run, open_findings=(straggler(1, *range(8)),)), steps={"gpt": picture})
    page.open("#run=gpt")
    page.wait_for_text("#open-findings", "are slow")
    page.wait_for_map(STEPS, 8)
    assert not page.shown("#heat-found")
    assert find_marked(page, STEPS - 8) == []


def test_outline_leaves_with_its_finding(page: LivePage, world: LiveWorld) -> None:
    show(page, world, straggler(1, SLOW_RANK))
    run, picture = huge_run("gpt", RANKS, SLOW_RANK)
    world.show(run, steps={"gpt": picture})
    wait_until(page.browser, lambda: not page.shown("#heat-found"))
    assert find_marked(page, STEPS - 8) == []


def test_clock_has_its_date_where_that_is_not_today(page: LivePage, world: LiveWorld) -> None:
    # The steps end 0.2 s after each other: the last of 64 is 12.6 s after the first, which was at 1,773,500,000 s.
    show(page, world, straggler(1, SLOW_RANK))
    find(page.browser, "#heat").send_keys("\ue014\ue010")  # right, End
    assert page.text("#heat-readout").startswith("rank 0, step 63 at 2026-03-14 14:53:32: ")
    script = (
        "const done = arguments[0]; const { clock } = await import(new URL('live/dom.js', document.baseURI));"
        "done([0, -86400].map((s) => clock(Math.floor(Date.now() / 1000) + s).length));"
    )
    today, yesterday = page.browser.execute_async_script(script)
    # A time of day has 8 letters, a date and a blank 11 more; midnight may pass between the two calls of the clock.
    assert (today, yesterday) in {(8, 19), (19, 19)}


def test_no_table_of_a_phone_has_letters_below_each_other(page: LivePage, world: LiveWorld) -> None:
    show(page, world, straggler(1, SLOW_RANK))
    with as_wide_as(page.browser, PHONE_PX):
        page.open(f"#run=gpt&rank={SLOW_RANK}")
        page.wait_for_rows("#beside", 3)
        page.wait_for_rows("#ranks", 10)
        assert page.run(LETTERS_IN_COLUMNS) == []
        assert page.run("return document.scrollingElement.scrollWidth") <= PHONE_PX
        assert page.size("#heat")[0] > PHONE_PX - 40, "the names of found ranks are below it, not beside it"


# -- links ------------------------------------------------------------------------------------------------------------


def show_linked(page: LivePage, world: LiveWorld) -> None:
    """A run with a finding, its incident, an earlier one, and a capture."""
    found = straggler(3, SLOW_RANK)
    earlier = resolve(
        incident_of(6, "gpt", straggler(1, 5), BEGIN_WALL_S - 7_200.0), "passed", BEGIN_WALL_S - 3_600.0,
        lost_rank_seconds=12.0,
    )  # fmt: skip
    world.incidents = (earlier, incident_of(7, "gpt", found))
    world.captures = (
        Capture(
            id="c5", run="gpt", run_id="gpt", state="failed", asked_wall_s=BEGIN_WALL_S, changed_wall_s=BEGIN_WALL_S,
            ranks=(RankCapture(rank=SLOW_RANK),),
        ),
    )  # fmt: skip
    show(page, world, found)


def press_link(page: LivePage, words: str) -> None:
    """Press what has these words among the links of the open finding."""
    page.wait_for_text("#open-findings .links", words)
    page.run(
        "[...document.querySelectorAll('#open-findings .links > *')].find((one) => "
        "one.textContent === arguments[0]).click()",
        words,
    )


def test_finding_leads_to_its_rank(page: LivePage, world: LiveWorld) -> None:
    show_linked(page, world)
    press_link(page, f"Rank {SLOW_RANK} beside its peers")
    page.wait_for_text("#rank-said", f"Rank {SLOW_RANK} on node-9")
    assert page.run("return document.activeElement.id") == "rank-title"


def test_finding_leads_to_its_row_of_the_heat_map(page: LivePage, world: LiveWorld) -> None:
    show_linked(page, world)
    press_link(page, "Its row in the heat map")
    assert page.text("#heat-readout").startswith(f"rank {SLOW_RANK}, step 63")
    assert page.run("return document.activeElement.id") == "heat"
    ends = [find(page.browser, f"#{name}-rank").get_attribute("value") for name in ("first", "last")]
    assert ends == [str(SLOW_RANK - 4), str(SLOW_RANK + 4)]


@pytest.mark.parametrize(("words", "reached"), [("Incident 7", "incident-7"), ("Capture c5", "capture-c5")])
def test_finding_leads_to_its_incident_and_capture(page: LivePage, world: LiveWorld, words: str, reached: str) -> None:
    show_linked(page, world)
    find(page.browser, f"#{reached}")
    press_link(page, words)
    assert page.run("return document.activeElement.id") == reached


def test_release_runbook_is_linked_and_no_dashboard_by_default(page: LivePage, world: LiveWorld) -> None:
    show_linked(page, world)
    links = page.run("return [...document.querySelectorAll('#open-findings a[target=_blank]')].map(({ href }) => href)")
    assert [urlsplit(link).path for link in links] == ["/live/runbooks/RankscopeStragglerRank.md"]
    page.browser.get(links[0])
    assert find(page.browser, "pre").text.startswith("# RankscopeStragglerRank\n"), "shown, and not downloaded"


def test_runbook_and_dashboard_are_linked_as_settings_name_them(browser: webdriver.Chrome, world: LiveWorld) -> None:
    settings = PageSettings(grafana_url="https://g.example/graf", runbooks_url="https://docs.example/runbooks")
    with serving(browser, world, settings) as page:
        show_linked(page, world)
        links = page.run(
            "return [...document.querySelectorAll('#open-findings a[target=_blank]')].map(({ href }) => href)"
        )
    assert links == [
        "https://docs.example/runbooks/RankscopeStragglerRank.md",
        "https://g.example/graf/d/rankscope-rank?var-run=gpt&var-rank=77",
    ]


@pytest.mark.parametrize(
    ("finding", "uid", "variables"),
    [
        ({"ranks": [3], "nodes": []}, "rankscope-rank", {"run": "a&b", "rank": "3"}),
        ({"ranks": [3, 4], "nodes": ["n/1"]}, "rankscope-node", {"run": "a&b", "node": "n/1"}),
        ({"ranks": [], "nodes": []}, "rankscope-run", {"run": "a&b"}),
    ],
)
def test_dashboard_of_a_finding_has_the_variables_of_its_address(
    page: LivePage, finding: dict[str, object], uid: str, variables: dict[str, str]
) -> None:
    page.open()
    script = """
    const [finding, done] = arguments;
    import(new URL("live/links.js", document.baseURI)).then(({ dashboardOf }) =>
      done(dashboardOf("https://g.example", "a&b", finding)));
    """
    address = urlsplit(str(page.browser.execute_async_script(script, finding)))
    dashboards = [json.loads(file.read_text()) for file in DASHBOARDS.glob("*.json")]
    (found,) = [one for one in dashboards if f"/d/{one['uid']}" == address.path]
    asked = {name.removeprefix("var-"): value for name, value in parse_qsl(address.query)}
    assert (found["uid"], asked) == (uid, variables)
    assert set(asked) <= {one["name"] for one in found["templating"]["list"]}


def test_focused_link_keeps_the_focus_while_evidence_changes(page: LivePage, world: LiveWorld) -> None:
    show_linked(page, world)
    page.run("document.querySelector('#open-findings .links a').focus()")
    run, picture = huge_run("gpt", RANKS, SLOW_RANK)
    later = msgspec.structs.replace(straggler(3, SLOW_RANK), sentence="It is slower.", evidence={"own_ns": 2e8})
    world.show(msgspec.structs.replace(run, open_findings=(later,)), steps={"gpt": picture})
    page.wait_for_text("#open-findings", "It is slower.")
    assert page.run("return document.activeElement.textContent") == "Rank 77 beside its peers"


def test_incidents_of_the_run_are_listed_with_time_and_outcome(page: LivePage, world: LiveWorld) -> None:
    # Opened 90 s before the first snapshot, of which the shown one is a second later.
    show_linked(page, world)
    said = page.wait_for_text("#incident-7", "open for 1 min, opened ")
    assert "straggler, host cpu" in said
    assert page.run("return [...document.querySelectorAll('#incident-list > li')].map(({ id }) => id)") == [
        "incident-7",
        "incident-6",
    ]
    ended = page.text("#incident-6")
    assert ", passed; opened " in ended
    assert "it cost 12 rank-seconds" in ended


def test_runs_do_not_share_incidents_events_and_findings(page: LivePage, world: LiveWorld) -> None:
    show_linked(page, world)
    page.wait_for_text("#incident-list", "Ranks (77,) are slow.")
    world.show(*world.snapshot.runs, small_run("other"))
    page.wait_for_rows("#runs", 2)
    page.click("#runs tbody tr:nth-child(2) a")
    page.wait_for_text("#run-name", "other")
    page.wait_for_label("#steps", "No data yet.")
    wait_until(page.browser, lambda: page.shown("#no-incidents") and page.shown("#no-findings"))
    assert page.count("#incident-list > li") == 0
    assert not page.shown("#heat-found")
    assert not page.shown("#events-shown")


def test_run_without_incidents_says_so(page: LivePage, world: LiveWorld) -> None:
    show(page, world, straggler(1, SLOW_RANK))
    assert page.shown("#no-incidents")


# -- the list of runs -------------------------------------------------------------------------------------------------


def small_run(name: str, wall_s: int = 0) -> RunSnapshot:
    """A run without a rank that began so long ago."""
    goodput = GoodputSnapshot(wall_ns=wall_s * 10**9, startup_ns=wall_s * 10**9)
    return RunSnapshot(run=name, world_size=1, restart_count=0, ranks=(), goodput=goodput)


def test_runs_are_listed_with_their_age(page: LivePage, world: LiveWorld) -> None:
    world.show(small_run("a"), small_run("b", 59), small_run("c", 7_500), small_run("d", 90_000))
    page.open()
    assert [row[6] for row in page.wait_for_rows("#runs", 4)] == ["-", "59 s", "2 h 5 min", "1 d 1 h"]
    assert not page.shown("#run-filter"), "four runs are seen at a glance"


def test_runs_say_whose_they_are(page: LivePage, world: LiveWorld) -> None:
    bare = rank_of(0)
    identity = msgspec.structs.replace(bare.identity, user="ada", slurm_job_id="4711_3")
    pod = msgspec.structs.replace(bare.identity, k8s_namespace="ml", k8s_pod="bert-0")
    runs = [
        msgspec.structs.replace(small_run(name), ranks=(msgspec.structs.replace(bare, identity=found),))
        for name, found in (("a", identity), ("b", pod))
    ]
    world.show(*runs, *[small_run(name) for name in "cdef"])
    page.open()
    assert [row[7] for row in page.wait_for_rows("#runs", 6)] == ["ada, Slurm job 4711_3", "ml/bert-0", *"----"]
    find(page.browser, "#run-filter").send_keys("4711 ada")
    assert [row[0] for row in page.rows("#runs")] == ["a"]


def test_runs_are_filtered_by_words_in_any_order(page: LivePage, world: LiveWorld) -> None:
    world.show(*[small_run(name) for name in ("bert-base", "bert-large", "gpt", "t5-base", "t5-large", "vit")])
    page.open()
    page.wait_for_rows("#runs", 6)
    find(page.browser, "#run-filter").send_keys("LARGE t5")
    assert [row[0] for row in page.rows("#runs")] == ["t5-large"]
    assert page.text("#runs-count") == "1 of 6 runs"
    find(page.browser, "#run-filter").clear()
    find(page.browser, "#run-filter").send_keys("nothing")
    assert page.rows("#runs") == []
    assert not page.shown("#no-runs"), "there are runs, though none is asked for"


@pytest.mark.parametrize(
    ("settings", "command", "note"),
    [
        (
            PageSettings(listen="tcp://0.0.0.0:18490"),
            "RANKSCOPE_COLLECTOR=tcp://127.0.0.1:18490 RANKSCOPE_RUN",
            "doctor",
        ),
        (PageSettings(listen="tcp://127.0.0.1:5"), "RANKSCOPE_COLLECTOR=tcp://127.0.0.1:5 ", "its own machine only"),
        (PageSettings(listen="tcp://10.0.0.7:0"), "RANKSCOPE_COLLECTOR=tcp://10.0.0.7:PORT ", "first lines of its log"),
        (PageSettings(listen="tcp://h:1", needs_keys=True), "RANKSCOPE_COLLECTOR_KEY_FILE=collector.pub", "keys.md"),
    ],
)
def test_empty_page_says_how_to_point_a_run_here(
    browser: webdriver.Chrome, world: LiveWorld, settings: PageSettings, command: str, note: str
) -> None:
    with serving(browser, world, settings) as page:
        page.open()
        assert command in page.wait_for_text("#join-command", "torchrun ... -m rankscope.agent train.py")
        assert note in page.text("#join-note")
        assert page.shown("#no-runs")
        world.show(small_run("gpt"))
        wait_until(browser, lambda: not page.shown("#no-runs"))


# -- machines and links -----------------------------------------------------------------------------------------------


def test_machines_and_links_are_shown_with_their_units(page: LivePage, world: LiveWorld) -> None:
    gpu = DeviceSample(
        host_ns=0, uuid="a", model="H100", utilization_ratio=0.9, memory_used_bytes=60 * 2**30,
        memory_total_bytes=80 * 2**30, temperature_celsius=81.0, power_watts=650.0, throttle_reasons=("hw_thermal",),
        xid_last=63, nvlink_tx_bytes_per_s=120e9, nvlink_rx_bytes_per_s=80e9,
    )  # fmt: skip
    traffic = CollectiveTotals(
        group="dp", op="all_reduce", count=9, duration_ns=1, matched=2, wait_ns=4_000_000, transfer_ns=1_000_000,
        bus_bandwidth_bytes_per_s=2.5e9,
    )  # fmt: skip
    dumped = NcclBandwidths((NcclBandwidth("TP 0", "AllReduce", 40, 17.5e9),), "")
    rank = rank_of(0, run="gpt", devices=(gpu,), collectives=(traffic,), nccl=dumped)
    world.show(RunSnapshot(run="gpt", world_size=1, restart_count=0, ranks=(rank,)))
    page.open("#run=gpt")
    assert page.wait_for_rows("#machines", 1) == [
        ["n0", "1 of 1", "throttled: hw thermal; Xid 63", "-", "1 H100", "90.0 %", "60 GiB of 80 GiB (75.0 %)", "81 °C",
         "650 W", "120.0, 80.0", "-"],
    ]  # fmt: skip
    assert page.rows("#groups") == [["dp", "1", "all_reduce", "dp", "1", "9", "2.0", "0.5", "-", "2.50"]]
    assert page.rows("#nccl") == [["TP 0", "AllReduce", "1", "40", "17.50", "17.50"]]
    assert page.text("#machines-said") == (
        "Host memory: no rank has reported the memory of its machine. "
        "Network ports: no rank has reported an InfiniBand or RoCE port."
    )
    assert not page.shown("#ports")
    heads = page.run("return [...document.querySelectorAll('#machines thead th')].filter((one) => one.hidden).length")
    assert heads == 2, "columns without a value are left out"


def test_ports_are_shown_with_their_rates_and_new_errors(page: LivePage, world: LiveWorld) -> None:
    port = PortSample(
        name="mlx5_0/1", is_active=True, rate_bits_per_s=400 * 10**9, tx_bytes=10**12, rx_bytes=10**12, xmit_wait=50,
        symbol_errors=7, out_of_sequence=0,
    )  # fmt: skip
    down = PortSample(name="mlx5_1/1", is_active=False)

    def show(sample: NodeSample) -> None:
        world.show(RunSnapshot(run="gpt", world_size=1, restart_count=0, ranks=(rank_of(0, run="gpt", node=sample),)))

    show(NodeSample(host_ns=10**9, ports=(port, down)))
    page.open("#run=gpt")
    absent = ["n0 mlx5_1/1", "carries no data", *["-"] * 7]
    assert page.wait_for_rows("#ports", 2) == [absent, ["n0 mlx5_0/1", "up", "400", "-", "-", "7", "0", "-", "-"]]
    # Ten seconds later: 25 GB/s sent, 5 received, three more symbol errors, 200 ticks a second.
    later = msgspec.structs.replace(
        port, tx_bytes=10**12 + 250 * 10**9, rx_bytes=10**12 + 50 * 10**9, xmit_wait=2_050, symbol_errors=10
    )
    show(NodeSample(host_ns=11 * 10**9, ports=(later, down)))
    expected = ["n0 mlx5_0/1", "up", "400", "25.00", "5.00", "10 (+3)", "0", "200", "-"]
    wait_until(page.browser, lambda: expected in page.rows("#ports"))
    # The card was reset: counts from 0 are no traffic.
    show(NodeSample(host_ns=21 * 10**9, ports=(msgspec.structs.replace(port, tx_bytes=5, symbol_errors=0), down)))
    reset = ["n0 mlx5_0/1", "up", "400", "-", "-", "0", "0", "-", "-"]
    wait_until(page.browser, lambda: reset in page.rows("#ports"))


def test_run_without_gpus_says_why_there_is_nothing_about_them(page: LivePage, world: LiveWorld) -> None:
    world.show(RunSnapshot(run="cpu", world_size=1, restart_count=0, ranks=(rank_of(0, run="cpu"),)))
    page.open("#run=cpu")
    said = page.wait_for_text("#machines-said", "GPUs: no rank has reported a GPU.")
    assert "Collectives: no collective has been measured in this attempt of the run." in said
    assert "NCCL" not in said
    assert not page.shown("#nccl")
    assert not page.shown("#groups")


def test_source_line_of_a_finding_stands_with_its_table(page: LivePage, world: LiveWorld) -> None:
    sleeps = LineCost(
        line="train.py:104 (augment)", ns=146e6, peer_ns=0.0, call="time.sleep", stack=("train.py:9 (main)",)
    )
    said = "146.0 ms per step in time.sleep, called at train.py:104 (augment); its peer rank 3: none."
    lines = SampledLines(sentence=said, rank=SLOW_RANK, peer=3, steps=9, first_step=1, last_step=9, lines=(sleeps,))
    show(page, world, msgspec.structs.replace(straggler(1, SLOW_RANK), lines=lines))
    page.wait_for_text("#open-findings", f"Source line: {said}")
    page.run("document.querySelector('#open-findings details').open = true")
    page.wait_for_text("#open-findings table", "train.py:104 (augment)")
    assert "Source lines, per step, mean of 9 steps" in page.text("#open-findings table")
    assert page.rows("#open-findings table")[0][:3] == ["146.0 ms", "0.0 ms", "train.py:104 (augment)"]
