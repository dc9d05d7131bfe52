"""What every process measures with: sketches, windows, metrics, traces, logs."""
