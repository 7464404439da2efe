"""Notes on JAX's type errors: which leaf, on which line, and what to write.

May import `_find`, `_program` and below. Read `explain.py` first. `control_flow.py` reads
the traceback of an error. `loops.py` makes a program of a loop for the analysis of drift,
`branches.py` compares the results of branches, and `notes.py` writes the note. `again.py`
traces a function once more, and `made.py` finds who made a value that an error holds.

For errors over operands read `operands.py`. `sites.py` reads the call from its source,
`casts.py` writes the cast, and `results.py` explains what a condition or a loss returns.
"""
