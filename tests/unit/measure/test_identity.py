"""The name of a process group that all its members agree on."""

from rankscope.measure.identity import LABEL_LENGTH_MAX, group_label


def test_the_group_of_all_ranks_has_its_own_name() -> None:
    assert group_label("default_pg", [3, 1, 0, 2], 4) == "default_pg"


def test_a_group_of_some_ranks_names_them_in_order_whoever_asks() -> None:
    assert group_label("mesh_tp", [6, 2, 3, 4], 8) == group_label("mesh_tp", [2, 3, 4, 6], 8) == "mesh_tp/2-4,6"


def test_scattered_group_is_named_by_bounds_size_and_digest() -> None:
    # 100 even ranks, written out, would need some 380 characters.
    label = group_label("mesh_dp", range(0, 200, 2), 256)
    assert label.startswith("mesh_dp/0-198#100#")
    assert len(label) <= LABEL_LENGTH_MAX


def test_groups_of_equal_bounds_and_size_differ_in_digest() -> None:
    odd = [0, *range(1, 197, 2), 198]
    assert group_label("mesh_dp", odd, 256) != group_label("mesh_dp", [0, *range(2, 198, 2), 198], 256)


def test_a_long_description_is_cut() -> None:
    assert group_label("x" * 500, [0, 1], 2) == "x" * LABEL_LENGTH_MAX
