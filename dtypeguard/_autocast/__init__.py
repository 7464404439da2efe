"""A plan of dtypes as a file, and a program that computes so.

May import `_numbers`, `_lines` and below. Read `plan.py` first: a plan says which work is
narrow, and which functions and expressions compute in another dtype; `entries.py` reads its
text. `matching.py` goes from an equation to its entry, by the source of its line.
`decide.py` has the rules by which a plan's types are pushed through a program: the result
is a plan of `_numbers`, which is run eager to measure it.

`autocast.py` has the function; `calls.py` traces what it is given, and knows what a call
changes in place. `emit.py` emits the program again by such a plan, under the trace that is
current: an interpreter of `_numbers` like the one that measures. `products.py` has products
whose gradients are added up wide.
"""
