"""Many runs as one experiment: schemes x tasks x learning rates x models x seeds, and what follows
from them."""
