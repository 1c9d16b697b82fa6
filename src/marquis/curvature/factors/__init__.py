"""What flows backwards: the square-root factor, and per-sample gradients in the form in which a rule finds them."""
