"""The emulated Flash device. It knows program units and erase blocks, and nothing of what is stored in them."""
