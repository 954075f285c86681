"""BatchReader: sizes of the batches that loaders return, and sizes that a user declares."""

from collections import UserDict, defaultdict
from typing import Any, NamedTuple

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from rankscope.agent.steps.batch_size import (
    COUNT_MAX,
    UNKNOWN,
    BatchReader,
    BatchSize,
    DeclaredFields,
    add_sizes,
    to_size,
)

FEATURES = torch.zeros(8, 3)
IDS = torch.zeros(8, 5, dtype=torch.long)
IMAGE = torch.zeros(3, 4, 4)


class Pair(NamedTuple):
    features: torch.Tensor
    ids: torch.Tensor


class Sulky(dict[str, Any]):
    """A mapping that cannot be inspected."""

    def values(self) -> Any:
        raise RuntimeError("not now")


class Undeclared:
    """An iterator of a loader without a batch size."""


def iterator_of(batch_size: int | None, samples: int = 20) -> Any:
    return iter(DataLoader(TensorDataset(torch.zeros(samples, 3)), batch_size=batch_size))


def read(batch: Any, batch_size: int | None = 8) -> BatchSize:
    return BatchReader(torch).read(batch, iterator_of(batch_size))


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        (FEATURES, None),
        ([FEATURES, IDS], None),
        ((IDS, FEATURES), 8 * 5),
        (Pair(FEATURES, IDS), None),
        ({"input_ids": IDS, "labels": IDS}, 8 * 5),
        (UserDict(attention_mask=FEATURES, input_ids=IDS), 8 * 5),
        ({"categories": IDS}, None),
        ([["a"] * 8, FEATURES], None),
        ([[FEATURES, FEATURES], ["a"] * 8], None),
        ([torch.tensor(0.5), FEATURES], None),
    ],
)
def test_samples_are_the_first_dimension_and_tokens_the_elements(batch: Any, tokens: int | None) -> None:
    assert read(batch) == BatchSize(8, tokens)


@pytest.mark.parametrize("batch", [None, "text", 7, [], {}, ["a"] * 8, torch.tensor(1.0), [[[[FEATURES]]]], Sulky()])
def test_batch_without_a_tensor_within_reach_is_unknown(batch: Any) -> None:
    assert read(batch) == UNKNOWN


def test_channels_of_a_list_of_images_are_no_samples() -> None:
    assert read(((IMAGE,) * 8, ({},) * 8)) == UNKNOWN


def test_packed_batch_has_tokens_and_unknown_samples() -> None:
    assert read({"input_ids": torch.zeros(1, 700, dtype=torch.int32)}) == BatchSize(None, 700)


def test_shorter_batch_counts_after_a_full_one_of_its_loader() -> None:
    reader, iterator, other = BatchReader(torch), iterator_of(8), iterator_of(8)
    assert reader.read(FEATURES, iterator) == BatchSize(8)
    assert reader.read(FEATURES[:4], iterator) == BatchSize(4)
    assert reader.read(FEATURES[:4], other) == UNKNOWN
    assert reader.read(FEATURES.repeat(2, 1), iterator) == UNKNOWN


def test_batch_size_is_read_from_a_batch_sampler() -> None:
    dataset = TensorDataset(torch.zeros(20, 3))
    sampler = BatchSampler(SequentialSampler(dataset), batch_size=8, drop_last=False)
    iterator = iter(DataLoader(dataset, sampler=sampler, batch_size=None))
    sizes = [BatchReader(torch).read(FEATURES, iterator), BatchReader(torch).read(IMAGE, iterator)]
    assert sizes == [BatchSize(8), UNKNOWN]


def test_without_a_batch_size_only_the_top_members_are_searched() -> None:
    reader = BatchReader(torch)
    assert reader.read([IDS, FEATURES], Undeclared()) == BatchSize(8, 40)
    assert reader.read([[FEATURES], "a name"], Undeclared()) == UNKNOWN


def test_batch_with_another_shape_type_or_key_is_searched_again() -> None:
    reader, iterator = BatchReader(torch), iterator_of(8)
    batches: list[tuple[Any, BatchSize]] = [
        ({"mask": FEATURES, "input_ids": IDS}, BatchSize(8, 40)),
        ({"mask": FEATURES, "input_ids": IDS[:, :3]}, BatchSize(8, 24)),
        ({"mask": FEATURES}, BatchSize(8)),
        ([FEATURES, IDS], BatchSize(8)),
        (IDS, BatchSize(8, 40)),
        (torch.zeros(8, 8, 3), BatchSize(8)),
        ([FEATURES[:5], IDS[:5]], BatchSize(5)),
        ([FEATURES, IDS], BatchSize(8)),
    ]
    for _ in range(2):
        assert [reader.read(batch, iterator) for batch, _ in batches] == [size for _, size in batches]


class Own(dict[str, Any]):
    """A mapping whose methods are the script's."""

    def fail(self, *_arguments: object) -> Any:
        raise AssertionError("called")

    items = values = keys = get = __getitem__ = __contains__ = __iter__ = __len__ = __missing__ = fail


def test_no_method_of_a_dict_of_the_script_is_called() -> None:
    reader, iterator = BatchReader(torch), iterator_of(8)
    own = Own(mask=FEATURES, input_ids=IDS)
    assert [reader.read(own, iterator) for _ in range(2)] == [BatchSize(8, 40)] * 2


def test_batch_has_no_more_keys_than_before() -> None:
    reader, iterator = BatchReader(torch), iterator_of(8)
    for given in ({"input_ids": IDS}, {"mask": FEATURES}, {}):
        batch = defaultdict[str, Any](list, given)
        reader.read(batch, iterator)
        assert batch == given


class Listening(TorchFunctionMode):
    """What a script may count of what it does with tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard.append(function)
        return function(*args, **(kwargs or {}))


def test_no_mode_of_the_script_hears_of_it() -> None:
    reader, iterator = BatchReader(torch), iterator_of(8)
    with Listening() as mode:
        assert [reader.read(IDS, iterator) for _ in range(2)] == [BatchSize(8, 40)] * 2
    assert mode.heard == []


def test_iterator_is_not_kept_alive() -> None:
    reader, iterator = BatchReader(torch), iterator_of(8)
    reader.read(FEATURES, iterator)
    del iterator
    assert reader.read(FEATURES[:4], iterator_of(8)) == UNKNOWN


def test_sum_with_an_unknown_size_is_unknown() -> None:
    assert add_sizes(BatchSize(8, 40), BatchSize(4, 20)) == BatchSize(12, 60)
    assert add_sizes(BatchSize(8, None), BatchSize(4, 20)) == BatchSize(12, None)
    assert (add_sizes(None, None), add_sizes(None, BatchSize(4))) == (None, BatchSize(4))


def test_declared_sizes_replace_read_ones_field_by_field() -> None:
    declared, read = DeclaredFields(), BatchSize(8, 40)
    assert declared.choose(read, None) == BatchSize(8, 40)
    assert declared.choose(read, BatchSize(tokens=7)) == BatchSize(8, 7)
    declared = declared.including(BatchSize(tokens=7))
    assert declared.choose(read, None) == BatchSize(8, None)
    declared = declared.including(BatchSize(samples=2))
    assert declared.choose(read, BatchSize(2)) == BatchSize(2, None)


def test_user_may_declare_any_whole_number() -> None:
    assert to_size(torch.tensor(3), None) == BatchSize(3, None)
    assert to_size(0, COUNT_MAX) == BatchSize(0, COUNT_MAX)


def test_declaring_anything_but_a_count_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"samples is 2.5, which is no whole number; that batch counts as unknown\."):
        to_size(2.5, 1)
    with pytest.raises(
        ValueError, match=rf"tokens is -1; it must be 0 to {COUNT_MAX}\. That batch counts as unknown\."
    ):
        to_size(1, -1)
