"""What to write where a part of what JAX traces had another x64 flag than the rest."""

import itertools
from collections.abc import Iterable, Iterator

from .._leaves.compat import x64_enabled
from .._leaves.internals import COMPILING
from .._leaves.types import DType
from .._lines.sites import Site
from .._source.files import is_users, line_text
from .._source.origin import Why, origin_at
from .finding import Finding, RefusedCall, RefusedLeaf
from .messages import Lowered
from .packages import users_sites
from .read import Failure
from .remedies import Way
from .trials import Trials


def find_lowered(failure: Failure, lowered: Lowered) -> Finding:
    """What JAX has traced with x64 on, and compiles with x64 off."""
    line = origin_at(lowered.file, lowered.line, "")
    types = lowered.types if x64_enabled() else lowered.types[::-1]
    leaf = RefusedLeaf(0, lowered.name, types, Why(line))
    call = RefusedCall(lowered.file, None, None, is_flag=True)
    headline = f"{lowered.name} was traced with x64 on in a part of the program alone."
    return Finding(headline, [leaf], call)


def is_of_flag(dtypes: Iterable[DType]) -> bool:
    """Whether dtypes of 64 bits are there though x64 is off."""
    return not x64_enabled() and any(
        x is not None and x.itemsize == 8 and x.kind in "iuf" for x in dtypes
    )


def flag_ways(finding: Finding, trials: Trials, *, is_lowered: bool) -> Iterator[Way]:
    """To set the flag around the call that JAX traces, in place of inside of it."""
    sites = users_sites(finding)[::-1]
    outermost = next((site for site in sites if _is_traced(site)), None)
    if outermost is not None:
        flag = f"with jax.enable_x64({not x64_enabled()})"
        where = line_text(outermost.file, outermost.line)
        text = f"set the flag around the call at {where}: {flag}"
        yield Way(
            text,
            lambda: trials.expression(
                outermost, x64=not x64_enabled(), is_lowered=is_lowered
            ),
        )


def _is_traced(site: Site) -> bool:
    """Whether a line calls what JAX traces."""
    own = itertools.takewhile(lambda x: not is_users(x.f_code.co_filename), site.inside)
    return any(frame.f_code.co_name in COMPILING for frame in own)
