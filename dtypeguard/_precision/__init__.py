"""The audit of precision: which lines of a program lose it, and what they cost, measured.

May import `_program`, `_carry` and `_leaves`. Read `values.py` and `pair.py` first: a wide
value runs beside every value of a program, with a switch for each line of source that
decides whether it rounds. `pair.py` runs equations, `control.py` loops, branches and
shards. `primitives.py` says which equations round, `evaluate.py` computes one in other
dtypes, `rounding.py` rounds its wide result as the program does, and `algebra.py` has the
decompositions.
`meant.py` finds the Python numbers that a trace rounds, `finite.py` follows where values
stop being finite.

`measure.py` asks that program for errors, shares and the lines that are worth computing
wider; `losses.py` puts that together. For costs, `work.py` counts operations, `flow.py`
pushes the sources of wide values forward through the graph, and `mended.py` computes what
they make wide in a narrow dtype; `costs.py` puts that together. `remedies.py` says what to
write, `report.py` prints, `html.py` shows the source, and `audit.py` has the public
function.
"""
