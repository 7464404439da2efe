"""The table of formats on the checkpoint page, from files that each saver writes."""

import gc

import jax
import jax.numpy as jnp
import pytest

from dtypeguard import DtypeDriftError, restore, strong
from tests.support.formats import SAVERS, cell, leaves, loaded
from tests.support.helpers import assert_same
from tests.support.pages import DOCS

# Savers that refuse leave coroutines and files behind.
pytestmark = [pytest.mark.third_party, pytest.mark.filterwarnings("ignore")]


def shown():
    """The cells of the page, by the kind of leaf and the saver."""
    _, _, section = (DOCS / "checkpoints.md").read_text().partition("| | Orbax |")
    head, _, *rows = (f"| | Orbax |{section}").split("\n\n")[0].splitlines()
    savers = [name.strip() for name in head.split("|")[2:-1]]
    cells = {}
    for row in rows:
        kinds, *words = (word.strip() for word in row.split("|")[1:-1])
        for kind in kinds.split(", "):
            cells[kind] = dict(zip(savers, words))
    return cells


@pytest.mark.parametrize("name", SAVERS)
def test_what_comes_back_and_what_restore_makes_of_it(name):
    gc.freeze()
    module, saver = SAVERS[name]
    pytest.importorskip(module)
    cells = shown()
    for kind, leaf in leaves().items():
        came_back = loaded(saver, leaf)
        assert cell(leaf, came_back) == cells[kind][name], kind
        record = jax.eval_shape(strong, leaf)
        if cells[kind][name] == "bytes":
            with pytest.raises(DtypeDriftError, match=rf"x\.view\(jnp\.{kind}\)"):
                restore(came_back, record)
            came_back = came_back.view(getattr(jnp, kind))
        if came_back is not None:
            assert_same(restore(came_back, record), strong(leaf))
    if module == "orbax.checkpoint":
        gc.collect()  # coroutines that it does not await: here, not in a later test
