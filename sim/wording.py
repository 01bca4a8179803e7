"""Words that sentences of several parts have in common."""


def counted(number: int, noun: str) -> str:
    """Spell a number of things, such as '1 block' or '2 blocks'."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
