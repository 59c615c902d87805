"""DroPE: train with positions, then without them."""

from dataclasses import dataclass

from flax_pos.functional.fields import check_flag
from flax_pos.scheme import CLAIMS, HOOKS, Scheme, Wrapper, register
from flax_pos.schemes.none import NoPE
from flax_pos.schemes.rope import Rope


@register("drope")
@dataclass(frozen=True, kw_only=True)
class Drope(Wrapper):
    """`inner` for most of training, nothing for the rest of it and from then on.

    A schedule of two schemes with the same parameters: train with `Drope()`, go on for some per
    cent of the tokens at the same length with `Drope(dropped=True)` (in a model, as the `scheme`
    of a call), then read longer texts; logits may need a factor there, such as `log_n`.
    """

    inner: Scheme = Rope()  # noqa: RUF009 - frozen
    dropped: bool = False
    """Whether positions are gone."""

    paper = "Gelberg et al. 2025, arXiv:2512.12167"
    formula = "inner, then nothing: s = q.k / sqrt(H)"

    def __post_init__(self):
        super().__post_init__()
        check_flag("dropped", self.dropped)

    @property
    def now(self) -> Scheme:
        """The scheme in force."""
        return NoPE() if self.dropped else self.inner

    @property
    def uses(self):
        return self.now.uses | (self.inner.uses & {"init_model", "init_layer"})


def _of_now(name: str) -> property:
    return property(lambda self: getattr(self.now, name))


for _name in (*(hook for hook in HOOKS if not hook.startswith("init")), *CLAIMS):
    setattr(Drope, _name, _of_now(_name))
