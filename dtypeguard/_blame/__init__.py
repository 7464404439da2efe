"""Which equation gave a value its type, by JAX's own equations.

Read `why.py` first: one function walks from a value of a program back to the lines behind
its type, and asks the record (`_recording`) what lies beyond the program. `blame.py` finds
the equation. `drift.py` says which leaves of a program drift, `provenance.py` where the
values of an error come from; `body.py` makes programs of the functions that JAX traced.
"""
