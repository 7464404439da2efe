"""An audit of products as another device does them: its levels and its advice."""

import functools
from collections.abc import Callable

import jax

from .._leaves.arguments import shown
from .._leaves.types import DType
from .._numbers.formats import Products
from .._numbers.lines import Line
from .._numbers.measure import Measures
from .._source.files import is_installed, package
from .losses import Losses, allowed, line_losses
from .runs import Runs
from .time_limit import TimeLimit


def check_options(products: Products, wide: DType, narrow: DType) -> None:
    """Raises a ValueError for what an audit of products does not take."""
    for name, dtype in (("wide", wide), ("narrow", narrow)):
        if dtype is not None:
            raise ValueError(
                f"audit_precision got {name}={shown(dtype)} and matmul_precision="
                f"{products.name!r}, which compares the program in its own dtypes with "
                f"itself, and rounds products alone. Leave out {name}, or audit twice."
            )


def _remedy_of_line(level: str, line: Line, _: bool) -> str:
    """What to write for a line."""
    precision, origin = f"jax.lax.Precision.{level}", line.origin
    within = f'with jax.default_matmul_precision("{level.lower()}"):'
    if origin is None or not origin.file:
        return f"Put `{within}` around its call: no line outside JAX multiplies."
    if _asks(line):
        return f"On {origin}, write precision={precision}: it asks for less itself."
    place = str(origin)
    if is_installed(origin.file):
        place = package(origin.file) + f" at {origin.users}" * bool(origin.called_from)
        place = f"the call of {place}"
    return f"Put `{within}` around {place}."


def _asks(line: Line) -> bool:
    """Whether a product on a line asks for a precision itself, which no context changes."""
    is_default = getattr(jax.config, "jax_default_matmul_precision", None) is None
    precisions = (stack[0].params.get("precision") for stack in line.products)
    return is_default and any(each is not None for each in precisions)


def product_losses(
    measures: Measures,
    runs: Runs,
    products: Products,
    tolerance: float | None,
    show_status: Callable[[str], None],
    limit: TimeLimit,
) -> Losses:
    """The lines whose products lose precision, and the cheapest remedy that is enough."""
    found = None
    for level in products.levels:
        if found is None or found.run.error > allowed(runs, tolerance):
            runs.level, remedy = level, functools.partial(_remedy_of_line, level)
            found = line_losses(measures, runs, tolerance, show_status, remedy, limit=limit)
    assert found is not None
    return found
