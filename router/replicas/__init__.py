"""The replicas behind the router: where they are, how they are, and which one gets the next request."""
