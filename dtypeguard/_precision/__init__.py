"""The audit of precision: which lines of a program lose it, and what they cost, measured.

May import `_autocast`, `_costs`, `_reference`, `_numbers` and below. `audit.py` has the
public function: it traces the program, asks the others, and puts what they found, the
records of `records.py`, into the report of `report.py`. `findings.py` has the names that
users have for their fields. `headline.py` says what is printed first, `sections.py` and
`costs_told.py` what comes below, `notes.py` what comes last; `html.py` shows it on the
source, with the marks of `marks.py`. `plain.py` runs a program as written and wide,
`runs.py` with some lines wide; `losses.py` says of lines what they lose (`loss.py`), and
`advice.py` what to write. `products.py` has the same of products as another device computes
them.

`planned.py` has the search for plans: `candidates.py` has the lines that may stay wide,
`choosing.py` chooses among them, `trials.py` runs a program by a plan, `planning.py` puts
these together, and `plan_search.py` and `plan_check.py` have the results. `prepared.py`
makes the runs that a report and a plan begin with.
"""
