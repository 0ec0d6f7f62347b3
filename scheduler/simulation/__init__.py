"""The scheduler run forward in time: forecasts, what-if, replays of traces."""
