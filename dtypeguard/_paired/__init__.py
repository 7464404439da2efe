"""A program run in other types: plainly, and beside itself with a switch for each line.

May import `_lines`, `_program` and below. Read `values.py` and `pair.py` first. A wide
value runs beside every value of the program, and a switch for each line of source decides
whether it rounds. `pair.py` runs equations, `control.py` loops, branches and shards.
`primitives.py` says which equations round, `evaluate.py` computes one in other dtypes and
rounds its wide result as the program does, and `algebra.py` has the decompositions.
`draws.py` leaves alone what `jax.random` draws, `python_numbers.py` finds the Python
numbers that a trace rounds, and `finite.py` follows where values stop being finite.
`measure.py` asks the paired program for errors, shares and the lines that are worth
computing wider.

`subject.py` has what is audited: a function and its arguments, checked and traced.
`plain.py` runs a program without values beside it, with a type for each equation and its
own decisions: what a user measures, of the program as written, of some lines wide, or of
what costs make wide in a narrow dtype. `gradients.py` says which gradients
then are narrow, since a gradient has the dtype of what it is the gradient of. Either
program may have the products of another device, which `products.py` computes. `sketches.py`
keeps a few numbers of each value, by which those of two programs are known.
"""
