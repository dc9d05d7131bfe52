"""The replicas of every specialist: watched, ranked and chosen."""
