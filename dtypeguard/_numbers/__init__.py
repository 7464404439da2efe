"""A program for numbers, and plans of what its equations compute in.

May import `_lines`, `_program` and below. A traced program is a `Program` of nodes, one for
each equation where it stands. A plan is data: what each equation computes in. To ask what a
program would give in other dtypes is to make a plan and to run it. Read `nodes.py`,
`plans.py` and `run.py` first.

`subject.py` has what is audited: a function and its arguments, checked and traced.
`program.py` numbers its equations and finds the lines that round (`lines.py`) and the
Python numbers that a trace rounds (`python_numbers.py`). `propagate.py` pushes what a plan
knows of values through it on the host; `gradients.py` says which
gradients then are narrow. `run.py` is the interpreter, with `control.py` and `loops.py` for
what holds other equations; `arithmetic.py` computes one equation by its entry, of
`primitives.py` and `evaluate.py`, or as another device multiplies (`products.py`).
`probes.py` has what a run notes beside its results, `decisions.py` what it decides.
`measure.py` asks for errors and shares of lines, `finite.py` for the first value that is
not finite, `sketches.py` for a few numbers of each value, by which two programs are
compared.
"""
