"""Runs of a program in other dtypes, and plans of what its equations compute in.

May import `_blame`, `_program` and below. A plan is data: what each equation computes in.
To ask what a program would give in other dtypes is to make a plan and to run it. Read
`primitives.py` first, which has the rules, then `plans.py` and `run.py`, which are walks.

- `subject.py` traces a function; `annotation.py` notes how each equation is run, and what
  its numbers were meant as; `program.py` numbers the equations, and finds the `lines.py`
  that round. `integers.py` tells which integers may not fit.
- `formats.py` has the dtypes of a run, `arithmetic.py` what one equation makes in them, by
  `evaluate.py`, or in NumPy by `host.py`; `compiled.py` has XLA compile loops and programs.
  `probes.py` is what a run notes beside, in all turns of loops.
- `measure.py` asks for errors and shares of lines, by the distances of `arrays.py`;
  `finite.py` for the first value that is not finite; `sketches.py` for a few numbers of
  each value, which compare two programs.
"""
