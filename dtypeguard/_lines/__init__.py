"""The one place that goes from an equation, a value, a constant or a frame to a line.

May import `_program`, `_carry`, `_source` and `_leaves`. Read `why.py` first: one function
walks from a value of a program back to the lines behind its type, and asks the record what
lies beyond the program. `blame.py` finds the equation that promoted the value;
`equations.py` says how an equation is written (`tracebacks.py` reads that from JAX).

What lies beyond is recorded while a context, a hook or a command of dtypeguard is open,
from Python 3.12 on: `monitored.py` has `recorder.py` remember where each array is made.
`values.py` finds the arrays in variables and the variables of a line; ask `why.py`.

`drift.py` says which leaves of a program drift, `provenance.py` where the values of an
error come from: from the equations behind a tracer, and the arguments of the calls in
`sites.py`; `body.py` makes programs of the functions that JAX traced. `compiling.py` and
`recompiled.py` say what was compiled again.
"""
