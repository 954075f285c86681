"""Answer the API about the difference of two runs of the store.

    GET /api/v1/compare?a=RUN&b=RUN          B compared with A; ?margin=SHARE, ?force=yes for unequal work

RUN is a name, an id, or `RUN@steps FIRST:END`, percent-encoded. The answer is that of `rankscope compare --json`.
"""

import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from rankscope.collector.comparison.compared_runs import FORCE, compare_selections
from rankscope.collector.comparison.run_comparison import MARGIN, RunComparison
from rankscope.collector.publish.routes import JSON, Response, refuse
from rankscope.collector.store_address import StoreAddress
from rankscope.collector.valid_answers import encode_valid
from rankscope.measure.errors import SettingError, UnavailableError

COMPARE_PATH: Final = "/api/v1/compare"
PARAMETERS: Final = ("a", "b", "margin", "force")
NO_STORE: Final = "this collector keeps no history; set `store` to a file to keep it"
BUSY: Final = "another comparison is being made, which takes some seconds; ask again"


class CompareRoute:
    """Answers from a store, None without one; requests for anything else go to `answer_next`. One comparison at a time
    is made: one of long runs takes seconds of a core.
    """

    def __init__(
        self,
        store: StoreAddress | None,
        answer_next: Callable[[str], Response | None],
        compare: Callable[..., RunComparison] = compare_selections,
    ) -> None:
        self._compare_selections = compare
        self._store = store
        self._answer_next = answer_next
        self._comparing = threading.Lock()

    def answer(self, target: str) -> Response | None:
        """Return the response to a GET of `target`, a path with or without a query; None for unknown paths."""
        path, _, query = target.partition("?")
        if path != COMPARE_PATH:
            return self._answer_next(target)
        asked = dict(parse_qsl(query, keep_blank_values=True))
        problem = _find_problem(asked)
        if problem:
            return refuse(HTTPStatus.BAD_REQUEST, problem)
        if self._store is None:
            return refuse(HTTPStatus.NOT_FOUND, NO_STORE)
        if not self._comparing.acquire(blocking=False):
            return refuse(HTTPStatus.SERVICE_UNAVAILABLE, BUSY)
        try:
            return self._compare(self._store, asked)
        finally:
            self._comparing.release()

    def _compare(self, store: StoreAddress, asked: Mapping[str, str]) -> Response:
        try:
            found = self._compare_selections(
                store, asked["a"], asked["b"],
                margin=float(asked.get("margin", MARGIN)), compares_unequal=asked.get("force") == "yes",
            )  # fmt: skip
        except SettingError as error:
            return refuse(HTTPStatus.BAD_REQUEST, str(error))
        except UnavailableError as error:
            return refuse(HTTPStatus.NOT_FOUND, str(error).replace(FORCE, "force=yes"))
        return Response(HTTPStatus.OK, JSON, encode_valid(found))


def _find_problem(asked: Mapping[str, str]) -> str:
    """Return what is wrong with the parameters; empty where nothing is."""
    unknown = sorted(asked.keys() - set(PARAMETERS))
    if unknown:
        return f"{unknown[0][:80]!r} is no parameter here; {', '.join(PARAMETERS)} are"
    missing = [name for name in ("a", "b") if not asked.get(name)]
    if missing:
        return f"{' and '.join(missing)} missing: ?a=RUN&b=RUN compares B with A"
    if asked.get("force", "yes") not in {"yes", "no"}:
        return f"force is {asked['force'][:80]!r}; it must be yes or no"
    try:
        float(asked.get("margin", "0.03"))
    except ValueError:
        return f"margin is {asked['margin'][:80]!r}; it must be a number, as 0.03"
    return ""
