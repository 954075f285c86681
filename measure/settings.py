"""Define configurations that explain themselves: the mechanism both programs share.

A program's configuration is a subclass of `Settings`: a frozen keyword-only dataclass whose fields `setting` makes. A
value comes from the last of these that has one, and the object remembers which it was (`sources`):

    default  <-  TOML file  <-  environment  <-  overrides of the caller

What no user can judge is no setting but a constant (`constant`), with the reason for its value. It stands in no file
and no help; tests change it by the variable PREFIX + CONSTANT_ + its name, for which nothing is promised.

Nothing here opens a file or reads the environment: the caller passes the text and the mapping. A value that cannot be
used raises SettingError, which names the key, the value, where it came from, the limit and the cure.
"""

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from rankscope.measure.errors import SettingError

Value = bool | int | float | str
"""Type of a setting's value. A setting has the type of its default."""

T = TypeVar("T", bool, int, float, str)
S = TypeVar("S", bound="Settings")

FROM_DEFAULT = "the default"
FROM_CODE = "from the code"
TEXT_LENGTH_MAX = 1024
"""Longest text of a setting, unless the setting has its own limit: longer ones are misplaced file contents."""

SHOWN_LENGTH_MAX = 80
"""Longest piece of a user's value that an error repeats."""

PORT_MAX = 65535
IPC = "ipc://"
IPC_PATH_BYTES_MAX = 107
"""Longest path in the address of a Unix socket on Linux, without the terminating zero."""
EXACT_FLOAT_MAX = 2**53
"""Largest number up to which a float represents every whole number exactly."""

_HOST = r"[\w.-]+|\[[0-9A-Fa-f:.]+(%\w+)?\]"
"""As texts: to compile them is time of each training process's start, and many have no address to check."""
_PORT = r"[1-9][0-9]{0,4}"

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}

# Kubernetes puts these into every container beside a service named rankscope-..., whatever the container runs.
_SERVICE_LINK = r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
_SERVICE_LINK_URL = r"(tcp|udp|sctp)://.+:\d+"


class Setting(NamedTuple):
    """Description of one key: all but its default. A limit of None is no limit.

    `below` and `above` explain what would happen beyond `smallest` and `largest`. `find_problem` checks a value within
    the limits and returns what it must be instead, or None if it is good.
    """

    meaning: str
    unit: str = ""
    smallest: float | None = None
    largest: float | None = None
    choices: tuple[str, ...] = ()
    below: str = ""
    above: str = ""
    length_max: int = TEXT_LENGTH_MAX
    find_problem: Callable[[str], str | None] | None = None


class Ordered(NamedTuple):
    """Rule between two keys of one configuration: `lower` <= `higher`, or < if `strictly`. `reason` is for the error
    text.
    """

    lower: str
    higher: str
    reason: str
    strictly: bool = False


def setting(default: T, known: Setting) -> T:
    """Return a field of a `Settings` subclass. The type of the default is the type of the setting.

    It claims to return the default's type, as `dataclasses.field` does, so that the annotation beside it is checked.
    """
    field: T = dataclasses.field(default=default, metadata={"setting": known})
    return field


def constant(default: T, known: Setting) -> T:
    """Return a field of a `Settings` subclass that is no setting, and is checked as one."""
    field: T = dataclasses.field(default=default, metadata={"constant": known})
    return field


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Base of every configuration. Checked on construction; raises SettingError.

    `sources` maps each key to where its value came from; a key that is not in it was given by the code.
    """

    TITLE: ClassVar[str] = ""
    PREFIX: ClassVar[str] = ""
    """Prefix of its environment variables; the remainder is the key in capitals."""
    FILE_VARIABLE: ClassVar[str] = ""
    """The environment variable that names its TOML file."""
    FOREIGN_VARIABLES: ClassVar[tuple[str, ...]] = ()
    """Names that begin with PREFIX and are no settings; one that ends in `*` matches all that begin so."""
    RULES: ClassVar[tuple[Ordered, ...]] = ()

    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every value by itself, then the rules between them."""
        for key, default, known in (*find_settings(type(self)), *find_constants(type(self))):
            raw = getattr(self, key)
            value, problem = _check(raw, default, known)
            if problem is not None:
                raise SettingError(f"{key} is {_show(raw if value is None else value)} ({self.source(key)}); {problem}")
            object.__setattr__(self, key, value)
        for rule in self.RULES:
            self._check_rule(rule)

    def source(self, key: str) -> str:
        """Return where the value of the key came from, in the words of error texts."""
        return self.sources.get(key, FROM_CODE)

    def _check_rule(self, rule: Ordered) -> None:
        lower, higher = getattr(self, rule.lower), getattr(self, rule.higher)
        if lower < higher or (lower == higher and not rule.strictly):
            return
        wanted = "must be smaller than" if rule.strictly else "must not be larger than"
        raise SettingError(
            f"{rule.lower} is {lower} ({self.source(rule.lower)}) and {wanted} {rule.higher}, which is {higher} "
            f"({self.source(rule.higher)}): {rule.reason} Lower the first or raise the second."
        )


class Mistake(NamedTuple):
    """Problem with one given setting. `key` is the setting or, for an unknown name (`is_unknown`), the nearest known
    one; empty if there is none. `text` is that of a SettingError.
    """

    key: str
    text: str
    is_unknown: bool = False


def read(
    config_class: type[S],
    *,
    file_text: str | None = None,
    file_name: str = "",
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Value] | None = None,
    overrides_from: str = "from the command line",
) -> S:
    """Return a configuration built from its layers, each named in `sources` and in errors.

    `file_text` is TOML with one `key = value` a line, `environment` any mapping of variables (only those that begin
    with the class's PREFIX are read), `overrides` maps keys to values, which may be texts as in the environment. Raises
    SettingError for a value that cannot be used and for a name that is no setting.
    """
    config, mistakes = read_leniently(
        config_class,
        file_text=file_text,
        file_name=file_name,
        environment=environment,
        overrides=overrides,
        overrides_from=overrides_from,
    )
    if mistakes:
        raise SettingError(mistakes[0].text)
    return config


def read_leniently(
    config_class: type[S],
    *,
    file_text: str | None = None,
    file_name: str = "",
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Value] | None = None,
    overrides_from: str = "from the command line",
) -> tuple[S, tuple[Mistake, ...]]:
    """Return the configuration as `read` does, built from the usable values, and every mistake in the others.

    A value that cannot be used is replaced by that of the layer below, at last the default. Raises SettingError only if
    two values contradict each other.
    """
    mistakes: list[Mistake] = []
    layers: list[_Given] = []
    if file_text is not None:
        try:
            parsed = _parse_file(file_text, file_name)
        except SettingError as error:
            mistakes.append(Mistake("", str(error)))
        else:
            layers += [_Given(key, f"from {file_name}", value) for key, value in parsed.items()]
    layers += _find_variables(config_class, environment or {}, mistakes)
    for key, value in (overrides or {}).items():
        layers.append(_Given(key, overrides_from, _Text(value) if isinstance(value, str) else value))
    return _combine(config_class, layers, mistakes), tuple(mistakes)


def find_settings(config_class: type[Settings]) -> Iterator[tuple[str, Value, Setting]]:
    """Yield each setting of a configuration in the order of its definition: key, default and description."""
    return _find_fields(config_class, "setting")


def find_constants(config_class: type[Settings]) -> Iterator[tuple[str, Value, Setting]]:
    """Yield each constant of a configuration as `find_settings` does."""
    return _find_fields(config_class, "constant")


def _find_fields(config_class: type[Settings], kind: str) -> Iterator[tuple[str, Value, Setting]]:
    for field in dataclasses.fields(config_class):
        known: Setting | None = field.metadata.get(kind)
        if known is not None:
            default: Any = field.default  # `setting` or `constant` gave it one
            yield field.name, default, known


def find_address_problem(address: str, *, scheme: str = "", listening: bool = False) -> str | None:
    """Return the form that an address must have, or None if it has it: scheme, host, colon, port 1..65535.

    An address for `listening` may have the host `*` (all) and the port 0 or `*` (any free one). An IPv6 host is in
    brackets.

    >>> find_address_problem("tcp://10.0.0.1:18490", scheme="tcp://")
    >>> find_address_problem("10.0.0.1:18490", scheme="tcp://")
    'it must be tcp://HOST:PORT, for example tcp://10.0.0.1:18490'
    """
    host, _, port = address.removeprefix(scheme).rpartition(":")
    plain = re.fullmatch(_HOST, host) is not None or (listening and host == "*")
    if not address.startswith(scheme) or not plain:
        return f"it must be {scheme}HOST:PORT, for example {scheme}10.0.0.1:18490"
    if listening and port in {"0", "*"}:
        return None
    if re.fullmatch(_PORT, port) is None or int(port) > PORT_MAX:
        return f"its port must be a number from 1 to {PORT_MAX}" + (", or 0 for any free one" if listening else "")
    return None


def find_endpoint_problem(endpoint: str, *, listening: bool = False) -> str | None:
    """Return the form that an endpoint must have, or None if it has it: tcp://HOST:PORT, or ipc:///PATH on one machine.

    >>> find_endpoint_problem("ipc:///run/rankscope/relay")
    >>> find_endpoint_problem("ipc://relay")
    'its path must be absolute and have at most 107 bytes, for example ipc:///run/rankscope/relay'
    """
    if not endpoint.startswith(IPC):
        return find_address_problem(endpoint, scheme="tcp://", listening=listening)
    path = endpoint.removeprefix(IPC)
    if not path.startswith("/") or len(path.encode()) > IPC_PATH_BYTES_MAX:
        return (
            f"its path must be absolute and have at most {IPC_PATH_BYTES_MAX} bytes, for example "
            f"{IPC}/run/rankscope/relay"
        )
    return None


class _Text(str):
    """A value from a place that knows only texts, so that "1" may mean the number."""

    __slots__ = ()


class _Given(NamedTuple):
    """Value as given by one of the layers."""

    key: str
    source: str
    raw: object
    is_constant: bool = False


def _combine(config_class: type[S], layers: list[_Given], mistakes: list[Mistake]) -> S:
    known = {key: (default, setting) for key, default, setting in find_settings(config_class)}
    names = {key: key for key in known}
    constants = {key: (default, setting) for key, default, setting in find_constants(config_class)}
    values: dict[str, Any] = {}
    sources = dict.fromkeys(known, FROM_DEFAULT)
    wrong: dict[str, list[Mistake]] = {key: [] for key in (*known, *constants)}
    for given in layers:
        if given.key not in known and not given.is_constant:
            text = f"{_shorten(given.key)} is no setting ({given.source}). {_suggest(given.key, names)}"
            mistakes.append(Mistake(_find_nearest(given.key, names), text, is_unknown=True))
    for given in reversed(layers):
        described = (constants if given.is_constant else known).get(given.key)
        if described is not None and given.key not in values:
            value, problem = _check(given.raw, *described)
            if problem is None:
                values[given.key] = value
                sources[given.key] = given.source
            else:
                shown = _show(given.raw if value is None else value)
                wrong[given.key].append(Mistake(given.key, f"{given.key} is {shown} ({given.source}); {problem}"))
    mistakes += [mistake for of_key in wrong.values() for mistake in of_key]
    return config_class(sources=sources, **values)


def _parse_file(text: str, name: str) -> Mapping[str, object]:
    # Imported here so that only a program with a file pays for the parser's import (18 ms).
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415
    else:
        import tomli as tomllib  # noqa: PLC0415
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        cure = "One `key = value` stands on a line, texts in double quotes."
        raise SettingError(f"{name} is not a TOML file: {error}. {cure}") from error


def _find_variables(
    config_class: type[Settings], environment: Mapping[str, str], mistakes: list[Mistake]
) -> Iterator[_Given]:
    """Yield each variable that is a setting. One with our prefix that is none is added to `mistakes`."""
    prefix = config_class.PREFIX
    names = {key: f"{prefix}{key.upper()}" for key, _, _ in find_settings(config_class)}
    constants = {f"{prefix}CONSTANT_{key.upper()}": key for key, _, _ in find_constants(config_class)}
    for name in sorted(environment):
        if not name.startswith(prefix) or _is_foreign(name, environment[name], config_class.FOREIGN_VARIABLES):
            continue
        key = name[len(prefix) :].lower()
        if names.get(key) == name:
            yield _Given(key, f"from {name}", _Text(environment[name]))
        elif name in constants:
            yield _Given(constants[name], f"from {name}", _Text(environment[name]), is_constant=True)
        else:
            text = f"{_shorten(name)} is set in the environment and is no setting. {_suggest(key, names)}"
            mistakes.append(Mistake(_find_nearest(key, names), text, is_unknown=True))


def _is_foreign(name: str, text: str, allowed: tuple[str, ...]) -> bool:
    if any(name.startswith(known[:-1]) if known.endswith("*") else name == known for known in allowed):
        return True
    if re.fullmatch(_SERVICE_LINK, name) is not None:
        return True
    return name.endswith("_PORT") and re.fullmatch(_SERVICE_LINK_URL, text) is not None


def _suggest(wrong_key: str, names: Mapping[str, str]) -> str:
    """Return the cure for a wrong key. `names` maps the right ones to how they are written in the same source."""
    near = _find_nearest(wrong_key, names)
    if near:
        return f"The nearest is {names[near]}: correct the name or remove it."
    return "Remove it: no setting has a name like it."


def _find_nearest(wrong_key: str, names: Mapping[str, str]) -> str:
    import difflib  # noqa: PLC0415 - only a mistake needs it

    return next(iter(difflib.get_close_matches(wrong_key, names, n=1)), "")


def _check(raw: object, default: Value, known: Setting) -> tuple[Value | None, str | None]:
    """Return the value in the type of the setting, None where it cannot be one, and what is wrong with it."""
    value = _convert(raw, type(default))
    if value is None:
        return None, f"it must be {_describe_kind(default, known)}."
    return value, _find_problem(value, known)


def _convert(raw: object, kind: type[Value]) -> Value | None:
    """Return the value in the type of the setting, or None. An int may stand for a float; nothing else is converted."""
    value = _parse_text(raw, kind) if isinstance(raw, _Text) else raw
    if kind is float and type(value) is int and abs(value) <= EXACT_FLOAT_MAX:
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parse_text(text: str, kind: type[Value]) -> Value | None:
    text = text.strip()
    if kind is bool:
        return _SWITCH.get(text.lower())
    try:
        return kind(text)
    except ValueError:
        return None


def _find_problem(value: Value, known: Setting) -> str | None:
    return _find_text_problem(value, known) if isinstance(value, str) else _find_limit_problem(value, known)


def _find_limit_problem(value: float, known: Setting) -> str | None:
    cure = f"Give a value {describe_limits(known)}."
    if known.smallest is not None and value < known.smallest:
        return f"the smallest allowed is {_number(known.smallest)}. {known.below or cure}"
    if known.largest is not None and value > known.largest:
        return f"the largest allowed is {_number(known.largest)}. {known.above or cure}"
    return None


def _find_text_problem(text: str, known: Setting) -> str | None:
    if len(text) > known.length_max:
        return f"it has {len(text)} characters, the most allowed is {known.length_max}. Shorten it."
    if not text.isprintable():
        return "it has characters that cannot be printed. Remove them."
    if known.choices and text not in known.choices:
        return f"it must be one of {', '.join(map(_show, known.choices))}. Choose one of them."
    problem = None if known.find_problem is None else known.find_problem(text)
    return None if problem is None else f"{problem}."


def _describe_kind(default: Value, known: Setting) -> str:
    return f"{_KINDS[type(default)]} {describe_limits(known)}".strip()


def describe_limits(known: Setting) -> str:
    """Return the limits of a number, `from 1 to 9`; empty where there are none."""
    smallest, largest = known.smallest, known.largest
    if smallest is not None and largest is not None:
        return f"from {_number(smallest)} to {_number(largest)}"
    if smallest is not None:
        return f"of at least {_number(smallest)}"
    return "" if largest is None else f"of at most {_number(largest)}"


def _show(value: object) -> str:
    """Return a user's value as an error repeats it: as the file would have it, and nothing long."""
    if isinstance(value, bool):
        return to_toml(value)
    if isinstance(value, str):  # the address of a server may hold a password
        value = re.sub("(://).*(@)|(password=).*", r"\1\3***\2", value)
    return _shorten(repr(value))


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN_LENGTH_MAX else text[: SHOWN_LENGTH_MAX - 3] + "..."


def to_toml(value: Value) -> str:
    """Return a value as a TOML file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    return f"{value:_}" if isinstance(value, int) else repr(value)
