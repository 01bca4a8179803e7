"""Settings that every test shares."""

import pytest
from hypothesis import settings

from sim import cli

# The same examples in every run, and no verdict that depends on how fast the machine is.
# To search for new counterexamples: pytest --hypothesis-profile explore
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile("repeatable")


@pytest.fixture
def prefixsim(capsys):
    """Run the command line in this process; give exit code, stdout and stderr."""

    def run(*args):
        with pytest.raises(SystemExit) as ended:
            cli.main([str(arg) for arg in args])
        output = capsys.readouterr()
        return ended.value.code, output.out, output.err

    return run
