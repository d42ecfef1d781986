"""Arguments of a call: checked, told apart, and object trees opened."""
