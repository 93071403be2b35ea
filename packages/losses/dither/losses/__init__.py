"""What training minimises: pure functions of a prediction and of the record it was made from."""
