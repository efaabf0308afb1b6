"""Results shown to people. Renders what it is given and computes nothing."""
