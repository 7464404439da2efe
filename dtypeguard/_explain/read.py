"""First stage: reads an error and its frames into one value."""

import itertools
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NamedTuple

from .._leaves.types import DType
from .._lines.body import Body
from .._lines.sites import Site, sites
from .._source.files import is_users, package
from .._source.origin import frame_of, is_update
from .frames import ControlFlow, combines, control_flow
from .messages import (
    KIND_NAMED,
    Complaint,
    Lowered,
    complaint,
    lowered,
    named_types,
    unsupported,
)


class Failure(NamedTuple):
    """An error over types.

    Attributes:
        message: of the error.
        frames: those that it passed through, with JAX's own, outside in.
        sites: the lines among them outside JAX.
        complaint: what the message says of arguments or of a result; None if the error is
            one of control flow.
        is_update: whether one of the lines is in the `update` of an Optax optimizer.
        control_flow: the calls of control flow that may have raised it, outside in.
        functions: those whose result JAX may have refused, by the names of parameters.
        types: those that a message names which is not JAX's.
        lowered: what JAX cannot lower.
        unsupported: the dtype for which LAPACK has no routine.
    """

    message: str
    frames: Sequence[FrameType]
    sites: Sequence[Site]
    complaint: Complaint | None = None
    is_update: bool = False
    control_flow: Sequence[ControlFlow] = ()
    functions: Sequence[tuple[str, Body]] = ()
    types: frozenset[str] = frozenset()
    lowered: Lowered | None = None
    unsupported: DType | None = None


def read(error: BaseException) -> Failure | None:
    """An error with JAX's own frames in its traceback; None if it is not over types."""
    message = str(error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    unlike, dtype = lowered(message), None
    if isinstance(error, NotImplementedError) and not unlike:
        dtype = unsupported(message)
        if dtype is None:
            return None
    if unlike or dtype:
        passed = sites(error.__traceback__)
        return Failure(message, frames, passed, lowered=unlike, unsupported=dtype)
    about = complaint(message)
    inner = itertools.takewhile(lambda x: not is_users(x.f_code.co_filename), frames[::-1])
    if about is not None and about.wanted is None and combines([*inner]):
        about = None  # its function has returned other types than it was given
    is_of_call = about is not None and not about.role.is_result
    calls = [] if is_of_call else list(control_flow(frames))
    types = named_types(message) if about is None else frozenset()
    if about is None and not calls and not types:
        return None
    passed = sites(error.__traceback__)
    callers = (site for site in reversed(passed) if package(site.file) != "equinox")
    if caller := next(callers, None):
        calls = [call._replace(written=caller.node) for call in calls]
    is_of_jax = bool(passed and passed[-1].inside)
    if about is not None and not is_of_jax:
        return None
    if types and is_of_jax and not KIND_NAMED.search(message):
        types = frozenset()
    functions: list[tuple[str, Body]] = []
    if about is not None and about.role.is_result:
        functions = [("cond_fun", call.condition) for call in calls if call.condition]
        functions += _losses(passed[-1])
    return Failure(
        message,
        frames,
        passed,
        complaint=about,
        is_update=is_update([frame_of(site.frame) for site in passed]),
        control_flow=calls,
        functions=functions,
        types=types,
    )


def _losses(site: Site) -> Iterator[tuple[str, Body]]:
    """The functions that JAX was to differentiate."""
    for frame in site.inside:
        values = frame.f_locals
        if callable(values.get("fun")) and "holomorphic" in values:
            is_pair = bool(values.get("has_aux"))
            yield "fun", Body(values["fun"], values.get("args", ()), is_pair=is_pair)
