"""A program for numbers, and plans of what its equations compute in."""
