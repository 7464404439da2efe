"""Notes on JAX's type errors: which leaf, on which line, and what to write.

May import `_blame`, `_recording`, `_tracebacks` and below. Read `explain.py` first: a note
is made in three stages, each with the whole result of the one before.

1. `finding.py` is an error and what is found of it: by `arguments.py`, as the table of
   `messages.py` says, by `compiled.py` where a function was compiled, by `derivatives.py`,
   or by `control_flow.py`, which has loops and branches from `frames.py`.
2. `choose.py` has candidates for what to write, in their order. A candidate is a list of
   records of `remedies.py`; those for a loop are tried on its body by `trial.py`.
3. `text.py` makes sentences of both, which nothing reads back.
"""
