"""A program for numbers, and plans of what its equations compute in.

May import `_lines`, `_program` and below. A traced program is a `Program` of nodes, one for
each equation where it stands. A plan is data: what each equation computes in. To ask what a
program would give in other dtypes is to make a plan and to run it. Read `nodes.py`,
`plans.py` and `run.py` first.

`subject.py` has what is audited: a function, its arguments and its trace. `program.py`
numbers the equations, and finds the lines that round (`lines.py`) and the Python numbers
that a trace rounds (`python_numbers.py`). `plans.py` pushes what a plan knows of values
through it. `nodes.py` has the way through a program, by which `run.py` measures, loops turn
by turn; `arithmetic.py` computes one equation by its entry, with `evaluate.py`, or as
another device multiplies (`products.py`). `probes.py` has what a run notes beside, and what
it decides. `measure.py` asks for errors and shares of lines, `finite.py` for the first
value that is not finite, `sketches.py` for a few numbers of each value, which compare two
programs.
"""
