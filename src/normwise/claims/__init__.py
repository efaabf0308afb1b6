"""The statements of the field's notes as experiments: each is predicted, measured and judged."""
