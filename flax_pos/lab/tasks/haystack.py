"""What passkey and multi-needle share: facts at known depths in noise, asked at the end."""

import dataclasses

import jax
import jax.numpy as jnp

from flax_pos.lab.tasks.base import HeatMap
from flax_pos.lab.tasks.parts import BOS, SPECIAL, Example, Part, draw, draw_different, join, token
from flax_pos.lab.tasks.sequence import WindowTask, check_at_least, plain

KEY, ASK = SPECIAL, SPECIAL + 1
NAME = ASK + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class HaystackTask(WindowTask):
    """`<bos> noise <key> name digits noise <ask> name digits`. Trained with needles at any depth,
    tested at a grid of lengths and depths."""

    length: int = 128
    digits: int = 3
    """Digits of a needle."""
    noise: int = 16
    """Different tokens of the noise; needles have ten digits and names of their own."""
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Tested depths of the needle that is asked first: share of the noise before it."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, digits=1, noise=1)
        if not self.depths or list(self.depths) != sorted(set(self.depths)):
            raise ValueError(f"depths={list(self.depths)} must rise")
        if self.depths[0] < 0 or self.depths[-1] > 1:
            raise ValueError(f"depths={list(self.depths)} must lie in 0 .. 1")
        least = self._overhead + 1
        if self.length < least:
            raise ValueError(
                f"length={self.length} is too short for the needles and questions: these need "
                f"{least} tokens or more"
            )

    @property
    def _needles(self) -> int:
        raise NotImplementedError

    @property
    def _asked(self) -> int:
        raise NotImplementedError

    @property
    def _names(self) -> int:
        """How many names there are to choose from."""
        raise NotImplementedError

    @property
    def _digit(self) -> int:
        return NAME + self._names

    @property
    def _overhead(self) -> int:
        """Ids that are not noise: the last digit is only ever predicted."""
        return (self._needles + self._asked) * (2 + self.digits)

    @property
    def symbols_needed(self):
        return self._digit + 10 + self.noise

    @property
    def variants(self):
        return self.depths

    def train_variant(self, key):
        return jax.random.uniform(key, (), jnp.float32)

    def example(self, key, size, largest, variant) -> Example:
        noise_key, name_key, digit_key, depth_key, asked_key = jax.random.split(key, 5)
        needles, width = self._needles, self.digits
        names = draw_different(name_key, needles, self._names, first=NAME)
        digits = draw(digit_key, needles * width, 10, first=self._digit).reshape(needles, width)
        others = jax.random.uniform(depth_key, (needles - 1,), jnp.float32)
        depths = jnp.concatenate([variant.astype(jnp.float32)[None], others])
        fill = jnp.asarray(size - self._overhead, jnp.int32)
        # Needle 0 is at the given depth; all are written in the order of their depths.
        before = jnp.round(depths * fill.astype(jnp.float32)).astype(jnp.int32)
        order = jnp.argsort(before)
        asked = jnp.concatenate(
            [
                jnp.zeros(1, jnp.int32),
                draw_different(asked_key, self._asked - 1, needles - 1, first=1)
                if self._asked > 1
                else jnp.zeros(0, jnp.int32),
            ]
        )
        noise = draw(noise_key, largest, self.noise, first=self._digit + 10)
        parts, done = [token(BOS)], jnp.int32(0)
        for i in range(needles):
            here = before[order[i]]
            needle = jnp.concatenate([token(KEY).tokens, names[order[i]][None], digits[order[i]]])
            parts += [Part(jnp.roll(noise, -done), here - done), Part(needle, 2 + width)]
            done = here
        parts.append(Part(jnp.roll(noise, -done), fill - done))
        for i in range(self._asked):
            parts += [token(ASK), token(names[asked[i]])]
            parts.append(Part(digits[asked[i]], width, answer=True))
        return join(self.tokens(largest), *parts)

    def measure(self, evaluation, nll, correct, defined):
        measures = super().measure(evaluation, nll, correct, defined)
        exact, _ = self.grid(evaluation, correct, defined)
        by_depth = {
            f"exact by depth@{n}": (list(self.depths), [plain(v) for v in row])
            for n, row in zip(self.tested, exact, strict=True)
        }
        return measures._replace(curves=measures.curves | by_depth)

    @property
    def heat_maps(self):
        return (
            HeatMap(
                title="Exact match by depth and length",
                x="depth",
                y="tokens",
                keys=tuple(f"exact by depth@{n}" for n in self.tested),
                x_labels=tuple(f"{d:g}" for d in self.depths),
                y_labels=tuple(str(n) for n in self.tested),
                caption=f"Share of answers that are right in every digit, {self.samples} sequences "
                "for each length and depth (share of the noise before the needle). Trained at "
                f"{self.length} tokens, the lowest row, and all depths.",
            ),
        )
