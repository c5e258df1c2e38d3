"""Files: replaced atomically, locked by folder, and validated before arrays are read from them."""
