"""What every HTTP face shares: requests, responses, routes, tokens, limits, and the server."""
