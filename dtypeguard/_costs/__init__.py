"""What a program computes wider than necessary, and which lines make it so.

May import `_numbers` and below. `costs.py` counts operations,
and names the lines behind the wide operands of products.
"""
