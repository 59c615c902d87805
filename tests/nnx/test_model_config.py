import pytest
from tiny_models import config

from flax_pos.nnx import ModelConfig


def test_derived_sizes():
    c = config(width=48, heads=4, kv_heads=None)
    assert c.dims == (48, 4, 4, 12, 2, 32, None)
    assert (c.hidden_width, c.v_dim) == (192, 12)
    assert config(width=48, heads=4, mlp="gated").hidden_width == 128
    assert config(width=16, mlp="gated").hidden_width == 48  # 42.7, in steps of 8
    assert config(width=16, mlp="gated", mlp_width=20).hidden_width == 20
    assert config(head_dim=6).dims.head_dim == 6
    assert config(value_dim=3).v_dim == 3


def test_plain_and_gated_mlp_cost_the_same():
    plain, gated = config(width=96), config(width=96, mlp="gated")
    assert 2 * plain.hidden_width == 3 * gated.hidden_width


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 18}, r"width=18 is not a multiple of heads=4; .* set head_dim"),
        ({"kv_heads": 3}, r"kv_heads=3 does not divide heads=4"),
        ({"layers": 0}, r"layers=0 must be a whole number of at least 1"),
        ({"vocab_size": 10.0}, r"vocab_size=10.0 must be a whole number"),
        ({"heads": True}, r"heads=True must be a whole number"),
        ({"mlp_width": -1}, r"mlp_width=-1 must be a whole number"),
        ({"mlp": "swiglu"}, r"mlp='swiglu' is not one of \('plain', 'gated'\)"),
        ({"activation": "tanh"}, r"activation='tanh' is not one of"),
        ({"norm": "batch"}, r"norm='batch' is not one of"),
        ({"qk_norm": True}, r"qk_norm=True is not one of"),
        ({"dtype": "bf16"}, r"dtype='bf16' is not one of .*bfloat16"),
        ({"attention": "flash"}, r"attention='flash' is not one of"),
        ({"norm_eps": 0.0}, r"norm_eps=0.0 must be greater than 0"),
        ({"logit_softcap": -1.0}, r"logit_softcap=-1.0 must be greater than 0, or None"),
        (
            {"residual": "parallel", "norm_at": "both"},
            r"norm_at='both' needs residual='sequential'",
        ),
        ({"vocab_rows": 16}, r"vocab_rows=16 is less than vocab_size=17"),
        ({"shared_key_dim": 4}, r"shared_key_dim=4 needs kv_rank"),
        ({"kv_rank": 4}, r"kv_rank=4 gives every head its own key: kv_heads=2"),
        ({"kv_rank": 4, "kv_heads": None, "shared_key_dim": 9}, r"shared_key_dim=9 is more than"),
    ],
)
def test_what_does_not_fit_is_said(settings, message):
    with pytest.raises(ValueError, match=message):
        config(**settings)


def test_replace():
    assert config().replace(layers=3).layers == 3
    with pytest.raises(ValueError, match="no field 'depth'"):
        config().replace(depth=3)
    with pytest.raises(ValueError, match="kv_heads=3"):
        config().replace(kv_heads=3)


def test_equal_settings_are_equal():
    assert config() == config()
    assert hash(config()) == hash(config())
    assert config() != config(tied=False)
    assert ModelConfig(vocab_size=5, width=4, layers=1, heads=1).tied
