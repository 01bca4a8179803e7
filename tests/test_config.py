"""A configuration says what is wrong with it, and names a run by what decides it."""

import pytest

from sim.config import RunConfig, kind_of, setting_of, settings
from sim.errors import UsageError


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"block_size": 0}, "--block-size 0 must be at least 1."),
        ({"block_size": "many"}, "--block-size 'many' must be a whole number, such as 16."),
        ({"block_size": "1.5"}, "--block-size '1.5' must be a whole number, such as 16."),
        ({"block_size": True}, "--block-size True must be a whole number, such as 16."),
        ({"rate": "nan"}, "--rate 'nan' must be a number."),
        ({"rate": "0"}, "--rate 0 must be greater than 0."),
        ({"rate_scale": -1}, "--rate-scale -1 must be greater than 0."),
        ({"reuse": "some"}, "--reuse 'some' must be one of all, prefill."),
        ({"arrival": "pareto"}, "--arrival 'pareto' must be one of trace, poisson, gamma"),
        ({"lenient": "maybe"}, "--lenient 'maybe' must be true or false, such as False."),
        ({"policy": ""}, "--policy '' must be text, such as 'vllm_v1'."),
        ({"policy_args": [("a", "1"), ("a", "2")]}, "--policy-arg a is given twice"),
    ],
)
def test_a_bad_value_is_named_with_its_option_and_rule(values, sentence):
    with pytest.raises(UsageError, match="^" + sentence.replace("(", r"\(")):
        RunConfig(**values)


def test_text_and_numbers_make_the_same_configuration():
    assert RunConfig(block_size="32", rate_scale="2", lenient="true") == RunConfig(
        block_size=32, rate_scale=2.0, lenient=True
    )


def test_arguments_are_kept_sorted_and_as_text():
    config = RunConfig(policy_args={"watermark": 0.02, "lookup": "walk"})
    assert config.policy_args == (("lookup", "walk"), ("watermark", "0.02"))


def test_every_setting_has_help_and_a_known_kind():
    for field in settings():
        assert setting_of(field).help.endswith(".")
        assert kind_of(field) in (str, int, float, bool)
