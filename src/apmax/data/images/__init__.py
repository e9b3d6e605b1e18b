"""Images: uint8 stores, batches augmented at once, the paper's sets, and folders of pictures."""
