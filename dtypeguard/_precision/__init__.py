"""The audit of precision: which lines of a program lose it, measured.

May import `_program`, `_carry` and `_leaves`. Read `pair.py` first: it runs a wide value
beside every value of a program, with a switch for each line of source that decides whether
it rounds. `measure.py` asks that program for errors, shares and the lines that are worth
computing wider. `algebra.py` has the decompositions in wide types, and `finite.py` follows
where values stop being finite. `meant.py` finds the Python numbers that a trace rounds,
`report.py` prints, and `audit.py` has the public function.
"""
