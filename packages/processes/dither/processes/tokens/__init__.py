"""Token processes (absorbing, uniform, marginal): q(x_t | x_0), predictions, exact reverse step, and NELBO."""
