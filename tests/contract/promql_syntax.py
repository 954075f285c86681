"""Parse PromQL into a tree: as much of its grammar as dashboards and rules use, so that they can be checked without a
server.

The grammar is that of https://prometheus.io/docs/prometheus/latest/querying/ (basics, operators, functions). Grafana's
variables are accepted as durations (`[$__rate_interval]`); inside strings they are just text. Types of expressions are
left to Prometheus itself (`promtool check rules`), names to promql_names.py.
"""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

AGGREGATIONS: Final = frozenset(
    {
        "sum", "min", "max", "avg", "group", "stddev", "stdvar", "count", "count_values", "bottomk", "topk", "quantile",
        "limitk", "limit_ratio",
    }
)  # fmt: skip
PRECEDENCE: Final = {
    "or": 1, "and": 2, "unless": 2, "==": 3, "!=": 3, "<=": 3, "<": 3, ">=": 3, ">": 3, "+": 4, "-": 4, "*": 5, "/": 5,
    "%": 5, "atan2": 5, "^": 6,
}  # fmt: skip
"""Precedence of the binary operators; all but ^ are left-associative."""
UNARY: Final = 5
"""A sign binds less tightly than ^: -1^2 is -(1^2)."""

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<comment>\#[^\n]*)
      | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
      | (?P<duration>(?:\d+(?:ms|[smhdwy]))+(?![A-Za-z0-9_:])|\$\{?\w+\}?)
      | (?P<number>0x[0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
      | (?P<sign>=~|!~|==|!=|<=|>=|[-+*/%^<>=(){}\[\],:@])
    )""",
    re.VERBOSE,
)


class PromqlError(Exception):
    """Error for an expression that cannot be parsed, or that names something unknown. Its text has the position and the
    name.
    """


@dataclass(frozen=True)
class Matcher:
    """`label="text"` in braces; the operator is one of = != =~ !~."""

    label: str
    operator: str
    text: str


@dataclass(frozen=True)
class Literal:
    """A number or a string."""

    text: str


@dataclass(frozen=True)
class Selector:
    """`name{matchers}`, with or without a range. The name is empty if it is in no matcher either."""

    name: str
    matchers: tuple[Matcher, ...]


@dataclass(frozen=True)
class Call:
    """A function and its arguments."""

    function: str
    arguments: "tuple[Expression, ...]"


@dataclass(frozen=True)
class Aggregation:
    """`sum by (labels) (...)`. `keeps` is True for by, False for without; with neither the labels are empty."""

    operator: str
    labels: tuple[str, ...]
    keeps: bool
    arguments: "tuple[Expression, ...]"


@dataclass(frozen=True)
class Matching:
    """How the sides of a binary operator find each other. `labels` is None without on and ignoring; `many` is "left",
    "right" or empty; `included` are the labels copied from the side that is one.
    """

    labels: tuple[str, ...] | None = None
    is_on: bool = False
    many: str = ""
    included: tuple[str, ...] = ()


@dataclass(frozen=True)
class Binary:
    """Two expressions and the operator between them."""

    operator: str
    left: "Expression"
    right: "Expression"
    matching: Matching


Expression = Literal | Selector | Call | Aggregation | Binary


class Token(NamedTuple):
    """Token of the expression with its kind: string, duration, number, name or sign; "end" after the last."""

    kind: str
    text: str


def parse(expression: str) -> Expression:
    """Return the tree of an expression. Raises PromqlError where it is none."""
    try:
        parser = _Parser(expression)
        tree = parser.read_expression(0)
        parser.expect("")
    except PromqlError as error:
        raise PromqlError(f"{error}, in: {expression}") from None
    return tree


def _tokenize(expression: str) -> list[Token]:
    tokens, position, text = [], 0, expression.rstrip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or found.lastgroup is None:
            raise PromqlError(f"{text[position : position + 20]!r} is no PromQL")
        if found.lastgroup != "comment":
            tokens.append(Token(found.lastgroup, found[found.lastgroup]))
        position = found.end()
    return [*tokens, Token("end", "")]


class _Parser:
    def __init__(self, expression: str) -> None:
        self._tokens = _tokenize(expression)
        self._next = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._next]

    def advance(self) -> Token:
        token = self.token
        self._next += token.kind != "end"
        return token

    def accept(self, text: str) -> bool:
        """Consume the token if it is this one; a string is never a sign."""
        if self.token.kind != "string" and self.token.text.lower() == text:
            self.advance()
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise PromqlError(f"{text or 'the end'!r} expected before {self.token.text!r}")

    def read_expression(self, loosest: int) -> Expression:
        """Return an operand and all that binds to it more tightly than `loosest`."""
        left = self._read_operand()
        while PRECEDENCE.get(operator := self.token.text.lower(), 0) > loosest and self.token.kind in {"sign", "name"}:
            self.advance()
            matching = self._read_matching()
            binding = PRECEDENCE[operator]
            right = self.read_expression(binding - 1 if operator == "^" else binding)
            left = Binary(operator, left, right, matching)
        return left

    def _read_matching(self) -> Matching:
        self.accept("bool")
        labels, is_on = None, False
        if self.token.text.lower() in {"on", "ignoring"}:
            is_on = self.advance().text.lower() == "on"
            labels = self._read_labels()
        if self.token.text.lower() in {"group_left", "group_right"}:
            many = self.advance().text.lower().removeprefix("group_")
            included = self._read_labels() if self.token.text == "(" else ()
            return Matching(labels, is_on, many, included)
        return Matching(labels, is_on)

    def _read_labels(self) -> tuple[str, ...]:
        self.expect("(")
        labels = []
        while not self.accept(")"):
            labels.append(self._read_name())
            if not self.accept(","):
                self.expect(")")
                break
        return tuple(labels)

    def _read_name(self) -> str:
        if self.token.kind != "name":
            raise PromqlError(f"a name expected before {self.token.text!r}")
        return self.advance().text

    def _read_operand(self) -> Expression:
        if self.accept("-") or self.accept("+"):
            return self.read_expression(UNARY)
        operand = self._read_primary()
        while self._skip_modifier():
            pass
        return operand

    def _skip_modifier(self) -> bool:
        """Skip a range, a subquery, an offset or an @: they change the time of evaluation, not the names."""
        if self.accept("["):
            while not self.accept("]"):
                if self.advance().kind == "end":
                    self.expect("]")
            return True
        if self.accept("offset"):
            self.accept("-")
            self.advance()
            return True
        if self.accept("@"):
            self._read_operand()
            return True
        return False

    def _read_primary(self) -> Expression:
        if self.accept("("):
            inner = self.read_expression(0)
            self.expect(")")
            return inner
        if self.token.kind in {"number", "string", "duration"}:
            return Literal(self.advance().text)
        if self.token.text == "{":
            return self._read_selector("")
        name = self._read_name()
        if name.lower() in AGGREGATIONS and self.token.text.lower() in {"(", "by", "without"}:
            return self._read_aggregation(name.lower())
        if self.token.text == "(":
            return Call(name, self._read_arguments())
        return Literal(name) if name.lower() in {"inf", "nan"} else self._read_selector(name)

    def _read_aggregation(self, operator: str) -> Aggregation:
        """Return an aggregation; its labels may be before or behind the arguments."""
        clause = self._read_clause()
        arguments = self._read_arguments()
        labels, keeps = clause or self._read_clause() or ((), True)
        return Aggregation(operator, labels, keeps, arguments)

    def _read_clause(self) -> tuple[tuple[str, ...], bool] | None:
        if self.token.text.lower() not in {"by", "without"}:
            return None
        keeps = self.advance().text.lower() == "by"
        return self._read_labels(), keeps

    def _read_arguments(self) -> tuple[Expression, ...]:
        self.expect("(")
        arguments = []
        while not self.accept(")"):
            arguments.append(self.read_expression(0))
            if not self.accept(","):
                self.expect(")")
                break
        return tuple(arguments)

    def _read_selector(self, name: str) -> Selector:
        matchers = []
        if self.accept("{"):
            while not self.accept("}"):
                label, operator, text = self._read_name(), self.advance().text, self.advance()
                if operator not in {"=", "!=", "=~", "!~"} or text.kind != "string":
                    raise PromqlError(f"a matcher expected at {label!r}")
                matchers.append(Matcher(label, operator, text.text[1:-1]))
                if not self.accept(","):
                    self.expect("}")
                    break
        named = [each.text for each in matchers if each.label == "__name__" and each.operator == "="]
        return Selector(name or next(iter(named), ""), tuple(each for each in matchers if each.label != "__name__"))
