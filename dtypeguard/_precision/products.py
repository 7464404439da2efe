"""An audit of products as another device does them: its levels and its advice."""

import functools

import jax

from .._leaves.arguments import shown
from .._leaves.types import DType
from .._numbers.formats import Products
from .._numbers.lines import Line
from .._numbers.measure import Measures
from .._source.files import is_installed, package
from .fix import allowed_error
from .losses import LineLosses, Losses
from .prepared import Show
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
    show_status: Show,
    limit: TimeLimit,
) -> Losses:
    """Returns the lines whose products lose precision, by the cheapest level that helps."""
    first, *levels = products.levels
    losses = LineLosses(measures, runs, tolerance, show_status, limit)
    runs.level = first
    found = losses.losses(functools.partial(_remedy_of_line, first), None)
    for level in levels:
        if found.run.error > allowed_error(runs, tolerance):
            runs.level = level
            found = losses.losses(functools.partial(_remedy_of_line, level), None)
    return found
