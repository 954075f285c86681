"""List objects that Python's garbage collector knows, in any thread, while training goes on in another one.

`gc.get_objects()` has everything in its list, also what is not finished. A `tuple()` of a generator grows the tuple
that it fills, which fails with a SystemError where anybody else refers to it: so a list of all objects that is there
while another thread runs can end the training. It would also keep tensors that a step frees.

Here the list is made, gone through and let go within one call of C. The interpreter's lock is not given up meanwhile:
no step of Python comes in between. None of the script's either: types are told apart by their addresses, and nothing is
called that audit hooks hear of, as they do of `id`. That takes 34 ms for 183,000 objects. What `gc.freeze` hides is not
found.

Up to Python 3.11 an allocation within the call may begin a collection. That runs finalizers and callbacks, in which the
lock may be given up: so the collector is off within the call, if it was on before.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, compress, repeat, starmap, tee
from operator import is_not
from typing import Any, Final

ONCE: Final = ((),)
"""The arguments of one call without any."""


def list_types() -> list[type]:
    """Return the type of each object."""
    return _list_without_collections(map(type, chain.from_iterable(map(gc.get_objects, (None,)))))


def find_instances(kinds: Iterable[type]) -> list[Any]:
    """Return the objects of exactly these types, which must not be `tuple`."""
    addresses = frozenset(map(object.__hash__, kinds))  # the hash of `object` is made of the address alone
    return _choose(map(gc.get_objects, (None,)), lambda types: map(addresses.__contains__, map(object.__hash__, types)))


def find_referrers(target: Any) -> list[Any]:
    """Return the objects that refer to one, except tuples: one that is not finished may be among them."""
    return _choose(map(gc.get_referrers, (target,)), lambda types: map(is_not, types, repeat(tuple)))


def _choose(lists: Iterator[list[Any]], are_wanted: Callable[[Iterator[type]], Iterator[bool]]) -> list[Any]:
    """Return the objects in the lists whose types are wanted, and let go of all others within the same call."""
    first, again, last = tee(lists, 3)
    wanted = compress(chain.from_iterable(first), are_wanted(map(type, chain.from_iterable(again))))
    # The list of all has what refers to it, and would stay: it is emptied.
    return _list_without_collections(chain(wanted, filter(None, map(list.clear, last))))


class _Found(list[Any]):
    """A list that is not among the lists that are found: it would have itself, and stay."""


def _list_without_collections(values: Iterator[Any]) -> list[Any]:
    """Return the values in a list, all made within this call while the collector is off."""
    was_on, is_on = tee(starmap(gc.isenabled, ONCE))
    begin: Iterator[None] = filter(None, starmap(gc.disable, compress(ONCE, was_on)))
    end: Iterator[None] = filter(None, starmap(gc.enable, compress(ONCE, is_on)))
    try:
        return _Found(chain(begin, values, end))
    finally:
        list(end)  # after an error
