"""What one program of the demo saw."""


class Result:
    """Whether it is what it should be, and a line about it."""

    def __init__(self, passed, saw):
        self.passed = passed
        self.saw = saw
