"""What a program computes wider than necessary, and which lines make it so.

May import `_numbers`, `_lines`, `_program` and below. `work.py` counts operations, and
`costs.py` has the lines behind the wide operands of products.
"""
