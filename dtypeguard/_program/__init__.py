"""A traced program and the questions it answers: its values, their makers, their lines.

May import `_carry` and `_leaves`. Read `trace.py` first: it traces a step, or an
optimizer's `init` and `update`. `graph.py` reads the jaxpr, `expand.py` equations that hold
none yet, and `traced.py` the equations behind a tracer. `lines.py` finds the line of source
behind a value: `blame.py` finds the equation that promoted it, `origins.py` the line of
that equation (the one file that reads JAX's source information), `watch.py` and
`bindings.py` the line that created a constant. `source.py` reads the text of files, and
`definitions.py` in it the line that gave a variable its value.
"""
