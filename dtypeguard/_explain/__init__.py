"""Notes on JAX's errors over types: which leaf, on which line, and what to write.

May import `_find`, `_program` and below. Read `explain.py` first. `control_flow.py` reads
the traceback of an error, `loops.py` and `branches.py` find the leaves and their lines,
and `notes.py` writes.
"""
