"""Audits the precision of the function that a command line names."""

import argparse
import contextlib
import math
from collections.abc import Callable
from types import ModuleType

import jax.numpy as jnp
import numpy as np

from .._leaves.types import DType, PyTree
from .._precision.audit import audit_call
from .._precision.report import PrecisionReport
from .._source.origin import origin_of_error
from .load import PRECISION_FORMS, UsageError, load, load_inputs
from .target import arguments, dtype_named


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
    wide, narrow = (_dtype(f"--{x}", getattr(options, x)) for x in ("wide", "narrow"))
    f = load(options.target, modules, PRECISION_FORMS)
    made = load_inputs(options.inputs, options.target, modules)
    with as_usage_error(f"{options.inputs} cannot be called"):
        args, kwargs = arguments(made() if callable(made) else made)
    reference = _reference(options.reference, modules)
    with as_usage_error(f"{options.target} does not run with what {options.inputs} gives"):
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


@contextlib.contextmanager
def as_usage_error(what: str):
    """Makes a usage error of whatever is raised, with the line of the user's that did."""
    try:
        yield
    except Exception as error:
        origin = origin_of_error(error)
        if origin is None and str(error).startswith(("audit_precision", "lock")):
            raise UsageError(str(error)) from error
        where = "" if origin is None else f"\n    {origin.place}  {origin.code}"
        raise UsageError(
            f"{what}: {type(error).__name__}: {error}{where}\n  Let --inputs name a tuple "
            "of the arguments, a dict of them by name, the only one, or a function that "
            "returns these."
        ) from error


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


def _dtype(option: str, name: str | None) -> DType:
    """The dtype of an option. Whether it suits the program is for the audit to say."""
    if name is None:
        return None
    example = f"{option} {'float32' if option == '--wide' else 'bfloat16'}"
    dtype = dtype_named(name)
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise UsageError(f"{option} {name!r} is not a floating dtype. Write {example}")
    return dtype
