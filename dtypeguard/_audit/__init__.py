"""Which leaf drifts, and whose line of source did it.

May import the rooms of the guard (`_guard` and below). Read `audit.py` first, or `step.py`,
which is the same for a step. `traced.py` traces either, `graph.py` reads the jaxpr,
`blame.py` finds the equation that widened a leaf, `lines.py` the leaves and their lines,
`origins.py` the line of an equation (the one file that reads JAX's source information),
`constants.py` the line that made a constant; `report.py` tells.
`explain.py` does so for an error: `control_flow.py` reads its traceback, `loops.py` and
`branches.py` find the leaves, `notes.py` tells.
"""
