"""Several schemes at once, in every layer."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax

from flax_pos.scheme import Scheme, register
from flax_pos.schemes.alibi import Alibi
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.two_level import two_level_in
from flax_pos.types import Coords


def claim(name: str, combine) -> Any:
    """A property: the claim of a scheme that is made of `parts`, from theirs."""
    return property(lambda self: combine(getattr(part, name) for part in self.parts))


@register("stack")
@dataclass(frozen=True, kw_only=True)
class Stack(Scheme):
    """All of `parts` together: positions, embeddings, coords and rotations chain in order, biases
    add, and at most one part may define `scores` (it is given the sum of the biases), at most one
    `mix`.

    Each part has its own parameters and its own features, under the key `INDEX_NAME`.
    """

    parts: tuple[Scheme, ...] = (Rope(), Alibi())

    formula = "q, k -> R_2(R_1(q, k)), b = b_1 + b_2"
    relative = claim("relative", all)
    unbounded = claim("unbounded", all)
    causal_only = claim("causal_only", any)
    normalized = claim("normalized", all)
    depends_on_length = claim("depends_on_length", any)
    window = claim("window", lambda own: min((w for w in own if w is not None), default=None))
    chunk = claim("chunk", lambda own: next((c for c in own if c is not None), None))

    def __post_init__(self):
        check_parts(self.parts)
        for part in self.parts:
            inner = two_level_in(part)
            if inner is not None and len(self.parts) > 1:
                raise ValueError(
                    f"positions of {inner.name!r} hold two numbers each, which no other part of a "
                    f"stack can read: put the others inside, {type(inner).__name__}(inner=...)"
                )
        for hook in ("scores", "mix"):
            owners = [part.name for part in self.parts if hook in part.uses]
            if len(owners) > 1:
                raise ValueError(f"at most one part of a stack may define {hook}, got {owners}")
        chunks = {part.chunk for part in self.parts if part.chunk is not None}
        if len(chunks) > 1:
            raise ValueError(f"parts of a stack prescribe different chunks: {sorted(chunks)}")

    @property
    def uses(self):
        return frozenset().union(*(part.uses for part in self.parts))

    def for_layer(self, layer):
        parts = tuple(part.for_layer(layer) for part in self.parts)
        same = all(a is b for a, b in zip(parts, self.parts, strict=True))
        return self if same else dataclasses.replace(self, parts=parts)

    def _named(self):
        return [(f"{i}_{part.name}", part) for i, part in enumerate(self.parts)]

    # Parameters ----------------------------------------------------------------------------

    def _init(self, hook, key, dims):
        keys = jax.random.split(key, len(self.parts))
        named = zip(self._named(), keys, strict=True)
        return {own: getattr(part, hook)(k, dims) for (own, part), k in named}

    def init_model(self, key, dims):
        return self._init("init_model", key, dims)

    def init_layer(self, key, dims):
        return self._init("init_layer", key, dims)

    # Once per forward ----------------------------------------------------------------------

    def positions(self, index, *, length, key=None, ids=None, prev=None):
        for i, part in enumerate(self.parts):
            own_key = None if key is None else jax.random.fold_in(key, i)
            index = part.positions(index, length=length, key=own_key, ids=ids, prev=prev)
        return index

    def embed(self, params, x, pos):
        for own, part in self._named():
            x = part.embed(params[own], x, pos)
        return x

    def features(self, pos, dims):
        named = ((own, part.features(pos, dims)) for own, part in self._named())
        return {f"{own}/{name}": value for own, feats in named for name, value in feats.items()}

    # Per layer and token -------------------------------------------------------------------

    def coords(self, params, x, at, prev):
        for own, part in self._named():
            part_prev = None if prev is None else _view(prev, own)
            new = part.coords(params[own], x, _view(at, own), part_prev)
            feats = {f"{own}/{name}": value for name, value in new.feats.items()}
            at = new._replace(feats={**at.feats, **feats})
        return at

    def rotate(self, params, x, at, side):
        for own, part in self._named():
            x = part.rotate(params[own], x, _view(at, own), side)
        return x

    # Per layer and block -------------------------------------------------------------------

    def bias(self, params, q_at, k_at, heads):
        terms = [
            part.bias(params[own], _view(q_at, own), _view(k_at, own), heads)
            for own, part in self._named()
        ]
        terms = [term for term in terms if term is not None]
        return sum(terms[1:], terms[0]) if terms else None

    def scores(self, params, pair, carry):
        for own, part in self._named():
            if "scores" in part.uses:
                pair = pair._replace(q_at=_view(pair.q_at, own), k_at=_view(pair.k_at, own))
                return part.scores(params[own], pair, carry)
        return super().scores(params, pair, carry)

    def mix(self, params, weights, v, q_at, k_at):
        for own, part in self._named():
            if "mix" in part.uses:
                return part.mix(params[own], weights, v, _view(q_at, own), _view(k_at, own))
        return super().mix(params, weights, v, q_at, k_at)


def check_parts(parts) -> None:
    """Raises unless `parts` is a tuple of at least one scheme."""
    if not isinstance(parts, tuple) or not all(isinstance(part, Scheme) for part in parts):
        raise TypeError(f"parts must be a tuple of schemes, got {parts!r}")
    if not parts:
        raise ValueError("parts must hold at least one scheme")


def _view(at: Coords, own: str) -> Coords:
    """`at` with the features of one part, under the names that it gave them."""
    start = f"{own}/"
    feats = {k.removeprefix(start): v for k, v in at.feats.items() if k.startswith(start)}
    return at._replace(feats=feats)
