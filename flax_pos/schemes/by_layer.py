"""Different schemes in different layers."""

from dataclasses import dataclass

from flax_pos.scheme import HOOKS, Scheme, register
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.rope import Rope
from flax_pos.schemes.stack import check_parts, claim


class Layered(Scheme):
    """A scheme that is another one in each layer: layer l uses `parts[pattern[l % len(pattern)]]`.

    It has no maths of its own: a model asks `for_layer` (or `plan_layers`) and calls the hooks of
    what it gets. Window and chunk are those of the layer's scheme. Layers of the same part share
    its model parameters. A subclass has `parts` and `pattern`.
    """

    parts: tuple[Scheme, ...]
    pattern: tuple[int, ...]
    relative = claim("relative", all)
    unbounded = claim("unbounded", all)
    causal_only = claim("causal_only", any)
    depends_on_length = claim("depends_on_length", any)

    @property
    def uses(self):
        return frozenset().union(*(part.uses for part in self.parts))

    def for_layer(self, layer):
        return self.parts[self.pattern[layer % len(self.pattern)]].for_layer(layer)

    def init(self, key, dims):
        raise TypeError(_ADVICE.format(name=self.name, hook="init"))


@register("by_layer")
@dataclass(frozen=True, kw_only=True)
class ByLayer(Layered):
    """Layer l uses `parts[pattern[l % len(pattern)]]`.

    The default leaves every fourth layer without positions, as SmolLM3 and Llama 4 do.
    """

    parts: tuple[Scheme, ...] = (Rope(), NoPE())
    pattern: tuple[int, ...] = (0, 0, 0, 1)
    """For each layer of one period the index into `parts`."""

    paper = "Yang et al. 2025, arXiv:2501.18795"
    formula = "layer l uses parts[pattern[l mod len(pattern)]]"

    def __post_init__(self):
        check_parts(self.parts)
        if not isinstance(self.pattern, tuple):
            raise TypeError(f"pattern must be a tuple of numbers of parts, got {self.pattern!r}")
        if not self.pattern:
            raise ValueError("pattern must name a part for at least one layer")
        wrong = [i for i in self.pattern if i not in range(len(self.parts))]
        if wrong:
            raise ValueError(
                f"pattern holds {wrong[0]}, but the parts are 0 .. {len(self.parts) - 1}"
            )
        unused = [i for i in range(len(self.parts)) if i not in self.pattern]
        if unused:
            raise ValueError(f"part {unused[0]} ({self.parts[unused[0]].name}) is in no layer")


_ADVICE = "{name} has no {hook} of its own: call it on scheme.for_layer(layer), see plan_layers"


def _refuse(hook):
    def refuse(self, *args, **kwargs):
        raise TypeError(_ADVICE.format(name=self.name, hook=hook))

    return refuse


for _hook in HOOKS:
    setattr(Layered, _hook, _refuse(_hook))
