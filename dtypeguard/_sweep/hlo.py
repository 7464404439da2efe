"""Programs as text, for comparing two and for counting 64-bit operations in one."""

import re
from collections.abc import Callable
from typing import Any

import jax

# Newer XLA lists the source locations that metadata refers to in tables of their own.
_TABLES = "FileNames|FunctionNames|FileLocations|StackFrames"
_SOURCES = re.compile(rf", metadata=\{{[^}}]*\}}|^(?:{_TABLES})\n(?:\d.*\n)*", re.MULTILINE)
_MODULE_NAME = re.compile(r"^HloModule [^,]*", re.MULTILINE)
_WIDE_RESULT = re.compile(r"= .*(?:tensor<|x)(?:f64|complex<f64>)>[^>]*$", re.MULTILINE)


def optimized_hlo(function: Callable[..., Any], *args: Any) -> str:
    """What XLA makes of a jitted function: its optimized HLO, less names and metadata."""
    text = jax.jit(function).lower(*args).compile().as_text() or ""
    return _MODULE_NAME.sub("HloModule", _SOURCES.sub("", text))


def count_float64(function: Callable[..., Any], *args: Any) -> int:
    """How many operations of a lowered function give a 64-bit float or complex number."""
    return len(_WIDE_RESULT.findall(jax.jit(function).lower(*args).as_text()))
