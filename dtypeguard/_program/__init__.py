"""A traced program: blocks of nodes, the one walk through them, and its second traces.

May import `_carry`, `_tracebacks` and below. Read `program.py` and `walk.py` first: a block
is a jaxpr where it stands, a node an equation where it stands, and whatever is asked of a
program is a walk over a domain of its own.

- `jaxprs.py` reads JAX's jaxprs and equations.
- `aligned.py` has a program beside its traces of arguments in other dtypes.
- `graph.py` numbers the values of a program, to be walked backwards.
- `trace.py` traces a step, or an optimizer's `init` and `update`.
"""
