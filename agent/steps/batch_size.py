"""Count the samples and tokens of a batch from what a data loader returns.

Samples are the length of the first dimension of the first tensor found: of the batch itself, of its members, or of
members of these. A wrong number is worse than none, so it must agree with the loader's batch size: the length counts if
it is that size, or if it is smaller and this loader has returned a full batch before, as at the end of an epoch. So
neither the channels of an image in a list nor a batch packed into one row are counted as samples. For a loader without
a batch size, only the batch itself and its members are searched.

Tokens are all elements, padding included, of an integer tensor of two dimensions: in a mapping the one under a name of
TOKEN_NAMES, else the first tensor.

No tensor's content is touched, so no device is waited for. Of Python's containers and what is derived from them nothing
of the script is called: a `defaultdict` that is asked for a key has it from then on. A mapping of another kind is asked
for its `items()`. What is read of tensors no TorchFunctionMode of the script meets.
"""

import operator
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple
from weakref import WeakSet, ref

from rankscope.agent.guard import is_of_script
from rankscope.agent.steps.torch_functions import find_unheard

DEPTH_MAX: Final = 3
MEMBERS_MAX: Final = 8
"""The depth, and the members at each level, to which a tensor is searched for."""

COUNT_MAX: Final = 2**40
"""The largest size that the user may declare: far above any batch, and sums of it still fit into 64 bits."""

CONTAINERS: Final = (list, tuple, dict, Mapping)
"""With the usual types first: a check for the abstract one takes twice as long."""

WHOLE_BATCH: Final[Any] = object()
"""The key of a tensor that is the batch itself."""

TOKEN_NAMES: Final = ("input_ids", "token_ids", "tokens")


class BatchSize(NamedTuple):
    """The size of a batch, or of all batches of a step; None: not known."""

    samples: int | None = None
    tokens: int | None = None

    def or_else(self, other: "BatchSize") -> "BatchSize":
        """Return this size, with the fields not known here taken from the other.

        >>> BatchSize(samples=8).or_else(BatchSize(4, 512))
        BatchSize(samples=8, tokens=512)
        """
        return BatchSize(*(mine if mine is not None else theirs for mine, theirs in zip(self, other, strict=True)))


UNKNOWN: Final = BatchSize()


def add_sizes(one: BatchSize | None, other: BatchSize | None) -> BatchSize | None:
    """Return the sum of two sizes; None: no batch. A field unknown in one is unknown in the sum.

    >>> add_sizes(BatchSize(8, 512), BatchSize(4))
    BatchSize(samples=12, tokens=None)
    """
    if one is None or other is None:
        return other if one is None else one
    return BatchSize(_add(one.samples, other.samples), _add(one.tokens, other.tokens))


def to_size(samples: object, tokens: object) -> BatchSize:
    """Return the size that the user declares. Raises TypeError or ValueError for anything but a count or None."""
    return BatchSize(_to_count("samples", samples), _to_count("tokens", tokens))


class DeclaredFields(NamedTuple):
    """The fields of a batch's size that the user had ever declared when a step began."""

    samples: bool = False
    tokens: bool = False

    def including(self, size: BatchSize) -> "DeclaredFields":
        """Return these fields together with those that this size declares."""
        return DeclaredFields(self.samples or size.samples is not None, self.tokens or size.tokens is not None)

    def choose(self, read: BatchSize | None, declared: BatchSize | None) -> BatchSize:
        """Return the size of the step: of each field the declared one, or the one read if it was never declared."""
        read, declared = read or UNKNOWN, declared or UNKNOWN
        return BatchSize(
            samples=declared.samples if self.samples or declared.samples is not None else read.samples,
            tokens=declared.tokens if self.tokens or declared.tokens is not None else read.tokens,
        )


NONE_DECLARED: Final = DeclaredFields()


class BatchReader:
    """Read the size of a batch. `torch` is the user's; only its tensor and integer types are used.

    Searching a batch takes 10 us during training. So the shape of the latest loader's last full batch is cached, and
    the key of the tensor that had it: a batch with the same shape there has the same size.
    """

    def __init__(self, torch: Any) -> None:
        self._tensor = torch.Tensor
        self._integers = frozenset({torch.int64, torch.int32, torch.int16})
        self._unheard = find_unheard(torch)
        self._gave_full_batch: WeakSet[Any] = WeakSet()
        self._latest: Callable[[], Any] = lambda: None
        self._batch_type: Any = None
        self._key: Any = WHOLE_BATCH
        self._get: Callable[[Any, Any], Any] = _get_whole
        self._known_shape: tuple[int, ...] = ()
        self._known_size = UNKNOWN

    def read(self, batch: Any, iterator: Any) -> BatchSize:
        """Return the size of the batch that the loader's iterator has just returned. Raises only what a signal handler
        of the script raises.
        """
        try:
            with self._unheard():
                if self._latest() is iterator and type(batch) is self._batch_type:
                    known = self._get(batch, self._key)
                    if issubclass(type(known), self._tensor) and known.shape == self._known_shape:
                        return self._known_size
        except Exception as error:
            if is_of_script(error):
                raise
        try:
            with self._unheard():
                return self._measure(batch, iterator)
        except Exception as error:
            if is_of_script(error):
                raise
            return UNKNOWN

    def _measure(self, batch: Any, iterator: Any) -> BatchSize:
        key, found, depth = self._find_tensor(batch)
        if found is None:
            return UNKNOWN
        samples, is_full = self._validate_samples(found.shape[0], depth, iterator)
        text_key, text = self._find_token_tensor(batch, key, found)
        tokens = self._count_tokens(text)
        size = BatchSize(samples, tokens)
        get = _get_whole if key is WHOLE_BATCH else _find_get(type(batch))
        if is_full and depth <= 1 and get is not None and (tokens is None or text.shape[0] == found.shape[0]):
            self._latest, self._batch_type, self._known_size = ref(iterator), type(batch), size
            self._key, self._known_shape = (key, found.shape) if tokens is None else (text_key, text.shape)
            self._get = get
        return size

    def _find_tensor(self, batch: Any) -> tuple[Any, Any, int]:
        """Return the first tensor that has a first dimension, its key in the container around it, and its depth."""
        key, found = WHOLE_BATCH, batch
        for depth in range(DEPTH_MAX):
            if issubclass(type(found), self._tensor):
                return key, found if found.dim() else None, depth
            key, found = self._find_member(found)
            if found is None:
                break
        return WHOLE_BATCH, None, 0

    def _find_member(self, container: Any) -> tuple[Any, Any]:
        """Return key and value of the first tensor of a container, else of its first member that is a container."""
        inner: tuple[Any, Any] = WHOLE_BATCH, None
        for key, member in islice(_members(container), MEMBERS_MAX):
            if issubclass(type(member), self._tensor):
                if member.dim():
                    return key, member
            elif inner[1] is None and issubclass(type(member), CONTAINERS):
                inner = key, member
        return inner

    def _validate_samples(self, samples: int, depth: int, iterator: Any) -> tuple[int | None, bool]:
        """Return the samples, None if the length may be something else, and whether the batch is a full one."""
        declared = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        if not isinstance(declared, int):
            return (samples, True) if depth <= 1 else (None, False)
        if samples == declared:
            self._gave_full_batch.add(iterator)
            return samples, True
        is_last = samples < declared and iterator in self._gave_full_batch
        return samples if is_last else None, False

    def _find_token_tensor(self, batch: Any, key: Any, first: Any) -> tuple[Any, Any]:
        """Return the key of the tensor that may hold tokens, and the tensor."""
        held = _to_dict(batch)
        if held is None:
            return key, first
        known = ((name, dict.get(held, name)) for name in TOKEN_NAMES)
        return next((one for one in known if one[1] is not None), (WHOLE_BATCH, None))

    def _count_tokens(self, text: Any) -> int | None:
        if issubclass(type(text), self._tensor) and text.dim() == 2 and text.dtype in self._integers:  # noqa: PLR2004
            return int(text.numel())
        return None


def _members(container: Any) -> Iterable[tuple[Any, Any]]:
    for kind in (list, tuple):
        if issubclass(type(container), kind):
            return enumerate(kind.__iter__(container))
    held = _to_dict(container)
    return () if held is None else dict.items(held)


def _to_dict(container: Any) -> dict[Any, Any] | None:
    """Return the dict that a mapping is or has, which may be of a class of the script; of a mapping of another kind a
    dict of its first members; None for anything else.
    """
    kind = type(container)
    if issubclass(kind, dict):
        found: dict[Any, Any] = container
        return found
    if issubclass(kind, UserDict):
        return _to_dict(vars(container).get("data"))
    return dict(islice(container.items(), MEMBERS_MAX)) if issubclass(kind, Mapping) else None


def _find_get(kind: type) -> Callable[[Any, Any], Any] | None:
    """Return how a member of a container of this kind is got by its key; None where that might change the container."""
    if issubclass(kind, UserDict):
        return lambda container, key: dict.get(vars(container)["data"], key)
    known: dict[type, Callable[[Any, Any], Any]] = {
        list: list.__getitem__, tuple: tuple.__getitem__, dict: dict.get,
    }  # fmt: skip
    return next((get for one, get in known.items() if issubclass(kind, one)), None)


def _get_whole(batch: Any, _key: Any) -> Any:
    return batch


def _add(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _to_count(name: str, declared: Any) -> int | None:
    if declared is None:
        return None
    try:
        count = operator.index(declared)
    except TypeError:
        raise TypeError(f"{name} is {declared!r}, which is no whole number; that batch counts as unknown.") from None
    if not 0 <= count <= COUNT_MAX:
        raise ValueError(f"{name} is {count}; it must be 0 to {COUNT_MAX}. That batch counts as unknown.")
    return count
