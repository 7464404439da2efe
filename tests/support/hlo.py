"""Programs as text, to compare two and to count the 64-bit operations of one."""

import re
from collections.abc import Callable

import jax

from dtypeguard._leaves.types import PyTree

# Newer XLA lists the source locations of its metadata in separate tables.
_TABLES = "FileNames|FunctionNames|FileLocations|StackFrames"
_SOURCES = re.compile(rf", metadata=\{{[^}}]*\}}|^(?:{_TABLES})\n(?:\d.*\n)*", re.MULTILINE)
_MODULE_NAME = re.compile(r"^HloModule [^,]*", re.MULTILINE)
_WIDE_RESULT = re.compile(r"= .*(?:tensor<|x)(?:f64|complex<f64>)>[^>]*$", re.MULTILINE)


def optimized_hlo(function: Callable[..., PyTree], *args: PyTree) -> str:
    """The optimized HLO of a jitted function, without names and metadata."""
    text = jax.jit(function).lower(*args).compile().as_text() or ""
    return _MODULE_NAME.sub("HloModule", _SOURCES.sub("", text))


def count_float64(function: Callable[..., PyTree], *args: PyTree) -> int:
    """Counts the operations of a lowered function that give a 64-bit float or complex."""
    return len(_WIDE_RESULT.findall(jax.jit(function).lower(*args).as_text()))
