"""How many samples and tokens a batch holds, read from what a data loader returns.

Samples are the length of the first dimension of the first tensor found: of the batch itself, of its members, or of
members of these. A wrong number is worse than none, so it must agree with what the loader was told: where that has a
batch size, the length counts if it is that size, or if it is smaller and this loader has given a whole batch before, as
the last batch of an epoch is. That tells the batch from the channels of a list of images, and from a batch that was
packed into one row. Where the loader has none, only the batch itself and its members are looked at.

Tokens are all elements, padding included, of an integer tensor of two dimensions: in a mapping the one under a name of
TOKEN_NAMES, else the first tensor.

No tensor's content is touched, so no device is waited for.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple
from weakref import WeakSet, ref

DEPTH_MAX: Final = 3
MEMBERS_MAX: Final = 8
"""How deep, and at how many members of each level, a tensor is looked for."""

COUNT_MAX: Final = 2**40
"""Most that a batch may hold by what the user says: a million times more than any, and sums still fit into 64 bits."""

MAPPINGS: Final = (dict, Mapping)
CONTAINERS: Final = (list, tuple, *MAPPINGS)
"""With the usual types first: to ask for the abstract one takes twice as long."""

WHOLE_BATCH: Final[Any] = object()
"""The place of a tensor that is the batch itself."""

TOKEN_NAMES: Final = ("input_ids", "token_ids", "tokens")


class BatchSize(NamedTuple):
    """What a batch, or all batches of a step together, hold; None: not known."""

    samples: int | None = None
    tokens: int | None = None

    def or_else(self, other: "BatchSize") -> "BatchSize":
        """This, and what of the other is not known here.

        >>> BatchSize(samples=8).or_else(BatchSize(4, 512))
        BatchSize(samples=8, tokens=512)
        """
        return BatchSize(*(own if own is not None else theirs for own, theirs in zip(self, other, strict=True)))


UNKNOWN: Final = BatchSize()


def add_sizes(one: BatchSize | None, other: BatchSize | None) -> BatchSize | None:
    """Two batches together; None stands for no batch. With one part unknown the sum is.

    >>> add_sizes(BatchSize(8, 512), BatchSize(4))
    BatchSize(samples=12, tokens=None)
    """
    if one is None or other is None:
        return other if one is None else one
    return BatchSize(_add(one.samples, other.samples), _add(one.tokens, other.tokens))


def to_size(samples: object, tokens: object) -> BatchSize:
    """What a user says. Raises TypeError or ValueError when it is no number of things."""
    return BatchSize(_to_count("samples", samples), _to_count("tokens", tokens))


class DeclaredFields(NamedTuple):
    """Whether the user had said samples, and tokens, when a step began."""

    samples: bool = False
    tokens: bool = False

    def including(self, size: BatchSize) -> "DeclaredFields":
        """After the user has said this, too."""
        return DeclaredFields(self.samples or size.samples is not None, self.tokens or size.tokens is not None)

    def choose(self, read: BatchSize | None, said: BatchSize | None) -> BatchSize:
        """What the step held: what the user says, and what was read as long as the user had never said any."""
        read, said = read or UNKNOWN, said or UNKNOWN
        return BatchSize(
            samples=said.samples if self.samples or said.samples is not None else read.samples,
            tokens=said.tokens if self.tokens or said.tokens is not None else read.tokens,
        )


NONE_DECLARED: Final = DeclaredFields()


class BatchReader:
    """Reads the size of a batch. `torch` is the user's; no other part of it is touched than tensors and their types.

    Amid training a look at a batch takes 10 us, since our code has left the caches by then. So the shape is remembered
    that the latest loader's last whole batch had, and where: a batch of the same shape there has the same size.
    """

    def __init__(self, torch: Any) -> None:
        self._tensor = torch.Tensor
        self._integers = frozenset({torch.int64, torch.int32, torch.int16})
        self._has_been_whole: WeakSet[Any] = WeakSet()
        self._latest: Callable[[], Any] = lambda: None
        self._kind: Any = None
        self._place: Any = WHOLE_BATCH
        self._shape: tuple[int, ...] = ()
        self._size = UNKNOWN

    def read(self, batch: Any, iterator: Any) -> BatchSize:
        """The size of the batch that the loader's iterator has just returned. Never raises."""
        try:
            if self._latest() is iterator and type(batch) is self._kind:
                known = batch if self._place is WHOLE_BATCH else batch[self._place]
                if known.shape == self._shape:
                    return self._size
        except Exception:  # noqa: BLE001, S110 - this batch is made in another way, or will not be looked at
            pass
        try:
            return self._look(batch, iterator)
        except Exception:  # noqa: BLE001 - a batch is anybody's class: one that will not be looked at has no known size
            return UNKNOWN

    def _look(self, batch: Any, iterator: Any) -> BatchSize:
        place, found, depth = self._find_tensor(batch)
        if found is None:
            return UNKNOWN
        samples, is_whole = self._check(found.shape[0], depth, iterator)
        text_place, text = self._find_text(batch, place, found)
        tokens = self._count_tokens(text)
        size = BatchSize(samples, tokens)
        if is_whole and depth <= 1 and (tokens is None or text.shape[0] == found.shape[0]):
            self._latest, self._kind, self._size = ref(iterator), type(batch), size
            self._place, self._shape = (place, found.shape) if tokens is None else (text_place, text.shape)
        return size

    def _find_tensor(self, batch: Any) -> tuple[Any, Any, int]:
        """The first tensor that has a first dimension, its place in the container around it, and how deep that is."""
        place, found = WHOLE_BATCH, batch
        for depth in range(DEPTH_MAX):
            if isinstance(found, self._tensor):
                return place, found if found.dim() else None, depth
            place, found = self._find_member(found)
            if found is None:
                break
        return WHOLE_BATCH, None, 0

    def _find_member(self, container: Any) -> tuple[Any, Any]:
        """The place and first tensor of a container's members, else of the first member that is a container itself."""
        inner: tuple[Any, Any] = WHOLE_BATCH, None
        for place, member in islice(_members(container), MEMBERS_MAX):
            if isinstance(member, self._tensor):
                if member.dim():
                    return place, member
            elif inner[1] is None and isinstance(member, CONTAINERS):
                inner = place, member
        return inner

    def _check(self, samples: int, depth: int, iterator: Any) -> tuple[int | None, bool]:
        """The samples as far as they can be believed, and whether the batch is no shorter than others of its loader."""
        declared = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        if not isinstance(declared, int):
            return (samples, True) if depth <= 1 else (None, False)
        if samples == declared:
            self._has_been_whole.add(iterator)
            return samples, True
        is_rest = samples < declared and iterator in self._has_been_whole
        return samples if is_rest else None, False

    def _find_text(self, batch: Any, place: Any, first: Any) -> tuple[Any, Any]:
        """The tensor that may be text, and its place."""
        if not isinstance(batch, MAPPINGS):
            return place, first
        return next(((name, batch[name]) for name in TOKEN_NAMES if name in batch), (WHOLE_BATCH, None))

    def _count_tokens(self, text: Any) -> int | None:
        if isinstance(text, self._tensor) and text.dim() == 2 and text.dtype in self._integers:  # noqa: PLR2004
            return int(text.numel())
        return None


def _members(container: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(container, (list, tuple)):
        return enumerate(container)
    return container.items() if isinstance(container, MAPPINGS) else ()


def _add(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _to_count(name: str, said: Any) -> int | None:
    if said is None:
        return None
    try:
        count = operator.index(said)
    except TypeError:
        raise TypeError(f"{name} is {said!r}, which is no whole number; that batch counts as unknown.") from None
    if not 0 <= count <= COUNT_MAX:
        raise ValueError(f"{name} is {count}; it is 0 to {COUNT_MAX}. That batch counts as unknown.")
    return count
