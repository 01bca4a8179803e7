"""The simulator: scheduler, engine, cost model, results. Knows no policy and no trace format."""
