"""What a scheme is: settings, claims and hooks; and the wrapper that hands them on."""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import jax

from flax_pos.functional.dot import mix_values
from flax_pos.types import Coords, Dims, Pair, Params, Side

HOOKS = (
    "init_model",
    "init_layer",
    "positions",
    "embed",
    "features",
    "coords",
    "rotate",
    "bias",
    "scores",
    "mix",
)

CLAIMS = (
    "relative",
    "unbounded",
    "causal_only",
    "depends_on_length",
    "window",
    "chunk",
    "normalized",
)
"""What a scheme says of itself, beside its hooks."""


def _without_unread(positions):
    """`positions` as the engine calls it: keywords that the override does not name are dropped."""
    parameters = inspect.signature(positions).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return positions
    unread = {"key", "ids", "prev"} - parameters.keys()
    if not unread:
        return positions

    @functools.wraps(positions)
    def call(self, index, **given):
        return positions(self, index, **{k: v for k, v in given.items() if k not in unread})

    return call


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scheme:
    """A position scheme. The base class is NoPE: every hook is the identity.

    Subclasses are frozen, keyword-only dataclasses whose fields are hyper-parameters with the
    paper's defaults, so that `get_scheme(name)()` always works. Sizes come from `dims`, from
    arrays or from `heads`, never from a field that repeats the model's. Concrete schemes are
    final: variation is by `Wrapper` and `Stack`.
    """

    name: ClassVar[str] = ""
    """The name in the registry; set by `register`."""
    paper: ClassVar[str] = ""
    """Where the formula comes from: author, year, arXiv number."""
    formula: ClassVar[str] = ""
    """The formula in one line of plain text."""
    relative: ClassVar[bool] = True
    """Unchanged when all positions shift together."""
    unbounded: ClassVar[bool] = True
    """Defined at any position; otherwise at 0 .. dims.max_len - 1 only."""
    causal_only: ClassVar[bool] = False
    """Has no meaning without a causal mask."""
    depends_on_length: ClassVar[bool] = False
    """Whether a token's position, features or rotation depend on the total length
    (`dims.length`), so that keys must be cached before their rotation."""
    window: ClassVar[int | None] = None
    """Sliding window that the scheme prescribes: a query sees itself and window - 1 keys before."""
    chunk: ClassVar[int | None] = None
    """Chunked attention that the scheme prescribes: only keys with the same index // chunk."""

    normalized: ClassVar[bool] = True
    """Whether weights are the softmax of the scores; otherwise they are exp(scores) as they stand,
    for schemes whose scores are logarithms of weights already (stick-breaking)."""

    toy: ClassVar[Mapping[str, Any]] = {}
    """Settings under which a few dozen tokens show all that the scheme does, where the paper's
    windows, chunks or thresholds are longer: `Cls(**Cls.toy)`, for tests and toy runs."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "positions" in vars(cls):
            cls.positions = _without_unread(cls.positions)

    # Parameters ----------------------------------------------------------------------------

    def init_model(self, key: jax.Array, dims: Dims) -> Params:
        """Parameters shared by all layers."""
        return {}

    def init_layer(self, key: jax.Array, dims: Dims) -> Params:
        """Parameters of one layer."""
        return {}

    # Once per forward ----------------------------------------------------------------------

    def positions(self, index, *, length, key=None, ids=None, prev: Coords | None = None):
        """Where the tokens with order `index` (int32 `*B T`) are put.

        Args:
          index: int32 `*B T`, -1 on padding.
          length: total length of the sequence (int or traced int32 scalar).
          key: training noise; None means evaluation.
          ids: token ids `*B T`, for schemes that read structure.
          prev: coords of the last token before these (`*B 1`), as for `coords`, for schemes that
            read structure: what they need of the tokens before is in its `pos`.

        An override may leave out those of `key`, `ids` and `prev` that it does not read.

        Returns:
          `*B T`. Pointwise in `index` given `(length, key)`, save for schemes that read `ids`.
        """
        return index

    def embed(self, params: Params, x, pos):
        """Token embeddings `*B T D` with positions added; the dtype of `x` is kept."""
        return x

    def features(self, pos, dims: Dims) -> dict[str, jax.Array]:
        """Per-token arrays `*B T ...` that depend on positions only, such as cos and sin.

        Computed once per forward and shared by all layers, by q and by k. `coords` and `rotate`
        find them in `at.feats`; they are not kept in the cache and not seen by `bias` or
        `scores` (what those need is put into feats by `coords`).
        """
        return {}

    # Per layer and token -------------------------------------------------------------------

    def coords(self, params: Params, x, at: Coords, prev: Coords | None) -> Coords:
        """`at` with what this layer's tokens carry added to `feats`; cached for keys.

        Args:
          params: this layer's parameters (shared ones merged in).
          x: the layer's input `*B T D` (after its norm).
          at: coords of these tokens.
          prev: coords of the last token before these (`*B 1 ...`), the only recurrent state; None
            at the start. Where a row has no token before, `prev.index` is -1 and its feats zeros.
        """
        return at

    def rotate(self, params: Params, x, at: Coords, side: Side):
        """q (`*B T N H`) or k (`*B T K H`) as attention sees it; the dtype of `x` is kept."""
        return x

    # Per layer and block -------------------------------------------------------------------

    def bias(self, params: Params, q_at: Coords, k_at: Coords, heads: int):
        """float32, broadcastable to `*B N T S`, added to the logits; None for none."""
        return None

    def scores(self, params: Params, pair: Pair, carry):
        """Logits `*B N T S` (float32) of one block, and the carry for the block to its left.

        Key blocks are visited right to left; `carry` comes from the keys to the right of this
        block (None at first) and is a tree of arrays whose shapes do not depend on the block.
        """
        return (pair.logits if pair.bias is None else pair.logits + pair.bias), carry

    def mix(self, params: Params, weights, v, q_at: Coords, k_at: Coords):
        """Sums of values over the keys of one block, float32 `*B N T Hv`: linear in `weights`.

        Args:
          weights: float32 `*B N T S`, zero where a key is not seen; of a row of blocks, up to a
            factor per row that the engine divides by at the end.
          v: `*B S K Hv`.
        """
        return mix_values(weights, v)

    # Derived: never overridden by a concrete scheme ------------------------------------------

    @property
    def uses(self) -> frozenset[str]:
        """Names of the hooks that this scheme really overrides; the engine picks its path by it."""
        return frozenset(h for h in HOOKS if getattr(type(self), h) is not getattr(Scheme, h))

    def for_layer(self, layer: int) -> "Scheme":
        """The scheme of one layer (wrappers that mix by layer answer differently by layer)."""
        return self

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """All parameters of a scheme that is the same in every layer.

        Returns:
          `{"model": ..., "layers": ...}`, the leaves of the second stacked over layers.
        """
        model_key, layer_key = jax.random.split(key)
        keys = jax.random.split(layer_key, dims.layers)
        return {
            "model": self.init_model(model_key, dims),
            "layers": jax.vmap(lambda k: self.init_layer(k, dims))(keys),
        }

    def layer_params(self, params: Params, layer: int) -> Params:
        """What the hooks of one layer are given, out of the result of `init`."""
        return merge(params["model"], jax.tree.map(lambda a: a[layer], params["layers"]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrapper(Scheme):
    """Forwards everything to `inner`; a subclass replaces the hooks that it changes, and calls
    `super().__post_init__()` where it checks settings of its own."""

    inner: Scheme

    def __post_init__(self):
        if not isinstance(self.inner, Scheme):
            raise TypeError(
                f"inner must be an instance of a scheme, such as Rope(), got {self.inner!r}"
            )

    @property
    def uses(self) -> frozenset[str]:
        own = {h for h in HOOKS if getattr(type(self), h) is not getattr(Wrapper, h)}
        return frozenset(own) | self.inner.uses

    def for_layer(self, layer: int) -> Scheme:
        inner = self.inner.for_layer(layer)
        return self if inner is self.inner else dataclasses.replace(self, inner=inner)

    def init_model(self, key, dims):
        return self.inner.init_model(key, dims)

    def init_layer(self, key, dims):
        return self.inner.init_layer(key, dims)

    def positions(self, index, *, length, key=None, ids=None, prev=None):
        return self.inner.positions(index, length=length, key=key, ids=ids, prev=prev)

    def embed(self, params, x, pos):
        return self.inner.embed(params, x, pos)

    def features(self, pos, dims):
        return self.inner.features(pos, dims)

    def coords(self, params, x, at, prev):
        return self.inner.coords(params, x, at, prev)

    def rotate(self, params, x, at, side):
        return self.inner.rotate(params, x, at, side)

    def bias(self, params, q_at, k_at, heads):
        return self.inner.bias(params, q_at, k_at, heads)

    def scores(self, params, pair, carry):
        return self.inner.scores(params, pair, carry)

    def mix(self, params, weights, v, q_at, k_at):
        return self.inner.mix(params, weights, v, q_at, k_at)


def _forward_claim(name: str) -> property:
    return property(lambda self: getattr(self.inner, name))


# A wrapper's claims are its inner scheme's, unless a subclass states its own.
for _claim in CLAIMS:
    setattr(Wrapper, _claim, _forward_claim(_claim))


def merge(a: Params, b: Params) -> Params:
    """Union of two nested dicts; the same parameter in both is an error."""
    out = dict(a)
    for name, value in b.items():
        if name not in out:
            out[name] = value
        elif isinstance(out[name], dict) and isinstance(value, dict):
            out[name] = merge(out[name], value)
        else:
            raise ValueError(
                f"parameter {name!r} is both a model's and a layer's; rename one of them"
            )
    return out


__all__ = ["CLAIMS", "HOOKS", "Scheme", "Wrapper", "merge"]
