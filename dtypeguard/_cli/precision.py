"""Audits the precision of the function that a command line names."""

import argparse
import math
from collections.abc import Callable
from types import ModuleType

import jax.numpy as jnp
import numpy as np

from .._leaves.types import DType, PyTree
from .._precision.audit import audit_call
from .._precision.report import PrecisionReport
from .inputs import as_error_of_run, as_usage_error, load_inputs, misfit
from .load import PRECISION_FORMS, UsageError, load
from .target import dtype_named


def audit_function(
    options: argparse.Namespace, show_status: Callable[[str], None]
) -> PrecisionReport:
    """Measures which lines of the target lose precision.

    Args:
        options: of the command line.
        show_status: called with what it is about to do.

    Raises:
        UsageError: if the target, its inputs or an option cannot be used.
    """
    modules: dict[str, ModuleType] = {}  # both may share a file, and then its classes
    wide, narrow = (dtype_of(f"--{x}", getattr(options, x)) for x in ("wide", "narrow"))
    f = load(options.target, modules, PRECISION_FORMS)
    inputs = load_inputs(options.inputs, options.target, modules)
    with as_usage_error(f"{options.inputs} cannot be called"):
        args, kwargs = inputs()
    reference = _reference(options.reference, modules)
    if callable(reference) and (wrong := misfit(reference, args, kwargs)):
        raise UsageError(
            f"{options.reference} does not take what {options.inputs} gives: {wrong}. Let "
            f"it take the arguments of {options.target}, or name what this should return"
        )
    with as_error_of_run(options.target, options.inputs, (f, args, kwargs)):
        report = audit_call(
            f,
            args,
            kwargs,
            wide,
            narrow,
            options.tolerance,
            matmul_precision=options.matmul_precision,
            reference=reference,
            show_status=show_status,
        )
    if options.max_error is not None and math.isnan(report.error):
        raise UsageError(
            f"--max-error needs values, and {options.inputs} gives a jax.ShapeDtypeStruct. "
            "Let it give arrays, or leave out --max-error"
        )
    return report


def _reference(name: str | None, modules: dict[str, ModuleType]) -> PyTree:
    """The arrays of a file by path, or what a module has under a name."""
    if name is None:
        return None
    if ":" in name and not name.endswith(".npz"):
        return load(name, modules, "Write for example: --reference FILE.py:f")
    try:
        file = np.load(name)
        if isinstance(file, np.ndarray):  # of numpy.save, for the only output
            return {"out": file}
        with file:
            return {key: file[key] for key in file.files}
    except Exception as error:
        raise UsageError(
            f"--reference {name} cannot be read ({type(error).__name__}). Write "
            "the file with numpy.savez, with the path of each output as its key: "
            "numpy.savez(file, **{\"['logits']\": array}), or out=array for the only one"
        ) from error


def dtype_of(option: str, name: str | None) -> DType:
    """The dtype of an option. Whether it suits the program is for the audit to say."""
    if name is None:
        return None
    example = f"{option} {'float32' if option == '--wide' else 'bfloat16'}"
    dtype = dtype_named(name)
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise UsageError(f"{option} {name!r} is not a floating dtype. Write {example}")
    return dtype
