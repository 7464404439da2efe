"""Notes on JAX's type errors: which leaf, on which line, and what to write.

May import `_lines` and below. Read `explain.py` first: a note is made in four stages, each
with the whole result of the one before. `read.py` makes one value of an error, with what
the table in `messages.py` says of its message, `frames.py` of JAX's frames and `paths.py`
of Flax's. `find.py` finds the leaves that JAX refuses and their lines: in `loops.py`,
`branches.py`, `arguments.py`, `derivatives.py` and `devices.py`. `choose.py` chooses among
the five forms of `remedies.py`, which `trial.py` tries, and `text.py` writes the note.
What finds lines is in `_lines`. `kinds.py` is the table of loops and branches.
"""
