"""`tilewright show`."""
EXAMPLES = ("tilewright show worklog/6",)
def show() -> int:
    """X"""
    return 0
