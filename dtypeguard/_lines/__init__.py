"""The one place that goes from an equation, a value, a constant or a frame to a line.

May import `_program`, `_carry`, `_source` and `_leaves`. Read `why.py` first: one function
walks from a value of a program back to the lines behind its type, and asks its `Ends` what
lies beyond the program. `blame.py` finds the equation that promoted the value, in the
`region.py` of those that have the type; `equations.py` says how an equation is written
(`tracebacks.py` reads that from JAX).

What lies beyond is recorded while a context, a hook or a command of dtypeguard is open,
from Python 3.12 on: `monitored.py` has `recorder.py` remember where each array is made
(`made.py`); `held.py` finds the arrays in variables, `named.py` the variables of a line;
`record.py` is asked.

`lines.py` has the ends of a program (`drift.py` says which of its leaves drift, `rules.py`
and `calls.py` give a user's rules of derivatives their lines). `provenance.py` has those of
the values of an error: equations that `traced.py` reads behind a tracer, arguments of the
calls in `sites.py`; `body.py` makes programs of the functions that JAX traced.
`compiling.py` and `recompiled.py` say what was compiled again (`fed.py`).
"""
