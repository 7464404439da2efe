"""Notes of a program how each equation is run, and its constants as they were meant."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits
from .._leaves.types import DType
from .._program.aligned import ConstantPair
from .._program.jaxprs import Variable, is_literal, value_kind
from .._program.program import Node, User
from .._program.walk import Walk
from .._tracebacks.written import Written
from . import primitives
from .formats import Formats
from .primitives import (
    COMPUTED,
    SAMPLE,
    WITHOUT_BLOCKS,
    has_reference,
    is_inexact,
    rule_of,
)

# A number with so many binary digits was probably meant as it is, as integers are.
FEW_DIGITS = 4
# Of a value before the program runs: whether it is fixed, so that no line rounds it, or the
# Python number that it is, which is fixed.
_Known = bool | float


@dataclasses.dataclass
class Annotation(Walk[_Known]):
    """Notes how each equation is run, and its constants as they were meant.

    Args:
        formats: the dtypes of the program.
        is_judged: whether it is compared with a reference.
    """

    formats: Formats
    is_judged: bool

    def constant(self, var, array):
        # What a function closes over was rounded, if at all, before the program began.
        if value_kind(var.aval) == "float" and is_scalar_literal(var):
            return float(array)
        return True

    def joined(self, values, attempt):
        return False

    def inside(self, block, arguments):
        # What enters a loop or a branch may be another value each time.
        return super().inside(block, [False for _ in arguments])

    def computed(self, node, operands):
        return ()

    def block(self, block, arguments):
        # A callback that prints would print once more with each run.
        nodes = block.nodes
        block.nodes = []
        for node in nodes:
            if node.name not in primitives.DEBUG:
                block.nodes.append(node)
        self._note_constants(block, block.outputs)
        results = super().block(block, arguments)
        block.drop_unused()
        return results

    def node(self, node, operands):
        if has_reference(node.eqn):
            # A plan runs a program often, and each run would find another value there.
            raise TypeError(
                "audit_precision does not run programs with mutable references "
                f"({node.name}): give it a function that returns new arrays."
            )
        node.rule = rule_of(node)
        # Random numbers are the same sample whatever they are compared with.
        if not Written(node.stack).is_of_sampler:
            node.doubtful = self._note_constants(node, node.eqn.invars)
        # `jax.random` draws the same numbers on both sides if nothing rounds its operands.
        elif self.formats.products is None and _are_fixed(node, operands):
            node.rule = SAMPLE
        if node.rule in WITHOUT_BLOCKS:
            # It runs as one equation, whatever jaxprs it holds.
            node.inner = ()
        if node.name == "convert_element_type" and node.rule == COMPUTED:
            (operand,) = operands
            if not isinstance(operand, bool):
                # As it was meant, where a dtype of the arguments has rounded it before.
                node.constant = float(node.intended.get(0, operand))
        super().node(node, operands)
        # A sample is the same on both sides, whatever dtypes the program has.
        is_sample = node.rule == SAMPLE
        return [is_sample for _ in node.eqn.outvars]

    def _note_constants(
        self, user: User, variables: Sequence[Variable]
    ) -> list[np.ndarray]:
        """Notes the constants among values as they were meant.

        Returns:
            Those of 16 bits that may have been rounded before: they are as narrow in the
            trace of float32 arguments, or that has no such equation.
        """
        constants = {}
        unknown = []
        for place, var in enumerate(variables):
            if value_kind(var.aval) != "float" or not self.formats.rounds(var.aval.dtype):
                continue
            is_number = is_scalar_literal(var)
            pair = user.block.traces.wide.constants.get((user.source, place))
            if pair is None and is_number:
                literal = np.asarray(var.val, var.aval.dtype)
                pair = ConstantPair(literal, literal)
            if pair is None:
                continue
            if pair.is_equal and bits(pair.first.dtype) < 32:
                # 2.0 and 0.5 are the same in any dtype.
                if not is_plain(pair.first):
                    unknown.append(pair.first)
                continue
            # An array that is the same in both traces is as it is.
            if pair.is_equal and not is_number:
                continue
            if self.is_judged and not pair.is_rounded:
                continue
            constant = pair.second
            # 0.1 in float32 is 0.100000001: the source has 0.1.
            if constant.dtype == np.float32 and not constant.ndim:
                constant = np.asarray(shortest_decimal(constant))
            constants[place] = constant
        user.intended = constants
        return unknown


def _are_fixed(node: Node, operands: Sequence[_Known]) -> bool:
    """Returns whether no line rounds an operand."""
    for var, operand in zip(node.eqn.invars, operands):
        if operand is False and is_inexact(var.aval):
            return False
    return True


# Numbers before a narrow dtype rounded them.


def is_plain(value: np.ndarray) -> bool:
    """Returns whether a constant was probably meant as it is: few digits, or a limit."""
    numbers = value.astype(np.float64)
    limit = float(jnp.finfo(value.dtype).max)
    is_limit = ~(abs(numbers) < limit)
    return bool(np.all(is_limit | have_few_digits(numbers)))


def have_few_digits(numbers: np.ndarray) -> np.ndarray:
    """Returns which numbers have few binary digits: 2.0 and 0.5 are exact in any dtype."""
    mantissas, _ = np.frexp(numbers)
    digits = np.ldexp(mantissas, FEW_DIGITS)
    return digits == np.round(digits)


def shortest_decimal(number: Any) -> float:
    """Returns the number that a source most likely has for one in float32."""
    if is_plain(number):
        return float(number)  # for 2**-23 a source has no decimal
    single = np.float32(number)
    return float(str(single))


def numbers_in_dtype(numbers: Any, dtype: DType) -> np.ndarray:
    """Returns the numbers that a dtype has for others, in float64."""
    with np.errstate(over="ignore"):  # NumPy warns of -1e9 in float16
        narrow = np.asarray(numbers).astype(dtype)
    return narrow.astype(np.float64)


def is_scalar_literal(var: Any) -> bool:
    """Returns whether an operand is a number that stands in its equation."""
    if not is_literal(var):
        return False
    return np.ndim(var.val) == 0
