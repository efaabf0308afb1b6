"""Starting runs. A launcher owns no state: the store says what is finished."""
