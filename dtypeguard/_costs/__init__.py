"""What a program computes wider than necessary, and which lines make it so.

May import `_numbers`, `_lines`, `_program` and below. `costs.py` counts operations,
and names the lines behind the wide operands of products.
"""
