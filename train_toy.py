"""Trains one small language model per position scheme and says how they compare.

`python train_toy.py` alone needs no data and no network; `--help` lists what can be changed.
The same as `flax-pos train`.
"""

import sys

from flax_pos.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]], prog="train_toy.py"))
