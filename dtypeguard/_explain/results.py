"""Notes on functions that return another kind than JAX wants: a condition, a loss."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp

from .._leaves.dtypes import kind
from .._leaves.files import is_installed, short_path
from .._leaves.rows import type_text
from .._leaves.types import DType, Function, Jaxpr, PyTree
from .._program.origins import places
from .._program.source import returned, text_of
from .again import inside
from .casts import cast_text
from .control_flow import calls, code_of
from .made import Made
from .notes import note_text
from .sites import Argument, Site

_TYPE = r"((?:bool|u?int|bfloat|float|complex)\w*)"
_CONDITION = re.compile(rf"cond_fun must return a boolean scalar, but got .*?\b{_TYPE}\[\]")
_LOSS = re.compile(
    rf"requires real-(?:valued| or complex-valued) outputs.* but got {_TYPE}"
)


class _Result(NamedTuple):
    """What a function returned.

    Attributes:
        called: how JAX's parameter for the function is called.
        function: the function.
        inputs: what it was called with.
        is_pair: whether it returns a pair, of which only the first item counts.
        wanted: the dtype that JAX takes.
        jaxpr: of the function, if the error holds it.
    """

    called: str
    function: Function
    inputs: tuple[PyTree, ...]
    is_pair: bool
    wanted: DType
    jaxpr: Jaxpr | None = None


def refused_result(message: str) -> str | None:
    """The dtype of a result that JAX refuses; None if a message is about something else."""
    found = _CONDITION.search(message) or _LOSS.search(message)
    return found[1] if found else None


def result_note(error: BaseException, site: Site, refused: str) -> str | None:
    """A note on a function whose result JAX refuses; None if the function is not found."""
    result = next(_results(error, site), None)
    if result is None:
        return None
    made, shown = Made(), refused
    found = inside(result.function, result.inputs, result.is_pair, result.jaxpr)
    if found is not None:
        made, shown = Made(**found.of(0)), type_text(found.aval(0))
    wanted = f"a {kind(result.wanted)}"
    return note_text(
        f"{result.called} of {site.name or 'a call'} has to return {wanted}.",
        [("result", shown, *places(made.origin, made.cause))],
        [made],
        (),
        list(_advice(result, refused)),
    )


def _results(error: BaseException, site: Site) -> Iterator[_Result]:
    for call in calls(error):
        given = call.arguments
        if "cond_fun" in given and "init_val" in given:
            held = (jaxpr for name, jaxpr in call.jaxprs() if "cond" in name)
            function, inputs = given["cond_fun"], (given["init_val"],)
            about = False, jnp.dtype(bool), next(held, None)
            yield _Result("cond_fun", function, inputs, *about)
    for frame in site.inside:
        values = frame.f_locals
        if callable(values.get("fun")) and "holomorphic" in values:
            function, given = values["fun"], values.get("args", ())
            is_pair = bool(values.get("has_aux"))
            yield _Result("fun", function, given, is_pair, jnp.dtype("float32"))


def _advice(result: _Result, refused: str) -> Iterator[str]:
    """What to write where the function returns."""
    code = code_of(result.function)
    if code is None or is_installed(code.co_filename):
        return
    node = returned(code)
    if node is None:
        return
    if result.is_pair:
        if not isinstance(node, ast.Tuple):
            return
        node = node.elts[0]
    old = text_of(node, code.co_filename)
    if kind(result.wanted) == "bool":
        is_atom = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
        new, loss = f"{old if is_atom else f'({old})'} != 0", ""
    else:
        new = cast_text(Argument("", jnp.zeros((), refused), node), old, result.wanted)
        loss = "" if kind(jnp.dtype(refused)) == "complex" else "; its gradient is zero"
    place = f"{short_path(code.co_filename)}:{node.lineno}"
    yield f"At {place} write {new} in place of {old}{loss}."
