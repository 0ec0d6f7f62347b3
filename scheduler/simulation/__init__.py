"""The scheduler run forward in time by one simulator: forecasts, what-ifs, replays of traces."""
