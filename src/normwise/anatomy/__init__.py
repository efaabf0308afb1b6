"""Reading anyone's model: where its residual stream runs, and which norm is what."""
