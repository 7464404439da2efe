"""The one place that goes from an equation, a value, a constant or a frame to a line.

May import `_program`, `_carry`, `_source` and `_leaves`. Read `why.py` first: one function
walks from a value of a program back to the lines behind its type, and asks where the walk
ends what it knows there. `blame.py` finds the equation that promoted the value, in the
`region.py` of those that have the type; `equations.py` says how an equation is written
(`tracebacks.py` reads that from JAX).

The walk ends in surroundings of three kinds. `lines.py`: a program that can be traced
again, which `watch.py` watches (`calls.py` sees the calls, `rules.py` gives a user's rules
of derivatives their lines). `provenance.py`: the frames and dead tracers of an error, with
the equations that `traced.py` reads behind a tracer, and the lines in `sites.py` that the
error passed through; `variables.py` looks in what the functions on them hold, and reads the
source with `bindings.py`, `expressions.py` and `numbers.py`. `compiled.py`: the program of
a compiled function, kept without its arrays. `asked.py` finds where a dtype is given.

While `dtypeguard run` runs a script, `monitored.py` has `recorder.py` remember where each
array is made (`made.py`); `held.py` finds the arrays in variables, `named.py` the variables
of a line.

`body.py` makes a program of a function that JAX traced, and `retrace.py` traces it again.
`drift.py` says which leaves of a program drift.
"""
