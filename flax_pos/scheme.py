"""The one interface: a position scheme is a frozen dataclass of settings plus pure hooks.

Every scheme does at most three kinds of work: where is the token (once per forward), what does
the token carry (per layer and token; cached for keys), how do two tokens relate (per layer, for
a block of queries against a block of keys).
"""

import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
import pkgutil
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args

import jax

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
)
ENTRY_POINT_GROUP = "flax_pos.schemes"
_REGISTRY: dict[str, type["Scheme"]] = {}


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
    """Forwards everything to `inner`; a subclass replaces the hooks that it changes."""

    inner: Scheme

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


def _forward_claim(name: str) -> property:
    return property(lambda self: getattr(self.inner, name))


# A wrapper's claims are its inner scheme's, unless a subclass states its own.
for _claim in (
    "relative",
    "unbounded",
    "causal_only",
    "depends_on_length",
    "window",
    "chunk",
    "normalized",
):
    setattr(Wrapper, _claim, _forward_claim(_claim))


class LayerPlan(NamedTuple):
    """How a model's layers use schemes: the distinct ones, and which layer uses which."""

    parts: tuple[Scheme, ...]
    """Distinct schemes in order of first use."""
    part_of: tuple[int, ...]
    """For each layer the index into `parts`."""
    period: int
    """Smallest number of layers after which the pattern repeats (it divides the layer count)."""


def plan_layers(scheme: Scheme, layers: int) -> LayerPlan:
    """The layer plan of a model with `layers` layers."""
    parts: list[Scheme] = []
    part_of = []
    for layer in range(layers):
        # Compared by identity first: a swept field holds a tracer, which has no truth value.
        own = scheme.for_layer(layer)
        at = next(
            (i for i, p in enumerate(parts) if p is own or (own is not scheme and p == own)), None
        )
        if at is None:
            at = len(parts)
            parts.append(own)
        part_of.append(at)
    repeats = (
        p
        for p in range(1, layers + 1)
        if layers % p == 0 and all(part_of[i] == part_of[i % p] for i in range(layers))
    )
    return LayerPlan(tuple(parts), tuple(part_of), next(repeats))


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


# Registry --------------------------------------------------------------------------------------

SchemeType = TypeVar("SchemeType", bound=type[Scheme])


def register(name: str):
    """Class decorator: enters a concrete scheme under `name`.

    Raises:
      ValueError: the name is taken by another class.
      TypeError: the class is not a frozen dataclass derived from `Scheme`, or needs arguments.
    """

    def add(cls: SchemeType) -> SchemeType:
        if not (isinstance(cls, type) and issubclass(cls, Scheme)):
            raise TypeError(f"register({name!r}) is for subclasses of Scheme, got {cls!r}")
        # `dataclass` on the class itself, not inherited: otherwise its fields are not fields.
        params = vars(cls).get("__dataclass_params__")
        if params is None or not params.frozen:
            raise TypeError(
                f"{cls.__name__}: put @dataclass(frozen=True, kw_only=True) under @register"
            )
        required = [
            f.name
            for f in dataclasses.fields(cls)
            if f.init
            and f.default is dataclasses.MISSING
            and f.default_factory is dataclasses.MISSING
        ]
        if required:
            raise TypeError(
                f"{cls.__name__}: fields {required} need defaults, so that {name!r} works alone"
            )
        taken = _REGISTRY.get(name)
        if taken is not None and (taken.__module__, taken.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise ValueError(
                f"scheme {name!r} is already registered by {taken.__module__}.{taken.__qualname__}"
            )
        cls.name = name
        _REGISTRY[name] = cls
        return cls

    return add


def _load_all() -> None:
    package = importlib.import_module("flax_pos.schemes")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        entry.load()


def list_schemes() -> tuple[str, ...]:
    """Names of all registered schemes, sorted: the package's own, those of installed packages
    (entry point group `flax_pos.schemes`) and those registered in this process."""
    _load_all()
    return tuple(sorted(_REGISTRY))


def get_scheme(name: str) -> type[Scheme]:
    """The scheme class registered under `name`.

    Raises:
      ValueError: no such scheme; the message lists those that exist.
    """
    if name not in _REGISTRY:
        _load_all()
    if name not in _REGISTRY:
        raise ValueError(f"unknown scheme {name!r}; registered: {', '.join(sorted(_REGISTRY))}")
    return _REGISTRY[name]


# Plain data ------------------------------------------------------------------------------------


def to_dict(scheme: Scheme) -> dict[str, Any]:
    """`{"name": ..., field: value, ...}` out of numbers, strings, booleans, None, lists and dicts,
    as JSON and TOML hold them (nested schemes become nested dicts)."""
    if not scheme.name:
        raise ValueError(
            f"{type(scheme).__name__} is not registered, so it has no name to be read back by"
        )
    fields = {f.name: _plain(getattr(scheme, f.name)) for f in dataclasses.fields(scheme)}
    return {"name": scheme.name, **fields}


def _plain(value):
    if isinstance(value, Scheme):
        return to_dict(value)
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "to_plain"):  # settings objects of floor 1, such as RopeSpec
        return value.to_plain()
    return value


def from_dict(spec: Mapping[str, Any]) -> Scheme:
    """The inverse of `to_dict`.

    Raises:
      ValueError: no `name`, an unknown scheme, or an unknown field; the message names it and
        lists what is known.
    """
    fields = dict(spec)
    if "name" not in fields:
        raise ValueError(f"a scheme needs the key 'name', got keys {sorted(fields)}")
    cls = get_scheme(fields.pop("name"))
    known = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(fields.keys() - known.keys())
    if unknown:
        raise ValueError(
            f"scheme {cls.name!r} has no field {unknown[0]!r}; fields: {sorted(known)}"
        )
    return cls(**{name: _rich(value, known[name].type) for name, value in fields.items()})


def _rich(value, annotation):
    for kind in (annotation, *get_args(annotation)):  # also the members of `Settings | None`
        if isinstance(value, Mapping) and hasattr(kind, "from_plain"):
            return kind.from_plain(value)
    if isinstance(value, Mapping) and "name" in value:
        return from_dict(value)
    if isinstance(value, list | tuple):
        return tuple(_rich(v, None) for v in value)
    return value


__all__ = [
    "HOOKS",
    "LayerPlan",
    "Scheme",
    "Wrapper",
    "from_dict",
    "get_scheme",
    "list_schemes",
    "merge",
    "plan_layers",
    "register",
    "to_dict",
]
