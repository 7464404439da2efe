"""The audit of precision: which lines of a program lose it, and what they cost, measured.

May import `_program`, `_carry` and `_leaves`. `audit.py` has the public function: it traces
the program, asks two analyses of it, and puts what they found into the report of
`report.py`, which `html.py` shows on the source.

What is lost: read `values.py` and `pair.py` first. A wide value runs beside every value of
the program, with a switch for each line of source that decides whether it rounds. `pair.py`
runs equations, `control.py` loops, branches and shards. `primitives.py` says which
equations round, `evaluate.py` computes one in other dtypes and rounds its wide result as
the program does, and `algebra.py` has the decompositions. `meant.py` finds the Python
numbers that a trace rounds, `finite.py` follows where values stop being finite.
`measure.py` asks the paired program for errors, shares and the lines that are worth
computing wider; `losses.py` says that of lines, and what to write.

What it costs: `work.py` counts operations, `flow.py` pushes the sources of wide values
forward through the graph, and `mended.py` computes what they make wide in a narrow dtype;
`costs.py` says that of lines, and what to write.
"""
