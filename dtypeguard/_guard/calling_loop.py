"""Tells whether a loop calls a step, and whose: they treat weakly typed leaves in two ways.

JAX's loops trace their body again if a weakly typed leaf comes back in another type, and
give it that type. Equinox's raise (Equinox 0.13.8), so that such a leaf has to keep its
type there. The leaves that a body is given are the same in both.
"""

import sys

from .._leaves.internals import LOOPS_OF_EQUINOX, LOOPS_OF_JAX

# Python's own modules count, since a body may be wrapped by functools or contextlib.
_LIBRARIES = {"jax", "equinox", "dtypeguard"} | sys.stdlib_module_names


def calling_loop() -> str:
    """Returns the modules of the loop that has the step as its body; empty if none has.

    The body may be a function that calls the step. The caller has traced arrays: outside
    of a trace no loop of these calls anything.
    """
    # JAX passes on no mark of the loop that traces a body, so that frames have to tell.
    # Only their modules count: where a file lies or whose it is changes nothing.
    loop = ""
    num_callers = 0
    frame = sys._getframe()
    while frame is not None and num_callers < 2:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(LOOPS_OF_EQUINOX):
            return LOOPS_OF_EQUINOX
        if module.startswith(LOOPS_OF_JAX):
            loop = LOOPS_OF_JAX  # which Equinox may have called
        elif module.partition(".")[0] not in _LIBRARIES:
            if loop:
                return loop
            num_callers += 1
        frame = frame.f_back
    return loop
