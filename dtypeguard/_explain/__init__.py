"""Notes on JAX's type errors: which leaf, on which line, and what to write.

May import `_lines` and below. Read `explain.py` first: a note is made in three stages, each
with the whole result of the one before. `finding.py` is an error and what is found of it:
by `arguments.py`, whose table has JAX's messages, or by `control_flow.py`, which has loops
and branches from `frames.py`. `remedies.py` chooses what to write, `text.py` writes the
note. What finds lines is in `_lines`.
"""
