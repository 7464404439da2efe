"""An audit of products as another device does them: its runs and its advice."""

from collections.abc import Callable, Iterable

import jax

from .._leaves.arguments import shown
from .._leaves.types import DType, Equation, Leaf
from .._numbers import plans
from .._numbers.formats import Formats, Products
from .._numbers.lines import Line
from .._numbers.measure import Measures
from .._program.graph import Graph
from .._source.files import is_installed, package
from .losses import Losses, allowed, line_losses
from .rows import ReportWords
from .runs import Runs, WideRun, rounded_otherwise

# A few roundings of float32.
_ROUNDINGS = 2.0**-22


def check_options(products: Products, wide: DType, narrow: DType) -> None:
    """Raises a ValueError for what an audit of products does not take."""
    for name, dtype in (("wide", wide), ("narrow", narrow)):
        if dtype is not None:
            raise ValueError(
                f"audit_precision got {name}={shown(dtype)} and matmul_precision="
                f"{products.name!r}, which compares the program in its own dtypes with "
                f"itself, and rounds products alone. Leave out {name}, or audit twice."
            )


class ProductRuns(Runs):
    """A program with the products of a device, and with float32 products.

    Attributes:
        level: the precision of the products that are to be wider.
    """

    def __init__(self, measures: Measures, graph: Graph):
        super().__init__(measures, graph)
        products = self.program.formats.products
        assert products is not None
        self.products, self.level = products, products.levels[0]

    def raised_to(self, level: str) -> None:
        """Lines are given this precision from now on."""
        self.level = level
        self._known.clear()

    @property
    def words(self) -> ReportWords:
        """How a report names what was run."""
        begin, computed = self.products.begin, self.program.block.all_nodes()
        nothing = f"{begin} the outputs are the same."
        if not any(self.products.algorithm(node.eqn, True) for node in computed):
            nothing = "there are no float32 products, so none is rounded."
        elif not self._measures.lines:
            why = ": each asks for another precision, or is too small to be"
            why *= begin != "with float32 products"
            nothing = f"{begin} no product is rounded{why}."
        return ReportWords(begin, f"at Precision.{self.level}", nothing)

    def with_wide(self, lines: Iterable[int], keeps: bool) -> WideRun:
        """The program with the products of some lines in another precision."""
        return super().with_wide(lines, keeps=False)

    def scaled(self) -> None:
        """A scale of the loss is no remedy."""

    def remedy(self, line: Line, _: bool) -> str:
        """What to write for a line."""
        name = self.level
        precision = f"jax.lax.Precision.{name}"
        within = f'with jax.default_matmul_precision("{name.lower()}"):'
        origin = line.origin
        if origin is None or not origin.file:
            return f"Put `{within}` around its call: no line outside JAX multiplies."
        place = str(origin)
        if is_installed(origin.file):
            place = package(origin.file) + f" at {origin.users}" * bool(origin.called_from)
            place = f"the call of {place}"
        if _asks(line):
            return f"On {origin}, write precision={precision}: it asks for less itself."
        return f"Put `{within}` around {place}."

    # What differs from runs in wide types

    def _formats_of_lines(self) -> Formats:
        products = self.products._replace(mended=self.level)
        return self.program.formats._replace(products=products)

    def compiled(self) -> float:
        return self.total

    def _is_narrow(self, eqn: Equation) -> bool:
        return self.products.rounds(eqn)

    def _exact_otherwise(self) -> list[Leaf]:
        arrays = [rounded_otherwise(x, _ROUNDINGS).astype(x.dtype) for x in self.own.arrays]
        return self._measures.run(plans.wide(self.program), arrays=arrays)


def _asks(line: Line) -> bool:
    """Whether a product on a line asks for a precision itself, which no context changes."""
    is_default = getattr(jax.config, "jax_default_matmul_precision", None) is None
    precisions = (stack[0].params.get("precision") for stack in line.products)
    return is_default and any(each is not None for each in precisions)


def product_losses(
    measures: Measures,
    runs: ProductRuns,
    tolerance: float | None,
    show_status: Callable[[str], None],
) -> Losses:
    """The lines whose products lose precision, and the cheapest remedy that is enough."""
    found = None
    for level in runs.products.levels:
        if found is None or found.run.error > allowed(runs, tolerance):
            runs.raised_to(level)
            found = line_losses(measures, runs, tolerance, show_status, runs.remedy)
    assert found is not None
    asks = any(map(_asks, runs.program.lines))
    if len(found.fix) == measures.lines > 1 and not asks:
        within = f'with jax.default_matmul_precision("{runs.level.lower()}"):'
        told = f"Put `{within}` around the whole call: all that multiply are needed."
        fix = tuple(each._replace(remedy=told) for each in found.fix)
        found = found._replace(fix=fix)
    return found
