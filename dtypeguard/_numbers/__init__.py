"""A program for numbers, and plans of what its equations compute in.

May import `_lines`, `_program` and below. A traced program is a `Program` of nodes, one for
each equation where it stands. A plan is data: what each equation computes in. To ask what a
program would give in other dtypes is to make a plan and to run it. Read `nodes.py`,
`plans.py` and `run.py` first.

`subject.py` traces a function, `program.py` finds the lines that round, and the Python
numbers on them. `formats.py` has the dtypes of a run, `arithmetic.py` what one equation
makes in them, `probes.py` what a run notes beside. `measure.py` asks for errors and shares
of lines, `finite.py` for the first value that is not finite, `sketches.py` for a few
numbers of each value, which compare two programs.
"""
