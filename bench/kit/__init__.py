"""What every suite is made of. `model` and `run` need the standard library only, because a
peer's own environment has nothing of ours in it."""
