"""A traced program: its values, and the equations that make them.

May import `_carry` and below. Read `trace.py` first: it traces a step, or an optimizer's
`init` and `update`. `graph.py` reads the jaxpr.
"""
