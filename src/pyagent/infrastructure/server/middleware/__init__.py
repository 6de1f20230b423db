"""What every request passes before its route: authentication, rate limits, metrics, tracing and drain."""
