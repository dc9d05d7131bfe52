"""A replica under more load than it can serve: which requests are answered, and how accurate the forecasts are."""
