"""The audit of precision: which lines of a program lose it, and what they cost, measured.

May import `_program`, `_carry` and `_leaves`. Read `pair.py` first: it runs a wide value
beside every value of a program, with a switch for each line of source that decides whether
it rounds. `measure.py` asks that program for errors, shares and the lines that are worth
computing wider; `algebra.py` has the decompositions in wide types, and `finite.py` follows
where values stop being finite. For costs, `work.py` counts operations, `flow.py` pushes
the sources of wide values forward through the graph, and `mended.py` computes what they
make wide in a narrow dtype; `costs.py` puts that together. `meant.py` finds the Python
numbers that a trace rounds, `remedies.py` says what to write, `report.py` prints, `html.py`
shows the source, and `audit.py` has the public function.
"""
