"""The audit of precision: which lines of a program lose it, and what they cost, measured.

May import `_autocast`, `_costs`, `_reference`, `_numbers` and below. `audit.py` has the
public function: it traces the program, asks the others, and puts what they found into the
report of `report.py`, which `html.py` shows on the source, with the marks of `marks.py`.
`runs.py` runs it plainly, as written, wide and with some lines wide; `losses.py` says of
lines what they lose (`loss.py`), and what to write. `products.py` has the same of products
as another device computes them: `cheapest.py` finds the lines that are worth a higher
precision, `typed.py` writes the user's expression with it.

`planned.py` has the search for plans: `candidates.py` has the lines that may stay wide,
`choosing.py` chooses among them, `trials.py` runs a program by a plan, `planning.py` puts
these together, and `plan_search.py` and `plan_check.py` have the results. `prepared.py`
makes the runs that a report and a plan begin with.
"""
