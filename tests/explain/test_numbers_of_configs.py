"""A Python number of a config, a module or a default has the line that gave it."""

import importlib
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from advice import line, note_on
from flax import linen as nn
from jax import lax

from dtypeguard._lines.numbers import whole_on_line
from dtypeguard._source.origin import origin_at

pytestmark = pytest.mark.third_party

CONFIG = """
import dataclasses

HIDDEN = 64 / 4  # global

@dataclasses.dataclass
class Config:
    seed: int = 0
    width: int = 128 / 4  # field
    depth: int = 3

WIDE = Config(1, 96 / 4)  # by position

SIZES = (96 / 3, 16)  # in a tuple
NAMED = {"width": 96 / 4, "depth": 2}  # in a dict

EVEN = 6.0
if HIDDEN > 99:
    EVEN = 6.0

class Trainer:
    def __init__(self, config):
        self.heads = config.depth * 2.0  # of self

def table(rows=8.0):  # default
    return jnp.zeros((rows, 3))
"""
X = jnp.ones((64, 3))


@pytest.fixture
def config(tmp_path, monkeypatch):
    (tmp_path / "numbers_config.py").write_text("import jax.numpy as jnp\n" + CONFIG)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("numbers_config")
    del sys.modules["numbers_config"]


def marked(mark):
    lines = CONFIG.splitlines()
    (number,) = [n for n, x in enumerate(lines, 2) if x.endswith(f"# {mark}")]
    return f"numbers_config.py:{number}"


def field(config):
    cfg = config.Config()
    return jnp.zeros((cfg.width, 3))


def variable(config):
    trainer = config.Trainer(config.Config())
    return jnp.reshape(jnp.ones(18), (trainer.heads, 3))


def traced(config):
    cfg = config.Config()
    return jax.jit(lambda x: lax.dynamic_slice(x, (cfg.width, 0), (4, 3)))(X)


@pytest.mark.parametrize(
    ("program", "mark"),
    [
        (lambda config: jnp.arange(99)[config.HIDDEN], "global"),
        (field, "field"),
        (variable, "of self"),
        (lambda config: config.table(), "default"),
        (lambda config: jnp.zeros((config.WIDE.width, 3)), "by position"),
        (traced, "field"),
    ],
    ids=[
        "a global",
        "a field",
        "a field of self",
        "a default",
        "a position",
        "converted by JAX",
    ],
)
def test_the_line_of_a_number(config, program, mark):
    note = note_on(lambda: program(config))
    assert f"  float  {marked(mark)}" in note


def test_a_number_that_jax_has_converted_is_told_as_one(config):
    note = note_on(lambda: traced(config))
    assert " write int(cfg.width) in place of cfg.width (the fraction is lost)." in note


def test_a_number_that_several_lines_may_have_given_has_none(config):
    note = note_on(lambda: jnp.arange(9)[config.EVEN])
    assert "numbers_config.py" not in note


def test_a_number_in_a_tuple_is_no_array():
    shape = 4.0, 3
    note = note_on(lambda: jnp.zeros(shape))
    assert " write tuple(map(int, shape)) in place of shape (the fraction is lost)." in note
    assert jnp.zeros(tuple(map(int, shape))).shape == (4, 3)


def test_a_number_is_mended_where_it_is_written(config):
    note = note_on(lambda: field(config))
    here = marked("field")
    mended = f"\nAt {here} write 128 // 4 in place of 128 / 4.\n"
    assert mended in note
    note = note_on(lambda: variable(config))
    whole = "int(config.depth * 2.0) in place of config.depth * 2.0"
    assert f"\nAt {marked('of self')} write {whole}.\n" in note


def test_a_number_that_a_call_is_given_twice_is_mended_where_it_is_written(config):
    cfg = config.Config()
    note = note_on(lambda: jnp.ones((cfg.width, cfg.width)))
    mended = f"\nAt {marked('field')} write 128 // 4 in place of 128 / 4.\nOr at "
    assert mended in note
    note = note_on(lambda: jnp.ones((cfg.width, config.HIDDEN)))
    assert mended.removesuffix("Or at ") in note
    assert f"\nAt {marked('global')} write 64 // 4 in place of 64 / 4.\n" in note


@pytest.mark.parametrize(
    ("mark", "number", "ways"),
    [
        ("in a tuple", 32.0, ("96 // 3", "96 / 3")),
        ("in a dict", 24.0, ("96 // 4", "96 / 4")),
        ("in a tuple", 16.0, None),
    ],
)
def test_one_number_among_others_is_mended_where_it_is_written(config, mark, number, ways):
    place = int(marked(mark).rpartition(":")[2])
    assert whole_on_line(origin_at(config.__file__, place, ""), number) == ways


def test_a_number_of_numpy_is_mended_where_it_is_written():
    size = np.ceil(1.0 / 0.1)  # steps
    here = line(__file__, "steps")
    note = note_on(lambda: lax.fori_loop(0, size, lambda i, x: x, X))
    assert f"At {here} write int(np.ceil(1.0 / 0.1)) in place of np.ceil(1.0 / 0.1)" in note


def test_a_number_that_is_computed_in_a_call_of_a_package():
    def program(depth):
        model = eqx.nn.MLP(
            3,
            2,
            width_size=depth / 2 * 2,  # width
            depth=1,
            key=jax.random.key(0),
        )
        return model

    note = note_on(lambda: program(5))
    here = line(__file__, "width")
    assert f"\n  width_size = depth / 2 * 2  float  {here}\n" in note
    assert f"\nAt {here} write int(depth / 2 * 2) in place of depth / 2 * 2" in note


def test_a_number_in_a_tuple_of_a_config_is_mended_there(tmp_path):
    path = tmp_path / "sizes.py"
    path.write_text("config = dict(\n    depth=2,\n    hidden=(32 / 2, 32 / 2),\n)\n")
    at = origin_at(str(path), 3, "")
    assert whole_on_line(at, 16.0) == ("32 // 2", "32 / 2")


def test_no_array_is_cast_for_a_number_that_a_package_refuses():
    size = np.sqrt(16.0).item()
    note = note_on(lambda: nn.Dense(size).init(jax.random.key(0), X))
    assert "\n  shape[1]  float" in note
    assert "astype" not in note
