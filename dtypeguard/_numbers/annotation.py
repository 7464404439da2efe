"""Notes of a program how each equation is run, and its constants as they were meant."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits, kind
from .._leaves.types import DType
from .._program.jaxprs import Stack, Variable, is_literal, value_kind
from .._program.program import Node, User
from .._program.walk import Walk
from .._tracebacks.written import Written
from . import primitives
from .formats import Formats
from .primitives import (
    COMPUTED,
    OWN,
    SAMPLE,
    WITHOUT_BLOCKS,
    has_no_wide_form,
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
        leave_out: is told of an equation that has no wide form.
    """

    formats: Formats
    is_judged: bool
    leave_out: Callable[[Stack], None]

    def constant(self, var, array):
        # What a function closes over was rounded, if at all, before the program began.
        if value_kind(var.aval) == "float" and is_scalar_literal(var):
            return float(array)
        return True

    def joined(self, values, attempt):
        return False

    def crossing(self, value, aval):
        # What enters a loop or a branch may be another value each time.
        return False

    def inside(self, block, arguments):
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
        if node.rule == OWN and has_no_wide_form(node.eqn):
            self.leave_out(node.stack)
        if node.name == "convert_element_type" and node.rule == COMPUTED:
            node.constant = self._rounded_number(node, operands[0])
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
        wide = user.block.traces.wide
        constants = {}
        unknown = []
        for place, var in enumerate(variables):
            if not self.formats.rounds(getattr(var.aval, "dtype", None)):
                continue
            intended = None
            doubtful = None
            if is_scalar_literal(var):
                literal = np.asarray(var.val, var.aval.dtype)
                # A float32 number has lost digits of the source's decimal in any trace.
                if literal.dtype == np.float32:
                    intended = literal
                if wide.partner(user.source) is None:
                    doubtful = literal
            pair = wide.constants(user.source, place)
            if pair is not None and pair.is_equal:
                doubtful = pair.first
            elif pair is not None and (pair.is_rounded or not self.is_judged):
                intended = pair.second
            if intended is not None:
                # 0.1 in float32 is 0.100000001: the source has 0.1.
                if not intended.ndim:
                    intended = np.asarray(shortest_decimal(intended))
                constants[place] = intended
            if doubtful is None:
                continue
            if bits(doubtful.dtype) >= 32:
                continue
            # 2.0 and 0.5 are the same in any dtype.
            if not is_plain(doubtful):
                unknown.append(doubtful)
        user.intended = constants
        return unknown

    def _rounded_number(self, node: Node, operand: _Known) -> float | None:
        """Returns the number that a conversion rounds, if it does."""
        if isinstance(operand, bool):
            return None
        result = node.eqn.outvars[0].aval
        dtype = self.formats.written(result.dtype)
        if kind(dtype) != "float":
            return None
        if not self.formats.rounds(dtype):
            return None
        # As it was meant, where a dtype of the arguments has rounded it before.
        intended = node.intended.get(0, operand)
        number = float(intended)
        if numbers_in_dtype(number, dtype) == number:
            return None
        return number


def _are_fixed(node: Node, operands: Sequence[_Known]) -> bool:
    """Returns whether no line rounds an operand."""
    for var, operand in zip(node.eqn.invars, operands):
        if operand is not False:
            continue
        if is_inexact(var.aval):
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


def relative_change(numbers: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """Returns how far rounding has changed each of an array of numbers."""
    # A decay says what it leaves: 0.999 and 1 are as far apart as 0.001 and 0.
    complement = abs(1 - numbers)
    size = np.minimum(abs(numbers), complement)
    with np.errstate(all="ignore"):
        difference = abs(rounded - numbers)
        change = difference / size
    # What is infinite was a mask before; 0 and 1 are in all dtypes.
    is_finite = np.isfinite(change)
    return np.where(is_finite, change, 0)


def is_scalar_literal(var: Any) -> bool:
    """Returns whether an operand is a number that stands in its equation."""
    if not is_literal(var):
        return False
    return np.ndim(var.val) == 0
