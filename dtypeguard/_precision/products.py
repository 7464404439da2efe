"""An audit of products as another device does them: its levels and its advice."""

import jax

from .._leaves.arguments import shown
from .._leaves.types import DType
from .._numbers.formats import Products
from .._numbers.lines import Line
from .._source.files import is_installed, package


def check_options(products: Products, wide: DType, narrow: DType) -> None:
    """Raises a ValueError for what an audit of products does not take."""
    for name, dtype in (("wide", wide), ("narrow", narrow)):
        if dtype is not None:
            raise ValueError(
                f"audit_precision got {name}={shown(dtype)} and matmul_precision="
                f"{products.name!r}, which compares the program in its own dtypes with "
                f"itself, and rounds products alone. Leave out {name}, or audit twice."
            )


def remedy_of_product(level: str, line: Line) -> str:
    """Returns what to write for a line."""
    origin = line.origin
    within = f'with jax.default_matmul_precision("{level.lower()}"):'
    if origin is None or not origin.file:
        return f"Put `{within}` around its call: no line outside JAX multiplies."
    # With a default set, a product has its precision from there, and a context can change
    # it; what it asks for itself, no context changes.
    has_default = getattr(jax.config, "jax_default_matmul_precision", None) is not None
    if line.has_asked and not has_default:
        return (
            f"On {origin}, write precision=jax.lax.Precision.{level}: "
            "it asks for less itself."
        )
    place = str(origin)
    # A context around a line in a package is no edit for its user; one around its call is.
    if is_installed(origin.file):
        place = f"the call of {package(origin.file)}"
        if origin.called_from:
            place += f" at {origin.users}"
    return f"Put `{within}` around {place}."
