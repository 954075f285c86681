"""What is read from a batch, of the kinds that loaders return, and what a user may say."""

from collections import UserDict
from typing import Any, NamedTuple

import pytest
import torch
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
    """A mapping that will not be looked at."""

    def values(self) -> Any:
        raise RuntimeError("not now")


class Undeclared:
    """An iterator of a loader that was told no batch size."""


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
def test_samples_are_the_length_of_the_first_tensor_and_tokens_the_elements_of_text(
    batch: Any, tokens: int | None
) -> None:
    assert read(batch) == BatchSize(8, tokens)


@pytest.mark.parametrize("batch", [None, "text", 7, [], {}, ["a"] * 8, torch.tensor(1.0), [[[[FEATURES]]]], Sulky()])
def test_batch_without_a_tensor_within_reach_is_unknown(batch: Any) -> None:
    assert read(batch) == UNKNOWN


def test_channels_of_a_list_of_images_are_not_taken_for_samples() -> None:
    assert read(((IMAGE,) * 8, ({},) * 8)) == UNKNOWN


def test_batch_packed_into_one_row_has_tokens_and_no_known_samples() -> None:
    assert read({"input_ids": torch.zeros(1, 700, dtype=torch.int32)}) == BatchSize(None, 700)


def test_shorter_batch_counts_when_its_loader_has_given_a_whole_one() -> None:
    reader, iterator, other = BatchReader(torch), iterator_of(8), iterator_of(8)
    assert reader.read(FEATURES, iterator) == BatchSize(8)
    assert reader.read(FEATURES[:4], iterator) == BatchSize(4)
    assert reader.read(FEATURES[:4], other) == UNKNOWN
    assert reader.read(FEATURES.repeat(2, 1), iterator) == UNKNOWN


def test_batch_size_is_known_too_where_the_sampler_makes_whole_batches() -> None:
    dataset = TensorDataset(torch.zeros(20, 3))
    sampler = BatchSampler(SequentialSampler(dataset), batch_size=8, drop_last=False)
    iterator = iter(DataLoader(dataset, sampler=sampler, batch_size=None))
    sizes = [BatchReader(torch).read(FEATURES, iterator), BatchReader(torch).read(IMAGE, iterator)]
    assert sizes == [BatchSize(8), UNKNOWN]


def test_loader_without_a_batch_size_is_believed_at_the_surface_only() -> None:
    reader = BatchReader(torch)
    assert reader.read([IDS, FEATURES], Undeclared()) == BatchSize(8, 40)
    assert reader.read([[FEATURES], "a name"], Undeclared()) == UNKNOWN


def test_batch_of_another_shape_kind_or_place_than_the_one_before_is_looked_at_anew() -> None:
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


def test_iterator_is_not_kept_alive() -> None:
    reader, iterator = BatchReader(torch), iterator_of(8)
    reader.read(FEATURES, iterator)
    del iterator
    assert reader.read(FEATURES[:4], iterator_of(8)) == UNKNOWN


def test_sum_with_an_unknown_part_is_unknown_and_no_batch_is_no_part() -> None:
    assert add_sizes(BatchSize(8, 40), BatchSize(4, 20)) == BatchSize(12, 60)
    assert add_sizes(BatchSize(8, None), BatchSize(4, 20)) == BatchSize(12, None)
    assert (add_sizes(None, None), add_sizes(None, BatchSize(4))) == (None, BatchSize(4))


def test_what_the_user_says_replaces_what_was_read_for_each_of_the_two_alone() -> None:
    told, read = DeclaredFields(), BatchSize(8, 40)
    assert told.choose(read, None) == BatchSize(8, 40)
    assert told.choose(read, BatchSize(tokens=7)) == BatchSize(8, 7)
    told = told.including(BatchSize(tokens=7))
    assert told.choose(read, None) == BatchSize(8, None)
    told = told.including(BatchSize(samples=2))
    assert told.choose(read, BatchSize(2)) == BatchSize(2, None)


def test_user_may_say_any_whole_number() -> None:
    assert to_size(torch.tensor(3), None) == BatchSize(3, None)
    assert to_size(0, COUNT_MAX) == BatchSize(0, COUNT_MAX)


def test_user_who_says_no_number_of_things_is_told() -> None:
    with pytest.raises(TypeError, match=r"samples is 2.5, which is no whole number; that batch counts as unknown\."):
        to_size(2.5, 1)
    with pytest.raises(ValueError, match=rf"tokens is -1; it is 0 to {COUNT_MAX}\. That batch counts as unknown\."):
        to_size(1, -1)
