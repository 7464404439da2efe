"""One record of a type, one of a change, and the table that prints them."""

import jax.numpy as jnp
import numpy as np
import pytest

from dtypeguard._leaves.key_path import key_paths, leaves_of_holders, path_text
from dtypeguard._leaves.leaf_change import leaf_changes
from dtypeguard._leaves.leaf_type import LeafType, leaf_type, traced_type
from dtypeguard._leaves.table import Table


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        (jnp.ones((3, 2), jnp.bfloat16), "bfloat16[3,2]"),
        (1, "int32[],weak"),
        (True, "bool[]"),
        (np.float64(1), "float64[]"),
    ],
)
def test_a_type_is_told_with_its_shape(leaf, text):
    assert str(leaf_type(leaf)) == text
    assert hash(leaf_type(leaf)) == hash(leaf_type(leaf))
    assert leaf_type(max) is None


def test_jit_gives_a_leaf_of_numpy_a_type_that_jax_has():
    assert traced_type(np.ones(3)) == LeafType(jnp.dtype("float32"), shape=(3,))


def test_leaves_of_one_kind_share_a_row_and_all_are_in_the_rows():
    tree = {f"w{i}": jnp.ones(i) for i in range(5)}
    paths = key_paths(tree, "state")
    narrow = [leaf.astype(jnp.float16) for leaf in tree.values()]
    changes = leaf_changes(paths, tree.values(), narrow, ["widen it"] * 5)
    table = Table("They changed:", changes)
    row = "5 leaves state['*']  float32 -> float16  widen it"
    assert str(table) == f"They changed:\n  {row}"
    assert [row.path for row in table.rows()] == [path_text(path) for path in paths]
    assert leaves_of_holders(paths) == "5 leaves of state"
