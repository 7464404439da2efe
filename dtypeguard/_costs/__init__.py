"""What a program computes wider than necessary, and what that costs.

May import `_numbers`, `_lines`, `_program` and below. `work.py` counts operations,
`flow.py` pushes the sources of wide values forward through the graph, and `costs.py` says
of lines what they cost and what to write.
"""
