"""What the second stage finds in an error."""

import ast
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .._leaves.dtypes import dtype_of
from .._leaves.types import Aval, DType, Equation, Leaf
from .._lines.body import Body
from .._lines.sites import Argument, Site
from .._program.trace import Program
from .._source.origin import Origin, Why
from .frames import ControlFlow
from .written import Expression


class RefusedLeaf(NamedTuple):
    """A leaf of a type that JAX refuses.

    Attributes:
        number: its place among the leaves of the error.
        path: of the leaf, in the user's objects.
        values: that have its types: a carry's before and after, another's own.
        why: the lines behind its type.
        is_odd: whether its first value is to blame.
        is_castable: whether a guard casts the leaf of a carry back.
        branch: that returns it, by the name of its parameter.
        variable: that holds what a branch returns unchanged.
        unchanged: what a branch returns unchanged, as a note tells; empty if nothing.
        literal: a Python number that a branch returns.
        written: where that is written out, if not in the branch itself.
        is_made: whether code computes what a branch returns, if only before it.
        argument: that has the type.
        is_average: whether it is an average or a running sum, which a cast would round.
        place: of the leaf among all that the carry, or the result of branches, has.
    """

    number: int
    path: str
    values: tuple[Aval | Leaf, ...]
    why: Why = Why()
    is_castable: bool = False
    is_odd: bool = False
    branch: str = ""
    variable: str = ""
    unchanged: str = ""
    literal: float | None = None
    written: Expression | None = None
    is_made: bool = True
    argument: Argument | None = None
    is_average: bool = False
    place: int | None = None

    @property
    def to_blame(self) -> Origin | None:
        """The line that is to be changed first."""
        return self.why.begun if self.is_odd else self.why.root

    @property
    def dtypes(self) -> list[DType]:
        """Those of the values."""
        return [
            value
            if isinstance(value, np.dtype)
            else getattr(value, "dtype", None) or dtype_of(value)
            for value in self.values
        ]

    @property
    def is_reshaped(self) -> bool:
        """Whether the values differ in their shapes."""
        return len({getattr(value, "shape", ()) for value in self.values}) > 1


class RefusedCall(NamedTuple):
    """A call whose arguments JAX refuses, or a function whose result.

    Attributes:
        file: of the call or of the function.
        node: the call, or the expression that the function returns; None if not known.
        wanted: the dtype that JAX takes; None if it wants the arguments alike.
        is_update: whether the `update` of an Optax optimizer made the call.
        users: where a package made it, the user's calls of the package, inside out, each
            with the arrays in it.
        is_result: whether it is a function.
        body: that function, if it is one.
        is_flag: whether a part of what JAX traces has another x64 flag.
        is_of_others: whether not JAX refuses them, so that it is not known what would do.
        is_compiled: whether its function is compiled for other types.
        is_added: whether it is a rule whose cotangent JAX cannot add to another one.
        option: the keyword for which JAX wants that dtype.
        keeps: whether JAX wants ints where floats stand that are no index and no size: no
            cast of them keeps their numbers.
        equation: for which LAPACK has no routine in the dtype of the leaf.
    """

    file: str
    node: ast.AST | None
    wanted: DType | None
    is_update: bool = False
    users: Sequence[tuple[Site, Sequence[Argument]]] = ()
    is_result: bool = False
    is_flag: bool = False
    is_of_others: bool = False
    is_compiled: bool = False
    is_added: bool = False
    option: str = ""
    keeps: bool = False
    equation: Equation | None = None
    body: Body | None = None


class Finding(NamedTuple):
    """What an error is about.

    Attributes:
        headline: of the note.
        leaves: all that JAX refuses.
        of: what has them.
        sites: the lines outside of JAX that the error passed through, outside in.
        program: the body of a loop; None if it does not trace.
    """

    headline: str
    leaves: Sequence[RefusedLeaf]
    of: ControlFlow | RefusedCall
    sites: Sequence[Site] = ()
    program: Program | None = None
