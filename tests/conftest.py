"""Settings that every test shares."""

from hypothesis import settings

# The same examples in every run, and no verdict that depends on how fast the machine is.
# To search for new counterexamples: pytest --hypothesis-profile explore
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile("repeatable")
