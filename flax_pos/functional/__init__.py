"""Pure maths: no classes that hold state, nothing of the floors above."""
