"""What work *says* on the wire: five rooms of one shape, strangers to each other."""
