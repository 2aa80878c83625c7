"""Black-box suites: anyone's worker or server can be put under test, ours is one of them."""
