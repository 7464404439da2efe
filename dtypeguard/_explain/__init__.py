"""Notes on JAX's type errors: which leaf, on which line, and what to write.

May import `_lines` and below. Read `explain.py` first: a note is made in four stages, each
with the whole result of the one before. `read.py` makes one value of an error, with what
`messages.py` reads in its message, `frames.py` in JAX's frames and `paths.py` in Flax's.
`find.py` and `arguments.py` find the leaves that JAX refuses and their lines; `finding.py`
says what a finding is. `choose.py` chooses what to write for each line, among remedies that
`trials.py` has tried, and `render.py` writes the note. What finds lines is in `_lines`.
`kinds.py` is the table of loops and branches, `written.py` has the user's own expressions.
"""
