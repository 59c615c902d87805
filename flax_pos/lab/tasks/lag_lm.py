"""A language whose dependencies have known lengths, so that the best possible loss is known."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from flax_pos.lab.tasks.base import SEEDS, Column, Curve, Measures, Reach, register_task
from flax_pos.lab.tasks.parts import BOS, SPECIAL, Part, draw, join, token
from flax_pos.lab.tasks.sequence import WindowTask, check_at_least


@register_task("lag_lm")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LagLM(WindowTask):
    """Each token repeats the one some lag before it, or is random. The lag is never shown; it is
    drawn with probability proportional to lag ** -exponent, as dependencies of natural text
    roughly are (Lin and Tegmark 2017, arXiv 1606.06737).

    The best prediction is a vote of the tokens before, each weighted by the probability of its
    distance. Its loss at each position is computed exactly, and models are scored by their loss
    above it: a scheme that can weight by distance alone can reach zero at every length.
    """

    multiples: tuple[int, ...] = (1, 2, 4, 8)
    symbols: int = 16
    """Different tokens; the vocabulary has four more."""
    noise: float = 0.1
    """Share of tokens that are random."""
    exponent: float = 1.0
    longest_lag: int = 512
    """Largest lag. A lag from before the first token gives a random one."""
    tolerance: float = 0.1
    """A length is reached while the loss above the optimum, over the last tokens, is at most this
    many nats more than at the training length."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, symbols=2, longest_lag=1)
        if not 0 <= self.noise <= 1:
            raise ValueError(f"noise={self.noise} is a share and must lie in 0 .. 1")

    @property
    def symbols_needed(self):
        return SPECIAL + self.symbols

    @property
    def tail(self) -> int:
        """How many tokens count as the last ones."""
        return max(self.length // 2, 1)

    @property
    def weights(self) -> np.ndarray:
        """float64 `longest_lag`: the probability of each lag from 1 on."""
        raw = np.arange(1, self.longest_lag + 1, dtype=np.float64) ** -self.exponent
        return raw / raw.sum()

    def example(self, key, size, largest, variant):
        token_key, lag_key, noise_key = jax.random.split(key, 3)
        fresh = draw(token_key, largest, self.symbols)
        lags = 1 + jax.random.categorical(
            lag_key, jnp.asarray(np.log(self.weights), jnp.float32), shape=(largest,)
        ).astype(jnp.int32)
        random = jax.random.uniform(noise_key, (largest,), jnp.float32) < self.noise
        at = jnp.arange(largest, dtype=jnp.int32)
        source = jnp.where(random | (lags > at), at, at - lags)
        for _ in range(math.ceil(math.log2(largest))):  # sources of sources, twice as far each time
            source = source[source]
        return join(self.tokens(largest), token(BOS), Part(fresh[source], size, answer=True))

    def optimum(self, labels: np.ndarray, window: int | None = None) -> np.ndarray:
        """Negative log likelihood of the best prediction of each token, float64 `N T`.

        Args:
          labels: sequences from their first token on.
          window: weight only the last so many tokens; what lies before counts as unknown.
        """
        length = labels.shape[1]
        weights = np.zeros(length)
        known = min(length - 1, self.longest_lag, window or length)
        weights[1 : known + 1] = self.weights[:known]
        distance = np.arange(length)[:, None] - np.arange(length)[None, :]
        kernel = np.where(distance > 0, weights[np.maximum(distance, 0)], 0.0)
        unknown = 1 - kernel.sum(axis=1)
        same = np.stack([(row[:, None] == row[None, :]) for row in labels])
        votes = (kernel * same).sum(axis=2)
        chance = (self.noise + (1 - self.noise) * unknown) / self.symbols
        return -np.log((1 - self.noise) * votes + chance)

    def measure(self, evaluation, nll, correct, defined):
        shape = (len(self.tested), self.samples, -1)
        labels, losses = (a.reshape(shape) for a in (evaluation.labels, nll.astype(np.float64)))
        known = defined.reshape(shape[:2]).all(axis=1)
        scalars: dict[str, float | None] = {}
        by_position: list[float | None] = []
        edges = range(0, self.tested[-1], max(self.length // 4, 1))
        for i, length in enumerate(self.tested):
            for name in ("excess", "last", "gain"):
                scalars[f"{name}@{length}"] = None
            if not known[i]:
                continue
            seen = labels[i, :, :length]
            best, near = self.optimum(seen), self.optimum(seen, self.length)
            excess = losses[i, :, :length] - best
            to_gain = (near - best)[:, -self.tail :].mean()
            scalars[f"excess@{length}"] = float(excess.mean())
            scalars[f"last@{length}"] = last = float(excess[:, -self.tail :].mean())
            if length > self.length:
                scalars[f"gain@{length}"] = float(1 - last / to_gain)
            step = edges.step
            by_position = [float(excess[:, e : e + step].mean()) for e in edges if e < length]
        by_position += [None] * (len(edges) - len(by_position))
        centres = [e + edges.step / 2 for e in edges]
        return Measures(
            scalars, {"excess by position": (centres, by_position)}, self._carried(scalars)
        )

    def _carried(self, scalars: dict[str, float | None]) -> Reach:
        limit = scalars[f"last@{self.length}"]
        reached = 0
        for length in self.tested:
            last = scalars[f"last@{length}"]
            if limit is None or last is None or not last <= limit + self.tolerance:
                break
            reached = length
        return Reach(reached, open=reached == self.tested[-1])

    @property
    def headline(self):
        return f"excess@{self.tested[-1]}"

    @property
    def columns(self):
        named = tuple(zip(self.multiples, self.tested, strict=True))
        every = [
            Column(
                key=f"excess@{n}",
                group="loss above the optimum",
                title=f"{m}×",
                help=f"Loss above the best possible, in nats, over sequences of {n} tokens",
            )
            for m, n in named
        ]
        gain = [
            Column(
                key=f"gain@{n}",
                group="gain from far context",
                title=f"{m}×",
                help=f"Over the last {self.tail} tokens of {n}: 1 is the best possible, 0 the best "
                f"prediction from the last {self.length} tokens alone",
                better="high",
            )
            for m, n in named[1:]
        ]
        return (*every, *gain)

    @property
    def curves(self):
        return (
            Curve(
                key="excess by position",
                title="Loss above the optimum by position",
                x="position (tokens)",
                y="loss above the optimum (nats)",
                caption="0 is the best possible prediction from all that came before. Shaded: "
                f"positions seen in training. {SEEDS}",
                trained_to=float(self.length),
                ticks=tuple(float(n) for n in self.tested),
            ),
        )
