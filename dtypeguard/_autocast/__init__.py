"""A plan of dtypes as a file, and a program that computes so.

May import `_numbers`, `_lines` and below. Read `plan.py` first: a plan says which work is
narrow, and which functions and expressions compute in another dtype; `reading.py` reads its
text. `matching.py` goes
from an equation to its entry, by the source of its line, and `asked.py` reads what the line
itself asks for.

`autocast.py` has the function; `calls.py` traces what it is given, once for the same types,
and knows what a call changes in place. Then the equations are emitted again, under the
trace that is current: `emit.py` has a rule for each primitive, `inside.py`, `loops.py`,
`custom.py` and `held.py` what holds other equations. `decide.py` says what an equation
computes in, of its entry, of the default and of what leads to a product (`reach.py`);
`lost.py` says which constants a narrow dtype does not hold.
`products.py` has products whose gradients are added up wide.
"""
