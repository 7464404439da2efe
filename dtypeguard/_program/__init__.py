"""A traced program and what it can be asked: its values, their makers and their lines.

May import `_carry` and `_leaves`. Read `trace.py` first: it traces a step, or an
optimizer's `init` and `update`. `graph.py` reads the jaxpr, `blame.py` finds the equation
that promoted a value, `lines.py` the line of source behind it, `origins.py` the line of an
equation (the one file that reads JAX's source information), and `watch.py` the line that
made a constant.
"""
