"""The one place that goes from an equation, a value, a constant or a frame to a line.

May import `_program`, `_carry`, `_source` and `_leaves`. Read `lines.py` first: it is asked
for the lines behind a value of a program. `blame.py` finds the equation that promoted it,
`equations.py` the line of an equation (the one file that reads JAX's source information),
`watch.py` and `bindings.py` the line that created a constant, by the calls that `calls.py`
sees; `rules.py` gives a user's rules of derivatives their lines. `drift.py` says which
leaves drift.

`compiled.py` keeps the program of a compiled function, and finds in it the lines of what it
gave back in another type.

While `dtypeguard run` runs a script, `monitored.py` has `recorder.py` remember where each
array is made; `held.py` finds the arrays in variables, `named.py` the variables of a line.

An error leaves frames and dead tracers. `sites.py` reads the lines that it passed through.
`body.py` makes a program of a function that JAX traced, and `retrace.py` traces it again.
`provenance.py` finds what gave a value its type: by the equations that `traced.py` reads
behind a tracer, or by its variable and what `expressions.py` reads in the source.
`numbers.py` finds the line of a Python number, `asked.py` that of a dtype.
"""
