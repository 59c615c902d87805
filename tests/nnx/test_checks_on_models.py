from tiny_models import tiny

from flax_pos.checks import (
    check_cache_equivalence,
    check_left_padding,
    check_packing,
    check_position_sensitivity,
    check_relative,
)


def test_a_model_is_checked_as_it_is():
    model = tiny("learned")
    assert check_position_sensitivity(model, expect="positions")
    assert check_relative(model, expect=False)
    assert check_left_padding(model, pads=(2,))
    assert check_packing(model)
    assert check_cache_equivalence(model, calls=[[4, 6]])


def test_nope_sees_order_through_the_mask_alone():
    """From the second layer on; the last token of a single one sees a bag of tokens."""
    for layers in (1, 2):
        found = check_position_sensitivity(tiny("none", layers=layers))
        assert (found.seen, found.causal) == ("causal mask", True)
        assert found.last_token_blind == (layers == 1)
