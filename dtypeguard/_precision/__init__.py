"""The audit of precision: which lines of a program lose it, and what to compute wider.

May import `_autocast`, `_costs`, `_reference`, `_numbers` and below. Read `audit.py` first:
it traces a program, has `prepared.py` run it as written and wide (`runs.py`), asks
`losses.py` what lines lose and which to compute wider, and makes the report of `report.py`,
whose rows are in `rows.py`, its words in `text.py`.

`products.py` is the same of products as another device computes them. `curve.py` has plans
of float32 programs, for the inputs of `planned.py`: it ranks lines by runs of one compiled
program with switches, `switched.py`, and runs each plan as `autocast` computes it. The
search is one, `smallest` of `fix.py`: of what is ranked the first that are enough, less
what is not needed.
"""
