"""a and k of eta, fitted to a corpus: `python -m benchmarks.method.eta_calibration`."""
