"""Map HTTP paths to responses, without any socket (http_server.py)."""

import gzip
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

from rankscope.collector.captures.incident_views import NO_LINKS, CaptureLinks, view_run
from rankscope.collector.incidents.incident import STATES, Incident
from rankscope.collector.publish.metrics.page_cache import PageCache, decompress
from rankscope.collector.publish.metrics.pages import METRICS_PATH, RANKS_PATH, MetricPages, PageError, parse_page
from rankscope.collector.publish.metrics.text_format import accepts_gzip, choose_format
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.run_end_words import describe_end
from rankscope.collector.runs.run_origin import UNKNOWN_ORIGIN, RunOrigin, find_origin
from rankscope.collector.runs.run_status import find_throughput
from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from rankscope.collector.valid_answers import encode_valid
from rankscope.measure.errors import UnavailableError
from rankscope.measure.units import ns_to_s

GZIP_LEVEL: Final = 1
"""Level 1 takes an eighth of the time of level 9, for a fifth more bytes."""
GZIPPED: Final = {"Content-Encoding": "gzip"}

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
RUNS_PATH: Final = "/api/v1/runs"
REPORT_SUFFIX: Final = "/report"
INCIDENTS_PATH: Final = "/api/v1/incidents"
DEBUG_RUNS_PATH: Final = "/api/v1/debug/runs"
INCIDENT_FILTERS: Final = frozenset({"run", "state"})

INDEX: Final = f"""rankscope collector
{METRICS_PATH}              for Prometheus
{RANKS_PATH}        for Prometheus, the metrics of every rank of large runs; ?shard=I/N for every N-th rank
/healthz              200 while the collector works
/readyz               200 while it accepts reports
{RUNS_PATH}          the known runs, as JSON
{RUNS_PATH}/RUN      one run in full
{RUNS_PATH}/RUN{REPORT_SUFFIX}   the report of a run, from the store
{INCIDENTS_PATH}     the incidents, newest first; filtered by ?run=RUN and ?state=open or resolved
/api/v1/nodes         the nodes by how often they have held up a run, from the store; one of them: /api/v1/nodes/NODE
/api/v1/gpus          the GPUs that are held and do nothing, on nodes with a relay
{DEBUG_RUNS_PATH}/RUN   the internal state of a run and its last events, for debugging
/api/v1/openapi.json  the API, OpenAPI 3.1
/                     the live page, for a browser
"""


class Response(NamedTuple):
    """A response, before it is sent."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = {}


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the list of runs. `run` is its name, which several runs may share; `run_id` is unique. `steps` is the
    largest step count of any current rank process, None before the first report; `open_findings` is a count.
    `samples_per_s`, `tokens_per_s` and `steps_per_s` are per rank, as the median over the ranks (`runs/run_status.py`);
    None where no rank reports them, and for a run that has ended. `end` is how the run ended, None while it goes on;
    `end_in_words` is the same as a short text. `age_s` is the time since its first rank joined, until its end for one
    that has ended, in seconds; None before that. `origin` says whose run it is: scheduler, user, pod.
    """

    run: str
    run_id: str
    world_size: int
    ranks_up: int
    steps: int | None
    open_findings: int
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    steps_per_s: float | None = None
    end: RunEnd | None = None
    end_in_words: str = ""
    age_s: float | None = None
    origin: RunOrigin = UNKNOWN_ORIGIN


class PageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the collector that the live page shows. `listen` is the address of the setting, tcp://HOST:PORT, as
    the collector listens: HOST may stand for all addresses of its machine. `needs_keys`: agents need keys
    (docs/keys.md). `grafana_url` and `runbooks_url` are without a slash at the end; empty: not set.
    """

    listen: str = ""
    needs_keys: bool = False
    grafana_url: str = ""
    runbooks_url: str = ""


NO_SETTINGS: Final = PageSettings()


class Routes:
    """Responses by path. No socket; thread-safe.

    `is_healthy` and `is_ready` return None, or the reason why the collector is not healthy or not ready.
    `find_degradation` returns what does not work although the collector is ready (the store), or None. `metric_pages`
    renders the pages of metrics. `read_report` returns the report of a run as JSON, and raises UnavailableError where
    there is none. `read_dump` returns the internal state of a run, by its id or name, as JSON; None for an unknown run.
    It raises UnavailableError when the collector does not answer. `answer_first` is called before anything else, with
    the path and its query, and returns None for paths that it does not answer. `links` finds the captures about
    incidents. `on_scrape` is called before a page of metrics is looked up, and must not wait.
    """

    def __init__(
        self,
        read_snapshot: Callable[[], Snapshot],
        read_incidents: Callable[[], Sequence[Incident]],
        *,
        is_healthy: Callable[[], str | None],
        is_ready: Callable[[], str | None],
        find_degradation: Callable[[], str | None] = lambda: None,
        read_report: Callable[[str], bytes] | None = None,
        answer_first: Callable[[str], "Response | None"] = lambda _target: None,
        metric_pages: MetricPages | None = None,
        read_dump: Callable[[str], bytes | None] = lambda _asked: None,
        links: CaptureLinks = NO_LINKS,
        on_scrape: Callable[[], object] = lambda: None,
    ) -> None:
        self._on_scrape = on_scrape
        self._answer_first = answer_first
        self._read_snapshot = read_snapshot
        self._read_incidents = read_incidents
        self._read_report = read_report
        self._read_dump = read_dump
        self._links = links
        self._encoding = threading.Lock()
        self._encoded_from: Snapshot | None = None
        self._encoded: dict[str, bytes] = {}
        """Runs of that snapshot as JSON, encoded once."""
        self.metrics = PageCache(read_snapshot, metric_pages or MetricPages())
        self._pages: Mapping[str, Callable[[], Response]] = {
            "/": lambda: Response(HTTPStatus.OK, TEXT, INDEX.encode()),
            "/healthz": lambda: _report_state(is_healthy()),
            "/readyz": lambda: _report_state(is_ready(), find_degradation()),
            RUNS_PATH: self._list_runs,
        }

    def answer(self, target: str, *, accept: str = "", accept_encoding: str = "") -> Response:
        """Return the response to a GET of `target`, a path with or without a query. The others are request headers."""
        path, _, query = target.partition("?")
        page = self._pages.get(path)
        found = self._answer_first(target)
        if found is not None:
            response = found
        elif page is not None:
            response = page()
        elif path in {METRICS_PATH, RANKS_PATH}:
            return self._find_metrics(path, query, accept, accept_encoding)
        elif path == INCIDENTS_PATH:
            response = self._list_incidents(query)
        elif path.startswith(f"{RUNS_PATH}/") and path.endswith(REPORT_SUFFIX):
            response = self._show_report(unquote(path.removeprefix(f"{RUNS_PATH}/").removesuffix(REPORT_SUFFIX)))
        elif path.startswith(f"{RUNS_PATH}/"):
            response = self._show_run(unquote(path.removeprefix(f"{RUNS_PATH}/")))
        elif path.startswith(f"{DEBUG_RUNS_PATH}/"):
            response = self._dump_run(unquote(path.removeprefix(f"{DEBUG_RUNS_PATH}/")))
        else:
            response = refuse(HTTPStatus.NOT_FOUND, f"there is no {path[:80]}; / lists the paths")
        return _compress(response) if accepts_gzip(accept_encoding) else response

    def _find_metrics(self, path: str, query: str, accept: str, accept_encoding: str) -> Response:
        try:
            page = parse_page(path, query)
        except PageError as error:
            return refuse(HTTPStatus.BAD_REQUEST, str(error))
        self._on_scrape()
        text_format = choose_format(accept)
        body = self.metrics.find(page, text_format)
        if accepts_gzip(accept_encoding):
            return Response(HTTPStatus.OK, text_format.value, body, GZIPPED)
        return Response(HTTPStatus.OK, text_format.value, decompress(body))

    def _list_runs(self) -> Response:
        runs = [summarize_run(run) for run in self._read_snapshot().runs]
        return Response(HTTPStatus.OK, JSON, encode_valid({"runs": runs}))

    def _show_run(self, name: str) -> Response:
        snapshot = self._read_snapshot()
        run = snapshot.find_run(name)
        if run is not None:
            return Response(HTTPStatus.OK, JSON, self._encode_run(snapshot, run))
        return refuse(HTTPStatus.NOT_FOUND, snapshot.describe_unknown(name))

    def _dump_run(self, name: str) -> Response:
        try:
            found = self._read_dump(name)
        except UnavailableError as error:
            return refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        if found is None:
            return refuse(HTTPStatus.NOT_FOUND, self._read_snapshot().describe_unknown(name))
        return Response(HTTPStatus.OK, JSON, found)

    def _encode_run(self, snapshot: Snapshot, run: RunSnapshot) -> bytes:
        with self._encoding:
            if self._encoded_from is not snapshot:
                self._encoded_from, self._encoded = snapshot, {}
            if run.run_id not in self._encoded:
                self._encoded[run.run_id] = encode_valid(view_run(run, self._links))
            return self._encoded[run.run_id]

    def _show_report(self, name: str) -> Response:
        if self._read_report is None:
            return refuse(HTTPStatus.NOT_FOUND, "this collector keeps no history; set `store` to a file to keep it")
        try:
            return Response(HTTPStatus.OK, JSON, self._read_report(name))
        except UnavailableError as error:
            return refuse(HTTPStatus.NOT_FOUND, str(error))

    def _list_incidents(self, query: str) -> Response:
        """Return the incidents that match the query; empty for an unknown run."""
        asked = dict(parse_qsl(query, keep_blank_values=True))
        unknown = sorted(asked.keys() - INCIDENT_FILTERS)
        if unknown:
            known = " and ".join(sorted(INCIDENT_FILTERS))
            return refuse(HTTPStatus.BAD_REQUEST, f"{unknown[0][:80]!r} is no filter here; {known} are")
        if asked.get("state", STATES[0]) not in STATES:
            error = f"state is {asked['state'][:80]!r}; it must be {' or '.join(STATES)}"
            return refuse(HTTPStatus.BAD_REQUEST, error)
        found = [
            incident
            for incident in reversed(self._read_incidents())
            if incident.is_of_run(asked.get("run")) and asked.get("state", incident.state) == incident.state
        ]
        return Response(HTTPStatus.OK, JSON, encode_valid({"incidents": self._links.of_incidents(found)}))


def refuse(status: HTTPStatus, error: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as JSON."""
    return Response(status, JSON, msgspec.json.encode({"error": error}), headers or {})


def _report_state(problem: str | None, degradation: str | None = None) -> Response:
    """Return 200 without a problem. With a degradation too: the collector still accepts reports."""
    if problem is None:
        text = "ok\n" if degradation is None else f"ok, but {degradation}\n"
        return Response(HTTPStatus.OK, TEXT, text.encode())
    return refuse(HTTPStatus.SERVICE_UNAVAILABLE, problem)


def summarize_run(run: RunSnapshot) -> ListedRun:
    """Return the summary of a run for the list of runs."""
    found = find_throughput([rank.totals for rank in run.ranks], run.world_size) if run.end is None else None
    samples_per_s = found.samples_per_s if found is not None else None
    tokens_per_s = found.tokens_per_s if found is not None else None
    return ListedRun(
        run=run.run,
        run_id=run.run_id,
        world_size=run.world_size,
        ranks_up=sum(rank.up for rank in run.ranks),
        steps=max((rank.totals.steps for rank in run.ranks if rank.reports_admitted), default=None),
        open_findings=len(run.open_findings),
        samples_per_s=None if samples_per_s is None else samples_per_s.per_rank,
        tokens_per_s=None if tokens_per_s is None else tokens_per_s.per_rank,
        steps_per_s=None if found is None else found.steps_per_s,
        end=run.end,
        end_in_words="" if run.end is None else describe_end(run.end),
        age_s=ns_to_s(run.goodput.wall_ns) if run.goodput.wall_ns else None,
        origin=find_origin(rank.identity for rank in run.ranks),
    )


def _compress(response: Response) -> Response:
    body = gzip.compress(response.body, GZIP_LEVEL, mtime=0)
    return response._replace(body=body, headers={**response.headers, **GZIPPED})
