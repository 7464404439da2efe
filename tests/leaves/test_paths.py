"""The paths of leaves, taken apart."""

import collections

import pytest
from jax import tree_util

from dtypeguard._leaves.paths import indices, keys, parts

State = collections.namedtuple("State", "mu nu")
TREE = ({"w": [State(1, {"a/b-c": 2, "it's": 3, "4": 5, "x[0].y": 6})]},)
PATHS = [tree_util.keystr(path) for path, _ in tree_util.tree_flatten_with_path(TREE)[0]]


@pytest.mark.parametrize("path", PATHS)
def test_the_parts_are_the_path(path):
    assert "".join(parts(f"carry{path}")) == f"carry{path}"


def test_keys_have_no_signs():
    mu, *_ = PATHS
    assert keys(f"carry{mu}") == ["carry", "0", "w", "0", "mu"]
    last = [keys(path)[-1] for path in PATHS]
    assert sorted(last) == sorted(["mu", "a/b-c", "it's", "4", "x[0].y"])
    assert keys("x[<flat index 2>]") == ["x", "2"]


def test_what_stands_in_brackets_is_source():
    assert indices("carry[1][0].mu['w']") == ["1", "0", "'w'"]
