"""Several position axes in one head: which pair of channels follows which axis."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.functional.rope.settings import as_length, flag


@dataclass(frozen=True, kw_only=True)
class Axes:
    """How the pairs of a head are shared between position axes.

    Multimodal RoPE (Qwen2-VL, Wang et al. 2024, arXiv:2409.12191) gives each pair one of the axes
    time, height, width and keeps the ladder of frequencies; axial RoPE (vision towers, EVA-02)
    gives every axis a ladder of its own.
    """

    sections: tuple[int, ...]
    """Number of pairs of each section; their sum is the number of rotated pairs."""
    arrangement: Literal["contiguous", "interleaved", "alternating"] = "contiguous"
    """`contiguous`: section after section (Qwen2-VL). `interleaved`: pair i belongs to section
    i mod n as long as that section has pairs left, all others to section 0 (Qwen3-VL).
    `alternating`: the first two sections take turns, the others follow (ERNIE 4.5 VL, Kimi)."""
    order: tuple[int, ...] | None = None
    """The position axis that each section reads; None: section s reads axis s."""
    ladder: Literal["shared", "own", "strided"] = "shared"
    """`shared`: pair i has frequency i. `own`: every section has a full ladder over its own
    width (Qwen-VL towers). `strided`: section s takes frequencies s, s + n, ... (Pixtral)."""
    blocks: bool = False
    """Whether each section is a block of channels with pairs inside it (Gemma 4's tower);
    otherwise the pairs of all sections span the rotated slice."""

    def __post_init__(self):
        sections = self.sections
        if not isinstance(sections, list | tuple) or len(sections) < 1:
            raise ValueError(f"sections must be a list of pair counts, got {sections!r}")
        sections = tuple(as_length(s, f"sections[{i}]") for i, s in enumerate(sections))
        if sum(sections) > 2**15:
            raise ValueError(f"sections must sum to at most 32768 pairs, got {sum(sections)}")
        object.__setattr__(self, "sections", sections)
        for name, known in (
            ("arrangement", ("contiguous", "interleaved", "alternating")),
            ("ladder", ("shared", "own", "strided")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        if self.order is not None:
            object.__setattr__(self, "order", tuple(self.order))
            if sorted(self.order) != list(range(len(sections))):
                raise ValueError(
                    f"order must name each axis 0 .. {len(sections) - 1} once, got {self.order!r}"
                )
        flag(self, "blocks")
        if self.blocks and (self.arrangement != "contiguous" or len(set(sections)) != 1):
            raise ValueError("blocks needs contiguous sections of equal width")
        if self.arrangement == "alternating" and (len(sections) < 2 or sections[0] != sections[1]):
            raise ValueError(f"alternating needs two first sections of one size, got {sections}")
        if self.arrangement == "interleaved":
            got = np.bincount(self.section_of_pair(), minlength=len(sections))
            if tuple(got) != sections:
                raise ValueError(
                    f"sections {sections} cannot be interleaved: pair i belongs to section "
                    f"i mod {len(sections)}, which gives {tuple(int(g) for g in got)}"
                )

    @property
    def count(self) -> int:
        """Number of position axes."""
        return len(self.sections)

    @property
    def pairs(self) -> int:
        """Number of rotated pairs."""
        return sum(self.sections)

    def section_of_pair(self) -> np.ndarray:
        """The section of every pair, int `F`."""
        if self.arrangement == "contiguous":
            return np.repeat(np.arange(self.count), self.sections)
        if self.arrangement == "alternating":
            both = np.tile([0, 1], self.sections[0])
            return np.concatenate([both, np.repeat(np.arange(2, self.count), self.sections[2:])])
        pair = np.arange(self.pairs)
        section = pair % self.count
        return np.where(pair < self.count * np.take(self.sections, section), section, 0)

    def axis_of_pair(self) -> np.ndarray:
        """The position axis of every pair, int `F`."""
        order = np.arange(self.count) if self.order is None else np.asarray(self.order)
        return order[self.section_of_pair()]

    def frequencies(self, law):
        """Frequencies of all pairs; `law(width)` gives those of a slice of `width` channels."""
        if self.ladder == "shared":
            return law(2 * self.pairs)
        if self.ladder == "strided":
            whole = law(2 * self.pairs)
            own = [whole[s :: self.count] for s in range(self.count)]
        else:
            own = [law(2 * s) for s in self.sections]
        of_pair = self.section_of_pair()
        rung = np.zeros(self.pairs, np.int64)
        for s in range(self.count):
            rung[of_pair == s] = np.arange(self.sections[s])
        start = np.cumsum([0, *self.sections[:-1]])
        xp = jnp if isinstance(own[0], jax.Array) else np
        return xp.concatenate(own)[start[of_pair] + rung]

    def positions_of_pairs(self, positions):
        """`*B T F` positions out of `A *B T`: each pair gets its axis."""
        return jnp.moveaxis(positions, 0, -1)[..., self.axis_of_pair()]
