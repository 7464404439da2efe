"""The audits: which leaf drifts, whose line of source did it, and what mends it.

May import `_find`, `_guard` and below. Read `audit.py` first, or `step.py`, which is the
same for a step. `examine.py` runs the analyses of `_find` and tries out what mends the
program; `report.py`, `table.py` and `page.py` show what was found.
"""
